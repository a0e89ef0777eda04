/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/config.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/cleanup.h"
#include "store/base/killpoint.h"
#include "store/disk_ops.h"
#include "store/tier.h"

enum param_type { PARAM_SIZE, PARAM_UINT, PARAM_MODE, PARAM_BOOL, PARAM_CHOICE, PARAM_TEXT };

struct param {
	const char *name;
	enum param_type type;
	const char *standard;
	uint64_t least, most; /* of numbers; of a text, `most` bytes */
	const char *choices;  /* "a|b|c" */
	const char *help;
	size_t offset;
};

/* A row's fourth column is a number, or for a choice its names. */
#define PARAM_LEAST_SIZE(v) (v)
#define PARAM_LEAST_UINT(v) (v)
#define PARAM_LEAST_MODE(v) (v)
#define PARAM_LEAST_BOOL(v) (v)
#define PARAM_LEAST_TEXT(v) (v)
#define PARAM_LEAST_CHOICE(v) 0
#define PARAM_NAMES_SIZE(v) NULL
#define PARAM_NAMES_UINT(v) NULL
#define PARAM_NAMES_MODE(v) NULL
#define PARAM_NAMES_BOOL(v) NULL
#define PARAM_NAMES_TEXT(v) NULL
#define PARAM_NAMES_CHOICE(v) v

static const struct param params[] = {
#define X(type_, name_, standard_, least_, most_, help_)                                                             \
	{.name = #name_,                                                                                             \
		.type = PARAM_##type_,                                                                               \
		.standard = standard_,                                                                               \
		.least = PARAM_LEAST_##type_(least_),                                                                \
		.most = most_,                                                                                       \
		.choices = PARAM_NAMES_##type_(least_),                                                              \
		.help = help_,                                                                                       \
		.offset = offsetof(struct config, name_)},
	CONFIG_PARAMETERS(X)
#undef X
};
#define PARAMS (sizeof(params) / sizeof(params[0]))

static uint64_t *param_number(struct config *config, const struct param *p)
{
	return (uint64_t *)((char *)config + p->offset);
}

static char *param_text(struct config *config, const struct param *p)
{
	return (char *)config + p->offset;
}

static bool same_name(const char *a, const char *b)
{
	for (; *a && *b; a++, b++)
		if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
			return false;
	return *a == *b;
}

static const struct param *param_find(const char *name)
{
	for (size_t i = 0; i < PARAMS; i++)
		if (same_name(params[i].name, name))
			return &params[i];
	return NULL;
}

static int unknown_name(const char *name, struct why *why)
{
	char known[440];
	size_t used = 0;

	for (size_t i = 0; i < PARAMS && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? " " : "", params[i].name);
	return why_set(why, EINVAL, "there is no parameter '%.40s'; known are: %s", name, known);
}

bool config_parse_size(const char *text, uint64_t *ret)
{
	char *end;
	unsigned shift = 0;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 0);
	if (errno || end == text)
		return false;
	switch (*end) {
	case 'k':
	case 'K':
		shift = 10;
		break;
	case 'm':
	case 'M':
		shift = 20;
		break;
	case 'g':
	case 'G':
		shift = 30;
		break;
	case 't':
	case 'T':
		shift = 40;
		break;
	default:
		break;
	}
	if (shift)
		end++;
	if (*end || number > UINT64_MAX >> shift)
		return false;
	*ret = (uint64_t)number << shift;
	return true;
}

static bool parse_number(const char *text, int base, uint64_t *ret)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long long number = strtoull(text, &end, base);
	if (errno || *end)
		return false;
	*ret = number;
	return true;
}

static bool parse_bool(const char *text, uint64_t *ret)
{
	static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(text, words[i])) {
			*ret = i & 1;
			return true;
		}
	return false;
}

/* The name of choice @number, and its length; NULL past the last one. */
static const char *choice_name(const struct param *p, uint64_t number, size_t *length)
{
	const char *at = p->choices;

	for (;; number--) {
		*length = strcspn(at, "|");
		if (number == 0)
			return at;
		if (!at[*length])
			return NULL;
		at += *length + 1;
	}
}

