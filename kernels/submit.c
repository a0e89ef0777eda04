/* SPDX-License-Identifier: Apache-2.0
 *
 * Submitting. What passes the ring takes two steps for each slot, on two lanes:
 *
 *   to the device   copies: wait empty, copy stretches in, record full
 *                   kernels: upload tables, wait full, scatter to planes, record empty
 *   back            kernels: wait empty, upload tables, gather from planes, record full
 *                   copies: wait full, copy stretches out, record empty
 *
 * so copies of one slot run while kernels work on another. Copies of successive slots may be given to two lanes, so that one begins
 * while the other drains. Tables go up on the lane of the kernels that read them, whose order keeps
 * them from being overwritten too early, and where small copies do not stand between large ones. A kernel across the bus
 * needs a slot's tables alone.
 * Tables go through mirrors, which are more than slots: whoever submits is ahead of the device by as many.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/say.h"
#include "kernels/work.h"

#define GAP_OUT 0u      /* what lies between values in memory is not ours to write */
#define URGENT_SLOTS 2u /* with tables alone */

/* ---- what a channel has ------------------------------------------------------------------------------------------- */

_Static_assert(STAGE_RING_BYTES + 2 * (STAGE_MAX_SLOTS + URGENT_SLOTS) * STAGE_TABLE_BYTES + 4096 <= PFS_GPU_STAGING_BYTES,
	"what the header promises");

struct backend_needs channels_need(void)
{
	return (struct backend_needs){
		.staging_bytes = PFS_GPU_STAGING_BYTES,
		.mirror_bytes = (uint64_t)CHANNELS * MIRRORS * STAGE_TABLE_BYTES,
	};
}

static int make_events(struct channel *c)
{
	struct backend *b = c->gpu->backend;
	int r = 0;

	for (uint32_t i = 0; i <= COPY_LANES && !r; i++)
		r = b->ops->event_new(b, &c->join[i]);
	for (uint32_t i = 0; i < COPY_LANES && !r; i++)
		r = b->ops->event_new(b, &c->passed[i]);
	for (uint32_t i = 0; i < c->slot_count && !r; i++) {
		r = b->ops->event_new(b, &c->slots[i].full);
		if (!r)
			r = b->ops->event_new(b, &c->slots[i].empty);
	}
	for (uint32_t i = 0; i < MIRRORS && !r; i++)
		r = b->ops->event_new(b, &c->mirrors[i].uploaded);
	return r;
}

int channel_init(struct channel *c, struct pfs_gpu *gpu, enum channel_number number, uint64_t *staging, uint8_t **mirror)
{
	static const enum lane lanes[CHANNELS][COPY_LANES + 1] = { /* copies, kernels */
		[CHANNEL_IN] = {LANE_IN_COPY, LANE_IN_COPY_2, LANE_IN_WORK},
		[CHANNEL_OUT] = {LANE_OUT_COPY, LANE_OUT_COPY_2, LANE_OUT_WORK},
		[CHANNEL_IN_URGENT] = {LANE_IN_URGENT, LANE_IN_URGENT, LANE_IN_URGENT},
		[CHANNEL_OUT_URGENT] = {LANE_OUT_URGENT, LANE_OUT_URGENT, LANE_OUT_URGENT},
	};
	const struct gpu_tuning *tuning = &gpu->tuning;
	uint64_t ring;

	c->gpu = gpu;
	c->to_device = number == CHANNEL_IN || number == CHANNEL_IN_URGENT;
	ring = c->to_device ? tuning->in_bytes : STAGE_RING_BYTES - tuning->in_bytes;
	c->urgent = number >= CHANNEL_IN_URGENT;
	memcpy(c->copies, lanes[number], sizeof(c->copies));
	c->kernels = lanes[number][COPY_LANES];
	c->last = c->to_device ? c->kernels : c->copies[0];
	c->copy_lanes = c->urgent ? 1 : tuning->copy_lanes;
	c->slot_count = c->urgent ? URGENT_SLOTS : tuning->slots;
	c->slot_bytes = ring / tuning->slots / 4096 * 4096;
	c->mirror_count = tuning->ahead;
	for (uint32_t i = 0; i < c->slot_count; i++) {
		c->slots[i].data = *staging;
		*staging += c->urgent ? 0 : c->slot_bytes;
		c->slots[i].tables = *staging;
		*staging += STAGE_TABLE_BYTES;
	}
	for (uint32_t i = 0; i < MIRRORS; i++) {
		c->mirrors[i].tables = *mirror;
		*mirror += STAGE_TABLE_BYTES;
	}
	c->merger = malloc(sizeof(*c->merger));
	c->stand_ins = malloc(STAGE_ROW_BYTES / 12 * sizeof(*c->stand_ins));
	c->stretches = malloc(SHAPE_MAX_COLUMNS * sizeof(*c->stretches));
	if (!c->merger || !c->stand_ins || !c->stretches)
		return gpu_say(ENOMEM, "no memory to submit with");
	return make_events(c);
}

