/* SPDX-License-Identifier: Apache-2.0
 *
 * The demands of one namespace: boundaries at which a state would have lengthened a hit, and what became of each
 * (docs/ranks-and-classes.md, The ladder).
 *
 *   OPEN     a GET_START found the gap                       demands_record
 *   TAKING   a PUT_START got a slot for a value of its row   demands_taking
 *   KEPT     the row is complete, from TAKING or OPEN        demands_kept; its record has RECORD_DEMANDED from then on
 *   gone     from TAKING, with the last value of the row: dropped; from KEPT, with the first: evicted   demands_gone
 *            all at once: from OPEN or TAKING dropped, from KEPT evicted   demands_reset
 *
 * recorded = open + taking + kept now + dropped + evicted, after every call. A table of fixed size, its memory touched as it
 * fills; an OPEN one that was asked for longest ago makes place, as dropped; TAKING and KEPT ones only when there is no OPEN one:
 * then a new demand is returned to its asker but not remembered (counted as recorded and dropped at once).
 *
 * Concurrency: all under the space lock, asserted. Nothing blocks or allocates after demands_new. A look for a key costs one line
 * where there are demands, and nothing where there are none: demands_any is asked first on the way of a put.
 */
#ifndef PREFIXFS_INDEX_DEMANDS_H
#define PREFIXFS_INDEX_DEMANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"
#include "store/base/lock.h"

#define DEMANDS_MAX 4096u

struct demands;

#define DEMANDS_COUNTERS(x)                                                 \
	x(demands_recorded, "boundaries that a state was found lacking at")  \
	x(demands_repeated, "asked for again while they stood")              \
	x(demands_acted, "of which a value was begun to be put")             \
	x(demands_kept, "whose row was complete")                            \
	x(demands_dropped, "that came to nothing")                           \
	x(demands_evicted, "whose row went again")

struct demands_counters {
#define X(name, help) uint64_t name;
	DEMANDS_COUNTERS(X)
#undef X
	uint64_t open, taking, kept_now; /* gauges */
};

int demands_new(struct lock *guard, struct demands **ret, struct why *why); /* ENOMEM */
void demands_free(struct demands **demands);

bool demands_any(const struct demands *demands);
/* @hash: the key's, of index_prefetch. A GET_START has found a gap at @key. */
void demands_record(struct demands *demands, const struct key *key, uint64_t hash, uint64_t consumed);
bool demands_has(const struct demands *demands, const struct key *key, uint64_t hash);
/* No demand at the key: nothing happens. */
void demands_taking(struct demands *demands, const struct key *key, uint64_t hash);
void demands_kept(struct demands *demands, const struct key *key, uint64_t hash);
/* A value of the row at the key went. @empty: it was the last one, whether it was committed or not. An OPEN one stands: what went was not
 * put for it. */
void demands_gone(struct demands *demands, const struct key *key, uint64_t hash, bool empty);
void demands_reset(struct demands *demands); /* takes up to DEMANDS_MAX steps */
const struct demands_counters *demands_counters(const struct demands *demands);

#endif
