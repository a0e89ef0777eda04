/* SPDX-License-Identifier: Apache-2.0
 *
 * A tier: a place that holds values' bytes, behind one table of functions.
 *
 *   memory   the segment; complete, immediate
 *   null     holds nothing: writes succeed, reads are -ENODATA; for measuring what is around it
 *   fault    another tier with errors, delays and short data put in, from a seeded specification
 *
 * A tier moves bytes between a place it knows and a buffer of the caller's; which value lies at which place is the
 * index's business, and that it stays there during the call is the caller's (a pin).
 */
#ifndef PREFIXFS_STORE_TIER_H
#define PREFIXFS_STORE_TIER_H

#include <stdint.h>
#include <stddef.h>

#include "store/base/why.h"
#include "store/segment.h"

struct tier;

/* A request. Belongs to the tier from read()/write() until done() was called, which happens exactly once, perhaps before
 * the call returns, from any thread, with no lock held. */
struct tier_io {
	uint64_t offset; /* place: offset in the tier */
	void *buffer;
	size_t bytes;    /* all or nothing: less is an error */
	int result;      /* 0 or a negative errno, valid in done() */
	void (*done)(struct tier_io *io);
	void *context;   /* the caller's */
};

struct tier_ops {
	const char *name;
	/* Hold no lock. */
	void (*read)(struct tier *tier, struct tier_io *io);
	void (*write)(struct tier *tier, struct tier_io *io);
	/* Waits until no request is under way, then frees. Leaves NULL. */
	void (*free)(struct tier **tier);
	uint64_t (*errors)(const struct tier *tier); /* requests that failed so far, for whatever reason */
};

struct tier {
	const struct tier_ops *ops;
};

struct tier *tier_memory_new(struct segment *segment); /* the segment outlives it; NULL: ENOMEM */
struct tier *tier_null_new(void);
/* @spec: comma-separated rules <read|write>:<what>[:<when>] and "seed=7".
 *   what   EIO, ENOSPC, ...  fails with it; the tier below is not asked
 *          delay:5ms         (us, ms, s) goes on that much later, from a thread of the tier; nobody's thread sleeps
 *          flip              one bit of the data, read or as written; the caller's buffer of a write stays as it is
 *          short             the first half of the data is moved, then -EIO
 *   when   nothing           every time
 *          1/100             by chance, from the seed and the request's number among the reads or writes
 *          3                 from the third on (flip: the third alone)
 *          =3                the third alone
 * The first rule that fails a request names its error; other effects add up. Owns @under from success on. EINVAL names
 * the rule. */
int tier_fault_new(struct tier *under, const char *spec, struct tier **ret, struct why *why);
/* Is @spec understood? Makes nothing. */
int tier_fault_check(const char *spec, struct why *why);

/* For free() of a tier: waits until the count of requests under way is 0. */
void tier_await_idle(const _Atomic uint64_t *under_way);

/* Waits for one request; blocks as long as the tier does. Hold no lock. */
int tier_read(struct tier *tier, uint64_t offset, void *to, size_t bytes);
int tier_write(struct tier *tier, uint64_t offset, const void *from, size_t bytes);

#endif
