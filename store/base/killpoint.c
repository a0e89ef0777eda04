/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/killpoint.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define X(name, word) [KILLPOINT_##name] = word,
static const char *const words[KILLPOINTS] = {KILLPOINT_NAMES(X)};
#undef X

static _Atomic uint64_t left[KILLPOINTS]; /* passings until it strikes; 0: it does not */
static atomic_flag dying = ATOMIC_FLAG_INIT; /* one thread says why */
_Atomic bool killpoint_any;

void killpoint_arm(enum killpoint point, uint64_t n)
{
	atomic_store(&left[point], n);
	if (n)
		atomic_store(&killpoint_any, true);
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
	if (atomic_load(&left[point]) && atomic_fetch_sub(&left[point], 1) == 1)
		killpoint_die("at", words[point]);
}
