/* SPDX-License-Identifier: Apache-2.0
 *
 * bench survive: kills under clients that put. Each notes what it was told is committed; all of that is got and compared at the end.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench_survive.h"
#include "tools/host.h"
#include "tools/value_bytes.h"

#define CLIENTS 4u
#define PLAN_PAGES 32u /* one record, one group: all of it is committed, or nothing */
#define MEMORY_PART 4u /* of what is put: nothing is evicted */
#define LIMIT_S 300u
#define ROOM_MS 100u

/* Shared by all of the processes. A client writes its own part. */
struct puts {
	_Atomic uint64_t plans; /* ended so far, by whomever */
	_Atomic uint32_t failed;
	_Atomic uint64_t refused, lost, untold; /* without room; told to be lost; the put was no use for another reason */
	char error[CLIENTS][256];
	_Atomic uint8_t committed[]; /* [client * plans + plan] */
};

static uint64_t chain_of(uint32_t client, uint64_t plan)
{
	return (uint64_t)client << 32 | plan;
}

static struct pfs_session *open_one(const struct bench_mortal *m)
{
	struct pfs_session *session = NULL;
	struct pfs_options options;
	char path[PATH_MAX];

	bench_mortal_options(&options);
	options.wait_prewarm = 1;
	options.deadline_ms = 60000;
	if (host_path(path, "%s/ns/bench", m->daemon.mount) || pfs_open(path, &options, &session))
		return NULL;
	return session;
}

/* ---- putting -------------------------------------------------------------------------------------------------------------- */

/* 1: it was committed, as it was told; 0: it was not; negative: an errno. */
static int put_plan(struct pfs_session *session, struct puts *puts, uint64_t chain)
{
	struct pfs_put_group group = {
		.consumed = PLAN_PAGES * BENCH_TOKENS, .keys = PLAN_PAGES, .class_mask = 1, .flags = PFS_GROUP_ROOT};
	struct pfs_key keys[PLAN_PAGES];
	const struct pfs_put_request q = {.groups = &group, .keys = keys, .group_count = 1, .key_count = PLAN_PAGES, .class_mask = 1};
	struct pfs_put_outcome outcome = {0};
	struct pfs_put_result put;
	bool room;
	int r;

	bench_chain_keys(chain, 0, PLAN_PAGES, keys);
	r = pfs_put_start(session, &q, &put);
	if (r)
		return r;
	room = put.status[0] == PFS_GROUP_OK;
	for (uint32_t i = 0; i < PLAN_PAGES && room; i++)
		if (put.answers[0][i] < PFS_ANSWER_MIN)
			value_bytes_fill(&keys[i], 0, 0, put.segment + put.answers[0][i], BENCH_VALUE);
	r = pfs_put_commit(session, put.plan, 0, 0, NULL, &outcome);
	if (r)
		return r;
	if (!room)
		atomic_fetch_add(&puts->refused, 1);
	else if (outcome.outcome != PFS_GROUP_COMMITTED)
		atomic_fetch_add(&puts->lost, 1);
	if (!room)
		pfs_news(session, ROOM_MS);
	return room && outcome.outcome == PFS_GROUP_COMMITTED;
}

static int put_all(const struct bench_survive *b, const struct bench_mortal *m, struct puts *puts, uint32_t client)
{
	struct pfs_session *session = open_one(m);
	int r = session ? 0 : -EIO;

	for (uint64_t plan = 0; plan < b->plans && r >= 0; plan++) {
		r = put_plan(session, puts, chain_of(client, plan));
		if (r == -ENOTCONN) { /* nobody served for long: a value that is not kept, and no more */
			atomic_fetch_add(&puts->untold, 1);
			r = 0;
		}
		if (r == 1)
			atomic_store(&puts->committed[client * b->plans + plan], 1);
		atomic_fetch_add(&puts->plans, 1);
	}
	if (r < 0) {
		pfs_last_error(puts->error[client], sizeof(puts->error[client]));
		atomic_store(&puts->failed, 1);
	}
	pfs_close(&session);
	return r < 0;
}

static int start_clients(const struct bench_survive *b, const struct bench_mortal *m, struct puts *puts, pid_t *pids)
{
	for (uint32_t i = 0; i < CLIENTS; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			return complain("fork: %s", strerror(errno));
		if (pids[i] == 0) {
			signal(SIGINT, SIG_DFL);
			signal(SIGTERM, SIG_DFL);
			signal(SIGHUP, SIG_DFL);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(put_all(b, m, puts, i));
		}
	}
	return 0;
}

/* One kill in each part of the work, while clients put. */
static int kill_meanwhile(const struct bench_survive *b, struct bench_mortal *m, struct puts *puts)
{
	uint64_t all = CLIENTS * b->plans, until = clock_ns() + LIMIT_S * 1000000000ull, killed;
	struct progress progress;
	int r = 0;

	progress_start(&progress, "putting", all);
	for (uint64_t i = 0; i < b->kills && !r;) {
		uint64_t plans = atomic_load(&puts->plans);

		progress_show(&progress, plans);
		if (atomic_load(&puts->failed) || clock_ns() > until)
			break;
		if (plans < (i * 2 + 1) * all / (2 * b->kills)) {
			usleep(100);
			continue;
		}
		r = bench_mortal_kill(m, &killed);
		i++;
	}
	progress_end(&progress);
	return r;
}

