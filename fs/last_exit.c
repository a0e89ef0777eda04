/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/last_exit.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "fs/ioctl.h"
#include "fs/requests.h"

/* Text that grows in its place; what does not fit whole is left out, and everything after it. */
struct text {
	char *at;
	size_t bytes, capacity;
	bool full;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...)
{
	size_t room = t->capacity - t->bytes;
	va_list args;

	va_start(args, format);
	int wanted = t->full ? -1 : vsnprintf(t->at + t->bytes, room, format, args);
	va_end(args);
	if (wanted >= 0 && (size_t)wanted < room)
		t->bytes += (size_t)wanted;
	else
		t->full = true;
	t->at[t->bytes] = 0;
}

/* ---- the reason ---------------------------------------------------------------------------------------------------- */

static int signal_of(const struct last_exit_facts *f)
{
	return f->status >= 0 && WIFSIGNALED(f->status) ? WTERMSIG(f->status) : 0;
}

static int last_words(const struct last_exit_facts *f)
{
	return f->will ? atomic_load_explicit(&f->will->signal, memory_order_acquire) : 0;
}

/* What somebody said who did not speak through the log: assert, a lock, the C library. NULL: nobody did. */
static const char *raw_line(const struct last_exit_facts *f)
{
	for (unsigned i = f->line_count; i > 0; i--) {
		const char *line = f->lines[i - 1];

		if (line[0] && !strstr(line, " prefixfsd["))
			return strncmp(line, "prefixfsd: ", 11) ? line : line + 11;
	}
	return NULL;
}

static void reason_of_abort(const struct last_exit_facts *f, char *reason)
{
	const char *line = raw_line(f);

	snprintf(reason, LAST_EXIT_REASON_BYTES, "signal %d (%s)%s%s", SIGABRT, strsignal(SIGABRT), line ? ": " : "", line ? line : "");
}

static void reason_of_will(const struct last_exit_facts *f, int signal, char *reason)
{
	struct text t = {.at = reason, .capacity = LAST_EXIT_REASON_BYTES};

	add(&t, "signal %d (%s)", signal, strsignal(signal));
	if (f->will->code > 0) /* a fault's own, sent by nobody */
		add(&t, " at address 0x%" PRIx64, f->will->address);
	if (f->will->code > 0 && f->will->instruction)
		add(&t, ", in the program at 0x%" PRIx64, f->will->instruction);
	else if (f->will->code > 0)
		add(&t, ", in a library");
}

static void reason_of_kill(const struct last_exit_facts *f, char *reason)
{
	bool of_memory = f->oom_before != UINT64_MAX && f->oom_after != UINT64_MAX && f->oom_after > f->oom_before;
	struct text t = {.at = reason, .capacity = LAST_EXIT_REASON_BYTES};

	if (!of_memory) {
		add(&t, "signal %d (%s)%s", SIGKILL, strsignal(SIGKILL),
			f->populating ? " while it populated memory, as the OOM killer does" : "");
		return;
	}
	add(&t, "killed by the kernel for want of memory%s", f->populating ? " while it populated memory" : "");
	if (f->memory_limit)
		add(&t, ", of which there are %" PRIu64 " MiB", f->memory_limit >> 20);
	if (f->memory_limit && f->memory_from[0])
		add(&t, " (%.150s)", f->memory_from);
	if (f->memory)
		add(&t, "; memory is %" PRIu64 " MiB", f->memory >> 20);
}

static void reason_of_parent(const struct last_exit_facts *f, char *reason)
{
	if (f->watchdog_s)
		snprintf(reason, LAST_EXIT_REASON_BYTES, "nothing moved in it for %" PRIu64 " s%s, and it was killed", f->watchdog_s,
			f->was_stopped ? ", for it was stopped" : "");
	else
		snprintf(reason, LAST_EXIT_REASON_BYTES, "it did not stop in %" PRIu64 " ms and was killed", f->stop_ms);
}

static void reason_of_status(const struct last_exit_facts *f, char *reason)
{
	if (f->status < 0)
		snprintf(reason, LAST_EXIT_REASON_BYTES, "not known yet: it has not been reaped");
	else if (WIFSIGNALED(f->status))
		snprintf(reason, LAST_EXIT_REASON_BYTES, "signal %d (%s)", WTERMSIG(f->status), strsignal(WTERMSIG(f->status)));
	else if (WEXITSTATUS(f->status) == 0)
		snprintf(reason, LAST_EXIT_REASON_BYTES, "its connection was ended from outside");
	else
		snprintf(reason, LAST_EXIT_REASON_BYTES, "exit status %d", WEXITSTATUS(f->status));
}

size_t last_exit_reason(const struct last_exit_facts *f, char reason[LAST_EXIT_REASON_BYTES])
{
	int signal = signal_of(f), words = last_words(f);
	bool killed = signal == SIGKILL || f->status < 0;

	if (signal == SIGABRT || words == SIGABRT)
		reason_of_abort(f, reason);
	else if (words)
		reason_of_will(f, words, reason);
	else if (killed && (f->watchdog_s || f->stop_ms))
		reason_of_parent(f, reason);
	else if (signal == SIGKILL)
		reason_of_kill(f, reason);
	else
		reason_of_status(f, reason);
	return strlen(reason);
}

