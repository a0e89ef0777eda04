/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parent knows of the end of a serving process, and what follows from it.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "fs/log.h"
#include "fs/memory_limit.h"
#include "fs/parent_state.h"
#include "fs/serve.h"
#include "store/base/clock.h"

#define NOT_REAPED "not known yet: it has not been reaped" /* as last_exit_reason says */

static uint64_t mib(uint64_t bytes)
{
	return (bytes + (1u << 20) - 1) >> 20;
}

static int status_of(const struct serving *s)
{
	return s->reaped ? s->status : -1;
}

static bool exited_with(const struct serving *s, int code)
{
	return s->reaped && WIFEXITED(s->status) && WEXITSTATUS(s->status) == code;
}

/* As the OOM killer does it. */
static bool killed(const struct serving *s)
{
	return !s->killed_ms && !s->hung_s && (!s->reaped || (WIFSIGNALED(s->status) && WTERMSIG(s->status) == SIGKILL));
}

/* @lines: room for pointers to what it logged. */
static void gather_facts(
	const struct parent *p, const struct serving *s, const char *lines[PARENT_LAST_LINES], struct last_exit_facts *ret)
{
	uint64_t now = clock_now_ns();
	struct memory_limit limit;
	unsigned end = s->line_count + (s->partial ? 1 : 0), first = end > PARENT_LAST_LINES ? end - PARENT_LAST_LINES : 0;

	memory_limit_find("", p->config->hugepages, &limit);
	*ret = (struct last_exit_facts){
		.status = status_of(s),
		.pid = s->pid,
		.stop_ms = s->killed_ms,
		.watchdog_s = s->hung_s,
		.was_stopped = s->was_stopped,
		.populating = s->populating,
		.ready = s->ready,
		.served_ns = s->ready ? now - s->ready_ns : 0,
		.died_ns = now,
		.oom_before = s->oom_kills,
		.oom_after = memory_limit_kills(""),
		.memory_limit = limit.bytes == UINT64_MAX ? 0 : limit.bytes,
		.memory = p->config->memory,
		.will = p->will,
		.lines = lines,
		.line_count = end - first,
		.mount = p->config->mountpoint,
		.version = p->trying >= 0 ? p->upgrade.tried : upgrade_parent_version(&p->upgrade),
		.restarts = p->restarts,
		.sessions = kept_count(&p->kept, "session"),
		.spaces = kept_count(&p->kept, "segment"),
	};
	memcpy(ret->memory_from, limit.from, sizeof(ret->memory_from));
	for (unsigned i = first; i < end; i++)
		lines[i - first] = s->lines[i % PARENT_LAST_LINES];
}

/* ---- the files ------------------------------------------------------------------------------------------------------- */

/* One more line; that it cannot be written is said for last_exit beside it. */
static void write_deaths(const struct parent *p, const struct last_exit_facts *facts, const char *reason)
{
	char text[LAST_EXIT_DEATHS_BYTES];
	long before = rundir_read(&p->dir, "deaths", text, sizeof(text));
	size_t bytes = last_exit_add_death(facts, reason, time(NULL), text, before < 0 ? 0 : (size_t)before);

	rundir_write(&p->dir, "deaths", text, bytes);
}

/* Keeps the reason in the run folder, and for the next serving process. */
static void note_last_exit(struct parent *p, const struct last_exit_facts *facts, const char *reason)
{
	char text[LAST_EXIT_BYTES];
	size_t bytes = last_exit_text(facts, reason, time(NULL), text);
	int r = rundir_write(&p->dir, "last_exit", text, bytes);

	write_deaths(p, facts, reason);
	if (!r) {
		snprintf(p->last_exit, sizeof(p->last_exit), "%.240s; more in %s/last_exit", reason, p->dir.path);
		return;
	}
	snprintf(p->last_exit, sizeof(p->last_exit), "%.240s; %s/last_exit cannot be written: %s", reason, p->dir.path,
		strerror(-r));
	log_warning("%s/last_exit cannot be written: %s", p->dir.path, strerror(-r));
}

