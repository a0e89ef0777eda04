/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/sizing.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>

#define MOST ((uint64_t)INT64_MAX)

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

/* Values that one request has of @class, in each share. */
static uint64_t values_of(const struct sizing *s, const struct sizing_class *class)
{
	if (class->kind == SIZING_STATE)
		return 1 + (s->interval ? s->context / s->interval : 0);

	uint64_t values = ceil_div(s->context, class->every_tokens);

	return class->kind == SIZING_WINDOW && class->values < values ? class->values : values;
}

/* Page classes in their order, then states: is @c of the part that is counted now? */
static bool in_part(const struct sizing *s, uint32_t c, bool states)
{
	return (s->class[c].kind == SIZING_STATE) == states;
}

/* Adds one request up. The class with which it passes the budget is noted. */
static int sum_request(struct sizing *s)
{
	bool passed = false;

	s->request_bytes = 0;
	s->short_class = s->classes;
	for (int states = 0; states < 2; states++)
		for (uint32_t c = 0; c < s->classes; c++) {
			struct sizing_class *class = &s->class[c];
			uint64_t bytes;

			if (!in_part(s, c, states))
				continue;
			class->request = values_of(s, class);
			if (__builtin_mul_overflow(class->request, class->share_bytes, &bytes) ||
			    __builtin_add_overflow(s->request_bytes, bytes, &s->request_bytes) || s->request_bytes > MOST)
				return -EOVERFLOW;
			if (!passed && s->request_bytes > s->budget) {
				s->short_class = c;
				passed = true;
			}
		}
	return 0;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Tokens after which all dense classes end a value together; MOST: more than a budget could have. */
static uint64_t dense_period(const struct sizing *s)
{
	uint64_t period = 1;

	for (uint32_t c = 0; c < s->classes; c++) {
		uint64_t every = s->class[c].every_tokens;

		if (s->class[c].kind == SIZING_DENSE &&
		    (__builtin_mul_overflow(period, every / gcd(period, every), &period) || period > MOST))
			return MOST;
	}
	return period;
}

/* What is left over goes to the dense classes together, in whole periods. */
static void give_rest(struct sizing *s)
{
	uint64_t period = dense_period(s), bytes = 0, periods;
	bool any = false;

	if (period == MOST)
		return;
	for (uint32_t c = 0; c < s->classes; c++) {
		uint64_t more;

		if (s->class[c].kind != SIZING_DENSE)
			continue;
		any = true;
		if (__builtin_mul_overflow(period / s->class[c].every_tokens, s->class[c].share_bytes, &more) ||
		    __builtin_add_overflow(bytes, more, &bytes))
			return;
	}
	if (!any)
		return;
	periods = s->left_bytes / bytes;
	s->left_bytes -= periods * bytes;
	for (uint32_t c = 0; c < s->classes; c++)
		if (s->class[c].kind == SIZING_DENSE)
			s->class[c].slots += periods * (period / s->class[c].every_tokens);
}

int sizing_plan(struct sizing *s)
{
	assert(s->classes && s->classes <= SIZING_MAX_CLASSES && s->context && s->page_tokens);
	for (uint32_t c = 0; c < s->classes; c++) {
		assert(s->class[c].share_bytes && (s->class[c].kind == SIZING_STATE || s->class[c].every_tokens));
		s->class[c].slots = 0;
	}
	s->requests = 0;
	s->left_bytes = s->budget;

	int r = sum_request(s);

	if (r)
		return r;
	s->requests = s->budget / s->request_bytes;
	if (!s->requests)
		return -ENOSPC;
	for (uint32_t c = 0; c < s->classes; c++)
		s->class[c].slots = s->requests * s->class[c].request;
	s->left_bytes = s->budget - s->requests * s->request_bytes;
	give_rest(s);
	return 0;
}
