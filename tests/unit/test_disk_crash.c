/* SPDX-License-Identifier: Apache-2.0
 *
 * What a crash leaves. A workload over a disk is recorded, each change of the directory by itself; then the directory is put together as
 * it was after some of them, with writes that were not synced lost or torn where a host crashed, and a host is started on it, once with
 * the catalogue as it was and once without. What is served then is right to the byte, what may not be there is not, and both hosts
 * have the same.
 *
 * PREFIXFS_TEST_SEED chooses the same points again, PREFIXFS_TEST_POINTS how many there are.
 */
#include <ftw.h>
#include <sys/time.h>

#include "store/base/hash.h"
#include "tests/unit/tiering_world.h"

#define EVENTS_MOST 20000u
#define STEPS_MOST 64u
#define CHAIN_PAGES 24u
#define CHAINS 48u      /* numbers of chains */
#define AFTER_RESET 32u /* from here on: put after the reset */
#define WHOLE_FIRST 24u /* from here to AFTER_RESET: each a WHOLE group */
#define BLOCK 4096u
#define ROW_BYTES 10000u
#define ALL_NS 8000000000ull /* for one test's points */

#define CLASSES CLASS_KV "," CLASS_STATE

/* ---- what is recorded ------------------------------------------------------------------------------------------------------- */

struct step { /* what the workload did from event `first` on */
	uint32_t first;
	int64_t at_s;           /* wall clock */
	char *json;             /* namespace.json at its beginning */
	size_t json_bytes;
	char snapshot[128];     /* folder with the catalogue at its beginning, nothing queued */
	bool reset;             /* one that was answered had begun before */
};

static struct recording {
	struct world world;
	struct disk_ops *log;
	bool sync;
	struct disk_event *events;
	uint32_t event_count;
	struct step steps[STEPS_MOST];
	uint32_t step_count;
	char folder[128]; /* name of the namespace's */
	char snapshots[64];
} recording;

static struct world *const w = &recording.world;
static uint64_t seed;

static uint32_t pick(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 16) % below);
}

static void fill(uint8_t *to, size_t bytes, uint64_t chain, uint64_t page, uint32_t class_index)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = chain << 48 | page << 32 | (uint64_t)class_index << 24 | i / 8;

		memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	(void)st;
	(void)flag;
	(void)at;
	return remove(path);
}

static void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static char *read_whole(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *text;

	*bytes = 0;
	if (fd < 0)
		return NULL;
	assert_int_equal(fstat(fd, &st), 0);
	text = malloc((size_t)st.st_size + 1);
	*bytes = (size_t)st.st_size;
	assert_int_equal(read(fd, text, *bytes), *bytes);
	close(fd);
	return text;
}

static void write_whole(const char *path, const void *from, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, from, bytes), bytes);
	close(fd);
}

static const char *const catalogue_files[] = { "catalogue.sqlite", "catalogue.sqlite-wal" };

static void copy_catalogue(const char *from, const char *to)
{
	for (unsigned i = 0; i < 2; i++) {
		char path[512];
		size_t bytes;
		char *text;

		snprintf(path, sizeof(path), "%s/%s", from, catalogue_files[i]);
		text = read_whole(path, &bytes);
		if (!text)
			continue;
		snprintf(path, sizeof(path), "%s/%s", to, catalogue_files[i]);
		write_whole(path, text, bytes);
		free(text);
	}
}

/* ---- the workload ------------------------------------------------------------------------------------------------------------ */

static void note_step(bool reset)
{
	struct step *s = &recording.steps[recording.step_count];
	char path[512];

	world_idle(w);
	assert_true(recording.step_count < STEPS_MOST);
	assert_true(catalogue_flush(w->t->catalogue, WORLD_WAIT_NS));
	s->first = (uint32_t)disk_ops_fault_log(recording.log, 0, recording.events, EVENTS_MOST);
	s->at_s = (int64_t)time(NULL);
	s->reset = reset;
	snprintf(path, sizeof(path), "%s/namespace.json", disk_dir_path(w->t->dir));
	s->json = read_whole(path, &s->json_bytes);
	snprintf(s->snapshot, sizeof(s->snapshot), "%s/%u", recording.snapshots, recording.step_count);
	assert_int_equal(mkdir(s->snapshot, 0700), 0);
	copy_catalogue(disk_dir_path(w->t->dir), s->snapshot);
	recording.step_count++;
}