void channel_deinit(struct channel *c)
{
	struct backend *b = c->gpu ? c->gpu->backend : NULL;

	if (!b)
		return;
	for (uint32_t i = 0; i <= COPY_LANES; i++)
		if (c->join[i])
			b->ops->event_free(b, c->join[i]);
	for (uint32_t i = 0; i < COPY_LANES; i++)
		if (c->passed[i])
			b->ops->event_free(b, c->passed[i]);
	for (uint32_t i = 0; i < STAGE_MAX_SLOTS; i++) {
		if (c->slots[i].full)
			b->ops->event_free(b, c->slots[i].full);
		if (c->slots[i].empty)
			b->ops->event_free(b, c->slots[i].empty);
	}
	for (uint32_t i = 0; i < MIRRORS; i++)
		if (c->mirrors[i].uploaded)
			b->ops->event_free(b, c->mirrors[i].uploaded);
	free(c->merger);
	free(c->stand_ins);
	free(c->stretches);
}

/* What slots hold does not count any more. */
int submit_drain(struct channel *c)
{
	struct backend *b = c->gpu->backend;
	int r = b->ops->drain(b, c->kernels);

	for (uint32_t i = 0; i < c->copy_lanes; i++)
		if (c->copies[i] != c->kernels) {
			int s = b->ops->drain(b, c->copies[i]);

			r = r ? r : s;
		}
	for (uint32_t i = 0; i < c->slot_count; i++)
		c->slots[i].columns_of = 0;
	return r;
}

/* ---- one rectangle -------------------------------------------------------------------------------------------------- */

/* What is submitted now. */
struct job {
	struct channel *c;
	struct backend *b;
	struct pfs_gpu_op *op;
	struct gpu_rect rect;
	struct rect_measure measure;
	uint64_t number;
	uint32_t copy; /* which of the copy lanes is used now */
	bool first, last; /* rectangle of the operation */
	uint64_t left;    /* bytes of the operation that are not submitted yet */
	struct gpu_entry ride; /* tables that go with the next batch; 0 bytes: none */
};

/* @lane is about to touch pages. */
static int wait_after(struct job *j, enum lane lane)
{
	uint32_t bit = 1u << lane;

	if (!j->op->after || (j->op->waited & bit))
		return 0;
	j->op->waited |= bit;
	return j->b->ops->event_wait_foreign(j->b, lane, j->op->after);
}

static enum lane copy_lane(const struct job *j)
{
	return j->c->copies[j->copy];
}

static void next_copy_lane(struct job *j)
{
	j->copy = j->c->next_copy++ % j->c->copy_lanes;
}

static void begun(struct job *j)
{
	if (!j->op->moments[OP_FIRST])
		work_moment(j->op, OP_FIRST);
}

/* A batch for the copy lane of now, behind what the other one was given where they take turns. */
static int copy_batch(void *context, const struct gpu_entry *entries, uint32_t count)
{
	struct job *j = context;
	const struct channel *c = j->c;
	bool turns = c->gpu->tuning.turns && c->copy_lanes > 1;
	int r = turns ? j->b->ops->event_wait(j->b, copy_lane(j), c->passed[!j->copy]) : 0;

	if (j->ride.bytes && count < MERGE_MAX_ENTRIES) {
		c->merger->entries[count++] = j->ride;
		j->ride.bytes = 0;
	}
	if (!r)
		r = j->b->ops->copy(j->b, copy_lane(j), c->to_device, entries, count);
	begun(j);
	if (!r && turns)
		r = j->b->ops->event_record(j->b, copy_lane(j), c->passed[j->copy]);
	return r;
}

