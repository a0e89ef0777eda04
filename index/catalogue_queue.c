/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue's changes on their way to the database.
 *
 *   offered -> queued -> in a batch -> written          counted in `settled`
 *                                   -> queued again     somebody else has the database locked
 *                                   -> dropped          a write failed, the journal is too long, the end came
 *           -> dropped                                  the queue is full, or the database refuses
 *
 * While it refuses, after a failed write or over the journal's limit, nothing is queued and what was is dropped; an empty batch is
 * tried from time to time, and when that is written changes are taken again. What was dropped stays dropped: it is behind.
 *
 * One lock, a leaf, guards everything here; the database is used without it, by the opener until the first change is queued,
 * by the thread from there on, by the closer when the thread has ended.
 */
#include "index/catalogue_private.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/lock.h"

#define MS 1000000ull
#define BATCH 4096u               /* changes of one transaction */
#define BATCH_BYTES (16u << 20)   /* and their memory */
#define BATCH_NS (200 * MS)       /* that the first one waits for others */
#define BUSY_NS (50 * MS)         /* between attempts while somebody else writes */
#define JOURNAL_NS (200 * MS)     /* between looks whether the journal may begin anew */
#define RETRY_NS (1000 * MS)      /* after a failed write, doubling */
#define RETRY_MOST_NS (30000 * MS)
#define IDLE_NS (60000 * MS)      /* a wait has a deadline; this one is renewed */

struct queue {
	struct change *first, **end;
	uint32_t count;
	uint64_t bytes;
};

struct catalogue {
	struct catalogue_db *db; /* see above who uses it */
	pthread_t thread;
	_Atomic uint64_t next_id;
	uint32_t queue_most;     /* these two are set before the first change */
	uint64_t wal_most;

	struct lock lock; /* LOCK_QUEUE: all below */
	struct lock_cond work, settled_cond;
	struct queue queue;
	uint64_t first_ns;          /* when the oldest one was queued */
	uint64_t accepted, settled; /* changes ever; accepted = settled + queue + batch under way */
	uint64_t hurry;             /* somebody waits for settled to get there */
	uint64_t not_before_ns;     /* of the next attempt, while it refuses or was busy */
	uint64_t retry_ns;
	uint64_t dropped, unwritten, written; /* unwritten: of the dropped ones, those that had been queued */
	bool begun, loading, stopping, ended;
	uint64_t stop_by_ns;
	bool inherited, lost;       /* behind: as it was opened; by what was dropped since */
	bool refusing, failed, dead, was_busy;
	struct catalogue_db_state state; /* after the last write */
	char error[160];
};

/* ---- queues -------------------------------------------------------------------------------------------------------- */

static void queue_init(struct queue *q)
{
	*q = (struct queue){.end = &q->first};
}

static void queue_push(struct queue *q, struct change *change)
{
	change->next = NULL;
	*q->end = change;
	q->end = &change->next;
	q->count++;
	q->bytes += change->bytes;
}

static struct change *queue_pop(struct queue *q)
{
	struct change *change = q->first;

	q->first = change->next;
	if (!q->first)
		q->end = &q->first;
	q->count--;
	q->bytes -= change->bytes;
	return change;
}

/* @from's before @to's; @from is empty afterwards. */
static void queue_put_back(struct queue *to, struct queue *from)
{
	if (!from->first)
		return;
	*from->end = to->first;
	if (!to->first)
		to->end = from->end;
	to->first = from->first;
	to->count += from->count;
	to->bytes += from->bytes;
	queue_init(from);
}

static void queue_free(struct queue *q)
{
	while (q->first)
		free(queue_pop(q));
}

/* ---- the thread ---------------------------------------------------------------------------------------------------- */

static bool is_behind(const struct catalogue *c)
{
	lock_assert_held(&c->lock);
	return c->inherited || c->lost;
}

/* When the thread has something to do; UINT64_MAX: nothing is known that it had. */
static uint64_t next_due(const struct catalogue *c)
{
	/* Before the first change the database is the opener's, even to mark it behind: it is marked open, which says as much. */
	if (!c->begun || c->loading || c->dead)
		return UINT64_MAX;
	if (c->refusing || c->was_busy)
		return c->not_before_ns;
	if (c->lost && !c->state.behind)
		return 0;
	if (!c->queue.first)
		return UINT64_MAX;
	if (c->stopping || c->settled < c->hurry || c->queue.count >= BATCH || c->queue.bytes >= BATCH_BYTES)
		return 0;
	return c->first_ns + BATCH_NS;
}