static void write_answers(uint64_t chain, uint32_t from, uint32_t pages, bool row)
{
	uint8_t bytes[ROW_BYTES];

	for (uint32_t i = 0; i < pages; i++) {
		if (w->r.answers[i] >= PUT_ANSWER_DUPLICATE)
			continue;
		fill(bytes, 4096, chain, from + i, 0);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[i], bytes, 4096), 0);
	}
	if (row && w->r.answers[pages] < PUT_ANSWER_DUPLICATE) {
		fill(bytes, ROW_BYTES, chain, from + pages - 1, 1);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[pages], bytes, ROW_BYTES), 0);
	}
}

static void put(uint64_t chain, uint32_t from, uint32_t pages, bool row, uint32_t flags)
{
	assert_true(from + pages <= CHAIN_PAGES);
	assert_int_equal(put_chain(w->s, ++w->plan, chain, from, pages, row ? 3 : 1, flags, &w->r), 0);
	assert_int_equal(w->r.groups_ok, 1);
	write_answers(chain, from, pages, row);
	commit_all(w->s, w->plan, 1);
}

static void put_row(uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct put_group group = {
		.parent = page ? fixture_key(chain, page - 1) : key,
		.consumed = (page + 1ull) * FIXTURE_PAGE, .keys = 1, .class_mask = 2, .flags = PUT_ROW_ONLY | (page ? 0 : PUT_ROOT),
	};
	uint8_t bytes[ROW_BYTES];

	assert_int_equal(put_run(w->s, ++w->plan, &group, 1, &key, 1, 2, &w->r), 0);
	assert_int_equal(w->r.groups_ok, 1);
	if (w->r.answers[0] < PUT_ANSWER_DUPLICATE) {
		fill(bytes, ROW_BYTES, chain, page, 1);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[0], bytes, ROW_BYTES), 0);
	}
	commit_all(w->s, w->plan, 1);
}

/* Two records of one group: its keys lie around pages that are there already. */
static void put_whole(uint64_t chain)
{
	put(chain, 4, 4, true, 0);
	put(chain, 0, 12, true, PUT_WHOLE);
}

static void evict(uint64_t chain, uint32_t page)
{
	struct index_sink sink = space_sink(w->f.space);
	uint32_t record;

	world_lock(w);
	record = world_record(w, chain, page);
	assert_int_not_equal(record, INDEX_NONE);
	assert_int_equal(index_evict_record(w->f.space->index, record, &sink, NULL), 0);
	world_unlock(w);
	mover_ask(w->f.host);
}

static void trim(uint32_t pages)
{
	struct index_sink sink = space_sink(w->f.space);

	world_lock(w);
	for (uint32_t i = 0; i < pages; i++)
		index_evict_page(w->f.space->index, NULL, NULL, &sink);
	world_unlock(w);
	mover_ask(w->f.host);
}

static void demote(uint32_t values)
{
	uint64_t n = 0;

	world_lock(w);
	demote_some(w->t, values * 4096ull, &n);
	world_unlock(w);
}

static void remove_page(uint64_t chain, uint32_t page)
{
	struct index_sink sink = space_sink(w->f.space);
	struct key key = fixture_key(chain, page);
	uint64_t hash;
	uint32_t values;

	world_lock(w);
	index_prefetch(w->f.space->index, &key, 1, &hash);
	index_remove(w->f.space->index, &key, hash, 3, &sink, &values);
	world_unlock(w);
	mover_ask(w->f.host);
}

static void expire(uint64_t chain, uint32_t page)
{
	uint32_t record;

	world_lock(w);
	record = world_record(w, chain, page);
	if (record != INDEX_NONE)
		w->f.space->tables.records[record].last_use_s -= 4000;
	w->t->expire_at_s = 0;
	world_unlock(w);
	mover_ask(w->f.host);
	world_await(w, world_record(w, chain, page) == INDEX_NONE);
}

static void reset(void)
{
	struct reset call = { .session = w->s };
	struct why why = WHY_INIT;
	int r = reset_begin(&call, &why);

	while (r == STEP_MORE)
		r = reset_step(&call, &why);
	assert_int_equal(r, 0);
}

