/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ctl_command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fs/config.h"
#include "fs/ctl.h"
#include "fs/ctl_blob.h"
#include "fs/record_name.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"

#define REFUSALS_NAMED EVICTION_REFUSALS
#define DRAIN_WAIT_S 20u /* a write takes CTL_WRITE_MS at most */
#define DRAIN_WAIT_MOST_S 25u
#define CHECK_WAIT_NS 1000000000ull
#define WORD_SHOWN "%.40s" /* of what the client wrote */

struct ctl_command {
	const char *name, *arguments, *does;
	unsigned least, most; /* arguments */
	int (*begin)(struct ctl_command_run *run, char **arguments, struct why *why);
	int (*step)(struct ctl_command_run *run, struct why *why); /* NULL: begin does all */
	void (*done)(struct ctl_command_run *run); /* puts what was done into the answer, after an error too; NULL: nothing */
};

static void put_number(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

static struct session *session(const struct ctl_command_run *run)
{
	return ctl_session(run->ctl);
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

static int parse_keys(struct ctl_command_run *run, char **words, struct why *why)
{
	for (unsigned i = 0; i < run->count; i++)
		if (strlen(words[i]) != 2 * sizeof(struct key) ||
			!hex_parse(words[i], sizeof(struct key), run->keys[i].bytes))
			return why_set(why, EINVAL, "argument %u, `" WORD_SHOWN "`: a key is 64 hex digits, a to f small",
				i + 1, words[i]);
	return 0;
}

static int parse_records(struct ctl_command_run *run, char **words, struct why *why)
{
	for (unsigned i = 0; i < run->count; i++)
		if (!record_name_parse(words[i], &run->consumed[i], &run->keys[i]))
			return why_set(why, EINVAL,
				"argument %u, `" WORD_SHOWN "`: a record is named as in records/, 16 and 64 hex digits",
				i + 1, words[i]);
	return 0;
}

static bool record_is_there(const struct ctl_command_run *run, unsigned i)
{
	struct record_info info;

	return space_record_find(ctl_space(run->ctl), &run->keys[i], false, &info) == 0 &&
	       info.consumed == run->consumed[i];
}

/* ---- questions ------------------------------------------------------------------------------------------------- */

static int stat_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	struct space *space = ctl_space(run->ctl);
	size_t size = space_stats_text(space, NULL, 0) + 4096; /* numbers may grow meanwhile */
	cleanup(freep) char *text = calloc(1, size + 1);
	char *rest = NULL;

	if (!text)
		return why_set(why, ENOMEM, "no memory for the counters");
	space_stats_text(space, text, size);
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *value = strchr(line, ' ');

		if (!value)
			continue;
		*value++ = '\0';
		put_number(run->answer, line, strtoull(value, NULL, 10));
	}
	return 0;
}

static int probe_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	run->work.probe = (struct probe){
		.session = session(run), .keys = run->keys, .key_count = run->count, .hits = run->hits};
	return parse_keys(run, words, why) ? -why->error : STEP_MORE;
}

static int probe_go_on(struct ctl_command_run *run, struct why *why)
{
	int r = probe_step(&run->work.probe, why);
	json_t *present = r ? NULL : json_array();

	if (r)
		return r;
	for (unsigned i = 0; i < run->count; i++)
		json_array_append_new(present, json_integer((json_int_t)(run->hits[i / 64] >> (i % 64) & 1)));
	put_number(run->answer, "hits", run->work.probe.hit_count);
	put_number(run->answer, "prefix", run->work.probe.prefix);
	json_object_set_new(run->answer, "present", present);
	return 0;
}

static int plan_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	struct session_info info;

	if (session_info(session_host(session(run)), session_number(session(run)), &info))
		return why_set(why, ESHUTDOWN, "the session has ended");
	put_number(run->answer, "session", info.number);
	put_number(run->answer, "put_plans", info.put_plans);
	put_number(run->answer, "get_plans", info.get_plans);
	put_number(run->answer, "handles", info.handles);
	put_number(run->answer, "prepared_bytes", info.prepared_bytes);
	put_number(run->answer, "pins", info.pins);
	put_number(run->answer, "oldest_ms", info.oldest_ms);
	return 0;
}

/* ---- pin, unpin, touch ----------------------------------------------------------------------------------------- */

