/* SPDX-License-Identifier: Apache-2.0
 *
 * What has to hold in a check of the kernels: else it says what does not, with the library's sentence, and ends.
 */
#ifndef PREFIXFS_TESTS_KERNELS_MUST_H
#define PREFIXFS_TESTS_KERNELS_MUST_H

#include <stdio.h>
#include <stdlib.h>

#include "kernels/prefixfs_gpu.h"

#define MUST(condition) must(condition, #condition, __LINE__)

static inline void must(int holds, const char *text, int line)
{
	char why[512];

	if (holds)
		return;
	pfs_gpu_last_error(why, sizeof(why));
	printf("FAILED: line %d: not so: %s (%s)\n", line, text, why);
	exit(1);
}

#endif