static bool parse_choice(const struct param *p, const char *text, uint64_t *ret)
{
	size_t length;
	const char *name;

	for (uint64_t i = 0; (name = choice_name(p, i, &length)); i++)
		if (strlen(text) == length && !memcmp(name, text, length)) {
			*ret = i;
			return true;
		}
	return false;
}

static int set_number(struct config *config, const struct param *p, const char *value, struct why *why)
{
	uint64_t number = 0;
	bool good;

	switch (p->type) {
	case PARAM_SIZE:
		good = config_parse_size(value, &number);
		break;
	case PARAM_MODE:
		good = parse_number(value, 8, &number);
		break;
	default:
		if (!strcmp(value, "self")) {
			good = true;
			number = !strcmp(p->name, "gid") ? getegid() : geteuid();
			break;
		}
		good = parse_number(value, 10, &number);
	}
	if (!good)
		return why_set(why, EINVAL, "%s: '%.60s' is not %s", p->name, value,
			p->type == PARAM_SIZE         ? "a size (a number, then K, M, G, T or nothing)"
				: p->type == PARAM_MODE ? "permission bits in octal"
							: "a whole number");
	if (number < p->least || number > p->most)
		return why_set(why, EINVAL, p->type == PARAM_MODE ? "%s: %.60s is outside %" PRIo64 " to %" PRIo64
								  : "%s: %.60s is outside %" PRIu64 " to %" PRIu64,
			p->name, value, p->least, p->most);
	*param_number(config, p) = number;
	return 0;
}

static int param_set(struct config *config, const struct param *p, const char *value, struct why *why)
{
	switch (p->type) {
	case PARAM_BOOL:
		if (!parse_bool(value, param_number(config, p)))
			return why_set(why, EINVAL, "%s: '%.60s' is neither true nor false", p->name, value);
		return 0;
	case PARAM_CHOICE:
		if (!parse_choice(p, value, param_number(config, p)))
			return why_set(why, EINVAL, "%s: '%.60s' is not one of %s", p->name, value, p->choices);
		return 0;
	case PARAM_TEXT:
		if (strlen(value) > p->most)
			return why_set(why, EINVAL, "%s: the text has %zu bytes, at most %" PRIu64 " are allowed",
				p->name, strlen(value), p->most);
		strcpy(param_text(config, p), value); /* most < CONFIG_TEXT_BYTES, asserted in config_init */
		return 0;
	default:
		return set_number(config, p, value, why);
	}
}

void config_init(struct config *config)
{
	memset(config, 0, sizeof(*config));
	for (size_t i = 0; i < PARAMS; i++) {
		struct why why = WHY_INIT;

		if ((params[i].type == PARAM_TEXT && params[i].most >= CONFIG_TEXT_BYTES) ||
			param_set(config, &params[i], params[i].standard, &why) != 0) {
			fprintf(stderr, "config: the default of %s is wrong: %s\n", params[i].name, why.text);
			abort();
		}
	}
}

int config_set(struct config *config, const char *name, const char *value, struct why *why)
{
	const struct param *p = param_find(name);

	return p ? param_set(config, p, value, why) : unknown_name(name, why);
}

static int set_json(struct config *config, const char *name, const json_t *value, struct why *why)
{
	char number[32];

	switch (json_typeof(value)) {
	case JSON_STRING:
		return config_set(config, name, json_string_value(value), why);
	case JSON_INTEGER:
		snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		return config_set(config, name, number, why);
	case JSON_TRUE:
		return config_set(config, name, "true", why);
	case JSON_FALSE:
		return config_set(config, name, "false", why);
	default:
		return why_set(why, EINVAL, "%s: neither a text nor a whole number nor true or false", name);
	}
}

static void json_freep(json_t **json)
{
	json_decref(*json);
}