/* ---- the file ------------------------------------------------------------------------------------------------------ */

static void print_time(int64_t wall_s, char when[32])
{
	time_t t = wall_s;
	struct tm day;

	strftime(when, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &day));
}

static void print_served(const struct last_exit_facts *f, char served[24])
{
	if (f->ready)
		snprintf(served, 24, "%" PRIu64, f->served_ns / 1000000000u);
	else
		snprintf(served, 24, "never");
}

static void add_phase(struct text *t, const struct will *w)
{
	static const char *const names[] = {[WILL_STARTING] = "starting", [WILL_ADOPTING] = "adopting", [WILL_SERVING] = "serving",
		[WILL_DRAINING] = "draining", [WILL_WRITING_DOWN] = "writing down", [WILL_ENDING] = "ending"};
	uint32_t phase = atomic_load_explicit(&w->phase, memory_order_relaxed);

	if (phase == WILL_ADOPTING)
		add(t, "phase: adopting %.*s %" PRIu64 "/%" PRIu64 "\n", (int)strnlen(w->space, sizeof(w->space)), w->space,
			atomic_load_explicit(&w->done, memory_order_relaxed),
			atomic_load_explicit(&w->goal, memory_order_relaxed));
	else if (phase >= WILL_STARTING && phase <= WILL_ENDING)
		add(t, "phase: %s\n", names[phase]);
}

/* An operation as a loop notes it: see struct will_loop. */
static const char *operation_name(uint32_t operation)
{
	const char *name = operation >= WILL_DOING_CTL ? ioctl_name(operation - WILL_DOING_CTL) : requests_name(requests_kind(operation));

	return name ? name : "other";
}

static void add_doing(struct text *t, const struct will *w, uint64_t now_ns)
{
	const char *before = "doing: ";

	for (unsigned i = 0; i < WILL_LOOPS; i++) {
		uint32_t operation = atomic_load_explicit(&w->loops[i].doing, memory_order_relaxed);
		uint64_t began_ns = atomic_load_explicit(&w->loops[i].began_ns, memory_order_relaxed);
		uint64_t tenths = now_ns > began_ns ? (now_ns - began_ns) / 100000 : 0;

		if (!operation)
			continue;
		add(t, "%s%s %" PRIu64 ".%" PRIu64 " ms", before, operation_name(operation), tenths / 10, tenths % 10);
		before = ", ";
	}
	if (before[0] == ',')
		add(t, "\n");
}

size_t last_exit_text(const struct last_exit_facts *f, const char *reason, int64_t wall_s, char to[LAST_EXIT_BYTES])
{
	struct text t = {.at = to, .capacity = LAST_EXIT_BYTES};
	char when[32], served[24];

	print_time(wall_s, when);
	print_served(f, served);
	add(&t, "reason: %s\ntime: %s\npid: %d\nversion: %s\n", reason, when, (int)f->pid, f->version);
	add(&t, "mount: %s\nrestarts: %" PRIu32 "\nserved_s: %s\n", f->mount, f->restarts, served);
	if (f->will) {
		add_phase(&t, f->will);
		add_doing(&t, f->will, f->died_ns);
	}
	add(&t, "sessions: %" PRIu32 "  spaces: %" PRIu32 "\nnext: %s\nlast lines:\n", f->sessions, f->spaces, f->next);
	for (unsigned i = 0; i < f->line_count; i++)
		add(&t, "  %s\n", f->lines[i]);
	return t.bytes;
}

/* ---- deaths -------------------------------------------------------------------------------------------------------- */

/* Where the text begins of which at most @lines lines and @room bytes are left. */
static size_t cut_front(const char *text, size_t bytes, unsigned lines, size_t room)
{
	size_t from = bytes;

	for (size_t i = bytes; i > 0; i--) {
		bool begins = i == 1 || text[i - 2] == '\n';

		if (!begins)
			continue;
		if (!lines-- || bytes - (i - 1) > room)
			break;
		from = i - 1;
	}
	return from;
}

size_t last_exit_add_death(const struct last_exit_facts *f, const char *reason, int64_t wall_s, char deaths[LAST_EXIT_DEATHS_BYTES],
	size_t bytes)
{
	char line[LAST_EXIT_REASON_BYTES + 96], when[32], served[24];
	size_t whole = bytes;

	print_time(wall_s, when);
	print_served(f, served);
	int added = snprintf(line, sizeof(line), "%s %" PRIu32 " %s %s\n", when, f->restarts, served, reason);

	while (whole > 0 && deaths[whole - 1] != '\n') /* a line that was not written to its end */
		whole--;
	size_t from = cut_front(deaths, whole, LAST_EXIT_DEATHS - 1, LAST_EXIT_DEATHS_BYTES - 1 - (size_t)added);
	memmove(deaths, deaths + from, whole - from);
	memcpy(deaths + whole - from, line, (size_t)added + 1);
	return whole - from + (size_t)added;
}
