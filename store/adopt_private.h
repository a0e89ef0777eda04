/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of an adoption share. Private to store/adopt*.c.
 */
#ifndef PREFIXFS_STORE_ADOPT_PRIVATE_H
#define PREFIXFS_STORE_ADOPT_PRIVATE_H

#include "store/adopt.h"
#include "store/space_make.h"

struct attempt {
	struct space *space;
	const struct adoption *from;
	struct adopt_report *report;
	struct ranges ranges;
	struct why *why;
};

/* adopt_judge.c: step 1. Maps the tables and has the space own both descriptors. */
int adopt_judge(struct attempt *a);
/* adopt_disk.c: step 7. */
int adopt_disk(struct attempt *a);

#endif
