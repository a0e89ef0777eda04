/* SPDX-License-Identifier: Apache-2.0
 *
 * A host with a disk in a folder of its own, whose operations a test may hold up or make fail. For tests of the tiers.
 */
#ifndef PREFIXFS_TESTS_UNIT_TIERING_WORLD_H
#define PREFIXFS_TESTS_UNIT_TIERING_WORLD_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/host_private.h"
#include "store/manage.h"
#include "store/tiering.h"
#include "tests/unit/store_fixture.h"

#define MIB (1ull << 20)
#define WORLD_WAIT_NS 30000000000ull

/* The plain operations; the making of a file waits while the gate is shut, and fails with `error`. */
struct gate_ops {
	struct disk_ops ops; /* first */
	struct disk_ops_table table;
	struct disk_ops *under;
};

static struct world_gate {
	pthread_mutex_t mutex;
	pthread_cond_t moved;
	bool shut;
	uint32_t waiting; /* makings that wait */
	uint32_t made;
	int error;
	_Atomic uint32_t changes; /* of the folder, begun; whether the gate was open or not */
} gate = { .mutex = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER };

static inline void gate_set(bool shut, int error)
{
	pthread_mutex_lock(&gate.mutex);
	gate.shut = shut;
	gate.error = error;
	pthread_cond_broadcast(&gate.moved);
	pthread_mutex_unlock(&gate.mutex);
}

static inline uint32_t gate_waiting(void)
{
	uint32_t n;

	pthread_mutex_lock(&gate.mutex);
	n = gate.waiting;
	pthread_mutex_unlock(&gate.mutex);
	return n;
}

#define UNDER(o) (((struct gate_ops *)(o))->under)

static inline int gate_create(struct disk_ops *ops, int dir, const char *name)
{
	int error;

	atomic_fetch_add(&gate.changes, 1);
	pthread_mutex_lock(&gate.mutex);
	gate.waiting++;
	while (gate.shut)
		pthread_cond_wait(&gate.moved, &gate.mutex);
	gate.waiting--;
	gate.made++;
	error = gate.error;
	pthread_mutex_unlock(&gate.mutex);
	return error ? error : UNDER(ops)->table->create(UNDER(ops), dir, name);
}

static inline void gate_free(struct disk_ops **ops)
{
	struct gate_ops *g = (struct gate_ops *)*ops;

	*ops = NULL;
	g->under->table->free(&g->under);
	free(g);
}

static inline bool gate_direct(const struct disk_ops *ops)
{
	const struct disk_ops *under = ((const struct gate_ops *)ops)->under;

	return under->table->direct(under);
}

static inline int gate_open(struct disk_ops *ops, int dir, const char *name, bool write)
{
	return UNDER(ops)->table->open(UNDER(ops), dir, name, write);
}

static inline void gate_close(struct disk_ops *ops, int fd)
{
	UNDER(ops)->table->close(UNDER(ops), fd);
}

static inline int gate_allocate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	atomic_fetch_add(&gate.changes, 1);
	return UNDER(ops)->table->allocate(UNDER(ops), fd, bytes);
}

static inline int gate_truncate(struct disk_ops *ops, int fd, uint64_t bytes)
{
	atomic_fetch_add(&gate.changes, 1);
	return UNDER(ops)->table->truncate(UNDER(ops), fd, bytes);
}

static inline int gate_sync(struct disk_ops *ops, int fd)
{
	return UNDER(ops)->table->sync(UNDER(ops), fd);
}

static inline int gate_sync_dir(struct disk_ops *ops, int dir)
{
	return UNDER(ops)->table->sync_dir(UNDER(ops), dir);
}

static inline int gate_rename(struct disk_ops *ops, int from_dir, const char *from, int to_dir, const char *to)
{
	atomic_fetch_add(&gate.changes, 1);
	return UNDER(ops)->table->rename(UNDER(ops), from_dir, from, to_dir, to);
}

static inline int gate_unlink(struct disk_ops *ops, int dir, const char *name)
{
	atomic_fetch_add(&gate.changes, 1);
	return UNDER(ops)->table->unlink(UNDER(ops), dir, name);
}

