/* SPDX-License-Identifier: Apache-2.0 */
#include "index/gates.h"

#include <assert.h>

#define UNBROKEN UINT64_MAX /* of a run: no value was missing yet */

static uint64_t value_tokens(const struct layout *layout, uint32_t c)
{
	return (uint64_t)layout->class[c].every_pages * layout->page_tokens;
}

/* Tokens at which the sink of a window ends. */
static uint64_t sink_end(const struct layout *layout, uint32_t c)
{
	uint64_t end;

	return __builtin_mul_overflow(layout->class[c].sink, value_tokens(layout, c), &end) ? UINT64_MAX : end;
}

void gates_begin(struct gates *gates, const struct layout *layout, uint32_t class_mask, uint64_t start, uint64_t have)
{
	have -= have % layout->page_tokens;
	gates->layout = layout;
	gates->dense = class_mask & layout->dense_mask;
	gates->windows = class_mask & layout->window_mask;
	gates->states = class_mask & layout->state_mask;
	gates->have = have > start ? have : start;
	gates->sinks = 0;
	gates->sparse = false;
	gates->intact = true;
	assert(gates->dense | gates->windows | gates->states);
	for (uint32_t mask = gates->dense | gates->windows; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		gates->sparse |= layout->class[c].every_pages > 1;
		gates->run[c] = UNBROKEN;
		if (gates->windows >> c & 1 && sink_end(layout, c) > gates->sinks)
			gates->sinks = sink_end(layout, c);
	}
}

/* Of these classes, those that have a value on the page that ends at @consumed. */
static uint32_t with_value(const struct gates *gates, uint32_t classes, uint64_t consumed)
{
	uint32_t due = 0;

	if (!gates->sparse)
		return classes;
	for (uint32_t mask = classes; mask; mask &= mask - 1)
		if (layout_has_value(gates->layout, (uint32_t)__builtin_ctz(mask), consumed))
			due |= mask & -mask;
	return due;
}

/* Windows whose sink reaches to @consumed. */
static uint32_t in_sink(const struct gates *gates, uint64_t consumed)
{
	uint32_t in = 0;

	if (consumed > gates->sinks)
		return 0;
	for (uint32_t mask = gates->windows; mask; mask &= mask - 1)
		if (consumed <= sink_end(gates->layout, (uint32_t)__builtin_ctz(mask)))
			in |= mask & -mask;
	return in;
}

uint32_t gates_due(const struct gates *gates, uint64_t consumed)
{
	return with_value(gates, gates->dense | gates->windows, consumed);
}

uint32_t gates_needs(const struct gates *gates, uint64_t consumed)
{
	return with_value(gates, gates->dense | in_sink(gates, consumed), consumed);
}

/* The value of each of these windows came to the end of its run, or broke it. Do all have as many as they need? */
static bool windows_hold(struct gates *gates, uint32_t due, uint32_t complete)
{
	bool hold = true;

	for (uint32_t mask = due; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);
		uint64_t *run = &gates->run[c];

		if (!(complete >> c & 1))
			*run = 0;
		else if (*run != UNBROKEN)
			++*run;
		hold &= *run >= gates->layout->class[c].last; /* fewer values than that lie before it: only an unbroken run will do */
	}
	return hold;
}

bool gates_page(struct gates *gates, uint64_t consumed, uint32_t complete)
{
	bool held = consumed <= gates->have;
	uint32_t due;

	if (held)
		complete = ~0u;
	else if (gates_needs(gates, consumed) & ~complete)
		gates->intact = false;
	due = gates_due(gates, consumed);
	return windows_hold(gates, due & gates->windows, complete) && gates->intact && !held &&
	       due == (gates->dense | gates->windows);
}

bool gates_needed(const struct gates *gates, uint32_t class_index, uint64_t consumed, uint64_t boundary)
{
	const struct value_class *class = &gates->layout->class[class_index];
	uint64_t each = value_tokens(gates->layout, class_index), value = consumed / each, last = boundary / each;

	if (consumed <= gates->have || consumed > boundary || !((gates->dense | gates->windows | gates->states) >> class_index & 1))
		return false;
	if (class->kind == VALUE_STATE)
		return consumed == boundary;
	return value * each == consumed && (class->kind == VALUE_DENSE || value <= class->sink || value + class->last > last);
}

/* Numbers of (a, b] that lie in (from, to] too. */
static uint64_t common(uint64_t a, uint64_t b, uint64_t from, uint64_t to)
{
	uint64_t low = a > from ? a : from, high = b < to ? b : to;

	return high > low ? high - low : 0;
}

uint64_t gates_count(const struct gates *gates, uint32_t class_index, uint64_t from, uint64_t to, uint64_t boundary)
{
	const struct value_class *class = &gates->layout->class[class_index];
	uint64_t each = value_tokens(gates->layout, class_index), last = boundary / each;
	uint64_t low = from > gates->have ? from : gates->have, high = to < boundary ? to : boundary;
	uint64_t tail = last > class->last ? last - class->last : 0; /* a window needs (tail, last] */

	if (low >= high || !((gates->dense | gates->windows | gates->states) >> class_index & 1))
		return 0;
	if (class->kind == VALUE_STATE)
		return high == boundary;
	low /= each;
	high /= each;
	if (class->kind == VALUE_DENSE)
		return high - low;
	return common(low, high, 0, class->sink) + common(low, high, tail, last) - common(low, high, tail, class->sink);
}
