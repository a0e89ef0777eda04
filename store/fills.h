/* SPDX-License-Identifier: Apache-2.0
 *
 * Records in which a value is half there, some shares committed and others not, and when those go (docs/ranks-and-classes.md,
 * "Nothing is half there for long").
 *
 * A ring of (record, generation, deadline), in order of deadlines, and a word for each record number that stands in it: since which second,
 * and whether more of it was committed in a later one. It needs 14 bytes a record, touched as they are used, and nothing at all in a namespace
 * whose classes have one share each (space.fills is NULL then).
 *
 *   a value is committed   fills_note, if that leaves it half there: on the way of a commit, a word mostly
 *   fills_run, each second those that are due: values half there go, of one (page, class) in one stay; a record in which a share of one is being
 *                          written, or that is pinned, or of which more was committed, is put at the end again for fill_ttl. One that got shorter
 *                          meanwhile too: its number alone does not say that it is the same
 *   an adoption, a restart fills_sweep notes what is there already, 64 records a stay
 *
 * Concurrency: the ring under the space lock, asserted; fills_run and fills_sweep take it for at most INDEX_STEP_KEYS pages at a
 * time and are called without, by one thread.
 */
#ifndef PREFIXFS_STORE_FILLS_H
#define PREFIXFS_STORE_FILLS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/why.h"

struct space;
struct fills;

int fills_new(struct space *space, struct fills **ret, struct why *why); /* *ret NULL where no class has two shares */
void fills_free(struct fills **fills);

/* Under the lock. A value was committed in @record, which is current, and is half there. Looks at nothing: whether something still is, is asked
 * when it is due: fill_ttl after the last fills_run. */
void fills_note(struct fills *fills, uint32_t record);
/* Under the lock. A committed value went from @page of @record alone, through no will of its owner; @record may have gone with it. */
void fills_value_lost(struct space *space, uint32_t record, uint16_t page);
/* Under the lock: is it listed, and something of it half there, as far as its first INDEX_STEP_KEYS pages say? Such a one is not written to
 * disk, unless somebody drains. */
bool fills_has(const struct fills *fills, uint32_t record);

/* Pages of a record, whose generation tells whether it still is that one. */
struct fill_span {
	uint32_t record, generation;
	uint32_t page, pages; /* from @page on; INDEX_PAGE_ROW, 1: the row */
};
/* What of these is half there, not being written and not pinned goes now: a put ticket's deadline has passed. Of a record that is another one, or was
 * cut by others, nothing does: fill_ttl is for that. No lock held, INDEX_STEP_KEYS pages a stay; sorts @spans. */
void fills_abandon(struct fills *fills, struct fill_span *spans, uint32_t count);

void fills_run(struct fills *fills, uint64_t now_ns); /* about once a second; no lock held */
bool fills_sweep(struct fills *fills);                /* true: call again; after an adoption or a restart, until false */

/* Values that went so, and places that wait; under the lock. In `stats` as values_abandoned, records_filling. */
uint64_t fills_abandoned(const struct fills *fills);
uint32_t fills_count(const struct fills *fills);
/* How often something was left for fill_ttl more, since its record's number had been another record's, or the record was cut; under the
 * lock. For tests: from then on what goes when is not to be told from outside. */
uint64_t fills_late(const struct fills *fills);

#endif
