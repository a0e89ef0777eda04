/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace out of its predecessor's memory files. Nothing of the payload is read.
 *
 *   1. header: version, geometry, layout, pairing of the two files      adopt_judge        else refused: the namespace is made anew, empty
 *   2. grants that contradict the layout, the segment or each other go  slots_judge
 *   3. the index                                                        index_rebuild
 *   4. free entries whose word is not 0 are quarantined; those quarantined whose word is 0 are free, with a disk only after step 7;
 *      slots taken and free                                             slots_rebuild
 *   5. seats: those whose process is gone are settled, the others hold  remnants_adopt
 *   6. outcomes of put plans, free numbers of groups                    outcomes_adopt
 *   7. with a disk: its lock; rows of files, clean bits, places, owed trims; a place that no row covers goes     tiering_adopt
 *   8. the budget: grants as they are
 *
 * When all namespaces are there: what was populating is populated anew, the rest of the floors is cut (host_adopted): not before, or one
 * of them would cut what another one has.
 *
 * Each step may be cut off by a death and done again from the beginning: 2, 3 and 7 only free what holds nothing or free it again, 5 is
 * seats_leave, words, seats_free in this order. No descriptor, no counter and nothing on the disk changes before step 7.
 *
 * Runs in the process's first thread, before anybody else knows the host; blocks for as long as the namespace has granted slots and used
 * places (a million pages: well under a second), and touches the will's progress (@progress) about every 65,536 entries.
 */
#ifndef PREFIXFS_STORE_ADOPT_H
#define PREFIXFS_STORE_ADOPT_H

#include "store/host.h"

struct adopt_session { /* a process of before that may still live */
	uint64_t number;
	int pidfd;         /* taken over, on failure too; -1: none is held, and nothing but the client itself settles its seat */
	int guard_fd;      /* of its guard, likewise; -1: it had none, or none any more */
};

struct adopt_report {
	uint64_t entries;            /* looked at */
	uint64_t values, places, records, pages;
	uint64_t torn_entries, torn_records, torn_groups, torn_grants, torn_rows, torn_seats; /* dropped: being made, or damaged */
	uint64_t groups_lost, groups_committed; /* that somebody may ask about */
	uint64_t kept_slots;         /* not reused until seats are settled */
	uint64_t trims_owed;
	uint64_t tables_us, disk_us;
};

struct adoption {
	const char *name;
	uint32_t serial;              /* the same as before */
	struct layout *layout;        /* taken over, on failure too */
	const struct space_access *access;
	int segment_fd, tables_fd;    /* taken over, on failure too */
	const struct adopt_session *sessions;
	uint32_t session_count;
	void (*progress)(void *context, uint64_t done, uint64_t goal);
	void *context;
};

/* Makes the namespace from what is there. Refusals, each with its sentence; nothing is left of the attempt and the caller makes it anew:
 *   EPROTO    "tables have version 5, this program knows 4"
 *   ESTALE    "the segment is not the one that the tables are of"
 *   EXDEV     "the tables are of identity and layout <fingerprint>, the namespace of <fingerprint>"
 *   EINVAL    the header's check; lengths; places where no disk is asked for any more; a segment that is shorter or longer than the tables
 *             say, or not sealed
 * Not refusals: ENOMEM (the process ends and is started again: memory may be there then), ENOSPC (floors over the budget), and what
 * host_space_create says. */
int host_space_adopt(struct host *host, struct adoption *adoption, struct space **ret, struct adopt_report *report, struct why *why);
/* All namespaces that are to be adopted are there: memory begins to be populated, by which whatever maps or unmaps in this process waits for
 * tens of milliseconds. In the first thread; requests may be served already. */
void host_adopted(struct host *host);
/* This process ends, and another one may follow: ends the disk's jobs, closes its rings and catalogues, until @deadline_ns. Sessions, plans,
 * quarantine and tables stay as they are: their clients live on. Instead of host_free, which takes all that apart and would hand out
 * tomorrow what a client writes to today; the memory is the kernel's business. The daemon ends in no other way. */
void host_leave(struct host *host, uint64_t deadline_ns);
/* Closes the descriptors. */
void adopt_session_end(const struct adopt_session *session);
/* Would @error, which host_space_adopt returned, mean: make it anew? */
bool adopt_refused(int error);
/* Version of the tables in @fd, 0 where it is no tables. One read. */
uint32_t adopt_tables_version(int fd);

#endif
