/* SPDX-License-Identifier: Apache-2.0
 *
 * How many slots of each class a budget is (docs/ranks-and-classes.md, Sizes). Integers alone; pure; any thread.
 */
#ifndef PREFIXFS_STORE_BASE_SIZING_H
#define PREFIXFS_STORE_BASE_SIZING_H

#include <stdint.h>

#define SIZING_MAX_CLASSES 16u

enum sizing_kind { SIZING_DENSE, SIZING_WINDOW, SIZING_STATE };

struct sizing_class {
	enum sizing_kind kind;
	uint64_t every_tokens; /* of a value; of no meaning for states */
	uint64_t values;       /* window: sink + last */
	uint64_t share_bytes;  /* slots of all shares of one value together */
	/* out */
	uint64_t request;      /* values that one request needs, in each share */
	uint64_t slots;        /* that the budget has, in each share */
};

struct sizing {
	uint64_t page_tokens, context, interval; /* in: tokens; interval 0 = no ladder */
	uint64_t budget;                         /* in: bytes */
	uint32_t classes;                        /* in: 1..SIZING_MAX_CLASSES */
	struct sizing_class class[SIZING_MAX_CLASSES];
	/* out */
	uint64_t request_bytes; /* of one request: the smallest budget that serves */
	uint64_t requests;      /* whole ones that fit; 0 = refused */
	uint64_t left_bytes;    /* that no slot takes */
	uint32_t short_class;   /* of a refusal: the class with which the sum passed the budget; page classes first */
};

/* 0; ENOSPC: the budget cannot hold one request: short_class and request_bytes say what and how much; EOVERFLOW: a product is over
 * 2^63. */
int sizing_plan(struct sizing *sizing);

#endif
