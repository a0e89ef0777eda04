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
#define DEATHS_LOOP_S 5  /* who has served for less is started again after a pause */

struct deaths {
	uint64_t times[DEATHS_MAX]; /* a ring */
	unsigned count;
	unsigned recent;     /* within DEATHS_WITHIN_S, at the last one */
	unsigned populating; /* in a row, killed while memory was populated */
	unsigned quick;      /* in a row, before they had served for DEATHS_LOOP_S */
};

enum deaths_verdict { DEATHS_GO_ON, DEATHS_TOO_OFTEN, DEATHS_OF_MEMORY };

/* @populating: it was killed while it populated memory. @limit: 1 to DEATHS_MAX. */
enum deaths_verdict deaths_note(struct deaths *deaths, uint64_t now_ns, bool populating, unsigned limit);
/* How long the start after the death of one that had served for @served_ns waits: 0, or 100 ms, doubled with each in a row up to 3.2 s. */
uint64_t deaths_pause_ms(struct deaths *deaths, uint64_t served_ns);
/* A serving process has all of its floors: the row is over. */
void deaths_populated(struct deaths *deaths);

#endif