/* @lane is about to be given copies of @bytes. */
static int come_closer(struct job *j, enum lane lane, uint64_t bytes)
{
	struct pfs_gpu_op *op = j->op;
	bool last = bytes >= j->left;

	j->left -= last ? j->left : bytes;
	if (!op->close || op->close_recorded || !last)
		return 0;
	op->close_recorded = true;
	return j->b->ops->event_record(j->b, lane, op->close);
}

static uint64_t bytes_of(const struct gpu_entry *entries, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++)
		bytes += entries[i].bytes;
	return bytes;
}

/* Each batch goes to the next lane. */
static int copy_batch_of_pages(void *context, const struct gpu_entry *entries, uint32_t count)
{
	struct job *j = context;
	int r;

	next_copy_lane(j);
	r = wait_after(j, copy_lane(j));
	if (!r)
		r = come_closer(j, copy_lane(j), bytes_of(entries, count));
	return r ? r : copy_batch(j, entries, count);
}

static int submit_batched(struct job *j)
{
	int r;

	merge_begin(j->c->merger, &j->op->spans, copy_batch_of_pages, j);
	merge_limit(j->c->merger, j->first ? j->c->gpu->tuning.first_batch : j->c->gpu->tuning.batch_bytes, j->c->gpu->tuning.batch_bytes);
	r = merge_rect(j->c->merger, &j->rect);
	return r ? r : merge_end(j->c->merger);
}

/* The next mirror, once what it held was uploaded. */
static int take_mirror(struct job *j, struct mirror **ret)
{
	struct mirror *m = &j->c->mirrors[j->c->next_mirror++ % j->c->mirror_count];

	*ret = m;
	return m->used ? j->b->ops->event_finish(j->b, m->uploaded) : 0;
}

/* Writes the tables of rows first..first+count-1 to a mirror, @values standing for them. *ret: the rectangle as kernels see it; *copy:
 * what is to be copied to the device. */
static int write_tables(struct job *j, struct slot *slot, uint32_t first, uint32_t count, const uint64_t *values,
	struct gpu_rect *ret, struct mirror **mirror, struct gpu_entry *copy)
{
	size_t columns = j->rect.column_count * sizeof(struct gpu_column), addresses = count * sizeof(uint64_t);
	size_t pages = (size_t)count * j->rect.pages_per_value * sizeof(uint32_t);
	bool known = slot->columns_of == j->number;
	struct mirror *m;
	int r = take_mirror(j, &m);

	if (r)
		return r;
	if (!known)
		memcpy(m->tables, j->rect.columns, columns);
	memcpy(m->tables + columns, values, addresses);
	memcpy(m->tables + columns + addresses, j->rect.pages + (size_t)first * j->rect.pages_per_value, pages);
	m->used = true;
	*mirror = m;
	*copy = (struct gpu_entry){slot->tables + (known ? columns : 0), (uintptr_t)m->tables + (known ? columns : 0),
		(known ? 0 : columns) + addresses + pages};
	slot->columns_of = j->number;
	*ret = j->rect;
	ret->columns = (const void *)(uintptr_t)slot->tables;
	ret->values = (const void *)(uintptr_t)(slot->tables + columns);
	ret->pages = (const void *)(uintptr_t)(slot->tables + columns + addresses);
	ret->row_count = count;
	return 0;
}

/* The same, and has the kernels' lane carry them up. */
static int upload_tables(struct job *j, struct slot *slot, uint32_t first, uint32_t count, const uint64_t *values,
	struct gpu_rect *ret)
{
	struct mirror *m;
	struct gpu_entry copy;
	int r = write_tables(j, slot, first, count, values, ret, &m, &copy);

	if (!r)
		r = j->b->ops->upload(j->b, j->c->kernels, copy.device, (const void *)(uintptr_t)copy.host, copy.bytes);
	begun(j);
	return r ? r : j->b->ops->event_record(j->b, j->c->kernels, m->uploaded);
}