#define STEP(what)                                                                                                                   \
	do {                                                                                                                         \
		note_step(was_reset);                                                                                                \
		what;                                                                                                                \
	} while (0)

static void work(void)
{
	bool was_reset = false;

	STEP(for (uint64_t c = 0; c < 6; c++) put(c, 0, 4 + (uint32_t)c, true, 0));
	STEP(world_drain(w));
	STEP(for (uint64_t c = 0; c < 3; c++) put(c, 4 + (uint32_t)c, 8, c != 1, 0); world_drain(w)); /* grown: other records */
	STEP(demote(20); put_row(1, 12); world_drain(w)); /* a row joins: the file is written anew, from the old one */
	STEP(put(7, 0, 8, false, 0); put_row(7, 7); world_drain(w); put_row(7, 3); world_drain(w));
	STEP(for (uint64_t c = 8; c < 12; c++) put(c, 0, 12, true, 0); world_drain(w));
	STEP(trim(5));
	STEP(trim(9); demote(30));
	STEP(evict(9, 11); evict(5, 8); evict(11, 11));
	STEP(remove_page(8, 5); world_drain(w));
	STEP(put(9, 0, 12, true, 0); world_drain(w)); /* the same name once more */
	STEP(expire(10, 11));
	STEP(for (uint64_t c = WHOLE_FIRST; c < WHOLE_FIRST + 3; c++) put_whole(c); world_drain(w));
	STEP(evict(WHOLE_FIRST + 1, 11); demote(40));
	STEP(put_whole(WHOLE_FIRST + 1); put(3, 7, 5, true, 0); world_drain(w));
	STEP(reset());
	was_reset = true;
	STEP(for (uint64_t c = AFTER_RESET; c < AFTER_RESET + 3; c++) put(c, 0, 6, true, 0));
	STEP(world_drain(w));
	STEP(put_row(AFTER_RESET, 2); evict(AFTER_RESET + 1, 5); world_drain(w));
	note_step(true);
}

static void record_world(bool sync)
{
	struct host_config config = {
		.memory_bytes = 16 * MIB, .wish = SEGMENT_WISH_SMALL, .populate_threads = 1, .handle_ttl_ms = 60000, .fill_ttl_ms = 60000,
		.token_ttl_ms = 10000, .disk_path = w->path, .disk_bytes = 256 * MIB, .disk_workers = 1, .expire_s = 3600, .disk_sync = sync,
	};
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	memset(&recording, 0, sizeof(recording));
	recording.sync = sync;
	snprintf(w->path, sizeof(w->path), "/tmp/prefixfs-crash-XXXXXX");
	snprintf(recording.snapshots, sizeof(recording.snapshots), "/tmp/prefixfs-crash-XXXXXX");
	assert_non_null(mkdtemp(w->path));
	assert_non_null(mkdtemp(recording.snapshots));
	recording.events = calloc(EVENTS_MOST, sizeof(*recording.events));
	if (disk_ops_fault_new(disk_ops_plain_new(), "", true, &recording.log, &why))
		fail_msg("log: %s", why.text);
	config.disk_ops = recording.log;
	if (host_new(&config, &w->f.host, &why) ||
	    host_space_create(w->f.host, "test", fixture_layout(CLASSES, 1, 16 * MIB), &access, &w->f.space, &why))
		fail_msg("world: %s", why.text);
	fixture_await_prewarm(&w->f);
	w->t = w->f.space->tiering;
	w->s = fixture_session(&w->f, 0);
	snprintf(recording.folder, sizeof(recording.folder), "%s", strrchr(disk_dir_path(w->t->dir), '/') + 1);
	work();
	recording.event_count = disk_ops_fault_log(recording.log, 0, recording.events, EVENTS_MOST);
	assert_true(recording.event_count > 200 && recording.event_count < EVENTS_MOST);
	print_message("%u changes in %u steps\n", recording.event_count, recording.step_count);
}

static void forget_recording(void)
{
	world_close(w);
	for (uint32_t i = 0; i < recording.step_count; i++)
		free(recording.steps[i].json);
	free(recording.events);
	remove_tree(recording.snapshots);
}

/* ---- the directory after a crash ------------------------------------------------------------------------------------------------ */