void obituary_recall(struct parent *p)
{
	char text[512], when[32] = "an unknown time";

	if (rundir_read(&p->dir, "last_exit", text, sizeof(text)) <= 0 || strncmp(text, "reason: ", 8) != 0)
		return;
	char *end = strchr(text, '\n');
	if (end)
		sscanf(end, "\ntime: %31[^\n]", when);
	text[strcspn(text, "\n")] = 0;
	snprintf(p->last_exit, sizeof(p->last_exit), "%.160s, before this start, at %s; more in %s/last_exit", text + 8, when,
		p->dir.path);
}

/* ---- who has not been reaped ------------------------------------------------------------------------------------------ */

/* What stays constant; its log and the will are the next one's. */
static void remember_unreaped(struct parent *p, const struct last_exit_facts *facts)
{
	p->unreaped = *facts;
	p->unreaped.will = NULL;
	p->unreaped.lines = NULL;
	p->unreaped.line_count = 0;
}

/* The last place where @file says that it is not known. */
static void correct(const struct parent *p, const char *file, const char *reason)
{
	char text[LAST_EXIT_DEATHS_BYTES], corrected[LAST_EXIT_DEATHS_BYTES + LAST_EXIT_REASON_BYTES];
	char *at = NULL;

	if (rundir_read(&p->dir, file, text, sizeof(text)) <= 0)
		return;
	for (char *next = text; (next = strstr(next, NOT_REAPED)); next++)
		at = next;
	if (!at)
		return;
	int bytes = snprintf(corrected, sizeof(corrected), "%.*s%s%s", (int)(at - text), text, reason, at + strlen(NOT_REAPED));
	rundir_write(&p->dir, file, corrected, (size_t)bytes);
}

/* What the next serving process is told. */
static void correct_sentence(struct parent *p, const char *reason)
{
	char before[sizeof(p->last_exit)];

	if (strncmp(p->last_exit, NOT_REAPED, strlen(NOT_REAPED)) != 0)
		return;
	memcpy(before, p->last_exit, sizeof(before));
	snprintf(p->last_exit, sizeof(p->last_exit), "%.240s%.200s", reason, before + strlen(NOT_REAPED));
}

void obituary_reaped(struct parent *p, int status)
{
	char reason[LAST_EXIT_REASON_BYTES];

	p->unreaped.status = status;
	last_exit_reason(&p->unreaped, reason);
	log_info("the serving process %d has ended: %s", (int)p->unreaped.pid, reason);
	correct(p, "last_exit", reason);
	correct(p, "deaths", reason);
	correct_sentence(p, reason);
	p->unreaped = (struct last_exit_facts){0};
}

/* ---- what follows ---------------------------------------------------------------------------------------------------- */

/* Why it is not started again, as a sentence; empty: it is. */
static void give_up(const struct parent *p, enum deaths_verdict verdict, const char *how, char *sentence, size_t bytes)
{
	sentence[0] = 0;
	if (verdict == DEATHS_OF_MEMORY)
		snprintf(sentence, bytes,
			"giving up: the serving process was killed %u times in a row while it populated memory; there is "
			"less than the floors of the namespaces ask for; %s/last_exit says more",
			p->deaths.populating, p->dir.path);
	if (verdict == DEATHS_TOO_OFTEN)
		snprintf(sentence, bytes, "giving up: the serving process died %u times in %d s (last: %s); %s/last_exit says more",
			p->deaths.recent, DEATHS_WITHIN_S, how, p->dir.path);
}

/* The sentence of the last line that it logged. */
static const char *last_words(const struct serving *s, const char *how)
{
	const char *last = serving_last_line(s, how), *error = strstr(last, " error: "), *warning = strstr(last, " warning: ");

	return error ? error + strlen(" error: ") : warning ? warning + strlen(" warning: ") : last;
}

/* Whoever waits for the start is told what it refused. */
static void say_refused(struct parent *p, const char *how)
{
	parent_say(p, last_words(&p->serving, how));
}

/* Nobody is told by health who has never had an answer. */
static enum obituary_verdict not_again(const struct parent *p, bool told)
{
	return told || !p->served ? OBITUARY_OVER : OBITUARY_FALL;
}

