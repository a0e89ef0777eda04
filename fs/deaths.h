/* SPDX-License-Identifier: Apache-2.0
 *
 * When the parent stops starting serving processes again: after too many deaths in a short time; or after as many in a row,
 * however slowly they came, by SIGKILL while memory was populated. Those are the OOM killer's, and populating a large
 * floor takes it longer than any window: the next one would die of the same.
 */
#ifndef PREFIXFS_FS_DEATHS_H
#define PREFIXFS_FS_DEATHS_H

#include <stdbool.h>
#include <stdint.h>

#define DEATHS_WITHIN_S 60
#define DEATHS_MAX 1000u /* the largest limit */

struct deaths {
	uint64_t times[DEATHS_MAX]; /* a ring */
	unsigned count;
	unsigned recent;     /* within DEATHS_WITHIN_S, at the last one */
	unsigned populating; /* in a row, killed while memory was populated */
};

enum deaths_verdict { DEATHS_GO_ON, DEATHS_TOO_OFTEN, DEATHS_OF_MEMORY };

/* @populating: it was killed while it populated memory. @limit: 1 to DEATHS_MAX. */
enum deaths_verdict deaths_note(struct deaths *deaths, uint64_t now_ns, bool populating, unsigned limit);
/* A serving process has all of its floors: the row is over. */
void deaths_populated(struct deaths *deaths);

#endif