struct crash {
	uint32_t at;    /* so many changes were made */
	uint32_t names; /* of them, changes of names and lengths were kept as far as this one */
	bool lossy;     /* writes that were not synced may be lost or torn */
	bool hostile;   /* somebody has changed files, checksums included */
	uint32_t step;  /* during which one */
	bool after_reset;
	uint32_t catalogue; /* of which step's beginning */
};

struct model_file {
	uint8_t *data;
	uint64_t bytes;
	int64_t at_s;
};

struct model_name {
	char name[192];
	uint32_t file;
};

static struct model {
	struct model_file files[EVENTS_MOST];
	struct model_name names[EVENTS_MOST];
	uint32_t name_count;
} model;

static struct model_name *find_name(const char *name)
{
	for (uint32_t i = 0; i < model.name_count; i++)
		if (!strcmp(model.names[i].name, name))
			return &model.names[i];
	return NULL;
}

static void drop_name(const char *name)
{
	struct model_name *n = find_name(name);

	if (n)
		*n = model.names[--model.name_count];
}

static void set_name(const char *name, uint32_t file)
{
	drop_name(name);
	snprintf(model.names[model.name_count].name, sizeof(model.names[0].name), "%s", name);
	model.names[model.name_count++].file = file;
}

static void set_length(struct model_file *f, uint64_t bytes)
{
	f->data = realloc(f->data, bytes ? bytes : 1);
	assert_non_null(f->data);
	if (bytes > f->bytes)
		memset(f->data + f->bytes, 0, bytes - f->bytes);
	f->bytes = bytes;
}

/* "<namespace>/00" -> "<namespace>/00.1.old": all that lies in it. */
static void rename_folder(const char *from, const char *to)
{
	size_t n = strlen(from);

	for (uint32_t i = 0; i < model.name_count; i++) {
		char *name = model.names[i].name, made[400];

		if (strncmp(name, from, n) || name[n] != '/')
			continue;
		snprintf(made, sizeof(made), "%s%s", to, name + n);
		snprintf(name, sizeof(model.names[i].name), "%.191s", made);
	}
}

static bool is_folder(const char *name, char ret[192])
{
	size_t n = strlen(recording.folder);

	if (strncmp(name, recording.folder, n) || name[n] != '/')
		return false;
	snprintf(ret, 192, "%s", name + n + 1);
	return true;
}

static void change_name(const struct disk_event *e)
{
	char from[192], to[192];
	struct model_name *n;

	switch (e->op) {
	case DISK_OP_CREATE:
		set_name(e->name, e->file);
		break;
	case DISK_OP_RENAME:
		if (is_folder(e->name, from) && is_folder(e->to, to)) {
			rename_folder(from, to);
			break;
		}
		n = find_name(e->name);
		if (n) {
			uint32_t file = n->file;

			drop_name(e->name);
			set_name(e->to, file);
		}
		break;
	case DISK_OP_UNLINK:
		drop_name(e->name);
		break;
	default:
		set_length(&model.files[e->file], e->bytes);
	}
}

/* Is the write @i synced before @end? */
static bool is_synced(uint32_t i, uint32_t end)
{
	for (uint32_t at = i + 1; at < end; at++)
		if (recording.events[at].op == DISK_OP_SYNC && recording.events[at].file == recording.events[i].file)
			return true;
	return false;
}

static void write_some(struct model_file *f, const struct disk_event *e, unsigned how)
{
	for (uint64_t at = 0; at < e->bytes; at += 512) {
		uint64_t n = e->bytes - at < 512 ? e->bytes - at : 512;

		if (e->offset + at + n > f->bytes || (how == 1) || (how == 2 && at >= e->bytes / 2) || (how == 3 && !pick(8)))
			continue;
		memcpy(f->data + e->offset + at, (uint8_t *)e->data + at, n);
	}
}

static int64_t time_of(uint32_t event)
{
	uint32_t step = 0;

	while (step + 1 < recording.step_count && recording.steps[step + 1].first <= event)
		step++;
	return recording.steps[step].at_s;
}

static void replay(const struct crash *c)
{
	for (uint32_t i = 0; i < EVENTS_MOST; i++)
		free(model.files[i].data);
	memset(&model, 0, sizeof(model));
	for (uint32_t i = 0; i < c->at; i++) {
		const struct disk_event *e = &recording.events[i];
		struct model_file *f = &model.files[e->file];

		switch (e->op) {
		case DISK_OP_WRITE:
			write_some(f, e, c->lossy && !is_synced(i, c->at) && !pick(3) ? 1 + pick(3) : 0);
			f->at_s = time_of(i);
			break;
		case DISK_OP_CREATE:
		case DISK_OP_RENAME:
		case DISK_OP_UNLINK:
		case DISK_OP_ALLOCATE:
		case DISK_OP_TRUNCATE:
			if (i < c->names)
				change_name(e);
			f->at_s = time_of(i);
			break;
		default:;
		}
	}
}

