/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/page_nodes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "index/mix.h"
#include "store/base/digest.h"
#include "store/base/lock.h"

#define NONE 0xffffffffu
#define PLACE_BITS 16
#define GENERATION_BITS 24
#define GENERATION_MASK ((1u << GENERATION_BITS) - 1)

_Static_assert(PAGE_NODES_MAX <= 1u << PLACE_BITS, "a place fits the number");
_Static_assert((PAGE_NODES_MAX & (PAGE_NODES_MAX - 1)) == 0, "as many buckets as places");

struct page_node {
	struct key key;
	uint64_t namespace;
	uint64_t lookups;    /* 0 = free */
	uint32_t generation; /* of the place; its number has the low bits */
	uint32_t next;       /* in its bucket, or of the free ones */
};
_Static_assert(sizeof(struct page_node) <= 64, "as the header says");

struct page_nodes {
	struct lock lock;             /* guards everything below */
	uint64_t seed[2], epoch;      /* constant */
	uint32_t count, used, free;   /* places used once are below `used`; list of free ones among them */
	uint32_t hand, owed;          /* of page_nodes_surplus */
	uint32_t bucket[PAGE_NODES_MAX]; /* place + 1 of the first, 0 = none */
	struct page_node at[PAGE_NODES_MAX];
};

struct page_nodes *page_nodes_new(uint32_t epoch)
{
	struct page_nodes *n = calloc(1, sizeof(*n)); /* large: its pages come as they are used */

	assert(epoch <= UINT16_MAX);
	if (!n)
		return NULL;
	n->epoch = epoch;
	digest_random(n->seed, sizeof(n->seed));
	n->free = NONE;
	lock_init(&n->lock, LOCK_QUEUE);
	return n;
}

void page_nodes_free(struct page_nodes **np)
{
	struct page_nodes *n = *np;

	*np = NULL;
	if (!n)
		return;
	lock_destroy(&n->lock);
	free(n);
}

/* Keys are chosen by clients: seeded, so that they cannot be chosen to meet. */
static uint32_t *bucket_of(struct page_nodes *n, uint64_t namespace, const struct key *key)
{
	uint64_t a = mix_64(key->words[0] ^ n->seed[0], key->words[1] ^ n->seed[1]);
	uint64_t b = mix_64(key->words[2] ^ n->seed[1], key->words[3] ^ n->seed[0]);

	return &n->bucket[mix_64(a ^ namespace, b ^ n->seed[0]) % PAGE_NODES_MAX];
}

static bool same(const struct page_node *a, uint64_t namespace, const struct key *key)
{
	return a->namespace == namespace && !memcmp(&a->key, key, sizeof(*key));
}

static uint64_t number_of(const struct page_nodes *n, uint32_t place)
{
	return n->epoch << (GENERATION_BITS + PLACE_BITS) | (uint64_t)(n->at[place].generation & GENERATION_MASK) << PLACE_BITS | place;
}

static struct page_node *by_number(struct page_nodes *n, uint64_t number)
{
	uint32_t place = number & ((1u << PLACE_BITS) - 1);

	lock_assert_held(&n->lock);
	if (place >= n->used || !n->at[place].lookups || number_of(n, place) != number)
		return NULL;
	return &n->at[place];
}

static uint32_t take_place(struct page_nodes *n)
{
	uint32_t place = n->free;

	if (place != NONE)
		n->free = n->at[place].next;
	else if (n->used < PAGE_NODES_MAX)
		place = n->used++;
	return place;
}

bool page_nodes_look_up(struct page_nodes *n, uint64_t namespace, const struct key *key, uint64_t *number, bool *surplus)
{
	lock_take(&n->lock);
	uint32_t *bucket = bucket_of(n, namespace, key), place = *bucket - 1;

	*surplus = false;
	while (place != NONE && !same(&n->at[place], namespace, key))
		place = n->at[place].next - 1;
	if (place == NONE) {
		place = take_place(n);
		if (place != NONE) {
			struct page_node *a = &n->at[place];

			a->key = *key;
			a->namespace = namespace;
			a->next = *bucket;
			*bucket = place + 1;
			*surplus = ++n->count > PAGE_NODES_EASY;
			if (*surplus && n->owed < PAGE_NODES_MAX)
				n->owed += 2;
		}
	}
	if (place != NONE) {
		n->at[place].lookups++;
		*number = number_of(n, place);
	}
	lock_drop(&n->lock);
	return place != NONE;
}

static void remove_node(struct page_nodes *n, struct page_node *a)
{
	uint32_t place = (uint32_t)(a - n->at);
	uint32_t *at = bucket_of(n, a->namespace, &a->key);

	while (*at != place + 1)
		at = &n->at[*at - 1].next;
	*at = a->next;
	a->generation++;
	a->next = n->free;
	n->free = place;
	n->count--;
}

void page_nodes_forget(struct page_nodes *n, uint64_t number, uint64_t lookups)
{
	lock_take(&n->lock);
	struct page_node *a = by_number(n, number);
	if (a) {
		a->lookups -= lookups < a->lookups ? lookups : a->lookups;
		if (!a->lookups)
			remove_node(n, a);
	}
	lock_drop(&n->lock);
}

bool page_nodes_get(struct page_nodes *n, uint64_t number, uint64_t *namespace, struct key *key)
{
	lock_take(&n->lock);
	const struct page_node *a = by_number(n, number);
	if (a) {
		*namespace = a->namespace;
		*key = a->key;
	}
	lock_drop(&n->lock);
	return a;
}

bool page_nodes_surplus(struct page_nodes *n, uint64_t *namespace, struct key *key)
{
	bool any = false;

	lock_take(&n->lock);
	if (n->count <= PAGE_NODES_EASY)
		n->owed = 0;
	/* Over half of the places are in use: a used one is near. */
	while (n->owed && !any) {
		const struct page_node *a = &n->at[n->hand];

		n->hand = (n->hand + 1) % n->used;
		any = a->lookups > 0;
		if (any) {
			*namespace = a->namespace;
			*key = a->key;
		}
	}
	n->owed -= any;
	lock_drop(&n->lock);
	return any;
}

uint32_t page_nodes_count(struct page_nodes *n)
{
	lock_take(&n->lock);
	uint32_t count = n->count;
	lock_drop(&n->lock);
	return count;
}