/* False: it is to end. */
static bool wait_for_work(struct catalogue *c)
{
	for (;;) {
		uint64_t now = clock_now_ns(), due = next_due(c);

		if (c->stopping && (!c->queue.first || now >= c->stop_by_ns))
			return false;
		if (due <= now)
			return true;
		lock_cond_wait(&c->work, &c->lock, due < now + IDLE_NS ? due : now + IDLE_NS);
	}
}

static void take_batch(struct catalogue *c, struct queue *batch)
{
	queue_init(batch);
	while (c->queue.first && batch->count < BATCH && batch->bytes < BATCH_BYTES)
		queue_push(batch, queue_pop(&c->queue));
	c->first_ns = clock_now_ns(); /* of what is left, or comes */
}

/* They were queued and are not going to be written. Whoever frees them does so without the lock. */
static void count_dropped(struct catalogue *c, uint32_t count)
{
	c->dropped += count;
	c->unwritten += count;
	c->settled += count;
	c->lost |= count != 0;
}

/* Nothing is taken until an attempt at @not_before_ns has gone well; all that waits joins @batch to be dropped. */
static void refuse(struct catalogue *c, struct queue *batch, uint64_t not_before_ns)
{
	c->refusing = true;
	c->not_before_ns = not_before_ns;
	while (c->queue.first)
		queue_push(batch, queue_pop(&c->queue));
	count_dropped(c, batch->count);
}

static void settle(struct catalogue *c, struct queue *batch, enum catalogue_db_result result, const struct why *why)
{
	uint64_t now = clock_now_ns();

	catalogue_db_state(c->db, &c->state);
	c->was_busy = result == CATALOGUE_DB_BUSY;
	if (result != CATALOGUE_DB_DONE)
		snprintf(c->error, sizeof(c->error), "%s", why->text);
	switch (result) {
	case CATALOGUE_DB_DONE:
		c->written += batch->count;
		c->settled += batch->count;
		c->refusing = c->failed = false;
		c->retry_ns = RETRY_NS;
		break;
	case CATALOGUE_DB_BUSY:
		queue_put_back(&c->queue, batch);
		c->not_before_ns = now + BUSY_NS;
		break;
	case CATALOGUE_DB_JOURNAL:
		refuse(c, batch, now + JOURNAL_NS);
		break;
	case CATALOGUE_DB_FAILED:
		c->failed = true;
		refuse(c, batch, now + c->retry_ns);
		c->retry_ns = c->retry_ns * 2 < RETRY_MOST_NS ? c->retry_ns * 2 : RETRY_MOST_NS;
		break;
	case CATALOGUE_DB_DAMAGED:
		c->failed = c->dead = true;
		refuse(c, batch, UINT64_MAX);
		break;
	}
	lock_cond_wake_all(&c->settled_cond);
}

/* What is left when patience is over. */
static void drop_rest(struct catalogue *c, struct queue *rest)
{
	*rest = c->queue;
	if (!rest->first)
		rest->end = &rest->first;
	queue_init(&c->queue);
	count_dropped(c, rest->count);
	c->ended = true;
	lock_cond_wake_all(&c->settled_cond);
}

static void *writer_main(void *context)
{
	struct catalogue *c = context;
	struct queue batch;

	pthread_setname_np(pthread_self(), "pfs-catalogue");
	lock_take(&c->lock);
	while (wait_for_work(c)) {
		struct why why = WHY_INIT;
		bool behind = is_behind(c);

		take_batch(c, &batch);
		lock_drop(&c->lock);
		lock_assert_none_held();
		enum catalogue_db_result result = catalogue_db_write(c->db, batch.first, behind, c->wal_most, &why);
		lock_take(&c->lock);
		settle(c, &batch, result, &why);
		lock_drop(&c->lock);
		queue_free(&batch);
		lock_take(&c->lock);
	}
	drop_rest(c, &batch);
	lock_drop(&c->lock);
	queue_free(&batch);
	return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------------------- */

int catalogue_open(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], struct catalogue **ret,
		   bool *fresh, bool *behind, struct why *why)
{
	struct catalogue *c = calloc(1, sizeof(*c));
	bool is_fresh, was_behind;

	lock_assert_none_held();
	if (!c)
		return why_set(why, ENOMEM, "no memory for the catalogue %s", path);
	int r = catalogue_db_open(path, identity, fingerprint, &c->db, &is_fresh, &was_behind, why);

	if (r) {
		free(c);
		return r;
	}
	catalogue_db_state(c->db, &c->state);
	c->next_id = c->state.next_id;
	c->inherited = was_behind;
	c->queue_most = CATALOGUE_QUEUE;
	c->wal_most = CATALOGUE_WAL_MOST;
	c->retry_ns = RETRY_NS;
	queue_init(&c->queue);
	lock_init(&c->lock, LOCK_QUEUE);
	lock_cond_init(&c->work);
	lock_cond_init(&c->settled_cond);
	r = pthread_create(&c->thread, NULL, writer_main, c);
	if (r) {
		catalogue_db_close(&c->db, was_behind);
		lock_cond_destroy(&c->work);
		lock_cond_destroy(&c->settled_cond);
		lock_destroy(&c->lock);
		free(c);
		return why_set(why, r, "cannot start a thread for the catalogue %s: %s", path, strerror(r));
	}
	*ret = c;
	*fresh = is_fresh;
	*behind = was_behind;
	return 0;
}

