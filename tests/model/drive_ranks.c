/* SPDX-License-Identifier: Apache-2.0
 *
 * Does what tests/model/ranks_model.py --emit says, against the store, and compares each answer with the model's.
 *
 *   ranks_model.py --operations N --seed S --emit | drive_ranks [--check] [--skip WORD,...] [--most N]
 *
 *   --check   index and slots are looked through after every operation, not just at a world's end
 *   --skip    windows, worlds, gaps: worlds that have these (several ranks; pages on which no class has a value);
 *             tickets, ladder (demands, wanted, D), candidates, nopages, fills (time): what is not done or not compared
 *   --most    the first N differences are told, each world ends with its first; 1 without it
 *
 * Prints a line for each difference, of the line of input where it was found; status 1 if there was one. The memory is so large that
 * nothing goes for want of room, and time is the model's: fills_run is told it.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/manage.h"
#include "store/ticket.h"
#include "tests/model/drive.h"

static const char *const skip_words[] = { "windows", "worlds", "tickets", "ladder", "candidates", "nopages", "fills", "gaps" };

struct drive_run run = { .most = 1 };
struct drive_world w;

/* Has the store given something half there more time, as it may, than the model, which knows no numbers of records? Or has something
 * gone where rows stand at pages without values: which of those are pinned with what, the model does not follow to the end. */
bool was_late(void)
{
	bool late = false;

	if (!w.space->fills || w.doubt)
		return w.doubt;
	lock_take(&w.space->lock);
	late = fills_late(w.space->fills) > 0 || (w.uneven && w.states && w.space->stats.values_abandoned);
	lock_drop(&w.space->lock);
	return late;
}

void differs(const char *format, ...)
{
	va_list args;

	w.over = true;
	if (was_late()) {
		run.late++;
		return;
	}
	printf("line %lu: ", run.line);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	run.differences++;
}

void *need(void *p)
{
	if (!p) {
		fprintf(stderr, "drive_ranks: line %lu: no memory, or not what the model emits\n", run.line);
		exit(2);
	}
	return p;
}

char *text_of(const json_t *value)
{
	return need(json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY));
}

uint64_t number(const json_t *object, const char *name)
{
	return (uint64_t)json_integer_value(need(json_object_get(object, name)));
}

uint64_t at(const json_t *array, size_t i)
{
	return (uint64_t)json_integer_value(need(json_array_get(array, i)));
}

/* A node of the model's tree, or [node, tokens] of an endpoint in the page behind it. */
static struct key key_of(const json_t *name)
{
	uint64_t words[2] = { 0, 0 };
	struct key key;

	if (json_is_array(name)) {
		words[0] = at(name, 0);
		words[1] = at(name, 1);
	} else {
		words[0] = (uint64_t)json_integer_value(name);
	}
	digest_256(words, sizeof(words), key.bytes);
	return key;
}

