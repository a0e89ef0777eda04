/* SPDX-License-Identifier: Apache-2.0
 *
 * What became of put plans of earlier serving processes: asked for by (client id, plan id), answered from the groups' state words (P9).
 *
 * Built from the tables once, at adoption: every intact group that is COMMITTED or LOST by then. It only shrinks: a plan goes when the
 * remnant of the session that made it is settled (store/remnants.h); a group names that session. Group numbers that are in it are not given out again before that.
 *
 * Under the space lock, but for outcomes_new's memory.
 */
#ifndef PREFIXFS_STORE_OUTCOMES_H
#define PREFIXFS_STORE_OUTCOMES_H

#include "store/adopt.h"
#include "store/put.h"
#include "store/space.h"

struct outcomes;

/* Step 6, after the remnants: fills the space's stack of free group numbers with what is neither, or of a session of which no remnant is
 * left; @ret NULL when there is nothing to ask about. ENOMEM. Takes the lock. */
int outcomes_adopt(struct space *space, struct outcomes **ret, struct adopt_report *report, struct why *why);
void outcomes_free(struct outcomes **outcomes);

/* The states of groups [@first, @first + @count) of the plan: PUT_COMMITTED or PUT_LOST each, LOST of one that has no entry (it had not
 * begun); *outcome of the whole: COMMITTED when any group is. False: no group of such a plan: it had not begun, or was settled. At most
 * INDEX_STEP_KEYS groups in one call. */
bool outcomes_ask(struct space *space, const uint8_t client_id[16], uint64_t plan, uint32_t first, uint32_t count,
		  uint8_t *status, uint8_t *outcome);
/* Frees groups that session @earlier made (OUTCOMES_CROWD: all of whom no seat says anything), at most INDEX_STEP_KEYS; false: none is
 * left. By session and not by client id: another one of the same client may still be asked about. */
#define OUTCOMES_CROWD UINT64_MAX
bool outcomes_settle(struct space *space, uint64_t earlier);

#endif