int catalogue_load(struct catalogue *c, bool (*row)(void *context, const struct catalogue_row *row), void *context, struct why *why)
{
	lock_assert_none_held();
	lock_take(&c->lock);
	bool late = c->begun || c->loading;

	c->loading |= !late;
	lock_drop(&c->lock);
	if (late)
		return why_set(why, EBUSY, "the catalogue is read before its first change is queued, not after");
	int r = catalogue_db_load(c->db, row, context, why);

	lock_take(&c->lock);
	c->loading = false;
	catalogue_db_state(c->db, &c->state);
	if (r == -EBADMSG) { /* a fresh one */
		c->inherited = false;
		c->next_id = c->state.next_id;
	}
	lock_cond_wake_all(&c->work);
	lock_drop(&c->lock);
	return r;
}

void catalogue_limit(struct catalogue *c, uint32_t queue, uint64_t wal_bytes)
{
	lock_take(&c->lock);
	assert(!c->begun);
	c->queue_most = queue;
	c->wal_most = wal_bytes;
	lock_drop(&c->lock);
}

void catalogue_mended(struct catalogue *c)
{
	lock_take(&c->lock);
	c->inherited = false;
	lock_drop(&c->lock);
}

void catalogue_close(struct catalogue **pointer, uint64_t patience_ns)
{
	struct catalogue *c = *pointer;

	*pointer = NULL;
	if (!c)
		return;
	lock_assert_none_held();
	lock_take(&c->lock);
	c->stopping = true;
	c->stop_by_ns = clock_now_ns() + patience_ns;
	lock_cond_wake_all(&c->work);
	while (!c->ended && lock_cond_wait(&c->settled_cond, &c->lock, c->stop_by_ns))
		;
	bool late = !c->ended;

	lock_drop(&c->lock);
	if (late)
		catalogue_db_interrupt(c->db);
	pthread_join(c->thread, NULL);
	catalogue_db_close(&c->db, c->inherited || c->lost);
	lock_cond_destroy(&c->work);
	lock_cond_destroy(&c->settled_cond);
	lock_destroy(&c->lock);
	free(c);
}

/* ---- changes ------------------------------------------------------------------------------------------------------- */

uint64_t catalogue_next_id(struct catalogue *c)
{
	return atomic_fetch_add_explicit(&c->next_id, 1, memory_order_relaxed);
}

void catalogue_ids_from(struct catalogue *c, uint64_t least)
{
	uint64_t now = atomic_load(&c->next_id);

	while (now < least && !atomic_compare_exchange_weak(&c->next_id, &now, least))
		;
}

/* A change that was dropped before it was queued. */
static void note_dropped(struct catalogue *c)
{
	c->dropped++;
	if (!c->lost)
		lock_cond_wake_all(&c->work); /* for the mark */
	c->lost = true;
}

static void note_queued(struct catalogue *c, struct change *change)
{
	if (!c->queue.first)
		c->first_ns = clock_now_ns();
	queue_push(&c->queue, change);
	c->accepted++;
	c->begun = true;
	if (change->kind == CHANGE_CLEAR) /* whatever is missing, nothing of it is left */
		c->inherited = c->lost = false;
	/* The thread sleeps without a deadline of its own while the queue is empty, and until a batch is full or old enough. */
	if (c->queue.count == 1 || c->queue.count == BATCH || c->queue.bytes >= BATCH_BYTES)
		lock_cond_wake_all(&c->work);
}

