/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/guard.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct guard {
	sigjmp_buf back;
	uintptr_t first, bytes;
};

static _Thread_local struct guard *volatile guard_now; /* of this thread, NULL: none */
static struct sigaction guard_before;
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;

/* Nobody's: as if we had never been here. A fault comes again when its instruction does; what was sent is sent again. */
static void guard_default(const siginfo_t *info)
{
	struct sigaction normal = {.sa_handler = SIG_DFL};

	sigaction(SIGBUS, &normal, NULL);
	if (info->si_code <= 0)
		raise(SIGBUS);
}

static void guard_signal(int signal, siginfo_t *info, void *machine)
{
	struct guard *guard = guard_now;

	if (guard && info->si_code > 0 && (uintptr_t)info->si_addr - guard->first < guard->bytes)
		siglongjmp(guard->back, 1);
	if (guard_before.sa_flags & SA_SIGINFO)
		guard_before.sa_sigaction(signal, info, machine);
	else if (guard_before.sa_handler == SIG_DFL || (guard_before.sa_handler == SIG_IGN && info->si_code > 0))
		guard_default(info);
	else if (guard_before.sa_handler != SIG_IGN)
		guard_before.sa_handler(signal);
}

static void guard_install(void)
{
	/* Not blocked while it is handled: leaving by siglongjmp then needs no mask to be put back. */
	struct sigaction ours = {.sa_sigaction = guard_signal, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTART};

	sigemptyset(&ours.sa_mask);
	if (sigaction(SIGBUS, NULL, &guard_before) || sigaction(SIGBUS, &ours, NULL)) {
		fprintf(stderr, "guard: SIGBUS cannot be handled\n");
		abort();
	}
}

int guard_run(void (*function)(void *context), void *context, const void *memory, size_t bytes)
{
	struct guard guard = {.first = (uintptr_t)memory, .bytes = bytes};

	pthread_once(&guard_once, guard_install);
	assert(!guard_now);
	if (sigsetjmp(guard.back, 0)) {
		guard_now = NULL;
		return -EFAULT;
	}
	guard_now = &guard;
	function(context);
	guard_now = NULL;
	return 0;
}
