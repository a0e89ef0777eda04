/* SPDX-License-Identifier: Apache-2.0
 *
 * bench survive: replays with kills and without, and the pauses of upgrades while one runs.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench_disk.h"
#include "tools/bench_survive.h"
#include "tools/host.h"
#include "tools/upgrade.h"

#define REPLAY_MEMORY (1ull << 30)
#define PROGRAM "/proc/self/exe"
#define UPGRADES_MOST 128u
#define ANSWERED_MS 60000u

/* ---- replays -------------------------------------------------------------------------------------------------------------- */

struct replay_words {
	char requests[24], kills[24];
	const char *at[32];
};

/* prefixfs replay in a namespace of its own, as the demo has it. */
static void make_words(struct replay_words *w, const struct bench_survive *b, const char *mount, const char *ns, uint64_t kills)
{
	const char *words[] = {PROGRAM, "replay", b->trace, "--mount", mount, "--ns", ns, "--model", "Qwen3-8B", "--tp", "2", "--one-rank",
		"--plane-divisor", "64", "--requests", w->requests, "--json", kills ? "--kills" : NULL, w->kills, NULL};

	snprintf(w->requests, sizeof(w->requests), "%llu", (unsigned long long)b->requests);
	snprintf(w->kills, sizeof(w->kills), "%llu", (unsigned long long)kills);
	memcpy(w->at, words, sizeof(words));
}

/* What it says at its end, or NULL after a sentence. */
static json_t *replay(const struct bench_survive *b, uint64_t kills)
{
	struct bench_child child;
	struct replay_words words;
	struct bench_mortal m;
	json_t *said = NULL;
	int status = 1;

	if (bench_mortal_start(&m, REPLAY_MEMORY, 0, 0, true))
		return NULL;
	make_words(&words, b, m.daemon.mount, "replay", kills);
	if (!bench_child_start(&child, words.at, kills > 0)) { /* what clients say of deaths is many lines */
		said = json_loadf(child.out, JSON_DISABLE_EOF_CHECK, NULL);
		status = bench_child_end(&child);
	}
	bench_mortal_stop(&m);
	if (said)
		return said;
	complain("the replay of %s ended with status %d", b->trace, status);
	return NULL;
}

static double number(const json_t *said, const char *name)
{
	return json_number_value(json_object_get(said, name));
}

int bench_survive_replay(const struct bench_survive *b)
{
	json_t *calm, *killed;
	double points, wrong;

	if (!b->trace) {
		bench_survive_none(b, "hit_ratio_points", "<= 1", "there is no trace; --trace names one");
		return 0;
	}
	calm = replay(b, 0);
	killed = calm ? replay(b, b->replay_kills) : NULL;
	if (!killed) {
		json_decref(calm);
		return 1;
	}
	points = 100 * (number(calm, "hit_ratio") - number(killed, "hit_ratio"));
	wrong = number(calm, "wrong_values") + number(killed, "wrong_values");
	bench_survive_row(b, "hit_ratio_undisturbed", number(calm, "hit_ratio"), "", "", true,
		json_pack("{s:f}", "longest_gap_ms", number(calm, "longest_gap_ms")));
	bench_survive_row(b, "hit_ratio_kills", number(killed, "hit_ratio"), "", "", true,
		json_pack("{s:f, s:f, s:f}", "kills", number(killed, "kills"), "reattached", number(killed, "reattached"), "longest_gap_ms",
			number(killed, "longest_gap_ms")));
	bench_survive_row(b, "hit_ratio_points", points, "pt", "<= 1", points <= 1, NULL);
	bench_survive_row(b, "wrong_values", wrong, "", "0", wrong == 0,
		json_pack("{s:f}", "verified_values", number(calm, "verified_values") + number(killed, "verified_values")));
	json_decref(calm);
	json_decref(killed);
	return 0;
}

/* ---- upgrades -------------------------------------------------------------------------------------------------------------- */

/* Shared with the client that asks all the time. */
struct asker {
	_Atomic uint64_t longest_ns; /* between two answers, since it was set to 0 */
	_Atomic uint64_t answers, errors;
};

static void ask_on(const struct bench_mortal *m, struct asker *asker)
{
	struct pfs_session *session = NULL;
	struct pfs_options options;
	char path[PATH_MAX];
	struct pfs_key key;
	uint64_t last;

	bench_chain_keys(0, 0, 1, &key);
	bench_mortal_options(&options);
	if (host_path(path, "%s/ns/bench", m->daemon.mount) || pfs_open(path, &options, &session))
		_exit(1);
	last = clock_ns();
	for (;;) {
		uint8_t bits = 0;
		int r = pfs_probe(session, &key, 1, &bits, NULL);
		uint64_t now = clock_ns();

		if (r) {
			atomic_fetch_add(&asker->errors, 1);
			continue;
		}
		if (now - last > atomic_load(&asker->longest_ns))
			atomic_store(&asker->longest_ns, now - last);
		last = now;
		atomic_fetch_add(&asker->answers, 1);
	}
}