static int pin_or_unpin(struct ctl_command_run *run, char **words, uint32_t flags, struct why *why)
{
	struct pinning *w = &run->work.pinning;
	int r = parse_records(run, words, why);

	if (r)
		return r;
	if (!record_is_there(run, 0))
		return why_set(why, ENOENT, "%s: there is no such record", words[0]);
	*w = (struct pinning){
		.session = session(run), .keys = run->keys, .key_count = 1, .flags = PINNING_ENDPOINTS | flags};
	r = pinning_begin(w, why);
	while (r == STEP_MORE)
		r = pinning_step(w, why); /* of one key */
	if (r && r != -ENOSPC)
		return r;
	put_number(run->answer, "changed", w->changed);
	put_number(run->answer, "pinned_bytes", w->pinned_bytes);
	put_number(run->answer, "limit_bytes", w->limit_bytes);
	return !r && w->absent ? why_set(why, ENOENT, "%s: there is no such record", words[0]) : r;
}

static int pin_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	return pin_or_unpin(run, words, 0, why);
}

static int unpin_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	return pin_or_unpin(run, words, PINNING_RELEASE, why);
}

static int touch_command(struct ctl_command_run *run, char **words, struct why *why)
{
	struct touch *w = &run->work.touch;
	unsigned there = 0;
	int r = parse_records(run, words, why);

	if (r)
		return r;
	for (unsigned i = 0; i < run->count; i++)
		if (record_is_there(run, i))
			run->keys[there++] = run->keys[i];
	run->absent = run->count - there;
	*w = (struct touch){.session = session(run), .keys = run->keys, .key_count = there};
	return there ? touch_begin(w, why) : 0;
}

static int touch_go_on(struct ctl_command_run *run, struct why *why)
{
	return touch_step(&run->work.touch, why);
}

static void touch_done(struct ctl_command_run *run)
{
	put_number(run->answer, "touched", run->work.touch.touched);
	put_number(run->answer, "absent", run->absent);
}

/* ---- evict ----------------------------------------------------------------------------------------------------- */

static void note_refusal(struct ctl_command_run *run, uint64_t consumed, const struct key *endpoint, const struct why *why)
{
	char name[RECORD_NAME_BYTES + 1];
	json_t *refusal;

	if (!run->refusals)
		run->refusals = json_array();
	if (json_array_size(run->refusals) == REFUSALS_NAMED)
		return;
	record_name(consumed, endpoint, name);
	refusal = json_object();
	json_object_set_new(refusal, "record", json_string(name));
	json_object_set_new(refusal, "error", json_string(why->text));
	json_object_set_new(refusal, "errno", json_string(strerrorname_np(why->error)));
	json_array_append_new(run->refusals, refusal);
}

/* The deepest first: one that descends from another goes before it. */
static void sort_records(struct ctl_command_run *run)
{
	for (unsigned i = 1; i < run->count; i++)
		for (unsigned k = i; k && run->consumed[k] > run->consumed[k - 1]; k--) {
			uint64_t consumed = run->consumed[k];
			struct key key = run->keys[k];

			run->consumed[k] = run->consumed[k - 1];
			run->keys[k] = run->keys[k - 1];
			run->consumed[k - 1] = consumed;
			run->keys[k - 1] = key;
		}
}

static int evict_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	struct eviction *w = &run->work.eviction;
	bool all = !strcmp(words[0], "--all"), bytes = !strcmp(words[0], "--bytes");
	int r = 0;

	*w = (struct eviction){.session = session(run), .goal_bytes = EVICTION_ALL};
	if (all && run->count > 1)
		return why_set(why, EINVAL, "--all: `" WORD_SHOWN "` after it is one word too many", words[1]);
	if (bytes && run->count != 2)
		return why_set(why, EINVAL, "--bytes takes one number, %u words follow it", run->count - 1);
	if (bytes && (!config_parse_size(words[1], &w->goal_bytes) || !w->goal_bytes || w->goal_bytes == EVICTION_ALL))
		return why_set(why, EINVAL, "--bytes: `" WORD_SHOWN "` is no number of bytes, such as 4096, 16M or 2G",
			words[1]);
	if (!all && !bytes && words[0][0] == '-')
		return why_set(why, EINVAL, "`" WORD_SHOWN "`: evict knows --all and --bytes", words[0]);
	if (all || bytes)
		run->count = 0;
	else
		r = parse_records(run, words, why);
	if (r)
		return r;
	sort_records(run);
	return eviction_begin(w, why);
}

