/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier that holds nothing.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/lock.h"
#include "store/tier.h"

struct tier_null {
	struct tier tier;
	_Atomic uint64_t errors;
	_Atomic uint64_t under_way;
};

static void end(struct tier_null *t, struct tier_io *io, int result)
{
	lock_assert_none_held();
	if (result)
		t->errors++;
	io->result = result;
	io->done(io);
	t->under_way--;
}

static void null_read(struct tier *tier, struct tier_io *io)
{
	struct tier_null *t = (struct tier_null *)tier;

	t->under_way++;
	end(t, io, -ENODATA);
}

static void null_write(struct tier *tier, struct tier_io *io)
{
	struct tier_null *t = (struct tier_null *)tier;

	t->under_way++;
	end(t, io, 0);
}

static void null_free(struct tier **tier)
{
	struct tier_null *t = (struct tier_null *)*tier;

	*tier = NULL;
	tier_await_idle(&t->under_way);
	free(t);
}

static uint64_t null_errors(const struct tier *tier)
{
	return ((const struct tier_null *)tier)->errors;
}

static const struct tier_ops ops = {
	.name = "null",
	.read = null_read,
	.write = null_write,
	.free = null_free,
	.errors = null_errors,
};

struct tier *tier_null_new(void)
{
	struct tier_null *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->tier.ops = &ops;
	return &t->tier;
}