static bool await_answers(const struct asker *asker, uint64_t more)
{
	uint64_t until = clock_ns() + ANSWERED_MS * 1000000ull, before = atomic_load(&asker->answers);

	while (atomic_load(&asker->answers) < before + more && clock_ns() < until)
		usleep(1000);
	return atomic_load(&asker->answers) >= before + more;
}

/* The longest time between two answers around one upgrade; the daemon's own account goes to *pause_ms. */
static int upgrade_once(struct bench_mortal *m, struct asker *asker, double *gap_ms, double *pause_ms)
{
	struct upgrade_answer answer;

	atomic_store(&asker->longest_ns, 0);
	if (!await_answers(asker, 2) || upgrade_ask(m->daemon.mount, NULL, false, false, NULL, NULL, &answer))
		return complain("the client was not answered before an upgrade, or nobody upgrades");
	if (answer.error)
		return complain("upgrade: %s", answer.text);
	if (!await_answers(asker, 2))
		return complain("the client was not answered within %u s after an upgrade", ANSWERED_MS / 1000);
	*gap_ms = (double)atomic_load(&asker->longest_ns) / 1e6;
	*pause_ms = answer.pause_us / 1000.0;
	return 0;
}

/* Replays in the background, one after the other, each in a namespace of its own; ended by its signal. */
static pid_t start_load(const struct bench_survive *b, const struct bench_mortal *m)
{
	pid_t parent = getpid(), pid = b->trace ? fork() : 0;

	if (!b->trace || pid)
		return pid;
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned i = 0; getppid() == parent; i++) {
		struct bench_child child;
		struct replay_words words;
		char ns[24];

		snprintf(ns, sizeof(ns), "load%u", i);
		make_words(&words, b, m->daemon.mount, ns, 0);
		if (bench_child_start(&child, words.at, true) || bench_child_end(&child))
			break;
		bench_namespace_remove(&m->daemon, ns);
	}
	_exit(1);
}

static void end_process(pid_t pid)
{
	if (pid <= 0)
		return;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int upgrade_again_and_again(const struct bench_survive *b, struct bench_mortal *m, struct asker *asker)
{
	double gaps[UPGRADES_MOST], pauses[UPGRADES_MOST], p99;
	struct progress progress;
	char note[96];
	int r = 0;

	progress_start(&progress, "upgrading", b->upgrades);
	for (uint64_t i = 0; i < b->upgrades && !r; i++) {
		r = upgrade_once(m, asker, &gaps[i], &pauses[i]);
		progress_show(&progress, i + 1);
	}
	progress_end(&progress);
	if (r)
		return r;
	bench_median(gaps, b->upgrades); /* sorts them */
	p99 = gaps[(b->upgrades * 99 + 99) / 100 - 1];
	snprintf(note, sizeof(note), "median %.3g ms; by the daemon's own account %.3g ms", gaps[b->upgrades / 2],
		bench_median(pauses, b->upgrades));
	bench_survive_row(b, "upgrade_pause_ms_p99", p99, "ms", "<= 200", p99 <= 200,
		json_pack("{s:o, s:o, s:I, s:s}", "gaps_ms", bench_values(gaps, b->upgrades), "pauses_ms", bench_values(pauses, b->upgrades),
			"errors", (json_int_t)atomic_load(&asker->errors), "note", note));
	return 0;
}

static int upgrades(const struct bench_survive *b, struct bench_mortal *m, struct asker *asker)
{
	pid_t client = fork(), load;
	int r;

	if (client < 0)
		return complain("fork: %s", strerror(errno));
	if (client == 0) {
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGHUP, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ask_on(m, asker);
	}
	load = start_load(b, m);
	r = upgrade_again_and_again(b, m, asker);
	end_process(load);
	end_process(client);
	return r;
}

int bench_survive_upgrade(const struct bench_survive *b)
{
	struct asker *asker = mmap(NULL, sizeof(*asker), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct bench_mortal m;
	int r = 0;

	if (asker == MAP_FAILED)
		return complain("no memory");
	if (bench_mortal_start(&m, REPLAY_MEMORY, BENCH_VALUE, REPLAY_MEMORY / 8, true)) {
		munmap(asker, sizeof(*asker));
		return 1;
	}
	if (upgrade_possible(m.daemon.mount))
		r = upgrades(b, &m, asker);
	else
		bench_survive_none(b, "upgrade_pause_ms_p99", "<= 200", "this daemon cannot be upgraded while it runs: it has no parent.sock");
	bench_mortal_stop(&m);
	munmap(asker, sizeof(*asker));
	return r;
}