/* Takes @change, which may be NULL: there was no memory for it. */
static bool queue_change(struct catalogue *c, struct change *change)
{
	lock_take(&c->lock);
	bool fits = change && !c->refusing && !c->stopping && c->queue.count < c->queue_most &&
		    c->queue.bytes + change->bytes <= CATALOGUE_QUEUE_BYTES;

	if (fits)
		note_queued(c, change);
	else
		note_dropped(c);
	lock_drop(&c->lock);
	if (!fits)
		free(change);
	return fits;
}

static struct change *new_change(enum change_kind kind, uint64_t id, uint64_t bytes_behind)
{
	struct change *change = calloc(1, sizeof(*change) + bytes_behind);

	if (change) {
		change->kind = kind;
		change->bytes = sizeof(*change) + bytes_behind;
		change->row.id = id;
	}
	return change;
}

bool catalogue_add(struct catalogue *c, const struct catalogue_row *row)
{
	uint32_t alias_count = row->alias ? row->alias_count : 0, absent_bytes = row->absent ? row->absent_bytes : 0;
	size_t keys = row->pages * sizeof(*row->keys), alias = alias_count * sizeof(*row->alias);
	struct change *change = new_change(CHANGE_ADD, row->id, keys + alias + absent_bytes);

	assert(row->id && (row->keys || !row->pages));
	if (!change)
		return queue_change(c, NULL);
	/* Most aligned first. */
	uint8_t *behind = (uint8_t *)(change + 1);

	change->row = *row;
	change->row.keys = (struct key *)behind;
	change->row.alias = (uint16_t *)(behind + keys);
	change->row.alias_count = alias_count;
	change->row.absent = behind + keys + alias;
	change->row.absent_bytes = absent_bytes;
	if (keys)
		memcpy(behind, row->keys, keys);
	if (alias)
		memcpy(behind + keys, row->alias, alias);
	if (absent_bytes)
		memcpy(behind + keys + alias, row->absent, absent_bytes);
	return queue_change(c, change);
}

bool catalogue_remove(struct catalogue *c, uint64_t id)
{
	return queue_change(c, new_change(CHANGE_REMOVE, id, 0));
}

bool catalogue_trim(struct catalogue *c, uint64_t id, uint32_t pages, uint64_t consumed, const struct key *endpoint, bool row,
		    uint64_t file_bytes)
{
	struct change *change = new_change(CHANGE_TRIM, id, 0);

	if (change) {
		change->row.pages = pages;
		change->row.consumed = consumed;
		change->row.endpoint = *endpoint;
		change->row.flags = row ? CATALOGUE_ROW : 0;
		change->row.file_bytes = file_bytes;
	}
	return queue_change(c, change);
}

bool catalogue_pin(struct catalogue *c, uint64_t id, bool pinned)
{
	struct change *change = new_change(CHANGE_PIN, id, 0);

	if (change)
		change->row.flags = pinned ? CATALOGUE_PINNED : 0;
	return queue_change(c, change);
}

bool catalogue_clear(struct catalogue *c)
{
	return queue_change(c, new_change(CHANGE_CLEAR, 0, 0));
}

void catalogue_behind(struct catalogue *c)
{
	lock_take(&c->lock);
	c->lost = true;
	lock_cond_wake_all(&c->work);
	lock_drop(&c->lock);
}

/* ---- looking ------------------------------------------------------------------------------------------------------- */

bool catalogue_flush(struct catalogue *c, uint64_t patience_ns)
{
	uint64_t deadline_ns = clock_now_ns() + patience_ns;

	lock_assert_none_held();
	lock_take(&c->lock);
	uint64_t target = c->accepted, unwritten = c->unwritten;

	if (c->hurry < target)
		c->hurry = target;
	lock_cond_wake_all(&c->work);
	while (c->settled < target && !c->ended && lock_cond_wait(&c->settled_cond, &c->lock, deadline_ns))
		;
	bool all = c->settled >= target && c->unwritten == unwritten;

	lock_drop(&c->lock);
	return all;
}

void catalogue_report(struct catalogue *c, struct catalogue_report *ret)
{
	memset(ret, 0, sizeof(*ret));
	lock_take(&c->lock);
	ret->rows = c->state.rows;
	ret->queued = c->accepted - c->settled;
	ret->dropped = c->dropped;
	ret->written = c->written;
	ret->wal_bytes = c->state.wal_bytes;
	ret->memory_bytes = sizeof(*c) + c->queue.bytes + c->state.memory_bytes;
	ret->behind = is_behind(c);
	ret->failed = c->failed;
	memcpy(ret->error, c->error, sizeof(ret->error));
	lock_drop(&c->lock);
}