/* Ends those that are still there where @all is not well. */
static int end_clients(pid_t *pids, bool well, const struct puts *puts)
{
	uint64_t until = clock_ns() + LIMIT_S * 1000000000ull;
	int failed = 0;

	for (uint32_t i = 0; i < CLIENTS; i++) {
		int status = 0;

		while (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) == 0) {
			if (!well || clock_ns() > until)
				kill(pids[i], SIGKILL);
			usleep(1000);
		}
		if (well && (!WIFEXITED(status) || WEXITSTATUS(status)))
			failed = complain("client %u of the put load: %s", i, puts->error[i][0] ? puts->error[i] : "it was ended");
	}
	return failed;
}

/* ---- looking -------------------------------------------------------------------------------------------------------------- */

struct looked {
	uint64_t committed, missing, wrong; /* values */
};

/* How many of the plan's values are there with their bytes; -1 after a sentence. */
static int get_plan(struct pfs_session *session, uint64_t chain, struct looked *looked)
{
	struct pfs_key keys[PLAN_PAGES];
	const struct pfs_get_request q = {.keys = keys, .key_count = PLAN_PAGES};
	struct pfs_transfer_request t = {0};
	struct pfs_transfer_result got = {0};
	struct pfs_get_result found;
	uint64_t pages = 0;

	bench_chain_keys(chain, 0, PLAN_PAGES, keys);
	if (pfs_get_start(session, &q, &found))
		return complain_client("get_start");
	t.handle = found.handle;
	t.boundary = t.to = found.transferable_len;
	if (t.to && pfs_get_transfer(session, &t, &got))
		return complain_client("get_transfer");
	if (got.plan)
		pages = got.delivered_len / BENCH_TOKENS;
	for (uint64_t i = 0; i < pages; i++)
		looked->wrong += !value_bytes_match(&keys[i], 0, 0, got.segment + got.offsets[0][i], BENCH_VALUE);
	looked->committed += PLAN_PAGES;
	looked->missing += PLAN_PAGES - pages;
	if (got.plan && pfs_release(session, &got.plan, 1, NULL))
		return complain_client("release");
	if (!got.handle_ended)
		pfs_get_cancel(session, found.handle);
	return 0;
}

static int look_at_all(const struct bench_survive *b, const struct bench_mortal *m, const struct puts *puts, struct looked *looked)
{
	struct pfs_session *session = open_one(m);
	int r = session ? 0 : complain_client("no session after the kills");

	for (uint32_t client = 0; client < CLIENTS; client++)
		for (uint64_t plan = 0; plan < b->plans && !r; plan++)
			if (atomic_load(&puts->committed[client * b->plans + plan]))
				r = get_plan(session, chain_of(client, plan), looked);
	pfs_close(&session);
	return r;
}

static void show(const struct bench_survive *b, const struct puts *puts, const struct looked *looked)
{
	uint64_t lost = looked->missing + looked->wrong;
	char note[160];

	snprintf(note, sizeof(note), "of %llu committed in %llu kills; %llu of the wrong bytes; %llu puts told to be lost",
		(unsigned long long)looked->committed, (unsigned long long)b->kills, (unsigned long long)looked->wrong,
		(unsigned long long)puts->lost);
	bench_survive_row(b, "committed_values_lost", (double)lost, "", "0", lost == 0,
		json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "committed", (json_int_t)looked->committed, "missing",
			(json_int_t)looked->missing, "wrong", (json_int_t)looked->wrong, "kills", (json_int_t)b->kills, "puts_lost",
			(json_int_t)puts->lost, "puts_refused", (json_int_t)puts->refused, "puts_untold", (json_int_t)puts->untold, "note", note));
}

static int run(const struct bench_survive *b, struct bench_mortal *m, struct puts *puts)
{
	struct looked looked = {0};
	pid_t pids[CLIENTS] = {0};
	int r = start_clients(b, m, puts, pids);

	if (!r)
		r = kill_meanwhile(b, m, puts);
	r = end_clients(pids, !r, puts) || r;
	if (!r)
		r = look_at_all(b, m, puts, &looked);
	if (!r)
		show(b, puts, &looked);
	return r;
}

int bench_survive_puts(const struct bench_survive *b)
{
	uint64_t memory = MEMORY_PART * CLIENTS * b->plans * PLAN_PAGES * BENCH_VALUE;
	size_t bytes = sizeof(struct puts) + CLIENTS * b->plans;
	struct puts *puts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct bench_mortal m;
	int r;

	if (puts == MAP_FAILED)
		return complain("no memory");
	r = bench_mortal_start(&m, memory, BENCH_VALUE, 0, true);
	if (!r) {
		r = run(b, &m, puts);
		bench_mortal_stop(&m);
	}
	munmap(puts, bytes);
	return r;
}
