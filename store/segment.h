/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared memory of a namespace: one sparse, sealed memory file.
 *
 * Mode 0600, sealed against SHRINK, GROW and further SEALs (never FUTURE_WRITE: that would bar writing clients). The
 * daemon does not touch payload through a mapping, only through pread and pwrite: a client that punches a hole makes
 * zeroes for itself, not SIGBUS for us. The mapping that exists serves population alone. docs/architecture.md says which
 * backing is taken when.
 *
 * Thread-safe: immutable after creation but for the kernel's own state.
 */
#ifndef PREFIXFS_STORE_SEGMENT_H
#define PREFIXFS_STORE_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/base/why.h"

struct segment;

enum segment_backing {
	SEGMENT_SMALL,   /* the system's small pages */
	SEGMENT_THP,     /* transparent huge pages, where shmem_enabled allows them on advice */
	SEGMENT_HUGETLB, /* reserved huge pages */
};

enum segment_wish {
	SEGMENT_WISH_AUTO,  /* hugetlb when enough are free for the whole length, else THP when allowed, else small */
	SEGMENT_WISH_SMALL,
	SEGMENT_WISH_THP,
	SEGMENT_WISH_HUGETLB, /* refuse (ENOMEM) when too few are free */
};

struct segment_config {
	const char *name;   /* shown in /proc, nothing more */
	uint64_t bytes;     /* length, a multiple of 2 MiB; address space, not memory */
	uint64_t expected_bytes; /* of it, what will be granted: the huge pages that must be free */
	enum segment_wish wish;
};

int segment_new(const struct segment_config *config, struct segment **ret, struct why *why);
void segment_free(struct segment **segment); /* clients' mappings live on */

int segment_fd(const struct segment *segment);           /* read-write, the segment's */
int segment_read_only_fd(const struct segment *segment); /* reopened O_RDONLY, the segment's */
uint64_t segment_bytes(const struct segment *segment);
uint64_t segment_page_bytes(const struct segment *segment); /* 4096 or 2 MiB (THP: 4096) */
enum segment_backing segment_backing(const struct segment *segment);
const char *segment_backing_name(enum segment_backing backing);
/* Memory that the file really occupies (st_blocks), ungranted pages that a client touched included. */
uint64_t segment_resident_bytes(const struct segment *segment);

/* Makes [offset, offset+length) present, with @threads threads (1..64), each on its own part. Multiples of 2 MiB. Blocks
 * for as long as the kernel takes (0.03 to 0.9 s per GiB); hold no lock. ENOMEM when the host has no page left.
 * *progress, if not NULL, grows by the bytes done. */
int segment_populate(struct segment *segment, uint64_t offset, uint64_t length, unsigned threads,
		     _Atomic uint64_t *progress, struct why *why);

/* Whole reads and writes of granted memory; 0 or a negative errno. Hold no lock. */
int segment_read(const struct segment *segment, uint64_t offset, void *to, size_t bytes);
int segment_write(struct segment *segment, uint64_t offset, const void *from, size_t bytes);

#endif
