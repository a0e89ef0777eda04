/* SPDX-License-Identifier: Apache-2.0
 *
 * bench survive: how long clients wait after a kill, with nothing in memory and with a million pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench_disk.h"
#include "tools/bench_survive.h"
#include "tools/host.h"

#define WAIT_S 60u
#define SERVED_US 5100000u /* after that a serving process is started again at once (docs/survival.md) */
#define RETRY_US 200u
#define OPENS_MOST 64u
#define EMPTY_MEMORY (64ull << 20)
#define PAGES_MEMORY (20ull << 30)
#define RECORD_PAGES 32u
#define FLOOR_S 600u /* until it is populated */
#define GRANT (2ull << 20)

/* ---- nothing in memory ---------------------------------------------------------------------------------------------------- */

/* Waits for the kernel's first answer about the mount's root. */
struct looker {
	const char *mount;
	unsigned minor; /* of the folder below, which is seen where nothing is mounted */
	uint64_t answered_ns;
	_Atomic bool stop;
};

static bool asks_mount(const struct looker *l)
{
	struct statx s;

	return !statx(AT_FDCWD, l->mount, AT_STATX_FORCE_SYNC | AT_NO_AUTOMOUNT, STATX_MODE, &s) && s.stx_dev_minor != l->minor;
}

static void *look(void *context)
{
	struct looker *l = context;

	while (!atomic_load(&l->stop) && !asks_mount(l))
		usleep(RETRY_US);
	l->answered_ns = clock_ns();
	return NULL;
}

/* When ctl was opened and attached; 0: not in time. */
static uint64_t open_session(const struct bench_mortal *m)
{
	uint64_t until = clock_ns() + WAIT_S * 1000000000ull, answered = 0;
	struct pfs_session *session;
	struct pfs_options options;
	char path[PATH_MAX];

	bench_mortal_options(&options);
	if (host_path(path, "%s/ns/bench", m->daemon.mount))
		return 0;
	while (!answered && clock_ns() < until) {
		if (pfs_open(path, &options, &session)) {
			usleep(RETRY_US);
			continue;
		}
		answered = clock_ns();
		pfs_close(&session);
	}
	return answered;
}

static int kill_once(struct bench_mortal *m, double *open_ms, double *stat_ms)
{
	struct looker looker = {.mount = m->daemon.mount};
	uint64_t killed, opened;
	pthread_t thread;
	struct statx s;

	if (statx(AT_FDCWD, m->daemon.folder, 0, STATX_MODE, &s))
		return complain("%s: %s", m->daemon.folder, strerror(errno));
	looker.minor = s.stx_dev_minor;
	if (bench_mortal_kill(m, &killed))
		return 1;
	if (pthread_create(&thread, NULL, look, &looker))
		return complain("no thread");
	opened = open_session(m);
	if (!opened) /* the other one waits no longer either */
		atomic_store(&looker.stop, true);
	pthread_join(thread, NULL);
	if (!opened)
		return complain("ctl could not be opened within %u s after a kill; %s may say why", WAIT_S, m->victim.run_dir);
	*open_ms = (double)(opened - killed) / 1e6;
	*stat_ms = (double)(looker.answered_ns - killed) / 1e6;
	return 0;
}

static int kill_again_and_again(const struct bench_survive *b, struct bench_mortal *m, double *opens, double *stats)
{
	struct progress progress;
	int r = 0;

	progress_start(&progress, "killing", b->opens);
	for (uint64_t i = 0; i < b->opens && !r; i++) {
		usleep(b->quick ? SERVED_US / 10 : SERVED_US);
		r = kill_once(m, &opens[i], &stats[i]);
		progress_show(&progress, i + 1);
	}
	progress_end(&progress);
	return r;
}

int bench_survive_open(const struct bench_survive *b)
{
	double opens[OPENS_MOST], stats[OPENS_MOST], median;
	struct bench_mortal m;
	json_t *all;
	int r;

	if (bench_mortal_start(&m, EMPTY_MEMORY, BENCH_VALUE, 0, true))
		return 1;
	r = kill_again_and_again(b, &m, opens, stats);
	bench_mortal_stop(&m);
	if (r)
		return r;
	all = bench_values(opens, b->opens);
	median = bench_median(opens, b->opens);
	bench_survive_row(b, "first_open_after_kill_ms", median, "ms", "<= 50", median <= 50, json_pack("{s:o}", "kills", all));
	all = bench_values(stats, b->opens);
	median = bench_median(stats, b->opens);
	bench_survive_row(b, "first_stat_after_kill_ms", median, "ms", "<= 50", median <= 50, json_pack("{s:o}", "kills", all));
	return 0;
}

