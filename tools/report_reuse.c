/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report_reuse.h"

#include <stdlib.h>
#include <string.h>

/* ---- when each page was used last ------------------------------------------------------------------------------- */

/* Pages by 16 bytes of their key, in an open table. */
struct page {
	uint64_t key[2];
	uint32_t last; /* 1 + the request; 0 = nothing is here */
};

struct pages {
	struct page *table;
	size_t mask, count;
};

static struct page *find(const struct pages *p, const uint64_t key[2])
{
	size_t at = key[0] & p->mask;

	while (p->table[at].last && (p->table[at].key[0] != key[0] || p->table[at].key[1] != key[1]))
		at = (at + 1) & p->mask;
	return &p->table[at];
}

static int reserve(struct pages *p, size_t more)
{
	struct pages larger = {.mask = p->mask ? p->mask : 4095};

	while ((p->count + more) * 4 > larger.mask * 3)
		larger.mask = larger.mask * 2 + 1;
	if (p->table && larger.mask == p->mask)
		return 0;
	larger.table = calloc(larger.mask + 1, sizeof(*larger.table));
	if (!larger.table)
		return 1;
	larger.count = p->count;
	for (size_t i = 0; p->table && i <= p->mask; i++)
		if (p->table[i].last)
			*find(&larger, p->table[i].key) = p->table[i];
	free(p->table);
	*p = larger;
	return 0;
}

/* ---- how many pages were used last by requests after one: a Fenwick tree over the requests ---------------------- */

static void tree_add(uint64_t *tree, size_t requests, size_t at, uint64_t pages)
{
	for (at++; at <= requests; at += at & -at)
		tree[at] += pages; /* what is taken away is added modulo 2^64 */
}

static uint64_t tree_upto(const uint64_t *tree, size_t at)
{
	uint64_t sum = 0;

	for (at++; at > 0; at -= at & -at)
		sum += tree[at];
	return sum;
}

/* ---- links ------------------------------------------------------------------------------------------------------ */

static int add_link(struct reuse *r, uint32_t from, uint32_t to, uint64_t distance)
{
	if (r->count == r->room) {
		size_t room = r->room ? r->room * 2 : 4096;
		struct reuse_link *p = realloc(r->links, room * sizeof(*p));

		if (!p)
			return 1;
		r->links = p;
		r->room = room;
	}
	r->links[r->count++] = (struct reuse_link){.from = from, .to = to, .distance = (uint32_t)distance};
	return 0;
}

static int read_request(
	struct reuse *r, struct pages *pages, uint64_t *tree, size_t i, const struct pfs_key *keys, uint32_t count)
{
	size_t first = r->count;

	if (reserve(pages, count))
		return 1;
	for (uint32_t d = 0; d < count; d++) {
		struct page *page;
		uint64_t key[2];

		memcpy(key, keys[d].bytes, sizeof(key));
		page = find(pages, key);
		if (!page->last) {
			memcpy(page->key, key, sizeof(key));
			pages->count++;
		} else {
			uint32_t from = page->last - 1;

			if ((r->count == first || r->links[r->count - 1].from != from) &&
				add_link(r, from, (uint32_t)i, pages->count - tree_upto(tree, from) + 1))
				return 1;
			r->links[r->count - 1].pages++;
		}
		page->last = (uint32_t)i + 1;
	}
	for (size_t k = first; k < r->count; k++)
		tree_add(tree, r->requests, r->links[k].from, -(uint64_t)r->links[k].pages);
	tree_add(tree, r->requests, i, count);
	r->references += count;
	return 0;
}

static int index_by_from(struct reuse *r)
{
	size_t sum = 0;

	r->by_from = calloc(r->count + 1, sizeof(*r->by_from));
	r->first = calloc(r->requests + 2, sizeof(*r->first));
	if (!r->by_from || !r->first)
		return 1;
	for (size_t k = 0; k < r->count; k++)
		r->first[r->links[k].from + 2]++;
	for (size_t i = 0; i < r->requests + 2; i++)
		r->first[i] = sum += r->first[i];
	for (size_t k = 0; k < r->count; k++)
		r->by_from[r->first[r->links[k].from + 1]++] = (uint32_t)k;
	return 0;
}

