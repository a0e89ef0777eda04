/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/killpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define X(name, word) [KILLPOINT_##name] = word,
static const char *const words[KILLPOINTS] = {KILLPOINT_NAMES(X)};
#undef X

static _Atomic uint64_t left[KILLPOINTS]; /* passings until it strikes; 0: it does not */
static _Atomic bool stops[KILLPOINTS];
static atomic_flag dying = ATOMIC_FLAG_INIT; /* one thread says why */
struct killpoint_flag killpoint_flag;

void killpoint_arm(enum killpoint point, uint64_t n, bool stop)
{
	atomic_store(&stops[point], stop);
	atomic_store(&left[point], n);
	if (n)
		atomic_store(&killpoint_flag.any, true);
}

_Noreturn void killpoint_die(const char *when, const char *what)
{
	if (!atomic_flag_test_and_set(&dying)) {
		dprintf(STDERR_FILENO, "killed %s %s\n", when, what);
		kill(getpid(), SIGKILL);
	}
	for (;;)
		pause();
}

void killpoint_passed(enum killpoint point)
{
	if (!atomic_load(&left[point]) || atomic_fetch_sub(&left[point], 1) != 1)
		return;
	if (!atomic_load(&stops[point]))
		killpoint_die("at", words[point]);
	dprintf(STDERR_FILENO, "stopped at %s\n", words[point]);
	kill(getpid(), SIGSTOP);
}

/* ---- rules ------------------------------------------------------------------------------------------------------ */

struct rule {
	enum killpoint point;
	uint64_t n; /* 0: there is none */
	bool again;
};

static bool find_point(const char *word, size_t bytes, enum killpoint *ret)
{
	for (unsigned i = 0; i < KILLPOINTS; i++)
		if (strlen(words[i]) == bytes && !memcmp(words[i], word, bytes)) {
			*ret = (enum killpoint)i;
			return true;
		}
	return false;
}

/* The @bytes of @text, which something else follows. */
static bool parse_rule(const char *text, size_t bytes, struct rule *ret)
{
	const char *end = text + bytes, *after = memchr(text, ':', bytes);
	struct rule rule = {.n = 1};

	if (!find_point(text, (size_t)((after ? after : end) - text), &rule.point))
		return false;
	if (after && after[1] >= '0' && after[1] <= '9') {
		char *past;

		rule.n = strtoull(after + 1, &past, 10);
		after = past == end ? NULL : past;
	}
	rule.again = after && (size_t)(end - after) == strlen(":again") && !memcmp(after, ":again", strlen(":again"));
	*ret = rule;
	return rule.n && (!after || rule.again);
}

int killpoint_rules(const char *rules, uint32_t process, bool stop, struct why *why)
{
	struct rule rule = {.n = 0};

	for (uint32_t i = 1;; i++) {
		size_t bytes = strcspn(rules, ",");
		struct rule next = {.n = 0};

		if (bytes && !parse_rule(rules, bytes, &next))
			return why_set(why, EINVAL, "rule '%.*s' is not understood", (int)bytes, rules);
		rule = next;
		rules += bytes;
		if (!*rules && process > i && !rule.again)
			rule.n = 0;
		if (!*rules++ || i == process)
			break;
	}
	if (rule.n && process)
		killpoint_arm(rule.point, rule.n, stop);
	return 0;
}
