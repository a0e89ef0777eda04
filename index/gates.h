/* SPDX-License-Identifier: Apache-2.0
 *
 * What a boundary needs of each class, and the one pass that finds all boundaries that have it (docs/ranks-and-classes.md, Gates).
 *
 * Pure arithmetic over a layout and what look-ups have found: no lock, no index, nothing allocated. Free to use from any thread,
 * one struct gates by one thread at a time.
 *
 * A class's values are numbered from 1; value v ends at v x every x page_tokens tokens. The look-up says of each page, by a bit
 * for each class, whether the value that belongs there is complete (all shares committed); of a class that has none there the bit
 * is set.
 */
#ifndef PREFIXFS_INDEX_GATES_H
#define PREFIXFS_INDEX_GATES_H

#include <stdbool.h>
#include <stdint.h>

#include "index/layout.h"

struct gates {
	const struct layout *layout;
	uint32_t dense, windows, states; /* of the wanted classes, by kind: bits */
	uint64_t have;                   /* whole pages of it, at least `start`, in tokens */
	uint64_t sinks;                  /* tokens up to which some window has a sink; 0 = none has one */
	bool sparse;                     /* some class has longer values than pages */
	/* so far */
	bool intact;                     /* every page behind `have` has what it needs whatever comes behind it */
	uint64_t run[LAYOUT_MAX_CLASSES]; /* windows: complete values since the last gap, UINT64_MAX before the first one */
};

/* @class_mask: classes wanted, not 0. @start: tokens before the first page, which is not above @have (rounded down to pages by the
 * caller) unless @have is 0. Values that end at or before max(@start, @have) count as complete. */
void gates_begin(struct gates *gates, const struct layout *layout, uint32_t class_mask, uint64_t start, uint64_t have);

/* Classes of the wanted ones that the page which ends at @consumed needs whatever comes behind it: dense ones and sinks that have
 * a value there. A page is a hit when all of these are complete; where there are none, when all that have a value there are. */
uint32_t gates_needs(const struct gates *gates, uint64_t consumed);
uint32_t gates_due(const struct gates *gates, uint64_t consumed); /* page classes of the wanted ones that have a value there */

/* The next page, which ends at @consumed, with @complete: bit c as above. Pages are given in order, none left out, also those
 * below `have`. Returns whether dense and window gates hold there; states are the caller's to ask. gates.intact false: no later
 * boundary can hold, the search may end. */
bool gates_page(struct gates *gates, uint64_t consumed, uint32_t complete);

/* Does @boundary need the value of @class_index on the page that ends at @consumed? Nothing at or below `have`; of a class that is not
 * wanted nothing; of a state class its row, at the boundary itself. */
bool gates_needed(const struct gates *gates, uint32_t class_index, uint64_t consumed, uint64_t boundary);
/* How many values of @class_index lie in (from, to] of those that @boundary needs; in constant time. @boundary is the end of a
 * value of each wanted page class. */
uint64_t gates_count(const struct gates *gates, uint32_t class_index, uint64_t from, uint64_t to, uint64_t boundary);

#endif
