/* SPDX-License-Identifier: Apache-2.0
 *
 * The segment as a tier. A request ends before the call that began it returns.
 */
#include <stdlib.h>

#include "store/tier.h"

struct tier_memory {
	struct tier tier;
	struct segment *segment;
	_Atomic uint64_t errors;
	_Atomic uint64_t under_way;
};

static void end(struct tier_memory *t, struct tier_io *io, int result)
{
	if (result)
		t->errors++;
	io->result = result;
	io->done(io);
	t->under_way--;
}

static void memory_read(struct tier *tier, struct tier_io *io)
{
	struct tier_memory *t = (struct tier_memory *)tier;

	t->under_way++;
	end(t, io, segment_read(t->segment, io->offset, io->buffer, io->bytes));
}

static void memory_write(struct tier *tier, struct tier_io *io)
{
	struct tier_memory *t = (struct tier_memory *)tier;

	t->under_way++;
	end(t, io, segment_write(t->segment, io->offset, io->buffer, io->bytes));
}

static void memory_free(struct tier **tier)
{
	struct tier_memory *t = (struct tier_memory *)*tier;

	*tier = NULL;
	tier_await_idle(&t->under_way);
	free(t);
}

static uint64_t memory_errors(const struct tier *tier)
{
	return ((const struct tier_memory *)tier)->errors;
}

static const struct tier_ops ops = {
	.name = "memory",
	.read = memory_read,
	.write = memory_write,
	.free = memory_free,
	.errors = memory_errors,
};

struct tier *tier_memory_new(struct segment *segment)
{
	struct tier_memory *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->tier.ops = &ops;
	t->segment = segment;
	return &t->tier;
}
