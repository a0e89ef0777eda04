/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a namespace: identity, world, page size, value classes. Immutable once parsed; free to read from any
 * thread.
 *
 * As JSON (version 1), unknown members are refused:
 *
 *   { "version": 1,
 *     "identity": { "model": "Qwen/Qwen3-8B", "revision": "...", "kv_dtype": "bf16", "execution": "...",
 *                   "adapters": "...", "engine": "...", "hash": "sha256_cbor", "hash_seed": "...", "isolation": "..." },
 *     "world": 1, "page_tokens": 64,
 *     "memory": { "floor": 1073741824, "blobs": { "bytes": 67108864, "count": 16384 } },
 *     "context": 131072, "ladder": { "interval": 8192 },
 *     "classes": [ { "name": "kv", "kind": "dense" | "window" | "state", "every": 64, "sink": 0, "last": 0,
 *                    "share_of_rank": [0], "planes": [ {"name": "L.K", "count": 36, "bytes": 65536}, ... ] } ] }
 *
 * `identity` members are strings, all optional but "model"; `every`, in tokens, is a multiple of page_tokens and
 * defaults to it; `share_of_rank` defaults to one share per rank; where shares differ in bytes, "share_planes" (a list
 * of plane lists, one per share) stands in place of "planes". `context`, in tokens, is optional; `interval`, in tokens too, is 0 or a
 * multiple of page_tokens, by default the least one that is LAYOUT_INTERVAL or more. `memory`, `context` and `ladder` are no part
 * of identity or fingerprint.
 */
#ifndef PREFIXFS_INDEX_LAYOUT_H
#define PREFIXFS_INDEX_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#include "store/base/why.h"

#define LAYOUT_MAX_JSON (128u << 10) /* bytes of the JSON text */
#define LAYOUT_MAX_CLASSES 16u
#define LAYOUT_MAX_SHARES 64u
#define LAYOUT_MAX_WORLD 1024u
#define LAYOUT_MAX_PLANES 4096u      /* of one share, counted with `count` */
#define LAYOUT_MAX_NAME 64u          /* bytes of a class or plane name; [A-Za-z0-9._-] */
#define LAYOUT_MAX_VALUE (4ull << 30) /* bytes of a value: 4 GiB */
#define LAYOUT_MAX_PAGE_TOKENS 65536u
#define LAYOUT_VALUE_ALIGN 4096u
#define LAYOUT_MIN_BLOBS (64u << 10) /* bytes of a share for blobs */
#define LAYOUT_MAX_BLOBS (1ull << 40)
#define LAYOUT_MAX_BLOBS_COUNT (1u << 20)
#define LAYOUT_BLOBS_COUNT 16384u    /* where the layout says none */
#define LAYOUT_MAX_CONTEXT (1ull << 40) /* tokens */
#define LAYOUT_INTERVAL 8192u /* tokens from rung to rung, rounded up to pages, where the layout says nothing */

enum value_kind {
	VALUE_DENSE,  /* every value up to the boundary */
	VALUE_WINDOW, /* the first `sink` and the last `last` values */
	VALUE_STATE,  /* one value at the endpoint of a record: part of its row */
};

struct plane {
	char name[LAYOUT_MAX_NAME];
	uint32_t count; /* how many of these follow one another */
	uint64_t bytes; /* of one */
};

struct share {
	uint32_t plane_kinds;
	struct plane *planes;
	uint64_t payload_bytes; /* sum over planes */
	uint64_t slot_bytes;    /* align_up(max(payload, 4096), 4096) */
};

struct value_class {
	char name[LAYOUT_MAX_NAME];
	enum value_kind kind;
	uint32_t every_pages; /* pages per value, >= 1; 1 for state */
	uint32_t sink, last;  /* window: values */
	uint32_t shares;
	struct share share[LAYOUT_MAX_SHARES];
	uint32_t first_column; /* of its shares among a page's columns, or among a row's for a state class */
};

struct layout {
	uint32_t world;
	uint32_t page_tokens;
	uint32_t classes;
	struct value_class class[LAYOUT_MAX_CLASSES];
	uint16_t (*share_of_rank)[LAYOUT_MAX_CLASSES]; /* [world][class] */
	uint32_t page_columns; /* values a page can have: (class, share) of dense and window classes */
	uint32_t row_columns;  /* values a row can have: (class, share) of state classes */
	uint32_t dense_mask, window_mask, state_mask; /* classes by kind: bits */
	bool shared;           /* some class has two shares or more: a value can be half there */
	uint64_t context;      /* tokens of the longest request; 0 = nobody says */
	uint64_t interval;     /* of the ladder, in tokens; 0 = there is none */
	uint64_t floor_bytes;  /* 0 = default */
	uint64_t blobs_bytes;  /* share of the budget for blobs, beside the floor; 0 = none */
	uint32_t blobs_count;  /* of blobs, at most */
	uint8_t identity[32];  /* BLAKE2b-256 of the canonical identity */
	uint8_t fingerprint[16]; /* BLAKE2b-128 of the canonical layout, identity included */
	char *json;            /* canonical text of the whole, NUL-terminated */
};

/* Parses and checks @size bytes of JSON. On success *ret is the caller's, to be freed with layout_free.
 * EINVAL with the offending member named, EFBIG over LAYOUT_MAX_JSON, ENOMEM. */
int layout_parse(const char *text, size_t size, struct layout **ret, struct why *why);
void layout_free(struct layout **layout);

/* Column of a value: its index among the page's (dense, window) or the row's (state) values. */
static inline uint32_t layout_column(const struct layout *layout, uint32_t class_index, uint32_t share)
{
	return layout->class[class_index].first_column + share;
}

static inline bool layout_is_row(const struct layout *layout, uint32_t class_index)
{
	return layout->class[class_index].kind == VALUE_STATE;
}

/* Do pages end at @tokens? */
static inline bool layout_is_page_end(const struct layout *layout, uint64_t tokens)
{
	uint32_t page = layout->page_tokens;

	return !(page & (page - 1)) ? !(tokens & (page - 1)) : tokens % page == 0; /* mostly no division */
}

/* Does the page that ends at @consumed tokens carry a value of @class_index? */
static inline bool layout_has_value(const struct layout *layout, uint32_t class_index, uint64_t consumed)
{
	const struct value_class *c = &layout->class[class_index];

	return c->every_pages == 1 || consumed % ((uint64_t)c->every_pages * layout->page_tokens) == 0;
}

#endif
