/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, const char *name, void *(*start)(void *context), void *context)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread begins with its maker's */
	r = pthread_create(thread, NULL, start, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!r)
		pthread_setname_np(*thread, name);
	return r;
}
