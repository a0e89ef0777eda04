/* SPDX-License-Identifier: Apache-2.0
 *
 * How a trace uses its pages again: what a cache of any size could have hit, without having been run.
 *
 * A request uses a chain of pages from its first one on, so the pages that two requests share are the first pages of both.
 * Hence the pages whose last use was one and the same request are a run of that request's chain, and a run that is used
 * again is one link: so many pages, from that request to this one. Everything below is computed of links, of which a trace
 * has a few for each request, and not of pages.
 */
#ifndef PREFIXFS_TOOLS_REPORT_REUSE_H
#define PREFIXFS_TOOLS_REPORT_REUSE_H

#include <stddef.h>
#include <stdint.h>

#include "tools/trace.h"

struct reuse_link {
	uint32_t from, to; /* requests */
	uint32_t pages;
	uint32_t
		distance; /* stack distance of the first page, that of the next one is 1 more: pages that a leaf-first LRU must
	                      hold for it to be there still, itself included */
};

struct reuse {
	size_t requests;
	uint64_t references, distinct; /* pages */
	struct reuse_link *links;      /* by `to` */
	size_t count, room;
	uint32_t *by_from; /* [count] indices of links, by `from` */
	size_t *first;     /* [requests + 1] where in by_from those of a request begin */
};

/* 0, or 1: no memory. */
int reuse_read(const struct trace *trace, struct reuse *ret);
void reuse_free(struct reuse *reuse);

/* References that a cache of @pages pages hits which evicts what was unused for longest, the end of a chain first. @hits (may
 * be NULL): [requests] those of each request. */
uint64_t reuse_lru(const struct reuse *reuse, uint64_t pages, uint32_t *hits);
/* The most that any cache of @pages pages could hit: it knows the future, and keeps what is used again soonest. @hits as above.
 * 0 as well when there is no memory. */
uint64_t reuse_optimum(const struct reuse *reuse, uint64_t pages, uint32_t *hits);
/* The same for a cache without limit: all but the first use of each page. */
uint64_t reuse_unlimited(const struct reuse *reuse);

#endif