static int evict_named(struct ctl_command_run *run, struct why *why)
{
	struct eviction *w = &run->work.eviction;
	uint64_t stop = w->values + PUT_STEP_KEYS;

	for (; run->next < run->count && w->values < stop; run->next++) {
		struct why mine = WHY_INIT;

		if (!eviction_record(w, run->consumed[run->next], &run->keys[run->next], &mine))
			continue;
		note_refusal(run, run->consumed[run->next], &run->keys[run->next], &mine);
		if (!run->refused++)
			run->why = mine;
	}
	if (run->next < run->count)
		return STEP_MORE;
	if (!run->refused)
		return 0;
	return why_set(why, run->why.error, "%u of %u records stay: %s", run->refused, run->count, run->why.text);
}

/* Those that were met and are there still, with the reason of this moment. */
static void name_refusals(struct ctl_command_run *run)
{
	struct eviction *w = &run->work.eviction;
	struct space *space = ctl_space(run->ctl);

	run->refused = (unsigned)w->refused;
	for (uint32_t i = 0; i < w->refusals; i++) {
		const struct eviction_refusal *refusal = &w->refusal[i];
		struct record_info info;
		struct why why = WHY_INIT;

		if (space_record_get(space, refusal->number, refusal->generation, &info) == 0 &&
			space_record_evict(space, refusal->number, refusal->generation, true, &why))
			note_refusal(run, info.consumed, &info.endpoint, &why);
	}
}

static int evict_go_on(struct ctl_command_run *run, struct why *why)
{
	struct eviction *w = &run->work.eviction;
	struct space_report report;
	int r;

	if (run->count)
		return evict_named(run, why);
	r = eviction_step(w, why);
	if (r)
		return r;
	if (w->goal_bytes == EVICTION_ALL) {
		name_refusals(run);
	} else if (w->bytes < w->goal_bytes) {
		space_report(ctl_space(run->ctl), &report);
		return why_set(why, report.records ? EBUSY : ENODATA, "only %" PRIu64 " of %" PRIu64 " bytes could go: %s",
			w->bytes, w->goal_bytes, report.records ? "the rest is in use or pinned" : "there are no more");
	}
	return 0;
}

static void evict_done(struct ctl_command_run *run)
{
	const struct eviction *w = &run->work.eviction;

	put_number(run->answer, "evicted", w->records);
	put_number(run->answer, "values", w->values);
	put_number(run->answer, "bytes", w->bytes);
	put_number(run->answer, "refused", run->refused);
	if (run->refusals)
		json_object_set(run->answer, "refusals", run->refusals);
}

/* ---- drain, reset ---------------------------------------------------------------------------------------------- */

static bool has_disk(const struct ctl_command_run *run, uint64_t *dirty_bytes)
{
	struct space_report report;

	space_report(ctl_space(run->ctl), &report);
	*dirty_bytes = report.dirty_bytes;
	return report.disk;
}

static int begin_errand(struct ctl_command_run *run, enum errand_kind kind, uint64_t patience_ns, struct why *why)
{
	run->work.errand.disk = true;
	run->work.errand.until_ns = clock_now_ns() + patience_ns;
	int r = errands_ask(ctl_fs(run->ctl)->errands, ctl_space(run->ctl), kind, run->work.errand.until_ns,
		&run->work.errand.number, why);
	return r ? r : STEP_MORE;
}

/* Waits for its end or the end of the patience, with STEP_WAIT: 0, or how it ended. */
static int wait_for_errand(struct ctl_command_run *run, struct why *why)
{
	struct errand_state *state = &run->work.errand.state;
	int r = errands_look(ctl_fs(run->ctl)->errands, ctl_space(run->ctl), run->work.errand.number,
		run->work.errand.until_ns, state, why);

	if (r)
		return r;
	run->wake_ns = run->work.errand.until_ns;
	if (state->running && clock_now_ns() < run->work.errand.until_ns)
		return STEP_WAIT;
	if (!state->running && state->why.error) {
		*why = state->why;
		return -why->error;
	}
	return 0;
}