int config_read_file(struct config *config, const char *path, struct why *why)
{
	json_error_t error;
	const char *name;
	json_t *value;
	cleanup(fclosep) FILE *file = fopen(path, "re");

	if (!file)
		return why_set(why, errno, "%s: %s", path, strerror(errno));
	cleanup(json_freep) json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		return why_set(why, EINVAL, "%s: line %d: %s", path, error.line, error.text);
	if (!json_is_object(root))
		return why_set(why, EINVAL, "%s: not a JSON object of parameters", path);
	json_object_foreach(root, name, value)
	{
		int r = set_json(config, name, value, why);

		if (r) {
			why_prefix(why, "%s", path);
			return r;
		}
	}
	return 0;
}

/* An option that stands on its own means true, --no-NAME false. */
static int set_bare(struct config *config, const char *name, bool *wants_value, struct why *why)
{
	const struct param *p = param_find(name);

	*wants_value = false;
	if (p && p->type == PARAM_BOOL)
		return param_set(config, p, "true", why);
	if (p) {
		*wants_value = true;
		return 0;
	}
	if (!strncmp(name, "no-", 3) || !strncmp(name, "no_", 3)) {
		p = param_find(name + 3);
		if (p && p->type == PARAM_BOOL)
			return param_set(config, p, "false", why);
	}
	return unknown_name(name, why);
}

/* argv[*i] is an option; *i moves over its value. */
static int parse_option(struct config *config, int argc, char *const *argv, int *i, struct why *why)
{
	const char *option = argv[*i] + 2;
	const char *equals = strchr(option, '=');
	char name[64];
	bool wants_value;
	int r;

	if (equals) {
		snprintf(name, sizeof(name), "%.*s", (int)(equals - option), option);
		if (!strcmp(name, "config"))
			return 0;
		if (!strcmp(name, "serve")) {
			snprintf(config->serve, sizeof(config->serve), "%s", equals + 1);
			return 0;
		}
		return config_set(config, name, equals + 1, why);
	}
	wants_value = !strcmp(option, "config");
	r = wants_value ? 0 : set_bare(config, option, &wants_value, why);
	if (r || !wants_value)
		return r;
	if (*i + 1 >= argc)
		return why_set(why, EINVAL, "--%.40s needs a value", option);
	(*i)++;
	return strcmp(option, "config") ? config_set(config, option, argv[*i], why) : 0;
}

static int read_config_option(struct config *config, int argc, char *const *argv, struct why *why)
{
	for (int i = 1; i < argc; i++) {
		const char *path = NULL;

		if (!strncmp(argv[i], "--config=", 9))
			path = argv[i] + 9;
		else if (!strcmp(argv[i], "--config") && i + 1 < argc)
			path = argv[i + 1];
		if (path) {
			int r = config_read_file(config, path, why);

			if (r)
				return r;
		}
	}
	return 0;
}

int config_parse_args(struct config *config, int argc, char *const *argv, enum config_action *action, struct why *why)
{
	int r = read_config_option(config, argc, argv, why);

	*action = CONFIG_RUN;
	for (int i = 1; i < argc && !r; i++) {
		const char *a = argv[i];

		if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
			*action = CONFIG_HELP;
			return 0;
		}
		if (!strcmp(a, "--version") || !strcmp(a, "-V")) {
			*action = CONFIG_VERSION;
			return 0;
		}
		if (!strcmp(a, "-f"))
			config->foreground = true;
		else if (!strncmp(a, "--", 2) && a[2])
			r = parse_option(config, argc, argv, &i, why);
		else if (a[0] == '-')
			r = why_set(why, EINVAL, "there is no option '%.40s'; see --help", a);
		else if (config->mountpoint[0])
			r = why_set(why, EINVAL, "two mount points, '%.100s' and '%.100s'; one is meant",
				config->mountpoint, a);
		else if (strlen(a) >= sizeof(config->mountpoint))
			r = why_set(why, ENAMETOOLONG, "the mount point's path has %zu bytes", strlen(a));
		else
			strcpy(config->mountpoint, a);
	}
	if (!r && !config->mountpoint[0])
		r = why_set(why, EINVAL, "no mount point was named; usage: prefixfsd [options] MOUNTPOINT");
	return r;
}

