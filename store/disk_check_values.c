/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check, values: read by jobs of the engine, of several files at once, which compare them with their checksums. What
 * fails is read once more.
 */
#include "store/disk_check.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"

#define JOBS 8u
#define JOB_BYTES (8u << 20)    /* of values; more when one alone is longer */
#define JOB_VALUES 1024u
#define BYTES_MOST (128u << 20) /* of all jobs; a single one may pass it */

struct job {
	struct disk_read read;
	struct check_values *values;
	struct check_work *work; /* NULL: it is free */
	char *memory;
	uint64_t room, bytes;
	struct disk_read_value value[JOB_VALUES];
	struct key key[JOB_VALUES];
	bool again;
	bool ended; /* (lock) */
};

struct check_values {
	struct check_space *space;
	void (*ended)(struct check_space *space, struct check_work *work);
	uint64_t bytes; /* of memory of jobs that are not free */
	uint32_t under_way;
	struct lock lock; /* LOCK_QUEUE */
	struct lock_cond wake;
	struct job job[JOBS];
};

static void job_done(struct disk_job *read)
{
	struct job *job = (struct job *)read;
	struct check_values *v = job->values;

	lock_take(&v->lock);
	job->ended = true;
	lock_cond_wake_all(&v->wake);
	lock_drop(&v->lock);
}

static void give(struct job *job)
{
	job->ended = false;
	disk_give(job->values->space->check->disk, &job->read.job);
}

void check_work_free(struct check_work *w)
{
	free(w->info.segment);
	free(w);
}

/* ---- jobs that ended ------------------------------------------------------------------------------------------------------- */

/* Those that failed are read once more; false: none did. */
static bool read_again(struct job *job)
{
	uint32_t n = 0;

	if (job->again)
		return false;
	for (uint32_t i = 0; i < job->read.count; i++) {
		if (!job->read.job.result && !job->value[i].result)
			continue;
		job->value[n] = job->value[i];
		job->key[n++] = job->key[i];
	}
	if (!n)
		return false;
	job->read.count = n;
	job->again = true;
	give(job);
	return true;
}

static void judge_value(struct check_work *w, const struct disk_read_value *value)
{
	if (!value->result)
		return;
	if (value->result != -EBADMSG) {
		w->unreadable = true;
		return;
	}
	w->bad++;
	if (value->page == TABLES_PAGE_ROW)
		w->bad_row = true;
	else if (value->page < w->bad_page)
		w->bad_page = value->page;
}

static void forget_work(struct check_values *v, struct job *job)
{
	v->bytes -= job->room;
	v->under_way--;
	job->work = NULL;
	if (job->room > JOB_BYTES) {
		free(job->memory);
		job->memory = NULL;
		job->room = 0;
	}
}

static void work_over(struct check_values *v, struct check_work *w)
{
	if (w->jobs || !w->given)
		return;
	if (v->space->check->stopped)
		check_work_free(w);
	else
		v->ended(v->space, w);
}

static void judge(struct check_values *v, struct job *job)
{
	struct check_work *w = job->work;
	struct check *check = v->space->check;

	if (!check->stopped && read_again(job))
		return;
	/* Header and keys were right before: now it is not known what this is. */
	if (job->read.job.result)
		w->unreadable = true;
	for (uint32_t i = 0; i < job->read.count && !job->read.job.result; i++)
		judge_value(w, &job->value[i]);
	check->done += job->bytes;
	w->told += job->bytes;
	w->jobs--;
	forget_work(v, job);
	work_over(v, w);
}

static struct job *one_that_ended(struct check_values *v)
{
	for (uint32_t i = 0; i < JOBS; i++)
		if (v->job[i].work && v->job[i].ended)
			return &v->job[i];
	return NULL;
}

static void cancel(struct check_values *v)
{
	for (uint32_t i = 0; i < JOBS; i++)
		if (v->job[i].work)
			atomic_store(&v->job[i].read.job.cancelled, true);
}

/* Waits for one job that is under way and sees what became of it. */
static void await_one(struct check_values *v)
{
	struct job *job;

	for (;;) {
		if (!check_go_on(v->space->check))
			cancel(v);
		lock_take(&v->lock);
		job = one_that_ended(v);
		if (!job)
			lock_cond_wait(&v->wake, &v->lock, clock_now_ns() + CHECK_NS);
		lock_drop(&v->lock);
		if (job)
			break;
	}
	judge(v, job);
}

/* ---- jobs that begin --------------------------------------------------------------------------------------------------------- */

/* A free one with @bytes of memory; NULL: there is no memory. */
static struct job *take_job(struct check_values *v, uint64_t bytes)
{
	struct job *job = v->job;
	uint64_t room = bytes > JOB_BYTES ? bytes : JOB_BYTES;