void obituary_undrained(const struct parent *p)
{
	uint32_t phase = atomic_load_explicit(&p->will->phase, memory_order_relaxed);
	uint64_t done = atomic_load_explicit(&p->will->done, memory_order_relaxed);
	uint64_t goal = atomic_load_explicit(&p->will->goal, memory_order_relaxed);
	bool newest;

	if (!p->config->disk[0] || !config_drain_s(p->config, &newest))
		return;
	if (phase == WILL_WRITING_DOWN && done < goal)
		log_warning("%" PRIu64 " of %" PRIu64 " MiB were not written down: it died before", mib(goal - done), mib(goal));
	else if (phase < WILL_WRITING_DOWN)
		log_warning("what was not on the disk is lost: it died before anything was written down");
}

static enum obituary_verdict judge_death(struct parent *p, bool refused, bool told, uint64_t *pause_ms)
{
	char how[LAST_EXIT_REASON_BYTES], end[640], next[64], sentence[LAST_EXIT_REASON_BYTES + 64];
	const char *lines[PARENT_LAST_LINES];
	struct last_exit_facts facts;
	enum deaths_verdict verdict = DEATHS_GO_ON;

	gather_facts(p, &p->serving, lines, &facts);
	last_exit_reason(&facts, how);
	if (!refused && !told)
		verdict = deaths_note(&p->deaths, facts.died_ns, killed(&p->serving) && p->serving.populating, (unsigned)p->config->deaths);
	*pause_ms = deaths_pause_ms(&p->deaths, facts.served_ns);
	give_up(p, verdict, how, end, sizeof(end));
	snprintf(next, sizeof(next), "started again after %" PRIu64 " ms", *pause_ms);
	facts.next = refused ? "not started again, it refuses" : told ? p->stopping ? "not started again, it was to stop" : "not started again, it was unmounted" : end[0] ? end : next;
	note_last_exit(p, &facts, how);
	if (!p->serving.reaped)
		remember_unreaped(p, &facts);
	if (refused) {
		say_refused(p, how);
		return not_again(p, told);
	}
	snprintf(sentence, sizeof(sentence), "the serving process died: %s", how);
	parent_say(p, sentence);
	if (told) {
		log_info(p->stopping ? "it was told to stop and is not started again" : "%s was unmounted: it is not started again",
			p->config->mountpoint);
		obituary_undrained(p);
	} else if (end[0])
		parent_say(p, end);
	return told || end[0] ? not_again(p, told) : OBITUARY_NEXT;
}

void obituary_reason(const struct parent *p, const struct serving *s, char *reason)
{
	const char *lines[PARENT_LAST_LINES];
	struct last_exit_facts facts;

	gather_facts(p, s, lines, &facts);
	last_exit_reason(&facts, reason);
	if (!s->ready && (exited_with(s, SERVE_EXIT_REFUSED) || exited_with(s, SERVE_EXIT_REMOUNT)) && s->line_count)
		snprintf(reason, LAST_EXIT_REASON_BYTES, "%s", last_words(s, reason));
}

void obituary_note(struct parent *p, const char *reason, const char *next)
{
	const char *lines[PARENT_LAST_LINES];
	struct last_exit_facts facts;

	gather_facts(p, &p->serving, lines, &facts);
	facts.next = next;
	note_last_exit(p, &facts, reason);
}

enum obituary_verdict obituary_judge(struct parent *p, uint64_t *pause_ms)
{
	const struct serving *s = &p->serving;
	bool refused = !s->ready && exited_with(s, SERVE_EXIT_REFUSED), told = parent_told_to_stop(p) && !parent_has_to_write_down(p);

	if (exited_with(s, 0) && told) {
		log_info(p->stopping ? "stopped" : "%s was unmounted", p->config->mountpoint);
		return OBITUARY_STOPPED;
	}
	if (!s->ready && exited_with(s, SERVE_EXIT_REMOUNT) && !told) {
		p->remount = true;
		return OBITUARY_NEXT;
	}
	p->not_begun = refused && p->restarts == 0;
	if (!p->not_begun)
		return judge_death(p, refused, told, pause_ms);
	say_refused(p, "exit status 3");
	return OBITUARY_OVER;
}