static int drain_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	enum errand_kind kind = ERRAND_DRAIN;
	uint64_t seconds = DRAIN_WAIT_S, dirty;
	int r = drain(session(run), why);

	for (unsigned i = 0; i < run->count && !r; i++)
		if (!strcmp(words[i], "--newest"))
			kind = ERRAND_DRAIN_NEWEST;
		else if (!config_parse_size(words[i], &seconds) || seconds > DRAIN_WAIT_MOST_S)
			r = why_set(why, EINVAL, "`" WORD_SHOWN "` is neither --newest nor seconds to wait, 0 to %u", words[i],
				DRAIN_WAIT_MOST_S);
	if (r)
		return r;
	if (has_disk(run, &dirty))
		return begin_errand(run, kind, seconds * 1000000000ull, why);
	put_number(run->answer, "drained", 0);
	json_object_set_new(run->answer, "note", json_string("no disk tier"));
	return 0;
}

static int drain_go_on(struct ctl_command_run *run, struct why *why)
{
	const struct errand_state *state = &run->work.errand.state;
	int r = wait_for_errand(run, why);

	if (r || !state->running)
		return r;
	return why_set(why, ETIMEDOUT, "%" PRIu64 " of %" PRIu64 " bytes are written down so far; say it again to wait on",
		state->done, state->goal);
}

static void drain_done(struct ctl_command_run *run)
{
	uint64_t dirty;

	if (!run->work.errand.disk)
		return;
	has_disk(run, &dirty);
	put_number(run->answer, "drained", run->work.errand.state.done);
	put_number(run->answer, "goal", run->work.errand.state.goal);
	put_number(run->answer, "left", dirty);
}

/* ---- fsck ------------------------------------------------------------------------------------------------------- */

/* A number asks how that check is. */
static int fsck_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	uint64_t dirty;

	if (!has_disk(run, &dirty))
		return why_set(why, ENODEV, "namespace %s has no disk tier", space_name(ctl_space(run->ctl)));
	if (!run->count)
		return begin_errand(run, ERRAND_CHECK, CHECK_WAIT_NS, why);
	if (!config_parse_size(words[0], &run->work.errand.number))
		return why_set(why, EINVAL, "`" WORD_SHOWN "` is no number of a check", words[0]);
	run->work.errand.disk = true;
	run->work.errand.until_ns = clock_now_ns() + CHECK_WAIT_NS;
	return STEP_MORE;
}

static int fsck_go_on(struct ctl_command_run *run, struct why *why)
{
	return wait_for_errand(run, why);
}

/* Names of records, the first of those that were bad. */
static json_t *bad_names(const struct space_check *check)
{
	json_t *names = json_array();

	for (uint32_t i = 0; i < check->names; i++) {
		char name[RECORD_NAME_BYTES + 1];

		record_name(check->name[i].consumed, &check->name[i].endpoint, name);
		json_array_append_new(names, json_string(name));
	}
	return names;
}

static void fsck_done(struct ctl_command_run *run)
{
	const struct errand_state *state = &run->work.errand.state;

	put_number(run->answer, "number", run->work.errand.number);
	json_object_set_new(run->answer, "running", json_boolean(state->running));
	put_number(run->answer, "files", state->check.files);
	put_number(run->answer, "files_in_all", state->check.files_in_all);
	put_number(run->answer, "bad_files", state->check.bad_files);
	put_number(run->answer, "values", state->check.values);
	put_number(run->answer, "bad_values", state->check.bad_values);
	put_number(run->answer, "bytes", state->check.bytes);
	json_object_set_new(run->answer, "bad", bad_names(&state->check));
}

static int reset_command(struct ctl_command_run *run, char **words, struct why *why)
{
	run->work.reset = (struct reset){.session = session(run)};
	return reset_begin(&run->work.reset, why);
}

static int reset_go_on(struct ctl_command_run *run, struct why *why)
{
	return reset_step(&run->work.reset, why);
}