	while (v->under_way == JOBS || (v->under_way && v->bytes + room > BYTES_MOST))
		await_one(v);
	while (job->work)
		job++;
	if (job->room < room) {
		free(job->memory);
		job->memory = aligned_alloc(RECORD_FILE_ALIGN, room);
		job->room = job->memory ? room : 0;
	}
	if (!job->memory)
		return NULL;
	job->read.count = 0;
	job->bytes = 0;
	return job;
}

static void begin(struct check_values *v, struct job *job, struct check_work *w)
{
	job->work = w;
	job->values = v;
	job->again = false;
	job->read.job = (struct disk_job){
		.kind = DISK_JOB_READ,
		.dir = v->space->dir,
		.consumed = w->file->consumed,
		.endpoint = w->file->endpoint,
		.done = job_done,
	};
	job->read.memory = true;
	job->read.pages = w->info.pages;
	job->read.file_pages = w->info.plan.pages;
	job->read.alias = w->info.alias;
	job->read.keys = job->key;
	job->read.values = job->value;
	w->jobs++;
	v->bytes += job->room;
	v->under_way++;
	give(job);
}

struct walk {
	struct check_values *values;
	struct check_work *work;
	struct job *job; /* being filled */
};

static bool add_value(struct walk *walk, uint32_t page, uint32_t column)
{
	struct check_work *w = walk->work;
	const struct record_file_plan *plan = &w->info.plan;
	bool row = page == TABLES_PAGE_ROW;
	uint64_t bytes = walk->values->space->slot_bytes[row ? plan->page_columns + column : column];
	struct job *job = walk->job;

	if (job && (job->bytes + bytes > job->room || job->read.count == JOB_VALUES)) {
		begin(walk->values, job, w);
		job = NULL;
	}
	if (!job)
		job = take_job(walk->values, bytes);
	walk->job = job;
	if (!job)
		return false;
	job->value[job->read.count] =
		(struct disk_read_value){.page = page, .column = column, .to = (uint64_t)(uintptr_t)(job->memory + job->bytes)};
	job->key[job->read.count++] = row ? w->info.id.endpoint : w->keys[page];
	job->bytes += bytes;
	return true;
}

/* Must it be read? An alias's bytes are those of the column that it names, which is read if it has the same checksum. */
static bool is_read(const struct check_work *w, uint32_t page, uint32_t column)
{
	const struct record_file_plan *plan = &w->info.plan;
	bool row = page == TABLES_PAGE_ROW;
	const uint64_t *sums = &w->sums[(uint64_t)(row ? plan->pages : page) * plan->page_columns];
	uint32_t first = row ? plan->page_columns : 0;
	uint32_t stored = w->info.alias[first + column] - first;

	return sums[column] && (stored == column || sums[column] != sums[stored]);
}

/* False: no memory. */
static bool add_values(struct walk *walk)
{
	const struct check_work *w = walk->work;
	const struct check *check = walk->values->space->check;

	for (uint32_t page = 0; page < w->info.pages; page++)
		for (uint32_t c = 0; c < w->info.plan.page_columns && !check->stopped; c++)
			if (is_read(w, page, c) && !add_value(walk, page, c))
				return false;
	for (uint32_t c = 0; w->info.row && c < w->info.plan.row_columns && !check->stopped; c++)
		if (is_read(w, TABLES_PAGE_ROW, c) && !add_value(walk, TABLES_PAGE_ROW, c))
			return false;
	return true;
}

void check_values_read(struct check_values *v, struct check_work *w)
{
	struct walk walk = {.values = v, .work = w};

	if (!add_values(&walk))
		w->unreadable = true;
	else if (walk.job && !v->space->check->stopped)
		begin(v, walk.job, w);
	w->given = true;
	work_over(v, w);
}

void check_values_finish(struct check_values *v)
{
	while (v->under_way)
		await_one(v);
}

/* ---- made and freed ------------------------------------------------------------------------------------------------------------ */

int check_values_new(struct check_space *space, void (*ended)(struct check_space *space, struct check_work *work),
		     struct check_values **ret, struct why *why)
{
	struct check_values *v = calloc(1, sizeof(*v));

	if (!v)
		return why_set(why, ENOMEM, "no memory to read the values of %s", space->folder);
	v->space = space;
	v->ended = ended;
	lock_init(&v->lock, LOCK_QUEUE);
	lock_cond_init(&v->wake);
	*ret = v;
	return 0;
}

void check_values_free(struct check_values **vp)
{
	struct check_values *v = *vp;

	*vp = NULL;
	if (!v)
		return;
	if (v->under_way) {
		v->space->check->stopped = true;
		check_values_finish(v);
	}
	for (uint32_t i = 0; i < JOBS; i++)
		free(v->job[i].memory);
	lock_cond_destroy(&v->wake);
	lock_destroy(&v->lock);
	free(v);
}