uint64_t config_drain_s(const struct config *config, bool *newest)
{
	uint64_t seconds = 0;

	*newest = parse_number(config->drain, 10, &seconds);
	return !strcmp(config->drain, "full") ? config->drain_limit : seconds;
}

static int settle_drain(const struct config *config, struct why *why)
{
	bool newest;
	uint64_t seconds = config_drain_s(config, &newest);

	if (!newest && strcmp(config->drain, "none") && strcmp(config->drain, "full"))
		return why_set(why, EINVAL, "drain: '%s' is neither none nor full nor a number of seconds", config->drain);
	if (seconds > config->drain_limit)
		return why_set(why, EINVAL, "drain: %" PRIu64 " s are over the drain_limit of %" PRIu64 " s", seconds,
			config->drain_limit);
	return 0;
}

/* What makes no sense without a folder is a slip that would cost a warm cache: it is refused. */
static int refuse_without_disk(const struct config *config, struct why *why)
{
	bool newest;
	const char *name = config->disk_only     ? "disk_only"
			   : config->disk_bytes  ? "disk_bytes"
			   : config->durability  ? "durability"
			   : config->disk_io     ? "disk_io"
			   : config->disk_fault[0] ? "disk_fault"
			   : config_drain_s(config, &newest) ? "drain"
							     : NULL;

	return name ? why_set(why, EINVAL, "%s: there is no disk tier without `disk`, the folder of its files", name) : 0;
}

static int settle_disk(struct config *config, struct why *why)
{
	char *here;
	int r = settle_drain(config, why);

	if (r || !config->disk[0])
		return r ? r : refuse_without_disk(config, why);
	if (config->disk_bytes && config->disk_bytes < CONFIG_DISK_LEAST)
		return why_set(why, EINVAL, "disk_bytes: %" PRIu64 " are under the least budget of %llu", config->disk_bytes,
			CONFIG_DISK_LEAST);
	if (config->disk[0] == '/')
		return 0;
	/* The daemon in the background is at home in /. */
	here = getcwd(NULL, 0);
	if (!here)
		return why_set(why, errno, "disk: '%s' is not absolute, and this folder has no path: %s", config->disk,
			strerror(errno));
	size_t bytes = strlen(here) + 1 + strlen(config->disk);
	if (bytes >= CONFIG_TEXT_BYTES) {
		r = why_set(why, ENAMETOOLONG, "disk: the path has %zu bytes, at most %u are allowed", bytes,
			CONFIG_TEXT_BYTES - 1);
	} else {
		memmove(config->disk + strlen(here) + 1, config->disk, strlen(config->disk) + 1);
		memcpy(config->disk, here, strlen(here));
		config->disk[strlen(here)] = '/';
	}
	free(here);
	return r;
}

static int check_points(const struct config *config, struct why *why)
{
	int r = killpoint_rules(config->crash_at, 0, false, why);

	if (r) {
		why_prefix(why, "crash_at");
		return r;
	}
	r = killpoint_rules(config->stop_at, 0, true, why);
	if (r)
		why_prefix(why, "stop_at");
	return r;
}

static int check_faults(const struct config *config, struct why *why)
{
	int r = tier_fault_check(config->memory_fault, why);

	if (r) {
		why_prefix(why, "memory_fault");
		return r;
	}
	r = disk_ops_fault_check(config->disk_fault, why);
	if (r) {
		why_prefix(why, "disk_fault");
		return r;
	}
	return check_points(config, why);
}

