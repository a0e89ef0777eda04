/* SPDX-License-Identifier: Apache-2.0 */
#include "store/budget.h"

#include <assert.h>

#define REST_PART 2u /* of what nobody was promised: no default uses it up */

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

void budget_init(struct budget *b, uint64_t bytes)
{
	*b = (struct budget){ .bytes = bytes };
	lock_init(&b->lock, LOCK_QUEUE);
}

void budget_destroy(struct budget *b)
{
	lock_destroy(&b->lock);
}

uint64_t budget_default(uint64_t bytes, uint64_t floors)
{
	uint64_t rest = (bytes - floors) / REST_PART;

	return rest < bytes / BUDGET_DEFAULT_PART ? rest : bytes / BUDGET_DEFAULT_PART;
}

bool budget_promise(struct budget *b, uint64_t *floor, uint64_t *ret_floors)
{
	bool fits;

	lock_take(&b->lock);
	*ret_floors = b->floors;
	if (!*floor)
		*floor = budget_default(b->bytes, b->floors);
	fits = *floor <= b->bytes - b->floors;
	if (fits) {
		b->floors += *floor;
		b->reserved += *floor;
	}
	lock_drop(&b->lock);
	return fits;
}

void budget_forget(struct budget *b, uint64_t floor, uint64_t granted)
{
	lock_take(&b->lock);
	assert(b->floors >= floor && b->granted >= granted && b->reserved >= larger(floor, granted));
	b->floors -= floor;
	b->granted -= granted;
	b->reserved -= larger(floor, granted);
	lock_drop(&b->lock);
}

enum budget_answer budget_take(struct budget *b, uint64_t floor, uint64_t granted, uint64_t bytes)
{
	uint64_t more = larger(floor, granted + bytes) - larger(floor, granted);
	enum budget_answer answer = BUDGET_OK;

	lock_take(&b->lock);
	if (more && b->reserved + more > b->bytes)
		answer = BUDGET_NONE;
	else if (b->granted + bytes > b->bytes)
		answer = BUDGET_SHORT;
	if (answer == BUDGET_OK) {
		b->granted += bytes;
		b->reserved += more;
	}
	lock_drop(&b->lock);
	return answer;
}

void budget_force(struct budget *b, uint64_t floor, uint64_t granted, uint64_t bytes)
{
	lock_take(&b->lock);
	b->granted += bytes;
	b->reserved += larger(floor, granted + bytes) - larger(floor, granted);
	lock_drop(&b->lock);
}

void budget_give(struct budget *b, uint64_t floor, uint64_t granted, uint64_t bytes)
{
	uint64_t less = larger(floor, granted) - larger(floor, granted - bytes);

	lock_take(&b->lock);
	assert(granted >= bytes && b->granted >= bytes && b->reserved >= less);
	b->granted -= bytes;
	b->reserved -= less;
	lock_drop(&b->lock);
}

void budget_report(struct budget *b, struct budget_report *ret)
{
	lock_take(&b->lock);
	*ret = (struct budget_report){
		.bytes = b->bytes,
		.floors = b->floors,
		.granted = b->granted,
		.free = b->bytes > b->reserved ? b->bytes - b->reserved : 0,
		.owed = b->reserved > b->bytes ? b->reserved - b->bytes : 0,
	};
	lock_drop(&b->lock);
}