int reuse_read(const struct trace *trace, struct reuse *ret)
{
	struct reuse r = {.requests = trace->count};
	uint64_t *tree = calloc(trace->count + 1, sizeof(*tree));
	struct chain *chains = chains_new(trace);
	struct pages pages = {0};
	int failed = !tree || !chains;

	for (size_t i = 0; i < trace->count && !failed; i++) {
		const struct pfs_key *keys = chains_advance(chains, trace, i);

		failed = (!keys && trace->requests[i].pages > 0) ||
		         read_request(&r, &pages, tree, i, keys, trace->requests[i].pages);
	}
	r.distinct = pages.count;
	failed = failed || index_by_from(&r);
	chains_free(chains, trace);
	free(pages.table);
	free(tree);
	if (failed)
		reuse_free(&r);
	else
		*ret = r;
	return failed;
}

void reuse_free(struct reuse *reuse)
{
	free(reuse->links);
	free(reuse->by_from);
	free(reuse->first);
	*reuse = (struct reuse){0};
}

/* ---- what a cache would have hit -------------------------------------------------------------------------------- */

uint64_t reuse_unlimited(const struct reuse *reuse)
{
	return reuse->references - reuse->distinct;
}

uint64_t reuse_lru(const struct reuse *reuse, uint64_t pages, uint32_t *hits)
{
	uint64_t sum = 0;

	if (hits)
		memset(hits, 0, reuse->requests * sizeof(*hits));
	for (size_t k = 0; k < reuse->count; k++) {
		const struct reuse_link *link = &reuse->links[k];
		uint64_t n = pages < link->distance ? 0 : pages - link->distance + 1;

		n = n < link->pages ? n : link->pages;
		sum += n;
		if (hits)
			hits[link->to] += (uint32_t)n;
	}
	return sum;
}

/* The requests for which something is held, the last one on top. */
struct heap {
	uint32_t *at;
	size_t count;
};

static void heap_push(struct heap *h, uint32_t value)
{
	size_t i = h->count++;

	for (; i > 0 && h->at[(i - 1) / 2] < value; i = (i - 1) / 2)
		h->at[i] = h->at[(i - 1) / 2];
	h->at[i] = value;
}

static void heap_pop(struct heap *h)
{
	uint32_t value = h->at[--h->count];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < h->count) {
		if (child + 1 < h->count && h->at[child + 1] > h->at[child])
			child++;
		if (h->at[child] <= value)
			break;
		h->at[i] = h->at[child];
		i = child;
	}
	h->at[i] = value;
}

uint64_t reuse_optimum(const struct reuse *reuse, uint64_t pages, uint32_t *hits)
{
	uint64_t *held = calloc(reuse->requests + 1, sizeof(*held)); /* pages that are there for a request to come */
	struct heap heap = {.at = calloc(reuse->requests + 1, sizeof(*heap.at))};
	uint64_t sum = 0, total = 0;

	for (size_t i = 0; held && heap.at && i < reuse->requests; i++) {
		sum += held[i];
		total -= held[i];
		if (hits)
			hits[i] = (uint32_t)held[i];
		held[i] = 0; /* its place in the heap is below all that are to come */
		for (size_t k = reuse->first[i]; k < reuse->first[i + 1]; k++) {
			const struct reuse_link *link = &reuse->links[reuse->by_from[k]];

			if (!held[link->to])
				heap_push(&heap, link->to);
			held[link->to] += link->pages;
			total += link->pages;
		}
		while (total > pages) {
			uint64_t *last = &held[heap.at[0]], n = total - pages;

			n = n < *last ? n : *last;
			*last -= n;
			total -= n;
			if (!*last)
				heap_pop(&heap);
		}
	}
	free(held);
	free(heap.at);
	return sum;
}