/* ---- a million pages -------------------------------------------------------------------------------------------------------- */

enum found { FOUND_ALL, FOUND_NOTHING, FOUND_NOBODY };

/* What the session's first answer says of the chain. */
static enum found ask_until_answered(struct pfs_session *session, const struct pfs_key *keys, uint64_t *answered)
{
	const struct pfs_get_request q = {.keys = keys, .key_count = BENCH_BATCH, .flags = PFS_GET_NO_BITS};
	uint64_t until = clock_ns() + WAIT_S * 1000000000ull;
	struct pfs_get_result found;

	while (clock_ns() < until) {
		if (pfs_get_start(session, &q, &found)) {
			usleep(RETRY_US);
			continue;
		}
		*answered = clock_ns();
		pfs_get_cancel(session, found.handle);
		return found.prefix_hit_groups == BENCH_BATCH ? FOUND_ALL : FOUND_NOTHING;
	}
	return FOUND_NOBODY;
}

/* How large a page is so that all of them fit what there is, or 20 GiB; 0: not even the smallest do. */
static uint64_t page_bytes_here(const struct bench_survive *b)
{
	uint64_t memory = bench_survive_memory(), page;

	memory = memory < PAGES_MEMORY ? memory : PAGES_MEMORY;
	page = (b->quick ? b->pages * BENCH_VALUE : memory) / b->pages / BENCH_VALUE * BENCH_VALUE;
	return page * b->pages <= memory ? page : 0;
}

/* Opening a session would wait for no more than its deadline. */
static int await_floor(const struct bench_mortal *m)
{
	int64_t goal = bench_counter(&m->daemon, "bench", "prewarm_goal"), done = 0;
	uint64_t until = clock_ns() + FLOOR_S * 1000000000ull;
	struct progress progress;

	progress_start(&progress, "populating", goal > 0 ? (uint64_t)goal : 1);
	while (goal > 0 && done < goal && clock_ns() < until) {
		done = bench_counter(&m->daemon, "bench", "prewarm_done");
		progress_show(&progress, done > 0 ? (uint64_t)done : 0);
		usleep(50000);
	}
	progress_end(&progress);
	return goal > 0 && done >= goal ? 0 : complain("%lld of %lld bytes were populated within %u s", (long long)done, (long long)goal, FLOOR_S);
}

static int adopt(const struct bench_survive *b, struct bench_mortal *m, uint64_t page, uint64_t memory)
{
	struct pfs_key keys[BENCH_BATCH];
	struct bench_chains chains;
	enum found found = FOUND_NOBODY;
	uint64_t killed, answered;
	char note[128];
	int r;

	if (await_floor(m) || bench_chains_open(&chains, &m->daemon, "bench", RECORD_PAGES))
		return 1;
	bench_chain_keys(0, 0, BENCH_BATCH, keys);
	r = bench_fill(&chains, b->pages / BENCH_BATCH, "filling");
	if (!r && ask_until_answered(chains.session, keys, &answered) != FOUND_ALL)
		r = complain("what was put is not found before any kill");
	if (!r)
		r = bench_mortal_kill(m, &killed);
	if (!r)
		found = ask_until_answered(chains.session, keys, &answered);
	bench_chains_close(&chains);
	if (r)
		return r;
	snprintf(note, sizeof(note), "%llu pages of %llu bytes, %.1f GiB of memory", (unsigned long long)b->pages, (unsigned long long)page,
		(double)memory / (double)(1ull << 30));
	if (found == FOUND_ALL)
		bench_survive_row(b, "adopt_1m_pages_s", (double)(answered - killed) / 1e9, "s", "<= 1", answered - killed <= 1000000000,
			json_pack("{s:I, s:I, s:I, s:s}", "pages", (json_int_t)b->pages, "page_bytes", (json_int_t)page, "memory",
				(json_int_t)memory, "note", note));
	else
		bench_survive_none(b, "adopt_1m_pages_s", "<= 1",
			found == FOUND_NOTHING ? "the daemon came back without its memory" : "nobody answered within 60 s after the kill");
	return 0;
}

int bench_survive_adopt(const struct bench_survive *b)
{
	uint64_t page = page_bytes_here(b), memory = page * b->pages / 50 * 51 / GRANT * GRANT + 64 * GRANT;
	struct bench_mortal m;
	int r;

	if (!page) {
		bench_survive_none(b, "adopt_1m_pages_s", "<= 1", "there is too little memory for a million pages of 4 KiB");
		return 0;
	}
	/* All of it is the namespace's from the beginning: granting is no part of this. */
	if (bench_mortal_start(&m, memory, page, memory, true))
		return 1;
	r = adopt(b, &m, page, memory);
	bench_mortal_stop(&m);
	return r;
}