static inline int gate_queue_new(struct disk_ops *ops, struct disk_ops_queue **ret, struct why *why)
{
	return UNDER(ops)->table->queue_new(UNDER(ops), ret, why);
}

static inline struct disk_ops *gate_ops_new(void)
{
	struct gate_ops *g = calloc(1, sizeof(*g));

	g->under = disk_ops_plain_new();
	g->table = *g->under->table;
	g->table.free = gate_free;
	g->table.direct = gate_direct;
	g->table.create = gate_create;
	g->table.open = gate_open;
	g->table.close = gate_close;
	g->table.allocate = gate_allocate;
	g->table.truncate = gate_truncate;
	g->table.sync = gate_sync;
	g->table.sync_dir = gate_sync_dir;
	g->table.rename = gate_rename;
	g->table.unlink = gate_unlink;
	g->table.queue_new = gate_queue_new;
	g->ops.table = &g->table;
	return &g->ops;
}

/* ---- the world ---------------------------------------------------------------------------------------------------------- */

struct world {
	struct fixture f;
	struct tiering *t;
	struct session *s;
	char path[64];
	uint64_t plan;
	_Atomic uint32_t demoted_events, spilled_events, room_events;
	struct key spilled[64];                               /* (space lock) endpoints, in order */
	struct put_result r;
};

static inline void world_note(void *context, struct space *space, const struct host_event *events, uint32_t count)
{
	struct world *w = context;

	(void)space;
	for (uint32_t i = 0; i < count; i++) {
		if (events[i].kind == HOST_EVENT_DEMOTED)
			w->demoted_events++;
		if (events[i].kind == HOST_EVENT_ROOM)
			w->room_events++;
		if (events[i].kind == HOST_EVENT_SPILLED)
			w->spilled[w->spilled_events++ % 64] = events[i].endpoint;
	}
}

struct world_options {
	const char *classes;
	uint64_t memory, floor, disk, expire_s;
	bool only;
	uint32_t world; /* 0 = 1 */
};

static inline void world_open(struct world *w, const struct world_options *o)
{
	struct host_config config = {
		.memory_bytes = o->memory,
		.wish = SEGMENT_WISH_SMALL,
		.populate = false,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 10000,
		.disk_path = w->path,
		.disk_bytes = o->disk,
		.disk_workers = 2,
		.disk_only = o->only,
		.disk_ops = gate_ops_new(),
		.expire_s = o->expire_s,
		.events = { .context = w, .note = world_note },
	};
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	memset(w, 0, sizeof(*w));
	gate_set(false, 0);
	snprintf(w->path, sizeof(w->path), "/tmp/prefixfs-tiering-XXXXXX");
	if (!mkdtemp(w->path))
		fail_msg("%s: %s", w->path, strerror(errno));
	if (host_new(&config, &w->f.host, &why) ||
	    host_space_create(w->f.host, "test", fixture_layout(o->classes, o->world ? o->world : 1, o->floor), &access, &w->f.space, &why))
		fail_msg("world: %s", why.text);
	fixture_await_prewarm(&w->f);
	w->t = w->f.space->tiering;
	assert_non_null(w->t);
	w->s = fixture_session(&w->f, 0);
}

static inline void world_lock(struct world *w)
{
	lock_take(&w->f.space->lock);
}

static inline void world_unlock(struct world *w)
{
	lock_drop(&w->f.space->lock);
}

/* What the folder has: bytes of record files; *files, *others (temporary ones). */
static inline uint64_t world_files(struct world *w, uint32_t *files, uint32_t *others)
{
	int at = disk_dir_fd(w->t->dir);
	uint64_t bytes = 0;

	*files = *others = 0;
	for (uint32_t folder = 0; folder < 256; folder++) {
		char name[8];
		struct dirent *e;
		DIR *dir;
		int fd;

		snprintf(name, sizeof(name), "%02x", folder);
		fd = openat(at, name, O_RDONLY | O_DIRECTORY);
		dir = fd >= 0 ? fdopendir(fd) : NULL;
		while (dir && (e = readdir(dir))) {
			struct stat st;
			uint64_t consumed;
			struct key key;

			if (e->d_name[0] == '.')
				continue;
			if (!record_file_parse_name(e->d_name, &consumed, &key)) {
				++*others;
				continue;
			}
			if (!fstatat(fd, e->d_name, &st, 0))
				bytes += (uint64_t)st.st_size;
			++*files;
		}
		if (dir)
			closedir(dir);
	}
	return bytes;
}

