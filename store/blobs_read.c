/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading blobs.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/blobs_private.h"
#include "store/put.h"

#define STEP_UNITS (BLOBS_STEP_BYTES / BLOBS_UNIT)
#define STEP_HOPS 4096u /* units passed over on the way to an offset */

typedef unsigned long long ull;

static struct transfer *transfer_of(const struct blob_read *r)
{
	return r->transfer == BLOBS_NONE ? NULL : &r->blobs->transfer[r->transfer];
}

static int check_read(const struct blob_read *r, struct why *why)
{
	if (r->flags & ~BLOB_READ_END)
		return why_set(why, EINVAL, "flags: 0x%x has unknown bits", r->flags);
	if ((r->flags & BLOB_READ_END) && !r->id)
		return why_set(why, EINVAL, "read: it is 0, and the read that is to end has a number");
	return 0;
}

/* The blob, held: of the read in pieces, or what is found. */
static int claim_read(struct blob_read *c, struct why *why)
{
	struct blobs *b = c->blobs;
	struct transfer *t = c->id ? transfer_find(b, c->session, c->id) : NULL;
	int r;

	if (t && t->busy)
		return why_set(why, EBUSY, "another request works on read %llu", (ull)c->id);
	if (t && t->writes)
		return why_set(why, EINVAL, "read: %llu is a write under way", (ull)c->id);
	if (t && memcmp(&t->key, &c->key, sizeof(c->key)) != 0)
		return why_set(why, EINVAL, "read: %llu is that of another blob", (ull)c->id);
	if (t) {
		t->busy = true;
		c->transfer = (uint32_t)(t - b->transfer);
		c->entry = t->entry;
		c->unit = t->unit;
		c->unit_at = t->position;
		return 0;
	}
	struct blob *blob = blob_look(b, &c->key);

	if (!blob) {
		b->counts.blob_misses++;
		return why_set(why, ENOENT, "there is no such blob");
	}
	if (c->id) {
		r = transfer_new(b, c->session, c->id, false, &t, why);
		if (r)
			return r;
		t->key = c->key;
		t->entry = blob_number(b, blob);
		c->transfer = (uint32_t)(t - b->transfer);
	}
	blob_hold(b, blob);
	if (c->id || c->capacity) {
		b->counts.blob_hits++;
		blob->info.uses++;
		blob->info.used_s = (int64_t)clock_wall_coarse_s();
	}
	c->entry = blob_number(b, blob);
	return 0;
}

/* The piece was read, or could not be: @over, the read in pieces has ended. */
static void finish_read(struct blob_read *c, bool over)
{
	struct blobs *b = c->blobs;
	struct transfer *t = transfer_of(c);

	b->counts.blob_bytes_given += c->bytes;
	c->ended = over;
	if (!t) {
		blob_unhold(b, blob_at(b, c->entry));
		return;
	}
	t->unit = c->unit;
	t->position = c->unit_at;
	t->used_ns = clock_now_ns();
	t->busy = false;
	if (over)
		transfer_end(b, t);
}

/* Asked only: the blob goes back to where it was in the order. */
static int only_ask(struct blob_read *c, struct why *why)
{
	const struct blob *blob = blob_look(c->blobs, &c->key);

	if (!blob)
		return why_set(why, ENOENT, "there is no such blob");
	c->info = blob->info;
	return 0;
}

static int begin(struct blob_read *c, struct why *why)
{
	int r = claim_read(c, why);

	if (r)
		return r;
	const struct blob *blob = blob_at(c->blobs, c->entry);

	c->info = blob->info;
	if (c->offset > c->info.length) {
		r = why_set(why, EINVAL, "offset: %llu is behind the end of the blob, which has %llu bytes", (ull)c->offset,
			(ull)c->info.length);
		finish_read(c, c->flags & BLOB_READ_END);
		return r;
	}
	if (c->unit == BLOBS_NONE || c->unit_at > c->offset) {
		c->unit = blob->first;
		c->unit_at = 0;
	}
	return STEP_MORE;
}

int blob_read_begin(struct blob_read *c, struct why *why)
{
	int r = check_read(c, why);

	c->bytes = 0;
	c->ended = false;
	c->entry = c->transfer = c->unit = BLOBS_NONE;
	c->unit_at = 0;
	memset(&c->info, 0, sizeof(c->info));
	if (r)
		return r;
	lock_take(&c->blobs->lock);
	r = !c->id && !c->capacity ? only_ask(c, why) : begin(c, why);
	lock_drop(&c->blobs->lock);
	return r;
}

/* On to the unit in which @at lies, STEP_HOPS at most; never past the last one. */
static bool walk(struct blob_read *c, uint64_t at)
{
	const struct blobs *b = c->blobs;

	for (unsigned n = 0; at >= c->unit_at + BLOBS_UNIT; n++) {
		if (n == STEP_HOPS)
			return false;
		c->unit = b->next_unit[c->unit];
		c->unit_at += BLOBS_UNIT;
	}
	return true;
}

int blob_read_step(struct blob_read *c, struct why *why)
{
	struct blobs *b = c->blobs;
	uint64_t rest = c->info.length - c->offset, wanted = rest < c->capacity ? rest : c->capacity;

	(void)why;
	/* Without the lock: what is held stays as it is. */
	for (unsigned n = 0; c->bytes < wanted; n++) {
		uint64_t at = c->offset + c->bytes;

		if (n == STEP_UNITS || !walk(c, at))
			return STEP_MORE;
		uint32_t skip = (uint32_t)(at % BLOBS_UNIT), left = (uint32_t)(wanted - c->bytes);
		uint32_t bytes = BLOBS_UNIT - skip < left ? BLOBS_UNIT - skip : left;

		memcpy((unsigned char *)c->to + c->bytes, b->memory + (uint64_t)c->unit * BLOBS_UNIT + skip, bytes);
		c->bytes += bytes;
	}
	lock_take(&b->lock);
	finish_read(c, c->id && (wanted == rest || (c->flags & BLOB_READ_END)));
	lock_drop(&b->lock);
	return 0;
}