static int submit_across(struct job *j, enum gpu_kernel kernel)
{
	enum lane lane = j->c->kernels;
	uint32_t most = stage_max_rows(&j->rect), first = 0;
	int r = wait_after(j, lane);

	while (first < j->rect.row_count && !r) {
		uint32_t count = j->rect.row_count - first < most ? j->rect.row_count - first : most;
		struct slot *slot = &j->c->slots[j->c->next_slot++ % j->c->slot_count];
		struct gpu_rect rect;

		r = upload_tables(j, slot, first, count, j->rect.values + first, &rect);
		if (!r)
			r = j->b->ops->move(j->b, lane, kernel, j->c->to_device, &rect, &j->measure);
		if (!r && j->c->gpu->tuning.tables_ride) /* then it is not this lane alone that writes there */
			r = j->b->ops->event_record(j->b, lane, slot->empty);
		first += count;
	}
	return r;
}

/* What is done with a slot. */
struct turn {
	struct job *j;
	struct slot *slot;
	struct gpu_rect rect; /* as the kernel sees it */
	uint32_t first, count, stretches;
	uint64_t gap;
};

static int turn_copy(struct turn *t)
{
	struct channel *c = t->j->c;
	int r;

	merge_begin(c->merger, &t->j->op->spans, copy_batch, t->j);
	merge_limit(c->merger, c->gpu->tuning.batch_bytes, c->gpu->tuning.batch_bytes);
	r = come_closer(t->j, copy_lane(t->j), t->j->measure.bytes / t->j->rect.row_count * t->count);
	if (r)
		return r;
	r = stage_entries(c->merger, &t->j->rect, c->stretches, t->stretches, t->first, t->count, t->gap, c->stand_ins);
	return r ? r : merge_end(c->merger);
}

static int turn_kernel(struct turn *t)
{
	struct backend *b = t->j->b;
	int r = wait_after(t->j, t->j->c->kernels);

	return r ? r : b->ops->move(b, t->j->c->kernels, KERNEL_RING, t->j->c->to_device, &t->rect, &t->j->measure);
}

static int turn_tables(struct turn *t)
{
	return upload_tables(t->j, t->slot, t->first, t->count, t->j->c->stand_ins, &t->rect);
}

/* Between two steps, or behind the second one. */
static int step_ends(struct turn *t, enum lane lane, struct gpu_event *event, enum lane next)
{
	struct backend *b = t->j->b;
	int r = b->ops->event_record(b, lane, event);

	return r || lane == next ? r : b->ops->event_wait(b, next, event);
}

/* Tables and data in one batch, if it has room for one more. */
static int turn_copy_with_tables(struct turn *t)
{
	struct job *j = t->j;
	struct mirror *m;
	int r = write_tables(j, t->slot, t->first, t->count, j->c->stand_ins, &t->rect, &m, &j->ride);

	if (!r)
		r = turn_copy(t);
	if (!r && j->ride.bytes)
		r = j->b->ops->copy(j->b, copy_lane(j), true, &j->ride, 1);
	j->ride.bytes = 0;
	return r ? r : j->b->ops->event_record(j->b, copy_lane(j), m->uploaded);
}

static int turn_copy_and_tables(struct turn *t)
{
	int r = turn_copy(t);

	return r ? r : turn_tables(t);
}

static int turn_in(struct turn *t)
{
	struct channel *c = t->j->c;
	struct backend *b = t->j->b;
	enum lane copies = copy_lane(t->j);
	int r = c->gpu->tuning.paced ? b->ops->event_finish(b, t->slot->empty) : b->ops->event_wait(b, copies, t->slot->empty);

	if (!r)
		r = c->gpu->tuning.tables_ride ? turn_copy_with_tables(t) : turn_copy_and_tables(t);
	if (!r)
		r = step_ends(t, copies, t->slot->full, c->kernels);
	if (!r)
		r = turn_kernel(t);
	return r ? r : step_ends(t, c->kernels, t->slot->empty, c->kernels);
}

static int turn_out(struct turn *t)
{
	struct channel *c = t->j->c;
	enum lane copies = copy_lane(t->j);
	int r = t->j->b->ops->event_wait(t->j->b, c->kernels, t->slot->empty);

	if (!r)
		r = turn_tables(t);
	if (!r)
		r = turn_kernel(t);
	if (!r)
		r = step_ends(t, c->kernels, t->slot->full, copies);
	if (!r)
		r = turn_copy(t);
	return r ? r : step_ends(t, copies, t->slot->empty, copies);
}