int config_settle(struct config *config, struct why *why)
{
	int r = check_faults(config, why);

	if (!r)
		r = settle_disk(config, why);
	if (r)
		return r;
	if (config->loop_threads == 0) {
		cpu_set_t set;
		int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

		config->loop_threads = cores < 1 ? 1 : cores > 4 ? 4 : (uint64_t)cores;
	}
	if (!config->run_dir[0]) {
		const char *runtime = getenv("XDG_RUNTIME_DIR");

		if (geteuid() == 0)
			strcpy(config->run_dir, "/run/prefixfs");
		else if (!runtime || !*runtime)
			return why_set(why, EINVAL, "run_dir: XDG_RUNTIME_DIR is not set; use --run-dir");
		else if ((size_t)snprintf(config->run_dir, sizeof(config->run_dir), "%s/prefixfs", runtime) > 64)
			return why_set(why, ENAMETOOLONG, "run_dir: '%.80s/prefixfs' has more than 64 bytes; "
				"a socket's path must fit 104", runtime);
	}
	if (config->run_dir[0] != '/')
		return why_set(why, EINVAL, "run_dir: '%s' is not an absolute path", config->run_dir);
	if (config->allow_other == CONFIG_OTHER_AUTO)
		config->allow_other = geteuid() == 0 ? CONFIG_OTHER_YES : CONFIG_OTHER_NO;
	return 0;
}

static void print_value(const struct config *config, const struct param *p, char *to, size_t bytes)
{
	uint64_t number = p->type == PARAM_TEXT ? 0 : *param_number((struct config *)config, p);
	size_t length;
	const char *name;

	switch (p->type) {
	case PARAM_TEXT:
		snprintf(to, bytes, "%s", param_text((struct config *)config, p));
		break;
	case PARAM_MODE:
		snprintf(to, bytes, "0%03" PRIo64, number);
		break;
	case PARAM_BOOL:
		snprintf(to, bytes, "%s", number ? "true" : "false");
		break;
	case PARAM_CHOICE:
		name = choice_name(p, number, &length);
		snprintf(to, bytes, "%.*s", (int)length, name);
		break;
	default:
		snprintf(to, bytes, "%" PRIu64, number);
	}
}

void config_print(const struct config *config, FILE *to)
{
	for (size_t i = 0; i < PARAMS; i++) {
		char value[CONFIG_TEXT_BYTES];

		print_value(config, &params[i], value, sizeof(value));
		fprintf(to, "%s%s%s\n", params[i].name, value[0] ? " " : "", value);
	}
}

bool config_argument(const struct config *config, unsigned i, char *to, size_t bytes)
{
	char value[CONFIG_TEXT_BYTES];

	if (i >= PARAMS)
		return false;
	print_value(config, &params[i], value, sizeof(value));
	snprintf(to, bytes, "--%s=%s", params[i].name, value);
	return true;
}

void config_print_help(FILE *to)
{
	static const char *const types[] = {"SIZE", "N", "OCTAL", "BOOL", "", "TEXT"};

	fprintf(to, "usage: prefixfsd [options] MOUNTPOINT\n"
		    "       prefixfsd --fsck FOLDER [--repair] [--rebuild] [--values] [--json]\n\n"
		    "Shows the KV-cache tiers of this host as a mount and serves engines through its control files.\n\n"
		    "  --config FILE   JSON object of the parameters below; options on the command line go before it\n"
		    "  -f              the same as --foreground\n"
		    "  --help, --version\n\n"
		    "Parameters, as --name VALUE or --name=VALUE; sizes accept K, M, G, T:\n");
	for (size_t i = 0; i < PARAMS; i++) {
		const struct param *p = &params[i];
		char name[80];

		snprintf(name, sizeof(name), "--%s %s", p->name, p->type == PARAM_CHOICE ? p->choices : types[p->type]);
		for (char *c = name; *c && *c != ' '; c++)
			*c = *c == '_' ? '-' : *c;
		fprintf(to, "  %-38s %s (%s", name, p->help, p->standard[0] ? p->standard : "empty");
		if (p->type == PARAM_UINT || p->type == PARAM_SIZE)
			fprintf(to, "; %" PRIu64 " to %" PRIu64, p->least, p->most);
		fprintf(to, ")\n");
	}
}
