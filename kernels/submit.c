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
 *
 * An operation may be submitted by two one after another: its beginning, for which nothing has to be waited, and the rest.
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
	uint64_t gap;  /* that is copied rather than cut out */
	int failed;    /* asking what is free */
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

	if (!r)
		r = j->b->ops->copy(j->b, copy_lane(j), c->to_device, entries, count);
	begun(j);
	if (!r && turns)
		r = j->b->ops->event_record(j->b, copy_lane(j), c->passed[j->copy]);
	return r;
}

/* @lane is about to be given copies of @bytes. What threads wake for is recorded two turns before the end. */
static int come_closer(struct job *j, enum lane lane, uint64_t bytes)
{
	struct pfs_gpu_op *op = j->op;
	bool close = op->left <= 2 * j->c->slot_bytes;

	op->left -= bytes < op->left ? bytes : op->left;
	if (!op->close || op->close_recorded || !close)
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

/* Tables of rows first..first+count-1, @values standing for them, go up on the lane of kernels. *ret: the rectangle as kernels see it. */
static int upload_tables(struct job *j, struct slot *slot, uint32_t first, uint32_t count, const uint64_t *values,
	struct gpu_rect *ret)
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
	r = j->b->ops->upload(j->b, j->c->kernels, slot->tables + (known ? columns : 0), m->tables + (known ? columns : 0),
		(known ? 0 : columns) + addresses + pages);
	begun(j);
	if (!r)
		r = j->b->ops->event_record(j->b, j->c->kernels, m->uploaded);
	if (r)
		return r;
	slot->columns_of = j->number;
	*ret = j->rect;
	ret->columns = (const void *)(uintptr_t)slot->tables;
	ret->values = (const void *)(uintptr_t)(slot->tables + columns);
	ret->pages = (const void *)(uintptr_t)(slot->tables + columns + addresses);
	ret->row_count = count;
	return 0;
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
};

static int turn_copy(struct turn *t)
{
	struct channel *c = t->j->c;
	int r;

	merge_begin(c->merger, &t->j->op->spans, copy_batch, t->j);
	r = come_closer(t->j, copy_lane(t->j), t->j->measure.bytes / t->j->rect.row_count * t->count);
	if (r)
		return r;
	r = stage_entries(c->merger, &t->j->rect, c->stretches, t->stretches, t->first, t->count, t->j->gap, c->stand_ins);
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

static int turn_in(struct turn *t)
{
	struct channel *c = t->j->c;
	enum lane copies = copy_lane(t->j);
	int r = t->j->b->ops->event_wait(t->j->b, copies, t->slot->empty);

	if (!r)
		r = turn_copy(t);
	if (!r)
		r = turn_tables(t);
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

static int submit_staged(struct job *j)
{
	struct channel *c = j->c;
	struct turn t = {.j = j};
	int r = 0;

	t.stretches = stage_stretches(&j->rect, j->gap, c->stretches);
	while (t.first < j->rect.row_count && !r) {
		t.slot = &c->slots[c->next_slot++ % c->slot_count];
		t.count = stage_place(&j->rect, t.stretches, t.first, t.slot->data, c->slot_bytes, j->gap, c->stand_ins);
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

	if (j->op->row == 0)
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

/* How many of the next @wanted mirrors are free now. A device that cannot say so is noted in j->failed. */
static uint32_t free_mirrors(struct job *j, uint32_t wanted)
{
	struct channel *c = j->c;
	uint32_t n = 0;

	for (; n < wanted && n < c->mirror_count; n++) {
		struct mirror *m = &c->mirrors[(c->next_mirror + n) % c->mirror_count];
		int r = m->used ? j->b->ops->event_reached(j->b, m->uploaded) : 1;

		if (r < 0)
			j->failed = r;
		if (r <= 0)
			break;
		m->used = false;
	}
	return n;
}

/* Rows of @rect for which nothing has to be waited for. Of an urgent operation what free mirrors take; of others what fills each slot of the ring
 * once: no more tables are on their way then than there are mirrors. */
static uint32_t rows_to_begin_with(struct job *j, const struct gpu_rect *rect)
{
	const struct channel *c = j->c;
	uint32_t turns = c->slot_count < c->mirror_count ? c->slot_count : c->mirror_count, most = stage_max_rows(rect);

	if (c->urgent)
		return most * free_mirrors(j, (rect->row_count - j->op->row + most - 1) / most);
	return turns * stage_sure_rows(rect, stage_stretches(rect, j->gap, c->stretches), c->slot_bytes, j->gap);
}

/* The rows of the operation that are to be submitted now; false: none. */
static bool next_rows(struct job *j, bool beginning)
{
	const struct pfs_gpu_op *op = j->op;
	struct gpu_rect rect = shape_rect(op->shape, op->rect);
	uint32_t left = rect.row_count - op->row, most = beginning ? rows_to_begin_with(j, &rect) : left;

	rect.values += op->row;
	rect.pages += (uint64_t)op->row * rect.pages_per_value;
	rect.row_count = left < most ? left : most;
	j->rect = rect;
	if (rect.row_count == 0)
		return false;
	j->measure = rect_measure(&rect);
	j->number = op->row ? j->c->rects : ++j->c->rects;
	return true;
}

/* They were submitted. */
static int step(struct job *j)
{
	struct pfs_gpu_op *op = j->op;
	const struct shape_rect *rects = op->shape->rects;
	uint32_t part = rects[op->rect].part;

	op->row += j->rect.row_count;
	if (op->row < rects[op->rect].row_count)
		return 0;
	op->row = 0;
	op->rect++;
	return submit_ended(op) || rects[op->rect].part != part ? end_part(j, part) : 0;
}

bool submit_ended(const struct pfs_gpu_op *op)
{
	return op->rect == op->shape->rect_count;
}

int submit_op(struct channel *c, struct pfs_gpu_op *op, bool beginning)
{
	struct job j = {.c = c, .b = c->gpu->backend, .op = op, .gap = c->to_device ? c->gpu->tuning.gap : GAP_OUT};
	int r = 0;

	while (!submit_ended(op) && !r && next_rows(&j, beginning) && !j.failed) {
		r = submit_rect(&j);
		if (!r)
			r = step(&j);
		if (beginning && !c->urgent)
			break;
	}
	return r ? r : j.failed;
}