static void reset_done(struct ctl_command_run *run)
{
	put_number(run->answer, "generation", run->work.reset.generation);
	put_number(run->answer, "values", run->work.reset.values);
	put_number(run->answer, "held_records", run->work.reset.held);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static int help_begin(struct ctl_command_run *run, char **words, struct why *why);

#define ANY (CTL_LINE_WORDS - 1)

static const struct ctl_command commands[] = {
	{"help", "", "these commands", 0, 0, help_begin, NULL, NULL},
	{"stat", "", "the counters", 0, 0, stat_begin, NULL, NULL},
	{"probe", " KEY...", "which keys are complete; 64 hex digits each", 1, ANY, probe_begin, probe_go_on, NULL},
	{"plan", "", "plans and handles of this session", 0, 0, plan_begin, NULL, NULL},
	{"pin", " RECORD", "it is never evicted until it is unpinned", 1, 1, pin_begin, NULL, NULL},
	{"unpin", " RECORD", "it may be evicted again", 1, 1, unpin_begin, NULL, NULL},
	{"touch", " RECORD...", "as if they had been used now", 1, ANY, touch_command, touch_go_on, touch_done},
	{"evict", " RECORD... | --bytes N | --all",
		"these, what was unused for longest, or all that is not in use", 1, ANY, evict_begin, evict_go_on,
		evict_done},
	{"blob", " list [FROM] | stat WHICH | rm WHICH", "what blobs there are; one by its key or name; away with it", 1, 2,
		ctl_blob_begin, NULL, NULL},
	{"drain", " [--newest] [SECONDS]", "write down what is in memory alone; waits so long", 0, 2, drain_begin, drain_go_on,
		drain_done},
	{"fsck", " [NUMBER]", "look at every record file; or how check NUMBER is", 0, 1, fsck_begin, fsck_go_on, fsck_done},
	{"reset", "", "a new generation: nothing stored before is found any more", 0, 0, reset_command, reset_go_on,
		reset_done},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int help_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	json_t *list = json_object();

	for (unsigned i = 0; i < COMMANDS; i++) {
		char usage[64];

		snprintf(usage, sizeof(usage), "%s%s", commands[i].name, commands[i].arguments);
		json_object_set_new(list, usage, json_string(commands[i].does));
	}
	json_object_set_new(run->answer, "commands", list);
	return 0;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static const struct ctl_command *find_command(const char *name)
{
	for (unsigned i = 0; i < COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

int ctl_command_begin(struct ctl_command_run *run, struct ctl *ctl, char **words, unsigned count, struct why *why)
{
	const struct ctl_command *command = find_command(words[0]);

	memset(run, 0, sizeof(*run));
	run->ctl = ctl;
	run->answer = json_object();
	if (!run->answer)
		return why_set(why, ENOMEM, "no memory for an answer");
	if (!command)
		return why_set(why, EINVAL, "`" WORD_SHOWN "`: no such command; `help` names them", words[0]);
	run->count = count - 1;
	if (run->count < command->least || run->count > command->most)
		return why_set(why, EINVAL, "%u arguments; it is %s%s", run->count, command->name, command->arguments);
	int r = command->begin(run, words + 1, why);
	/* What is refused at once has done nothing to report. */
	run->command = r < 0 ? NULL : command;
	return r;
}

int ctl_command_step(struct ctl_command_run *run, struct why *why)
{
	return run->command->step(run, why);
}

/* One line; an object that jansson had no memory for is NULL. */
static char *dump(json_t *object, size_t *bytes)
{
	char *text = malloc(CTL_ANSWER_MAX);
	size_t n = text ? json_dumpb(object, text, CTL_ANSWER_MAX, JSON_COMPACT) : 0;

	if (!n || n >= CTL_ANSWER_MAX) {
		free(text);
		return NULL;
	}
	text[n] = '\n';
	*bytes = n + 1;
	return text;
}

static void put_error(json_t *answer, const struct why *why)
{
	const char *name = strerrorname_np(why->error);

	json_object_set_new(answer, "error", json_string(why->text));
	json_object_set_new(answer, "errno", json_string(name ? name : "EIO"));
}

char *ctl_command_end(struct ctl_command_run *run, const struct why *why, size_t *bytes)
{
	char *text;

	if (why->error)
		put_error(run->answer, why);
	if (run->command && run->command->done)
		run->command->done(run);
	text = dump(run->answer, bytes);
	json_decref(run->answer);
	json_decref(run->refusals);
	run->answer = run->refusals = NULL;
	return text;
}

char *ctl_command_error(const struct why *why, size_t *bytes)
{
	json_t *answer = json_object();
	char *text;

	put_error(answer, why);
	text = dump(answer, bytes);
	json_decref(answer);
	return text;
}
