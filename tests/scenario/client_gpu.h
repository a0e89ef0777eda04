/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs that try whole requests of libprefixfs-gpu have in common.
 */
#ifndef PREFIXFS_TESTS_SCENARIO_CLIENT_GPU_H
#define PREFIXFS_TESTS_SCENARIO_CLIENT_GPU_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/prefixfs.h"
#include "kernels/prefixfs_gpu.h"

#define MUST(condition) must(condition, #condition, __LINE__)

static inline void must(int holds, const char *text, int line)
{
	char why[512], gpu_why[512];

	if (holds)
		return;
	pfs_last_error(why, sizeof(why));
	pfs_gpu_last_error(gpu_why, sizeof(gpu_why));
	fprintf(stderr, "line %d: not so: %s (%s; %s)\n", line, text, why, gpu_why);
	exit(1);
}

static inline void said(const char *sentence)
{
	char why[512];

	pfs_gpu_last_error(why, sizeof(why));
	if (!strcmp(why, sentence))
		return;
	fprintf(stderr, "'%s' was said, not '%s'\n", why, sentence);
	exit(1);
}

static inline int64_t counter(struct pfs_session *session, const char *name)
{
	char text[65536] = "\n", *at;
	char line[64];

	MUST(!pfs_stat(session, text + 1, sizeof(text) - 1, NULL));
	snprintf(line, sizeof(line), "\n%s ", name);
	at = strstr(text, line);
	MUST(at != NULL);
	return strtoll(at + strlen(line), NULL, 10);
}

static inline void nothing_is_left(struct pfs_session *session)
{
	MUST(counter(session, "put_plans") == 0);
	MUST(counter(session, "get_plans") == 0);
	MUST(counter(session, "handles") == 0);
	MUST(counter(session, "pins") == 0);
	MUST(counter(session, "slots_prepared") == 0);
}

#endif
