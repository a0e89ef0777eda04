/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's budget for slots, and what of it was promised to and taken by namespaces (docs/memory.md). Private to store/.
 *
 *   floors   sum of what was promised                at most the budget
 *   granted  sum of what was taken                   at most the budget
 *   reserved sum of max(floor, granted) of each      above the budget while somebody is owed room that others took before
 *
 * Bytes throughout. Thread-safe by a leaf lock of its own, which any lock but another leaf may be held around; never
 * blocks for long.
 */
#ifndef PREFIXFS_STORE_BUDGET_H
#define PREFIXFS_STORE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/lock.h"

#define BUDGET_DEFAULT_PART 4u /* of the budget, at most: a floor that nobody chose */

struct budget {
	uint64_t bytes; /* constant */
	struct lock lock; /* LOCK_QUEUE */
	uint64_t floors, granted, reserved; /* (lock) */
};

void budget_init(struct budget *budget, uint64_t bytes);
void budget_destroy(struct budget *budget);

/* The floor of a namespace that asks for none: a quarter of the budget, at most half of what nobody was promised. Pure. */
uint64_t budget_default(uint64_t bytes, uint64_t floors);
/* Promises *@floor to a new namespace; 0 asks for the default, which it becomes. False: the floors would pass the budget; *ret_floors is their sum. */
bool budget_promise(struct budget *budget, uint64_t *floor, uint64_t *ret_floors);
/* A namespace of @floor that has @granted is gone. */
void budget_forget(struct budget *budget, uint64_t floor, uint64_t granted);

enum budget_answer {
	BUDGET_OK,
	BUDGET_SHORT, /* it is within its floor, but others hold more than theirs */
	BUDGET_NONE,  /* it would grow beyond its floor, and nothing is free */
};
/* A namespace of @floor that has @granted takes @bytes more. */
enum budget_answer budget_take(struct budget *budget, uint64_t floor, uint64_t granted, uint64_t bytes);
/* It has them already, whatever that leaves to others: what is held above floors is owed. */
void budget_force(struct budget *budget, uint64_t floor, uint64_t granted, uint64_t bytes);
void budget_give(struct budget *budget, uint64_t floor, uint64_t granted, uint64_t bytes); /* and gives them back */

struct budget_report {
	uint64_t bytes, floors, granted;
	uint64_t free; /* for whoever is at its floor or above */
	uint64_t owed; /* held above floors though others' floors need it */
};
void budget_report(struct budget *budget, struct budget_report *ret);

#endif