static uint32_t mask_of(const json_t *classes)
{
	uint32_t mask = 0;
	const json_t *class;
	size_t i;

	json_array_foreach(classes, i, class)
		mask |= 1u << json_integer_value(class);
	return mask;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void add(json_t *classes, const json_t *class, size_t number_)
{
	const char *kind = json_string_value(need(json_object_get(class, "kind")));
	json_t *out = json_object();
	char name[24];

	snprintf(name, sizeof(name), "c%zu", number_);
	json_object_set_new(out, "name", json_string(name));
	json_object_set_new(out, "kind", json_string(kind));
	json_object_set(out, "share_of_rank", json_object_get(class, "map"));
	json_object_set_new(out, "planes", json_pack("[{s:s, s:I}]", "name", "p", "bytes", (json_int_t)number(class, "slot")));
	if (!strcmp(kind, "state")) {
		w.states |= 1u << number_;
	} else {
		json_object_set_new(out, "every", json_integer((json_int_t)(number(class, "every") * w.page)));
		w.gaps &= number(class, "every") > 1;
		w.uneven |= number(class, "every") > 1;
		w.over |= !strcmp(kind, "window") && run.skip[SKIP_WINDOWS];
	}
	if (!strcmp(kind, "window")) {
		json_object_set(out, "sink", json_object_get(class, "sink"));
		json_object_set(out, "last", json_object_get(class, "last"));
	}
	json_array_append_new(classes, out);
}

static json_t *layout_of(const json_t *arguments)
{
	const json_t *given = need(json_array_get(arguments, 2)), *class;
	json_t *classes = json_array();
	uint64_t columns = 0;
	size_t i;

	w.page = (uint32_t)at(arguments, 0);
	w.world = (uint32_t)json_array_size(json_object_get(json_array_get(given, 0), "map"));
	w.classes = (uint32_t)json_array_size(given);
	w.states = 0;
	w.over = w.world > 1 && run.skip[SKIP_WORLDS];
	w.gaps = true;
	w.uneven = false;
	json_array_foreach(given, i, class)
	{
		columns += number(class, "shares");
		add(classes, class, i);
	}
	w.over |= w.gaps && run.skip[SKIP_GAPS];
	return json_pack("{s:i, s:{s:s}, s:I, s:I, s:{s:I}, s:{s:I}, s:o}", "version", 1, "identity", "model", "test/ranks", "world",
		(json_int_t)w.world, "page_tokens", (json_int_t)w.page, "ladder", "interval", (json_int_t)at(arguments, 1), "memory",
		"floor", (json_int_t)(columns * GRANT), "classes", classes);
}

_Noreturn void fail(const struct why *why)
{
	fprintf(stderr, "drive_ranks: line %lu: %s\n", run.line, why->text);
	exit(2);
}

struct session *attach(uint32_t rank)
{
	struct session_attach attach = { .rank = rank, .call_buffer_bytes = 64 << 10 };
	struct space_range ranges[256];
	struct session_ack acks[256];
	struct session *s, *welcome;
	struct why why = WHY_INIT;
	uint32_t total, accepted, n;
	uint64_t version;
	int segment, buffer;

	attach.client_id[0] = (uint8_t)(rank + 1);
	if (session_new(w.host, w.space, 1, 0, 0, false, &s, &why) || session_attach(s, &attach, &why) ||
	    session_welcome(w.host, attach.token, 1, 1, 0, 0, NULL, 0, &welcome, &segment, &buffer, &why))
		fail(&why);
	session_unref(&welcome);
	n = space_ranges(w.space, 0, ranges, 256, &total, &version);
	for (uint32_t i = 0; i < n; i++)
		acks[i] = (struct session_ack){ ranges[i].id, ranges[i].generation };
	if (session_ack_ranges(s, acks, n, &accepted, &why))
		fail(&why);
	return s;
}

struct host *host_make(void)
{
	static _Atomic uint64_t last_session, last_serial; /* of all lives, as the will has them */
	struct host_config config = {
		.memory_bytes = 256ull << 20,
		.wish = SEGMENT_WISH_SMALL,
		.populate_threads = 1,
		.handle_ttl_ms = HANDLE_TTL_S * 1000,
		.fill_ttl_ms = FILL_TTL_S * 1000,
		.token_ttl_ms = 10000,
		.last_session = &last_session,
		.last_serial = &last_serial,
	};
	struct why why = WHY_INIT;
	struct host *host;

	if (host_new(&config, &host, &why))
		fail(&why);
	return host;
}

static void world_begins(const json_t *arguments)
{
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;
	struct layout *layout;
	json_t *json = need(layout_of(arguments));
	char *text = text_of(json);

	json_decref(json);
	w.host = host_make();
	w.doubt = false;
	if (layout_parse(text, strlen(text), &layout, &why) || host_space_create(w.host, "test", layout, &access, &w.space, &why))
		fail(&why);
	free(text);
	while (atomic_load(&w.space->prewarm_done) < w.space->prewarm_goal)
		sched_yield();
	for (uint32_t rank = 0; rank <= w.world; rank++)
		w.session[rank] = attach(rank < w.world ? rank : SESSION_RANK_NONE);
	w.begin_ns = clock_now_ns();
	w.seconds = 0;
	w.plan_count = 0;
	w.handle = 1ull << 32; /* plans and handles share their numbers */
}

static void check_all(void)
{
	lock_take(&w.space->lock);
	index_check(w.space->index);
	slots_check(w.space->slots);
	lock_drop(&w.space->lock);
}

static int end_plan(const struct open_plan *plan, bool commit)
{
	uint32_t status[GROUPS_MAX];
	struct session *s = w.session[plan->rank];
	struct put_end call = {
		.session = s,
		.plan = plan->id,
		.commit = commit,
		.group_count = plan->groups,
		.status = status,
	};
	struct why why = WHY_INIT;
	int r;

	if (!plan->groups)
		return 0;
	session_enter(s, 0, &why);
	r = put_end_begin(&call, &why);
	while (!r && (r = put_end_step(&call, &why)) == STEP_MORE)
		r = 0;
	session_leave(s);
	return r == -EALREADY || r == -ENOENT ? 0 : r; /* it had no group that was taken */
}

static void pass_time(uint64_t seconds)
{
	for (; seconds && w.space->fills && !run.skip[SKIP_FILLS]; seconds--)
		fills_run(w.space->fills, w.begin_ns + ++w.seconds * 1000000000u);
}

/* What the model does at the end of a world, which it does not emit. */
static void world_ends(void)
{
	struct space_report report;

	if (!w.host)
		return;
	joint_ends();
	for (size_t i = 0; i < w.plan_count; i++)
		end_plan(&w.plans[i], false);
	put_tickets_run(w.space->put_tickets, clock_now_ns() + (PUT_TICKET_S + 1) * 1000000000ull);
	pass_time(3 * FILL_TTL_S);
	check_all();
	space_report(w.space, &report);
	if (!w.over && (report.stats.pins || report.stats.handles || report.stats.put_plans || report.stats.slots_prepared ||
			report.stats.waiting || report.stats.ticket_slots))
		differs("left behind: %llu pins, %llu handles, %llu plans, %llu slots prepared, %llu kept, %llu waiting",
			(unsigned long long)report.stats.pins, (unsigned long long)report.stats.handles,
			(unsigned long long)report.stats.put_plans, (unsigned long long)report.stats.slots_prepared,
			(unsigned long long)report.stats.ticket_slots, (unsigned long long)report.stats.waiting);
	for (uint32_t rank = 0; rank <= w.world; rank++) {
		session_release(w.session[rank]);
		host_process_gone(w.host, session_number(w.session[rank]));
		session_unref(&w.session[rank]);
	}
	space_unref(&w.space);
	host_free(&w.host);
}

/* ---- puts -------------------------------------------------------------------------------------------------------- */

static void plan_opens(uint64_t id, uint32_t rank, uint32_t groups)
{
	if (w.plan_count == w.plan_room) {
		w.plan_room = 2 * w.plan_room + 64;
		w.plans = need(realloc(w.plans, w.plan_room * sizeof(*w.plans)));
	}
	w.plans[w.plan_count++] = (struct open_plan){ id, rank, groups };
}

static struct open_plan plan_closes(uint64_t id)
{
	size_t i = 0;
	struct open_plan plan;

	while (i < w.plan_count && w.plans[i].id != id)
		i++;
	need(i < w.plan_count ? w.plans : NULL);
	plan = w.plans[i];
	w.plans[i] = w.plans[--w.plan_count];
	return plan;
}

static struct put_group group_of(const json_t *group, const json_t *path)
{
	uint64_t tokens = at(group, 1), pages = tokens / w.page;
	struct put_group g = { .consumed = tokens, .keys = 1, .class_mask = mask_of(json_array_get(group, 2)) };
	bool root = pages <= 1 && tokens % w.page == 0;

	if (!(g.class_mask & ~w.states))
		g.flags |= PUT_ROW_ONLY;
	if (root)
		g.flags |= PUT_ROOT;
	else /* of an endpoint inside a page, the page before it */
		g.parent = key_of(json_array_get(path, tokens % w.page ? pages - 1 : pages - 2));
	return g;
}

static const char *answer_name(uint64_t answer)
{
	return answer == PUT_ANSWER_NONE      ? "NONE" :
	       answer == PUT_ANSWER_EXISTS    ? "EXISTS" :
	       answer == PUT_ANSWER_INFLIGHT  ? "INFLIGHT" :
	       answer == PUT_ANSWER_DUPLICATE ? "DUPLICATE" :
						"NEW";
}

#define NOPAGES 7u /* enum pfs_group_status */

/* Answers of group @i, as the model writes them. */
static json_t *answer_of(uint32_t i, uint32_t groups, const struct put_group *g, uint32_t mask, const uint64_t *answers,
			 uint32_t status)
{
	json_t *out = json_object();
	uint32_t row = 0;

	if (status == NOPAGES || status != PUT_OK) {
		json_decref(out);
		return json_string(status == NOPAGES ? "NOPAGES" : status == PUT_NOROOM ? "NOROOM" : "?");
	}
	for (uint32_t c = 0; c < w.classes; c++) {
		char name[16];

		if (!(mask >> c & 1))
			continue;
		snprintf(name, sizeof(name), "%u", c);
		if (g->class_mask >> c & 1)
			json_object_set_new(out, name, json_string(answer_name(answers[row * groups + i])));
		row++;
	}
	return out;
}

static void do_put(const json_t *arguments, const json_t *expected)
{
	const json_t *given = need(json_array_get(arguments, 2)), *path = need(json_array_get(arguments, 3)), *group;
	struct put_group groups[GROUPS_MAX];
	struct key keys[GROUPS_MAX];
	uint64_t answers[GROUPS_MAX * LAYOUT_MAX_CLASSES];
	uint32_t status[GROUPS_MAX];
	struct put_start call = {
		.session = w.session[at(arguments, 1)],
		.plan = at(arguments, 0),
		.groups = groups,
		.keys = keys,
		.answers = answers,
		.status = status,
	};
	const json_t *ticket = json_array_get(arguments, 4);
	json_t *should = json_array();
	struct why why = WHY_INIT;
	size_t i;
	int r;

	if (json_is_integer(ticket)) {
		uint64_t name = (uint64_t)json_integer_value(ticket);

		digest_128(&name, sizeof(name), call.ticket);
		call.deadline_ns = clock_now_ns() + PUT_TICKET_S * 1000000000ull;
	}
	json_array_foreach(given, i, group)
	{
		if (run.skip[SKIP_NOPAGES] && json_is_string(json_array_get(expected, i)))
			continue;
		json_array_append(should, json_array_get(expected, i));
		keys[call.group_count] = key_of(json_array_get(group, 0));
		groups[call.group_count] = group_of(group, path);
		call.class_mask |= groups[call.group_count++].class_mask;
	}
	call.key_count = call.group_count;
	plan_opens(call.plan, (uint32_t)at(arguments, 1), call.group_count);
	if (!call.group_count) {
		json_decref(should);
		return;
	}
	session_enter(call.session, 0, &why);
	r = put_start_begin(&call, &why);
	while (!r && (r = put_start_step(&call, &why)) == STEP_MORE)
		r = 0;
	session_leave(call.session);
	if (r)
		differs("put of plan %llu: %s", (unsigned long long)call.plan, why.text);
	for (i = 0; i < call.group_count && !r && !w.over; i++) {
		json_t *is = answer_of((uint32_t)i, call.group_count, &groups[i], call.class_mask, answers, status[i]);

		if (!json_equal(is, json_array_get(should, i))) {
			char *a = text_of(json_array_get(should, i)), *b = text_of(is);

			differs("put of plan %llu, group %zu at %llu tokens: the model says %s, the store %s",
				(unsigned long long)call.plan, i, (unsigned long long)groups[i].consumed, a, b);
			free(a);
			free(b);
		}
		json_decref(is);
	}
	json_decref(should);
}

static void do_end(const json_t *arguments)
{
	const struct open_plan plan = plan_closes(at(arguments, 0));
	int r = end_plan(&plan, json_is_true(json_array_get(arguments, 1)));

	if (r)
		differs("the end of plan %llu is errno %d", (unsigned long long)plan.id, -r);
}

static void do_remove(const json_t *arguments, const json_t *expected)
{
	static const char *const names[] = { "DONE", "ABSENT", "BUSY" };
	struct key key = key_of(json_array_get(arguments, 0));
	uint32_t answer = 9;
	struct removal call = {
		.session = w.session[0],
		.keys = &key,
		.key_count = 1,
		.class_mask = mask_of(json_array_get(arguments, 1)),
		.answers = &answer,
	};
	struct why why = WHY_INIT;
	int r;

	session_enter(call.session, 0, &why);
	r = removal_begin(&call, &why);
	while (r == STEP_MORE)
		r = removal_step(&call, &why);
	session_leave(call.session);
	if (r || answer > 2 || strcmp(names[answer], json_string_value(expected)))
		differs("remove: the model says %s, the store %s%s", json_string_value(expected), answer > 2 ? "" : names[answer],
			r ? why.text : "");
}

/* ---- gets -------------------------------------------------------------------------------------------------------- */

int ask(struct question *q, const json_t *given, const uint8_t *ticket, struct session *session, struct why *why)
{
	const json_t *path = need(json_object_get(given, "path")), *limit = json_object_get(given, "limit"), *node;
	struct get_start *call = &q->call;
	size_t i;
	int r;

	*call = (struct get_start){
		.session = session,
		.handle = ++w.handle,
		.keys = q->keys,
		.key_count = (uint32_t)json_array_size(path),
		.have = number(given, "have"),
		.limit = limit ? (uint64_t)json_integer_value(limit) : 0,
		.room = (uint32_t)number(given, "room"),
		.deadline_ns = clock_now_ns() + 3600000000000ull,
		.hits = q->hits,
		.restorable = q->restorable,
		.candidates = q->candidates,
		.wanted = q->wanted,
		.candidates_capacity = CANDIDATES,
		.wanted_capacity = PATH_MAX_PAGES,
	};
	if (ticket)
		memcpy(call->ticket, ticket, sizeof(call->ticket));
	json_array_foreach(path, i, node)
		q->keys[i] = key_of(node);
	memset(q->hits, 0, sizeof(q->hits));
	memset(q->restorable, 0, sizeof(q->restorable));
	r = session_enter(session, 0, why);
	if (r)
		return r;
	r = get_start_begin(call, why);
	while (!r && (r = get_start_step(call, why)) == STEP_MORE)
		r = 0;
	session_leave(session);
	return r;
}

static void same(const char *name, json_t *is, const json_t *expected)
{
	const json_t *should = need(json_object_get(expected, name));

	if (!w.over && !json_equal(is, should)) {
		char *a = text_of(should), *b = text_of(is);

		differs("get, %s: the model says %s, the store %s", name, a, b);
		free(a);
		free(b);
	}
	json_decref(is);
}

static void compare_ladder(const struct question *q, const json_t *expected)
{
	json_t *wanted = json_array();

	for (uint32_t i = 0; i < q->call.wanted_count && i < PATH_MAX_PAGES; i++)
		json_array_append_new(wanted, json_integer((json_int_t)q->wanted[i]));
	same("demand", json_integer((json_int_t)q->call.demand), expected);
	same("dense", json_integer((json_int_t)(q->call.dense_len / w.page * w.page)), expected);
	same("wanted", wanted, expected);
}

/* Deepest first, of the same depth by key: the model's keys are other bytes, so that one is looked for among its own. */
static void compare_candidates(const struct question *q, const json_t *expected)
{
	const json_t *should = need(json_object_get(expected, "candidates")), *name;
	uint32_t count = q->call.candidate_count, found = 0;
	bool alike = count == json_array_size(should);
	size_t k;

	if (json_array_size(should) == CANDIDATES)
		return; /* which of them are listed is told by keys */
	for (uint32_t i = 0; alike && i < count; i++) {
		const struct get_candidate *c = &q->candidates[i], *before = i ? c - 1 : NULL;

		alike = !before || before->consumed > c->consumed ||
			(before->consumed == c->consumed && memcmp(&before->key, &c->key, sizeof(c->key)) < 0);
		json_array_foreach(should, k, name)
		{
			struct key key = key_of(name);

			found += !memcmp(&key, &c->key, sizeof(key));
		}
	}
	if ((!alike || found != count) && !w.over) {
		char *text = text_of(should);

		differs("get, candidates: the model says %s, the store has %u, the first at %llu tokens", text, count,
			count ? (unsigned long long)q->candidates[0].consumed : 0ull);
		free(text);
	}
}

static void compare(const struct question *q, const json_t *expected)
{
	json_t *restorable = json_array(), *hits = json_array();
	uint64_t hit = q->call.transferable_len / w.page * w.page;

	for (uint32_t i = 0; i < q->call.key_count; i++) {
		if (q->restorable[i / 64] >> (i % 64) & 1)
			json_array_append_new(restorable, json_integer((json_int_t)((i + 1) * w.page)));
		json_array_append_new(hits, json_boolean(q->hits[i / 64] >> (i % 64) & 1));
	}
	same("restorable", restorable, expected);
	same("hit", json_integer((json_int_t)hit), expected);
	same("hits", hits, expected);
	if (!run.skip[SKIP_LADDER])
		compare_ladder(q, expected);
	if (!run.skip[SKIP_CANDIDATES])
		compare_candidates(q, expected);
}

static void do_get(const json_t *given, const json_t *expected)
{
	struct question q;
	struct why why = WHY_INIT;
	int r = ask(&q, given, NULL, w.session[0], &why);

	if (r) {
		differs("get: %s", why.text);
		return;
	}
	compare(&q, expected);
	if (q.call.handle_live)
		get_cancel(w.session[0], q.call.handle, &why);
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

/* The funnel at the end of a world. */
static void compare_counts(const json_t *expected)
{
	struct space_report r;
	json_t *is;

	space_report(w.space, &r);
	is = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "requests", (json_int_t)r.stats.requests, "dense",
		(json_int_t)r.stats.dense_hit_tokens, "hit", (json_int_t)r.stats.hit_tokens, "checkpoint",
		(json_int_t)r.stats.lost_to_checkpoint_tokens, "unrecoverable", (json_int_t)r.stats.lost_unrecoverable_tokens,
		"recorded", (json_int_t)r.demands.demands_recorded, "repeated", (json_int_t)r.demands.demands_repeated, "acted",
		(json_int_t)r.demands.demands_acted, "kept", (json_int_t)r.demands.demands_kept, "dropped",
		(json_int_t)r.demands.demands_dropped, "evicted", (json_int_t)r.demands.demands_evicted);
	if (!json_equal(is, expected)) {
		char *a = text_of(expected), *b = text_of(is);

		differs("counters: the model says %s, the store %s", a, b);
		free(a);
		free(b);
	}
	json_decref(is);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void do_line(const char *what, const json_t *arguments, const json_t *answer)
{
	if (!strcmp(what, "layout")) {
		world_ends();
		world_begins(arguments);
		return;
	}
	if (w.over)
		return;
	run.done++;
	if (!strcmp(what, "put"))
		do_put(arguments, answer);
	else if (!strcmp(what, "end"))
		do_end(arguments);
	else if (!strcmp(what, "remove"))
		do_remove(arguments, answer);
	else if (!strcmp(what, "time"))
		pass_time((uint64_t)json_integer_value(arguments));
	else if (!strcmp(what, "get"))
		do_get(arguments, answer);
	else if (!strcmp(what, "ticket") && !run.skip[SKIP_TICKETS])
		do_ticket(arguments, answer);
	else if (!strcmp(what, "counts") && !run.skip[SKIP_LADDER])
		compare_counts(answer);
	else if (!strcmp(what, "death"))
		do_death();
	else if (!strcmp(what, "late"))
		put_tickets_run(w.space->put_tickets, clock_now_ns() + (PUT_TICKET_S + 1) * 1000000000ull);
	else if (!strcmp(what, "over"))
		joint_ends();
	if (run.check)
		check_all();
}

static void read_options(int argc, char **argv)
{
	static const struct option options[] = { { "check", no_argument, NULL, 'c' }, { "skip", required_argument, NULL, 's' },
						 { "most", required_argument, NULL, 'm' }, { 0 } };
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (o == 'c')
			run.check = true;
		else if (o == 'm')
			run.most = strtoul(optarg, NULL, 10);
		else if (o != 's')
			exit(2);
		for (char *word = o == 's' ? strtok(optarg, ",") : NULL; word; word = strtok(NULL, ","))
			for (unsigned i = 0; i < SKIP_WORDS; i++)
				run.skip[i] |= !strcmp(word, skip_words[i]);
	}
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;

	read_options(argc, argv);
	while ((n = getline(&line, &room, stdin)) > 0 && run.differences < run.most) {
		json_t *step = need(json_loadb(line, (size_t)n, JSON_DECODE_ANY, NULL));

		run.line++;
		do_line(json_string_value(json_array_get(step, 0)), json_array_get(step, 1), json_array_get(step, 2));
		json_decref(step);
	}
	world_ends();
	fprintf(stderr, "%lu operations done, %lu differences, %lu worlds left where time was another\n", run.done, run.differences,
		run.late);
	free(w.plans);
	free(line);
	return run.differences ? 1 : 0;
}
