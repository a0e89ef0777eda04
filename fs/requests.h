/* SPDX-License-Identifier: Apache-2.0
 *
 * How many requests of each operation were served, and how long the daemon took for each: the time from taking it to its
 * reply, without what it lay in a queue or waited for something.
 *
 * Each loop thread counts in a block of its own, which no other one writes, so counting costs a few nanoseconds; whoever
 * reads adds the blocks up (relaxed: the sums are those of some moment near by, and the count of a histogram is made
 * from its buckets, so that the two agree).
 */
#ifndef PREFIXFS_FS_REQUESTS_H
#define PREFIXFS_FS_REQUESTS_H

#include <stdint.h>

#define REQUESTS_BUCKETS 10u /* up to 4 us, 16 us, ... x 4 ..., 262,144 us, and above */
#define REQUESTS_IOCTL 32u   /* kinds from here on: operations of ctl, by their number */
#define REQUESTS_KINDS 64u

struct requests;

struct requests *requests_new(unsigned threads); /* NULL: no memory */
void requests_free(struct requests **requests);
/* The calling thread counts in block @thread (below `threads` of requests_new) from now on. */
void requests_enter(struct requests *requests, unsigned thread);

/* What kind a FUSE opcode is; those that are not told apart are one. */
unsigned requests_kind(uint32_t opcode);
/* "lookup", "PUT_START"; NULL: there is no such kind. */
const char *requests_name(unsigned kind);
/* A request of @kind took @ns. In a thread that has not entered it is not counted. */
void requests_count(unsigned kind, uint64_t ns);

struct requests_sum {
	uint64_t bucket[REQUESTS_BUCKETS]; /* not cumulative */
	uint64_t ns;
};
/* requests_name(@kind); NULL: there is no such kind. Else *ret is filled. Any thread. */
const char *requests_read(const struct requests *requests, unsigned kind, struct requests_sum *ret);
uint64_t requests_bucket_us(unsigned bucket); /* upper end of all buckets but the last */

#endif