/* Bytes of the slot that the next turn fills. */
static uint64_t turn_bytes(const struct turn *t)
{
	const struct job *j = t->j;
	uint64_t edge = j->c->gpu->tuning.edge, bytes = j->c->slot_bytes, span = stage_span(&j->rect) + 16;
	uint64_t rest = (j->rect.row_count - t->first) * span;

	if (edge < span || rest <= 2 * edge)
		return bytes;
	if (j->c->to_device)
		return j->last && rest <= bytes ? rest - edge : bytes;
	return j->first && t->first == 0 ? edge : bytes;
}

static int submit_staged(struct job *j)
{
	struct channel *c = j->c;
	struct turn t = {.j = j, .gap = c->to_device ? c->gpu->tuning.gap : GAP_OUT};
	int r = 0;

	t.stretches = stage_stretches(&j->rect, t.gap, c->stretches);
	while (t.first < j->rect.row_count && !r) {
		t.slot = &c->slots[c->next_slot++ % c->slot_count];
		t.count = stage_place(&j->rect, t.stretches, t.first, t.slot->data, turn_bytes(&t), t.gap, c->stand_ins);
		next_copy_lane(j);
		assert(t.count > 0);
		r = c->to_device ? turn_in(&t) : turn_out(&t);
		t.first += t.count;
	}
	return r;
}

static enum gpu_path path_of(const struct job *j)
{
	const struct path_question q = {
		.measure = j->measure,
		.to_device = j->c->to_device,
		.urgent = j->c->urgent,
		.stages = !j->c->urgent && stage_fits(&j->rect, j->c->slot_bytes),
		.bulk = j->b->bulk,
	};

	if (j->op->forced >= 0 && path_rate((enum gpu_path)j->op->forced, &q) > 0)
		return (enum gpu_path)j->op->forced;
	return path_choose(&q);
}

static int submit_rect(struct job *j)
{
	enum gpu_path path = path_of(j);

	__atomic_add_fetch(&j->c->gpu->paths[path], 1, __ATOMIC_RELAXED);
	switch (path) {
	case PATH_STAGED:
		return submit_staged(j);
	case PATH_BULK:
		return submit_across(j, KERNEL_BULK);
	case PATH_DIRECT:
		return submit_across(j, KERNEL_BUS);
	case PATH_BATCHED:
	case PATHS:
		break;
	}
	return submit_batched(j);
}

/* The last lane goes on when @lane has done what it was given. */
static int join(struct job *j, enum lane lane, struct gpu_event *event)
{
	int r;

	if (lane == j->c->last)
		return 0;
	r = j->b->ops->event_record(j->b, lane, event);
	return r ? r : j->b->ops->event_wait(j->b, j->c->last, event);
}

/* All lanes have done their share when the event is reached. */
static int end_part(struct job *j, uint32_t part)
{
	struct channel *c = j->c;
	int r = join(j, c->kernels, c->join[COPY_LANES]);

	for (uint32_t i = 0; i < c->copy_lanes && !r; i++)
		r = join(j, c->copies[i], c->join[i]);
	if (!r)
		r = j->b->ops->event_record(j->b, c->last, j->op->events[part]);
	if (!r)
		work_recorded(j->op);
	return r;
}

int submit_op(struct channel *c, struct pfs_gpu_op *op)
{
	struct job j = {.c = c, .b = c->gpu->backend, .op = op, .left = op->shape->bytes};
	const struct shape *s = op->shape;
	int r = 0;

	for (uint32_t i = 0; i < s->rect_count && !r; i++) {
		j.rect = shape_rect(s, i);
		j.measure = rect_measure(&j.rect);
		j.number = ++c->rects;
		j.first = i == 0;
		j.last = i + 1 == s->rect_count;
		r = submit_rect(&j);
		if (!r && (i + 1 == s->rect_count || s->rects[i + 1].part != s->rects[i].part))
			r = end_part(&j, s->rects[i].part);
	}
	return r;
}
