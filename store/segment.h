/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared memory of a namespace: one sparse, sealed memory file.
 *
 * Mode 0600, sealed against SHRINK, GROW and further SEALs (never FUTURE_WRITE: that would bar writing clients). The
 * daemon does not touch payload through a mapping, only through the kernel: a client that punches a hole makes zeroes for
 * itself, not SIGBUS for us. Windows are mapped for population alone and go with the call. The disk tier alone maps all of
 * it, and looks at payload under a guard (store/base/guard.h). docs/architecture.md says which backing is taken when.
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
	SEGMENT_WISH_AUTO,  /* hugetlb when enough are free for expected_bytes, else as with THP */
	SEGMENT_WISH_SMALL,
	SEGMENT_WISH_THP,   /* when shmem_enabled allows it and a trial page is really huge, else small */
	SEGMENT_WISH_HUGETLB, /* refuse (ENOMEM) when too few are free */
};

struct segment_config {
	const char *name;   /* shown in /proc, nothing more */
	uint64_t bytes;     /* length, a multiple of 2 MiB; address space, not memory */
	uint64_t expected_bytes; /* of it, what will be granted: the huge pages that must be free; 0 = all of it. They
				  * are counted, not reserved: whoever populates first has them */
	enum segment_wish wish;
};

int segment_new(const struct segment_config *config, struct segment **ret, struct why *why);
/* The memory file @fd of an earlier process, which is taken over, on failure too. EINVAL: it is no whole number of 2 MiB, or is not
 * sealed against shrinking and growing; EMFILE, ENOMEM. Its content is as it was. @wish says whether huge pages are advised where the
 * file can have them. */
int segment_adopt(int fd, enum segment_wish wish, struct segment **ret, struct why *why);
void segment_free(struct segment **segment); /* clients' mappings live on */

/* Gives the memory of whole pages of 2 MiB back to the host. Nobody may use the range any more: who mapped it finds
 * zeroes there, and a device that had it registered goes on using pages that are nobody's. Blocks; no lock is held.
 * EINVAL, and what fallocate(2) says. */
int segment_punch(struct segment *segment, uint64_t offset, uint64_t length, struct why *why);

int segment_fd(const struct segment *segment);           /* read-write, the segment's */
int segment_read_only_fd(const struct segment *segment); /* reopened O_RDONLY, the segment's */
uint64_t segment_bytes(const struct segment *segment);
uint64_t segment_page_bytes(const struct segment *segment); /* 4096 or 2 MiB (THP: 4096) */
enum segment_backing segment_backing(const struct segment *segment);
const char *segment_backing_name(enum segment_backing backing);
/* THP is a wish that the kernel may refuse page by page. The first piece of every population is looked at: bytes looked
 * at so far, and bytes of them that were huge. Both 0 with other backings. */
void segment_huge_seen(const struct segment *segment, uint64_t *ret_checked, uint64_t *ret_huge);
/* Memory that the file really occupies (st_blocks), ungranted pages that a client touched included. */
uint64_t segment_resident_bytes(const struct segment *segment);

#define SEGMENT_ANY_NODE 0xffffffffu

/* Makes [offset, offset+length) present, with @threads threads (1..64) that live as long as the call, each taking 64 MiB
 * at a time. Multiples of 2 MiB. Blocks for as long as the kernel takes (0.03 to 0.9 s per GiB); hold no lock. ENOMEM when
 * the host has no page left; what was populated by then stays so. Pages that a client punches meanwhile are absent.
 * *progress, if not NULL, grows by the bytes done. @node: NUMA node that new pages come from as long as it has some; pages
 * that are there already stay where they are. */
int segment_populate_on_node(struct segment *segment, uint64_t offset, uint64_t length, unsigned threads,
			     uint32_t node, _Atomic uint64_t *progress, struct why *why);
/* The same with SEGMENT_ANY_NODE. */
int segment_populate(struct segment *segment, uint64_t offset, uint64_t length, unsigned threads,
		     _Atomic uint64_t *progress, struct why *why);

/* Whole reads and writes of granted memory; 0 or a negative errno: EINVAL beyond the end, ENOMEM when writing needs a page
 * and there is none. Holes read as zeroes. Hold no lock. */
int segment_read(const struct segment *segment, uint64_t offset, void *to, size_t bytes);
int segment_write(struct segment *segment, uint64_t offset, const void *from, size_t bytes);

#endif
