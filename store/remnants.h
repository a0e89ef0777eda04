/* SPDX-License-Identifier: Apache-2.0
 *
 * Remnants: what sessions of earlier serving processes may still touch in a namespace. One for each seat (index/seats.h) that was taken
 * when it was adopted; it holds every slot whose word has the seat's bit, as a get plan would, until it is settled:
 *
 *   by its process's end                     pidfd readable, and its guard's: host_process_gone of the old session's number
 *   by its client                            SETTLE from a session of the same client id and the same process
 *   in part, by the close of its old ctl     get plans end with their open file: values are let go of; what is not committed stays
 *
 * Settling lets the holds go (values may leave memory again, quarantined slots become free), frees the outcomes of its put plans, and
 * gives the seat back, in steps of 64 under the space lock.
 *
 * While a namespace has remnants no page of its segment is punched (P8): balance.c asks remnants_any.
 */
#ifndef PREFIXFS_STORE_REMNANTS_H
#define PREFIXFS_STORE_REMNANTS_H

#include "store/adopt.h"
#include "store/space.h"

struct remnants;

/* Step 5 of an adoption. Seats that were LEAVING, and those whose process is gone already, are settled at once. ENOMEM. */
int remnants_adopt(struct space *space, const struct adoption *adoption, struct adopt_report *report, struct remnants **ret,
		   struct why *why);
void remnants_free(struct remnants **remnants);
bool remnants_any(const struct space *space); /* any thread, no lock */

/* Numbers and pidfds that the doorman is to watch, of client and guard, one of which may have ended already; the descriptors become its own.
 * Each once. Returns how many of @capacity. */
uint32_t remnants_watch(struct space *space, struct adopt_session *ret, uint32_t capacity);

/* Each without the lock; in steps. */
/* A process of before has ended, and its guard. True: session @number was a remnant's. */
bool remnants_process_gone(struct host *host, uint64_t number);
/* Does anything wait for the end of the process of session @number of before, or of its guard? */
bool remnants_await(struct host *host, uint64_t number);
/* The kernel released an open file of before. */
void remnants_handle_released(struct host *host, uint64_t handle);
/* The client says that all of what session @earlier of it held has ended. ENOENT: no such remnant (settled already, which is as good);
 * EACCES: it is another client's, or another process's; EAGAIN never. */
int remnants_settle(struct session *session, uint64_t earlier, struct why *why);

/* For sessions/<id>, stats and health. */
struct remnant_info {
	uint64_t session; /* 0 of the crowd's */
	uint8_t client_id[16];
	uint32_t slots; /* that it holds */
	uint64_t age_ns; /* since the adoption */
	bool watched; /* a pidfd is held */
	bool crowd;   /* of all who had no seat of their own */
};
void remnants_report(const struct space *space, struct space_report *ret); /* its fields; under the space lock */
uint32_t remnants_list(struct space *space, struct remnant_info *ret, uint32_t capacity);

#endif