static void lay_down(const char *path, const struct crash *c, bool with_catalogue)
{
	char at[512], folder[256];

	snprintf(folder, sizeof(folder), "%s/%s", path, recording.folder);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(mkdir(folder, 0700), 0);
	for (uint32_t i = 0; i < model.name_count; i++) {
		const struct model_name *n = &model.names[i];
		const struct model_file *f = &model.files[n->file];
		struct timespec times[2] = { { .tv_sec = f->at_s }, { .tv_sec = f->at_s } };
		int fd;

		snprintf(at, sizeof(at), "%s/%.*s", folder, (int)strcspn(n->name, "/"), n->name);
		if (mkdir(at, 0700))
			assert_int_equal(errno, EEXIST);
		snprintf(at, sizeof(at), "%s/%s", folder, n->name);
		fd = open(at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		assert_int_equal(f->bytes ? write(fd, f->data, f->bytes) : 0, f->bytes);
		assert_int_equal(futimens(fd, times), 0);
		close(fd);
	}
	const struct step *s = &recording.steps[c->step + (c->after_reset && !recording.steps[c->step].reset)];

	snprintf(at, sizeof(at), "%s/namespace.json", folder);
	write_whole(at, s->json, s->json_bytes);
	if (with_catalogue)
		copy_catalogue(recording.steps[c->catalogue].snapshot, folder);
}

/* ---- files that somebody made ---------------------------------------------------------------------------------------------------- */

static uint64_t strange(void)
{
	static const uint64_t numbers[] = { 0, 1, 2, 7, 4095, 4096, 4097, 65536, 1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX, UINT32_MAX, 64, 40 };

	return pick(3) ? numbers[pick(sizeof(numbers) / sizeof(numbers[0]))] : (uint64_t)pick(UINT32_MAX) << 16;
}

static void sign(uint8_t *from, uint64_t bytes)
{
	uint64_t sum = hash_64(from, bytes - 8, 0);

	sum += !sum;

	memcpy(from + bytes - 8, &sum, 8);
}

/* A field of the header, or some of the key segment; with the right checksum. Not magic, version and whose it is: such a file is another's
 * and left alone. */
static void tamper(struct model_file *f)
{
	uint32_t header_bytes, width = 2u << pick(3);
	uint64_t keys_bytes, value = strange(), at;

	memcpy(&header_bytes, f->data + 12, 4);
	memcpy(&keys_bytes, f->data + 192, 8);
	at = pick(3) ? 64 + pick(256 + 2 * 40 - 64) / width * width : header_bytes + pick((uint32_t)keys_bytes - 8) / width * width;
	if (!pick(8))
		at = 12; /* header_bytes */
	memcpy(f->data + at, &value, at == 12 ? 4 : width);
	sign(f->data, header_bytes);
	sign(f->data + header_bytes, keys_bytes);
}

static void tamper_some(void)
{
	for (uint32_t i = 0; i < model.name_count; i++) {
		struct model_file *f = &model.files[model.names[i].file];

		if (f->bytes > 8192 && strstr(model.names[i].name, ".rec") && !strstr(model.names[i].name, ".tmp") && !pick(3))
			tamper(f);
	}
}

/* ---- what a start makes of it ----------------------------------------------------------------------------------------------------- */

struct survivor {
	struct key endpoint;
	uint64_t consumed, file_bytes;
	uint32_t pages;
	uint16_t file_pages;
	bool row, whole, root, orphan;
};

struct outcome {
	struct survivor records[512];
	uint32_t count;
	bool pages[CHAINS][CHAIN_PAGES], rows[CHAINS][CHAIN_PAGES]; /* that could be read */
};

static struct world restarted;
static struct world *const r = &restarted;

static void begin(const char *path)
{
	struct host_config config = {
		.memory_bytes = 16 * MIB, .wish = SEGMENT_WISH_SMALL, .populate_threads = 1, .handle_ttl_ms = 60000, .fill_ttl_ms = 60000,
		.token_ttl_ms = 10000, .disk_path = r->path, .disk_bytes = 256 * MIB, .disk_workers = 1, .disk_ops = gate_ops_new(),
		.disk_sync = recording.sync,
	};
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	memset(r, 0, sizeof(*r));
	snprintf(r->path, sizeof(r->path), "%s", path);
	if (host_new(&config, &r->f.host, &why) ||
	    host_space_create(r->f.host, "test", fixture_layout(CLASSES, 1, 16 * MIB), &access, &r->f.space, &why))
		fail_msg("restart: %s", why.text);
	fixture_await_prewarm(&r->f);
	r->t = r->f.space->tiering;
	assert_non_null(r->t);
	r->s = fixture_session(&r->f, 0);
}

static bool read_value(const struct record_info *info, bool row, uint32_t page, uint64_t chain, uint64_t of)
{
	uint8_t got[3 * 4096], want[3 * 4096] = { 0 };
	size_t bytes = row ? sizeof(got) : 4096;
	ssize_t n = space_record_read(r->f.space, info->number, info->generation, row, row ? 0 : page * 4096ull, got, bytes);

	if (n < 0) {
		assert_true(n == -EIO || n == -ENODATA || n == -ENOENT);
		return false;
	}
	assert_int_equal(n, bytes);
	fill(want, row ? ROW_BYTES : bytes, chain, of, row);
	if (memcmp(got, want, bytes))
		fail_msg("chain %llu, %s %llu: other bytes", (unsigned long long)chain, row ? "row behind page" : "page",
			 (unsigned long long)of);
	return true;
}

static void read_record(struct outcome *o, const struct record_info *info)
{
	struct survivor *s = &o->records[o->count++];
	uint64_t chain = info->endpoint.words[1], last = info->endpoint.words[2];

	assert_true(o->count <= 512 && chain < CHAINS && info->pages <= last + 1 && last < CHAIN_PAGES);
	s->endpoint = info->endpoint;
	s->consumed = info->consumed;
	s->file_bytes = info->file_bytes;
	s->pages = info->pages;
	s->row = info->row_values > 0;
	s->whole = info->whole;
	s->root = info->root;
	s->orphan = info->orphan;
	world_lock(r);
	s->file_pages = tiering_file(r->t, info->number)->file_pages;
	world_unlock(r);
	for (uint32_t i = 0; i < info->pages; i++)
		o->pages[chain][last + 1 - info->pages + i] = read_value(info, false, i, chain, last + 1 - info->pages + i);
	o->rows[chain][last] = s->row && read_value(info, true, 0, chain, last);
}

static int by_name(const void *a, const void *b)
{
	const struct survivor *x = a, *y = b;

	return x->consumed != y->consumed ? (x->consumed > y->consumed) - (x->consumed < y->consumed) :
					    memcmp(&x->endpoint, &y->endpoint, sizeof(x->endpoint));
}

static void read_all(struct outcome *o)
{
	struct record_info info;
	uint32_t cursor = 0;

	memset(o, 0, sizeof(*o));
	while (space_record_next(r->f.space, &cursor, &info)) {
		read_record(o, &info);
		cursor = info.number + 1;
	}
	qsort(o->records, o->count, sizeof(o->records[0]), by_name);
}

static bool has_record(uint64_t chain, uint32_t page)
{
	bool is;

	world_lock(r);
	is = world_record(r, chain, page) != INDEX_NONE;
	world_unlock(r);
	return is;
}

/* Through a plan: what is restorable is right, or turns out to be a miss. */
static void get(uint64_t chain, uint64_t number)
{
	struct get_start start = { 0 };
	struct get_transfer call = { 0 };
	struct why why = WHY_INIT;
	uint64_t offsets[2 * CHAIN_PAGES];
	uint8_t got[ROW_BYTES], want[ROW_BYTES];
	int e = get_chain(r->s, 2 * number + 1, chain, CHAIN_PAGES, 0, &start, &why);

	assert_int_equal(e, 0);
	if (!start.transferable_len)
		return;
	call.deadline_ns = clock_now_ns() + WORLD_WAIT_NS;
	e = transfer_run(r->s, 2 * number + 1, 2 * number + 2, start.transferable_len, 0, start.transferable_len, offsets, 2 * CHAIN_PAGES,
			 &call, &why);
	while (e == STEP_WAIT) {
		sched_yield();
		e = session_enter(r->s, 0, &why);
		while (!e && (e = get_transfer_step(&call, &why)) == STEP_MORE)
			e = 0;
		session_leave(r->s);
	}
	if (e)
		fail_msg("chain %llu: transfer: %s", (unsigned long long)chain, why.text);
	for (uint32_t i = 0; i < call.values; i++) {
		bool row = i == call.delivered_len / FIXTURE_PAGE;

		assert_int_equal(segment_read(r->f.space->segment, offsets[i], got, row ? ROW_BYTES : 4096), 0);
		fill(want, row ? ROW_BYTES : 4096, chain, row ? i - 1 : i, row);
		if (memcmp(got, want, row ? ROW_BYTES : 4096))
			fail_msg("chain %llu, value %u of a plan: other bytes", (unsigned long long)chain, i);
	}
}

static void describe(const struct outcome *o)
{
	for (uint32_t i = 0; i < o->count; i++) {
		const struct survivor *s = &o->records[i];

		print_message("  chain %llu, to page %llu: %u pages of %u, row %d, whole %d, %llu bytes\n",
			      (unsigned long long)s->endpoint.words[1], (unsigned long long)s->endpoint.words[2], s->pages, s->file_pages,
			      s->row, s->whole, (unsigned long long)s->file_bytes);
	}
}

static bool has_value(uint64_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct index_hit hit;

	world_lock(r);
	index_lookup(r->f.space->index, &key, 1, 1, &hit);
	world_unlock(r);
	return hit.record != INDEX_NONE && hit.complete;
}

/* A group is there as a whole or not at all. */
static void check_groups(void)
{
	for (uint64_t chain = WHOLE_FIRST; chain < AFTER_RESET; chain++)
		for (uint32_t page = 0; page < 12; page++)
			if ((page < 4 || page >= 8) && has_value(chain, page) != has_value(chain, 0))
				fail_msg("chain %llu: page %u and page 0 are of a group, and one is missing", (unsigned long long)chain, page);
}

static void check_restarted(const struct crash *c, bool gets, bool second, struct outcome *o)
{
	struct disk_report report;

	world_check_idle(r);
	if (!second && !c->hostile)
		check_groups();
	for (uint64_t chain = 0; gets && chain < CHAINS; chain++)
		get(chain, chain);
	read_all(o);
	space_retire(r->f.space);
	world_check_idle(r);
	if (!c->hostile)
		check_groups();
	disk_report(r->f.host->disk, &report);
	if (!c->lossy)
		assert_int_equal(report.checksum_errors + report.read_errors + report.write_errors, 0);
	for (uint64_t chain = 0; c->after_reset && chain < AFTER_RESET; chain++)
		for (uint32_t page = 0; page < CHAIN_PAGES; page++)
			if (has_record(chain, page))
				fail_msg("chain %llu, page %u: it was reset", (unsigned long long)chain, page);
}

static void end(void)
{
	session_release(r->s);
	session_unref(&r->s);
	fixture_close(&r->f);
}

/* ---- one crash ---------------------------------------------------------------------------------------------------------------------- */

static struct outcome with, without, again;

static void restart(const char *path, const struct crash *c, bool with_catalogue, bool gets, struct outcome *o)
{
	lay_down(path, c, with_catalogue);
	begin(path);
	check_restarted(c, gets, false, o);
	end();
}

static bool same(const struct outcome *a, const struct outcome *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* Could all pages be read that could be read without the catalogue? Where a host crashed that is all there is to say: what is damaged is
 * found at the start without it, and leaves the tree in another way than what is found by reading, which may cost the row of another
 * record that it joins. Nor of WHOLE groups, all of which goes with the first value that turns out to be damaged: what was read
 * before that is chance. */
static bool no_less(const struct outcome *a, const struct outcome *b)
{
	for (uint32_t chain = 0; chain < CHAINS; chain++)
		for (uint32_t page = 0; page < CHAIN_PAGES; page++)
			if (!(chain >= WHOLE_FIRST && chain < AFTER_RESET) && a->pages[chain][page] < b->pages[chain][page]) {
				print_message("chain %u, page %u\n", chain, page);
				return false;
			}
	return true;
}

static void compare(const struct outcome *a, const char *of_a, const struct outcome *b, const char *of_b, bool lossy)
{
	if (lossy ? no_less(a, b) : same(a, b))
		return;
	print_message("%s:\n", of_a);
	describe(a);
	print_message("%s:\n", of_b);
	describe(b);
	fail_msg("they are not the same");
}

static void crash(const struct crash *c)
{
	char path[64];
	bool gets = !pick(2);

	snprintf(path, sizeof(path), "%s/prefixfs-crashed-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm"); /* it syncs much */
	assert_non_null(mkdtemp(path));
	assert_int_equal(rmdir(path), 0);
	replay(c);
	if (c->hostile)
		tamper_some();
	restart(path, c, true, gets, &with);
	begin(path); /* what it made of it is as good as what it found */
	check_restarted(c, false, c->lossy, &again); /* what was damaged has left its group by now */
	end();
	remove_tree(path);
	restart(path, c, false, gets, &without);
	remove_tree(path);
	if (c->catalogue <= c->step && c->names == c->at && !c->hostile) /* one that knows what was lost again tells less */
		compare(&with, "with the catalogue", &without, "without", c->lossy);
	if (!c->lossy)
		compare(&again, "at the second start", &with, "at the first", false);
}

static uint32_t last_sync(uint32_t before)
{
	while (before && recording.events[before - 1].op != DISK_OP_SYNC && recording.events[before - 1].op != DISK_OP_SYNC_DIR)
		before--;
	return before;
}

static void choose(struct crash *c, uint32_t at, bool lossy)
{
	*c = (struct crash){ .at = at, .names = at, .lossy = lossy };
	while (c->step + 1 < recording.step_count && recording.steps[c->step + 1].first <= at)
		c->step++;
	c->after_reset = recording.steps[c->step].reset;
	if (!c->after_reset && c->step + 1 < recording.step_count && recording.steps[c->step + 1].reset) /* being answered */
		c->after_reset = at > recording.steps[c->step].first || pick(2);
	c->catalogue = c->step ? c->step - !pick(4) : 0;
	if (lossy && pick(2)) {
		uint32_t least = last_sync(at), most = at - least < 24 ? at - least : 24;

		c->names = at - pick(most + 1);
	}
	if (lossy && !pick(3) && c->step + 1 < recording.step_count)
		c->catalogue = c->step + 1;
}

static void crash_all(bool lossy, bool hostile)
{
	const char *points = getenv("PREFIXFS_TEST_POINTS");
	uint64_t until_ns = clock_now_ns() + ALL_NS;
	uint32_t want = points ? (uint32_t)strtoul(points, NULL, 0) : 120, done = 0;

	for (; done < want && clock_now_ns() < until_ns; done++) {
		uint64_t from = seed;
		struct crash c;

		choose(&c, pick(recording.event_count + 1), lossy);
		if (hostile) {
			c.names = c.at = recording.steps[c.step].first; /* whole files alone */
			c.lossy = c.hostile = true;
			c.after_reset = recording.steps[c.step].reset;
			c.catalogue = c.step;
		}
		print_message("PREFIXFS_TEST_SEED=%llu: change %u of %u, names to %u, step %u, %s, catalogue of step %u%s\n", (unsigned long long)from, c.at,
			      recording.event_count, c.names, c.step, lossy ? "the host" : "the process", c.catalogue,
			      c.after_reset ? ", after the reset" : "");
		crash(&c);
	}
	print_message("%u crashes\n", done);
}

static void test_all(bool sync, bool lossy, bool hostile)
{
	const char *text = getenv("PREFIXFS_TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : clock_now_ns() | 1;
	record_world(sync);
	crash_all(lossy, hostile);
	forget_recording();
}

static void test_process(void **state)
{
	(void)state;
	test_all(false, false, false);
}

static void test_host(void **state)
{
	(void)state;
	test_all(false, true, false);
}

static void test_host_synced(void **state)
{
	(void)state;
	test_all(true, true, false);
}

/* Record files that are not what they were, with checksums that are right: never wrong bytes, never more than a miss. */
static void test_hostile(void **state)
{
	(void)state;
	test_all(true, false, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_process),
		cmocka_unit_test(test_host),
		cmocka_unit_test(test_host_synced),
		cmocka_unit_test(test_hostile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