/* Is anything under way or due? Under the lock. */
static inline bool world_busy(struct world *w)
{
	struct tiering *t = w->t;

	return atomic_load(&t->jobs) || t->writes || t->asked_count || t->space->parents_count || t->wish.is || t->trims != INDEX_NONE;
}

#define world_await(w, condition)                                                                       \
	do {                                                                                            \
		uint64_t until_ns = clock_now_ns() + WORLD_WAIT_NS;                                     \
		bool is = false;                                                                        \
		while (!is) {                                                                           \
			world_lock(w);                                                                  \
			is = (condition);                                                               \
			world_unlock(w);                                                                \
			if (!is && clock_now_ns() > until_ns)                                           \
				fail_msg("line %d: not so after 30 s: %s", __LINE__, #condition);       \
			sched_yield();                                                                  \
		}                                                                                       \
	} while (0)

static inline void world_idle(struct world *w)
{
	world_await(w, !world_busy(w));
}

/* What a successor would read in the tables of a record's file is what the tier knows of it, but for a job under way. Under the lock. */
static inline void world_check_row(struct world *w, uint32_t record)
{
	struct tables *tables = &w->f.space->tables;
	const struct record_file *f = &w->t->files[record];
	const struct file_row *row = files_get(tables, record);

	if (!(f->flags & TIERING_KNOWN) || !f->id) {
		assert_null(row);
		return;
	}
	if (f->job)
		return;
	assert_non_null(row);
	assert_int_equal(row->id, f->id);
	assert_memory_equal(&row->endpoint, &f->endpoint, sizeof(row->endpoint));
	assert_int_equal(row->pages, f->pages);
	assert_int_equal(row->file_pages, f->file_pages);
	assert_int_equal((uint64_t)row->blocks * 4096, (f->bytes + 4095) / 4096 * 4096);
	assert_int_equal(row->flags, (f->flags & TIERING_FILE_ROW ? FILES_ROW : 0) | (f->flags & TIERING_STALE ? FILES_STALE : 0) |
					     (f->alias ? FILES_ALIASED : 0));
}

/* All accounts against the tables. Under the lock. */
static inline void world_check_accounts(struct world *w)
{
	struct space *space = w->f.space;
	struct tiering *t = w->t;
	uint64_t clean = 0, dirty = 0, held = 0, disk = 0, owed = 0, files = 0;
	uint32_t places = 0;

	for (uint32_t e = 0; e < t->place_top; e++) {
		const struct entry *entry = &space->tables.entries[e];
		uint64_t bytes;

		if (entry->state == ENTRY_QUARANTINED && t->holds[e])
			owed++;
		if (e < t->place_first && entry->state != ENTRY_VALUE)
			assert_false(tiering_is_clean(t, e));
		if (entry->state != ENTRY_VALUE)
			continue;
		if ((e >= t->place_first || tiering_is_clean(t, e)) && index_record_current(space->index, entry->record) &&
		    !(t->files[entry->record].flags & TIERING_ROW_LOST))
			assert_true(tiering_row_covers(t, e));
		if (e >= t->place_first) {
			places++;
			continue;
		}
		bytes = slots_slot_bytes(space->slots, e);
		if (tiering_is_clean(t, e)) {
			clean += bytes;
			held += t->holds[e] ? bytes : 0;
		} else if (!entry->group) {
			dirty += bytes;
		}
	}
	for (uint32_t n = 0; n < index_record_limit(space->index); n++) {
		const struct record_file *f = &t->files[n];

		world_check_row(w, n);
		if (!(f->flags & TIERING_KNOWN) || !f->id || !index_record_current(space->index, n))
			continue;
		disk += f->bytes;
		files++;
	}
	assert_int_equal(t->clean_bytes, clean);
	assert_int_equal(t->dirty_bytes, dirty);
	assert_int_equal(t->held_clean_bytes, held);
	assert_int_equal(t->places_used, places);
	assert_int_equal(space->stats.slots_owed, owed);
	assert_int_equal(t->disk_bytes, disk);
	assert_int_equal(t->disk_files, files);
	index_check(space->index);
	slots_check(space->slots);
}

/* The folder against the accounts. False: it was changed while it was listed, and what was seen is of no moment. */
static inline bool world_check_folder(struct world *w)
{
	uint64_t bytes, disk, disk_files;
	uint32_t files, others, changes;
	bool busy;

	world_lock(w);
	busy = world_busy(w);
	changes = atomic_load(&gate.changes);
	disk = w->t->disk_bytes;
	disk_files = w->t->disk_files;
	world_unlock(w);
	if (busy)
		return false;
	bytes = world_files(w, &files, &others);
	world_lock(w);
	busy = world_busy(w) || changes != atomic_load(&gate.changes); /* what was begun and has ended has changed something */
	world_unlock(w);
	if (busy)
		return false;
	assert_int_equal(bytes, disk);
	assert_int_equal(files, disk_files);
	assert_int_equal(others, 0);
	return true;
}

/* All accounts against the tables, and against the folder if nothing is under way. */
static inline void world_check(struct world *w)
{
	world_lock(w);
	world_check_accounts(w);
	world_unlock(w);
	world_check_folder(w);
}

/* The same once nothing is under way, which is to come. */
static inline void world_check_idle(struct world *w)
{
	uint64_t until_ns = clock_now_ns() + WORLD_WAIT_NS;

	do {
		if (clock_now_ns() > until_ns)
			fail_msg("the folder was never still within 30 s");
		world_idle(w);
		world_lock(w);
		world_check_accounts(w);
		world_unlock(w);
	} while (!world_check_folder(w));
}

static inline void world_close(struct world *w)
{
	char command[96];

	gate_set(false, 0);
	session_release(w->s);
	session_unref(&w->s);
	fixture_close(&w->f);
	snprintf(command, sizeof(command), "rm -rf %s", w->path);
	assert_int_equal(system(command), 0);
}

/* Puts pages [from, from + n) of a chain, committed. False: no room. */
static inline bool world_put(struct world *w, uint64_t chain, uint32_t from, uint32_t n, uint32_t flags)
{
	assert_int_equal(put_chain(w->s, ++w->plan, chain, from, n, 1, flags, &w->r), 0);
	if (w->r.groups_ok)
		commit_all(w->s, w->plan, 1);
	else
		end_run(w->s, w->plan, false, 0, 1, w->r.status, NULL, &w->r.why);
	return w->r.groups_ok == 1;
}

/* Puts the row that stands behind page @page. */
static inline bool world_put_row(struct world *w, uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct put_group group = {
		.parent = page ? fixture_key(chain, page - 1) : key,
		.consumed = (page + 1ull) * FIXTURE_PAGE, .keys = 1, .class_mask = 2, .flags = PUT_ROW_ONLY | (page ? 0 : PUT_ROOT),
	};

	assert_int_equal(put_run(w->s, ++w->plan, &group, 1, &key, 1, 2, &w->r), 0);
	if (w->r.groups_ok)
		commit_all(w->s, w->plan, 1);
	else
		end_run(w->s, w->plan, false, 0, 1, w->r.status, NULL, &w->r.why);
	return w->r.groups_ok == 1;
}

/* The record whose last page is @page; INDEX_NONE. Under the lock. */
static inline uint32_t world_record(struct world *w, uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);

	return index_find_endpoint(w->f.space->index, &key);
}

static inline void world_drain(struct world *w)
{
	struct why why = WHY_INIT;
	uint64_t left;

	if (host_drain(w->f.host, w->f.space, HOST_DRAIN_FULL, clock_now_ns() + WORLD_WAIT_NS, NULL, NULL, &left, &why))
		fail_msg("drain: %s", why.text);
	world_idle(w);
}

#endif
