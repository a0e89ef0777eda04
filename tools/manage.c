/* SPDX-License-Identifier: Apache-2.0
 *
 * pin, unpin, touch, reset.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"
#include "tools/commands.h"
#include "tools/host.h"

/* A session on the namespace of @name that may change it, or that may ask; NULL after a sentence. */
static struct pfs_session *open_namespace(const char *mount, const char *name, bool change)
{
	struct pfs_session *session = NULL;
	struct pfs_options options;
	char path[PATH_MAX];

	mount = host_mount(mount);
	if (!mount || host_namespace(path, mount, name, ""))
		return NULL;
	pfs_options_init(&options);
	options.read_only = !change;
	if (pfs_open(path, &options, &session))
		complain_client(path);
	return session;
}

/* The key that a record's name ends with; 16 digits and a '-' stand before it (host_record has checked that). */
static void key_of_name(const char *name, struct pfs_key *ret)
{
	const char *digits = name + 17;

	for (unsigned i = 0; i < PFS_KEY_BYTES; i++) {
		char pair[3] = {digits[2 * i], digits[2 * i + 1], '\0'};

		ret->bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
}

/* Keys of the endpoints of the records of these names, to be freed; NULL after a sentence: one is not there. */
static struct pfs_key *record_keys(const char *mount, const char *namespace, int count, char **names)
{
	struct pfs_key *keys = calloc((size_t)count, sizeof(*keys));
	char records[PATH_MAX], path[PATH_MAX];
	int r = keys ? 0 : complain("no memory for %d keys", count);

	mount = host_mount(mount);
	if (!r && (!mount || host_namespace(records, mount, namespace, "/records")))
		r = 1;
	for (int i = 0; i < count && !r; i++) {
		r = host_record(path, records, names[i]);
		if (!r && access(path, F_OK))
			r = complain("%s: %s", names[i], strerror(errno));
		if (!r)
			key_of_name(names[i], &keys[i]);
	}
	if (r) {
		free(keys);
		return NULL;
	}
	return keys;
}

/* Reads the options and the arguments NAMESPACE RECORD...; EXIT_USAGE or 0. */
static int read_records(const struct command *self, int *argc, char **argv, const char **mount, bool *json)
{
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, mount, "DIR", "the mount", 0, 0},
		{"json", OPTION_FLAG, json, NULL, "one JSON object", 0, 0},
		{0},
	};

	options_read(self, rows, argc, argv);
	if (*argc < 2)
		return usage_error(self, "a namespace and at least one record are needed");
	if ((unsigned)*argc - 1 > PFS_MAX_KEYS)
		return usage_error(self, "%d records, at most %u are possible", *argc - 1, PFS_MAX_KEYS);
	return 0;
}

static int pin_or_unpin(const struct command *self, int argc, char **argv, uint32_t flags)
{
	struct pfs_pin_result out = {0};
	struct pfs_session *session;
	const char *mount = NULL;
	struct pfs_key *keys;
	bool json = false;
	int r = read_records(self, &argc, argv, &mount, &json), error = 0;

	if (r)
		return r;
	keys = record_keys(mount, argv[0], argc - 1, argv + 1);
	if (!keys)
		return 1;
	session = open_namespace(mount, argv[0], true);
	if (session)
		error = pfs_pin(session, keys, (uint32_t)argc - 1, flags | PFS_PIN_ENDPOINTS, NULL, &out);
	if (session && error)
		complain_client(self->name);
	if (session && (!error || error == -ENOSPC))
		show_object(json_pack("{s:I, s:I, s:I, s:I}", "changed", (json_int_t)out.changed, "gone",
				    (json_int_t)out.absent, "pinned_bytes", (json_int_t)out.pinned_bytes, "limit_bytes",
				    (json_int_t)out.limit_bytes),
			json);
	r = !session || error || out.absent;
	pfs_close(&session);
	free(keys);
	return r;
}

int command_pin(const struct command *self, int argc, char **argv)
{
	return pin_or_unpin(self, argc, argv, 0);
}

int command_unpin(const struct command *self, int argc, char **argv)
{
	return pin_or_unpin(self, argc, argv, PFS_PIN_RELEASE);
}

int command_touch(const struct command *self, int argc, char **argv)
{
	struct pfs_session *session;
	const char *mount = NULL;
	uint32_t touched = 0;
	struct pfs_key *keys;
	bool json = false;
	int r = read_records(self, &argc, argv, &mount, &json);

	if (r)
		return r;
	keys = record_keys(mount, argv[0], argc - 1, argv + 1);
	if (!keys)
		return 1;
	session = open_namespace(mount, argv[0], false);
	r = !session;
	if (session && pfs_touch(session, keys, (uint32_t)argc - 1, 0, 0, &touched))
		r = complain_client("touch");
	if (!r)
		show_object(json_pack("{s:I}", "touched", (json_int_t)touched), json);
	pfs_close(&session);
	free(keys);
	return r;
}

/* Reads the options and the argument NAMESPACE, and opens it to be changed. @status is what to end with when it is NULL. */
static struct pfs_session *read_namespace(const struct command *self, int argc, char **argv, bool *json, int *status)
{
	const char *mount = NULL;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount", 0, 0},
		{"json", OPTION_FLAG, json, NULL, "one JSON object", 0, 0},
		{0},
	};

	options_read(self, rows, &argc, argv);
	*status = argc == 1 ? 1 : usage_error(self, "one namespace is expected, %d are given", argc);
	return argc == 1 ? open_namespace(mount, argv[0], true) : NULL;
}

int command_reset(const struct command *self, int argc, char **argv)
{
	struct pfs_reset_result out;
	bool json = false;
	int r;
	struct pfs_session *session = read_namespace(self, argc, argv, &json, &r);

	if (!session)
		return r;
	r = pfs_reset(session, &out) ? complain_client("reset") : 0;
	if (!r)
		show_object(json_pack("{s:I, s:I, s:I}", "generation", (json_int_t)out.generation, "values",
				    (json_int_t)out.values, "held_records", (json_int_t)out.held),
			json);
	pfs_close(&session);
	return r;
}
