/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk engine: record files written, read, trimmed and removed by each of the seam's makes; what order is kept; what faults,
 * damage and other writers' files lead to.
 */
#include "tests/unit/disk_world.h"

#include <pthread.h>

#define EACH_MAKE for (int uring = 0; uring < 2; uring++)

static struct world world; /* static: cmocka leaves a failed test by longjmp */

static struct world *begin(unsigned layout, bool uring, const char *spec)
{
	world_make(&world, layouts[layout], uring);
	assert_int_equal(world_start(&world, 2, spec), 0);
	return &world;
}

/* ---- whole lives --------------------------------------------------------------------------------------------------- */

static void look_at(struct world *w, struct record *r, uint64_t consumed, const struct key *endpoint, uint32_t pages, bool row)
{
	struct disk_file_info info;
	struct why why = WHY_INIT;
	const struct key *keys;
	const uint64_t *sums;

	if (disk_file_look(w->dir, consumed, endpoint, &info, &why))
		fail_msg("%s", why.text);
	assert_int_equal(info.pages, pages);
	assert_int_equal(info.row, row);
	assert_int_equal(info.id.pages, r->id.pages);
	assert_memory_equal(&info.id.endpoint, &r->id.endpoint, sizeof(struct key));
	assert_true(info.id.nonce && info.id.created_s > 1000000000);
	assert_int_equal(record_file_read_keys(info.segment, &info.plan, &keys, &sums, &why), 0);
	assert_memory_equal(keys, r->keys, r->id.pages * sizeof(struct key));
	free(info.segment);
}

struct seen {
	unsigned files;
	uint64_t consumed, bytes;
};

static bool see(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s)
{
	struct seen *seen = context;

	seen->files++;
	seen->consumed = consumed;
	seen->bytes = bytes;
	return true;
}

static void live(struct world *w, uint32_t pages, bool row)
{
	struct record *r = record_make(w, pages, row, 4096);
	struct disk_write write = write_of(w, r);
	struct seen seen = {0};

	assert_int_equal(run(w, &write.job), 0);
	assert_int_equal(disk_dir_list(w->dir, &(struct disk_listing){.parts = 1, .sizes = true}, see, &seen, NULL), 0);
	assert_int_equal(seen.files, 1);
	assert_int_equal(seen.consumed, r->consumed);
	assert_int_equal(seen.bytes, write.file_bytes);
	look_at(w, r, r->consumed, &r->id.endpoint, pages, row);
	check_read(w, r, pages, row);
	for (uint32_t left = pages; left > 0; left = left / 2) {
		if (left == pages && !row)
			continue;
		assert_int_equal(trim_record(w, r, left, false), 0);
		r->consumed = left * 64;
		r->id.endpoint = r->keys[left - 1];
		struct disk_file_info info;

		assert_int_equal(disk_file_look(w->dir, r->consumed, &r->id.endpoint, &info, NULL), 0);
		assert_int_equal(info.pages, left);
		assert_false(info.row);
		free(info.segment);
		check_read(w, r, left, false);
	}
	assert_int_equal(files_with(w, ""), 1);
	assert_int_equal(remove_record(w, r->consumed, &r->id.endpoint), 0);
	assert_int_equal(remove_record(w, r->consumed, &r->id.endpoint), 0);
	assert_int_equal(files_with(w, ""), 0);
	struct reading *g = reading_of(w, r, pages, row);

	assert_int_equal(run(w, &g->read.job), -ENOENT);
	for (uint32_t i = 0; i < g->read.count; i++)
		assert_int_equal(g->values[i].result, -ENOENT);
	reading_free(w, g);
	record_free(r);
	w->used = 0;
}

/* Threads that list one directory together see each file once; what a death has left goes when that is asked for. */
static void test_a_listing_in_parts(void **state)
{
	enum {
		FILES = 40,
		PARTS = 7
	};
	struct world w;
	unsigned files = 0;
	char path[256];

	(void)state;
	world_make(&w, layouts[0], false);
	assert_int_equal(world_start(&w, 1, NULL), 0);
	for (unsigned i = 0; i < FILES; i++) {
		struct record *r = record_make(&w, 1, false, 4096);
		struct disk_write write = write_of(&w, r);

		assert_int_equal(run(&w, &write.job), 0);
		if (i == 0) {
			snprintf(path, sizeof(path), "%s/%02x/%016llx-%016llx%016llx%016llx%016llx.rec.17.tmp", disk_dir_path(w.dir),
				((const uint8_t *)&r->id.endpoint)[0], 64ull, 1ull, 2ull, 3ull, 4ull);
			fclose(fopen(path, "w"));
		}
		record_free(r);
	}
	for (unsigned clear = 0; clear < 2; clear++) {
		files = 0;
		for (unsigned part = 0; part < PARTS; part++) {
			struct seen seen = {0};
			struct disk_listing what = {.part = part, .parts = PARTS, .sizes = part % 2, .clear = clear};

			assert_int_equal(disk_dir_list(w.dir, &what, see, &seen, NULL), 0);
			assert_true(!seen.files || !(part % 2) == !seen.bytes);
			files += seen.files;
		}
		assert_int_equal(files, FILES);
		assert_int_equal(access(path, F_OK), clear ? -1 : 0);
	}
	world_end(&w);
}

static void test_lives(void **state)
{
	(void)state;
	EACH_MAKE {
		for (unsigned durable = 0; durable < 2; durable++) {
			struct world *w = begin(0, uring, NULL);

			world_stop(w);
			w->durability = durable ? DISK_DURABILITY_DATA : DISK_DURABILITY_NONE;
			assert_int_equal(world_start(w, 2, NULL), 0);
			live(w, 1, false);
			live(w, 3, false);
			live(w, 64, false);
			world_end(w);
			w = begin(1, uring, NULL);
			live(w, 1, false);
			live(w, 7, true);
			live(w, 40, true);
			live(w, 0, true);
			world_end(w);
			w = begin(2, uring, NULL);
			live(w, 0, true); /* one value longer than a transfer */
			world_end(w);
		}
	}
}

/* What a record has on disk already stays there when it is written again with a row. */
static void test_from_old(void **state)
{
	(void)state;
	EACH_MAKE {
		struct world *w = begin(1, uring, NULL);
		struct record *r = record_make(w, 20, true, 0);
		struct disk_write write = write_of(w, r);

		write.id.flags = RECORD_FILE_ROOT;
		assert_int_equal(run(w, &write.job), 0);
		for (uint32_t v = 0; v < r->count; v++)
			if (v < r->of_pages && v % 7 && r->bytes[v]) {
				memset(w->memory + r->values[v], 0xee, 4096);
				r->values[v] = DISK_FROM_OLD;
			}
		write = write_of(w, r);
		write.from_old = true;
		write.old_consumed = r->consumed;
		write.old_endpoint = r->id.endpoint;
		write.old_file_pages = 19;
		assert_int_equal(run(w, &write.job), -EBADMSG);
		write.old_file_pages = 20;
		assert_int_equal(run(w, &write.job), 0);
		assert_int_equal(files_with(w, ""), 1);
		check_read(w, r, 20, true);
		write.old_consumed += 64;
		assert_int_equal(run(w, &write.job), -ENOENT);
		assert_int_equal(files_with(w, ""), 1);
		check_read(w, r, 20, true);
		record_free(r);
		world_end(w);
	}
}

static void test_absent(void **state)
{
	struct world *w = begin(0, false, NULL);
	struct record *r = record_make(w, 64, false, 0);
	struct disk_write write;
	char path[256];
	struct stat st;

	(void)state;
	for (uint32_t v = 1; v < 64; v += 1 + (v < 62)) {
		free(r->bytes[v]);
		r->bytes[v] = NULL;
		r->values[v] = DISK_ABSENT;
	}
	write = write_of(w, r);
	assert_int_equal(run(w, &write.job), 0);
	path_of(w, r->consumed, &r->id.endpoint, path, sizeof(path));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, write.file_bytes);
	assert_true((uint64_t)st.st_blocks * 512 < write.file_bytes * 2 / 3);
	check_read(w, r, 64, false);
	record_free(r);
	world_end(w);
}

static void test_other_memory(void **state)
{
	struct world *w = begin(0, true, NULL);
	struct record *r = record_make(w, 4, false, 0);
	struct reading *g = reading_of(w, r, 4, false);
	char *memory = aligned_alloc(4096, 4 * 102400);

	(void)state;
	assert_int_equal(write_record(w, r), 0);
	g->read.memory = true;
	for (int i = 0; i < 4; i++)
		g->values[i].to = (uintptr_t)memory + i * 102400ull;
	assert_int_equal(run(w, &g->read.job), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(g->values[i].result, 0);
		assert_memory_equal(memory + i * 102400ull, r->bytes[i], 102400);
	}
	/* places that are none */
	g->read.memory = false;
	g->values[0].to = SEGMENT_BYTES - 4096;
	g->values[1].to = 4097;
	g->values[2].to = 0;
	g->values[3].to = 102400;
	assert_int_equal(run(w, &g->read.job), 0);
	assert_int_equal(g->values[0].result, -EINVAL);
	assert_int_equal(g->values[1].result, -EINVAL);
	assert_int_equal(g->values[2].result, 0);
	assert_memory_equal(w->memory, r->bytes[2], 102400);
	r->values[1] = SEGMENT_BYTES;
	assert_int_equal(write_record(w, r), -EINVAL);
	assert_int_equal(files_with(w, ""), 1);
	free(memory);
	reading_free(w, g);
	record_free(r);
	world_end(w);
}

/* ---- order ---------------------------------------------------------------------------------------------------------- */

static void give(struct world *w, struct disk_job *job, _Atomic int *done)
{
	job->done = job_done;
	job->context = (void *)done;
	disk_give(w->disk, job);
}

static void test_order(void **state)
{
	(void)state;
	EACH_MAKE {
		struct world *w = begin(0, uring, NULL);
		struct record *r = record_make(w, 16, false, 0);

		for (int round = 0; round < 20; round++) {
			_Atomic int done[6] = {0};

			assert_int_equal(write_record(w, r), 0);
			struct reading *before = reading_of(w, r, 8, false), *between = reading_of(w, r, 8, false),
				       *after = reading_of(w, r, 8, false);
			struct disk_trim trim = {.job = before->read.job, .pages = 8, .file_pages = 16,
				.new_consumed = 8 * 64, .new_endpoint = r->keys[7]};
			struct disk_remove remove = {.job = before->read.job};
			struct disk_write write = write_of(w, r);

			trim.job.kind = DISK_JOB_TRIM;
			remove.job.kind = DISK_JOB_REMOVE;
			between->read.job.consumed = after->read.job.consumed = remove.job.consumed = 8 * 64;
			between->read.job.endpoint = after->read.job.endpoint = remove.job.endpoint = r->keys[7];
			give(w, &before->read.job, &done[0]);
			give(w, &trim.job, &done[1]);
			give(w, &between->read.job, &done[2]);
			give(w, &remove.job, &done[3]);
			give(w, &after->read.job, &done[4]);
			give(w, &write.job, &done[5]);
			for (int i = 0; i < 6; i++)
				await(&done[i]);
			assert_int_equal(before->read.job.result, 0);
			assert_int_equal(trim.job.result, 0);
			assert_int_equal(between->read.job.result, 0);
			assert_int_equal(remove.job.result, 0);
			assert_int_equal(after->read.job.result, -ENOENT);
			assert_int_equal(write.job.result, 0);
			for (uint32_t i = 0; i < 8; i++) {
				check_value(w, r, before, i);
				check_value(w, r, between, i);
			}
			/* A removal that was given before a write of the same name leaves the written file alone. */
			struct disk_remove again = {.job = write.job};

			done[0] = done[1] = 0;
			again.job.kind = DISK_JOB_REMOVE;
			write = write_of(w, r);
			give(w, &again.job, &done[0]);
			give(w, &write.job, &done[1]);
			await(&done[0]);
			await(&done[1]);
			assert_int_equal(files_with(w, ""), 1);
			check_read(w, r, 16, false);
			reading_free(w, after);
			reading_free(w, between);
			reading_free(w, before);
		}
		record_free(r);
		world_end(w);
	}
}

static void test_cancelled(void **state)
{
	struct world *w = begin(0, true, NULL);
	struct record *r = record_make(w, 64, false, 0);
	struct disk_write write = write_of(w, r);
	unsigned cancelled = 0;

	(void)state;
	atomic_store(&write.job.cancelled, true);
	assert_int_equal(run(w, &write.job), -ECANCELED);
	struct reading *g = reading_of(w, r, 64, false);

	atomic_store(&g->read.job.cancelled, true);
	assert_int_equal(run(w, &g->read.job), -ECANCELED);
	assert_int_equal(g->values[63].result, -ECANCELED);
	/* At whatever moment: a file is there when the result is 0, and then alone. */
	for (int i = 0; i < 60; i++) {
		_Atomic int done = 0;

		write = write_of(w, r);
		give(w, &write.job, &done);
		for (volatile uint64_t spin = next_random() % 8000000; spin; spin--)
			;
		atomic_store(&write.job.cancelled, true);
		await(&done);
		assert_true(write.job.result == 0 || write.job.result == -ECANCELED);
		cancelled += write.job.result != 0;
		assert_int_equal(files_with(w, ""), write.job.result ? 0 : 1);
		remove_record(w, r->consumed, &r->id.endpoint);
	}
	print_message("%u of 60 writes were cancelled\n", cancelled);
	reading_free(w, g);
	record_free(r);
	world_end(w);
}

/* Stopped with many in queues: each is done once, and those that say so are there. */
static void test_stop(void **state)
{
	enum { JOBS = 100 };
	static struct disk_write writes[JOBS];
	static _Atomic int done[JOBS];
	static struct record *r[JOBS];

	(void)state;
	EACH_MAKE {
		struct world *w = begin(0, uring, NULL);
		unsigned whole = 0;

		for (int i = 0; i < JOBS; i++) {
			r[i] = record_make(w, 10, false, 0);
			writes[i] = write_of(w, r[i]);
			done[i] = 0;
			give(w, &writes[i].job, &done[i]);
		}
		disk_stop(w->disk, uring ? 0 : MINUTE_NS);
		assert_int_equal(disk_jobs(w->disk), 0);
		for (int i = 0; i < JOBS; i++) {
			assert_int_equal(done[i], 1);
			assert_true(writes[i].job.result == 0 || writes[i].job.result == -ECANCELED);
			whole += writes[i].job.result == 0;
		}
		assert_int_equal(files_with(w, ".rec"), whole);
		assert_int_equal(files_with(w, ""), whole);
		world_stop(w);
		assert_int_equal(world_start(w, 1, NULL), 0);
		for (int i = 0; i < JOBS; i++) {
			if (writes[i].job.result == 0)
				check_read(w, r[i], 10, false);
			record_free(r[i]);
		}
		world_end(w);
	}
}

/* ---- faults ----------------------------------------------------------------------------------------------------------- */

/* Everything once; each answer is 0 or what follows from the fault. */
static void script(struct world *w, struct record *r, int error)
{
	struct disk_write write = write_of(w, r);
	struct reading *g = reading_of(w, r, r->id.pages, true);
	int wrote = run(w, &write.job);

	assert_true(wrote == 0 || wrote == error);
	assert_int_equal(files_with(w, ".rec"), wrote == 0);
	int result = run(w, &g->read.job);

	if (wrote)
		assert_int_equal(result, -ENOENT);
	else
		assert_true(result == 0 || result == error);
	for (uint32_t i = 0; i < g->read.count; i++) {
		if (!g->values[i].result)
			check_value(w, r, g, i);
		else if (result)
			assert_int_equal(g->values[i].result, result);
		else
			assert_true(g->values[i].result == error || g->values[i].result == -ENODATA);
	}
	struct disk_write again = write_of(w, r);
	uint64_t row = r->values[r->of_pages];

	again.from_old = true;
	again.old_consumed = r->consumed;
	again.old_endpoint = r->id.endpoint;
	again.old_file_pages = r->id.pages;
	r->values[r->of_pages] = DISK_FROM_OLD;
	result = run(w, &again.job);
	r->values[r->of_pages] = row;
	assert_true(result == 0 || result == (wrote ? -ENOENT : error));
	int trimmed = trim_record(w, r, 2, false);

	assert_true(trimmed == 0 || trimmed == (wrote ? -ENOENT : error));
	uint64_t left = trimmed ? r->consumed : 2 * 64;

	result = remove_record(w, left, trimmed ? &r->id.endpoint : &r->keys[1]);
	assert_true(result == 0 || result == error);
	reading_free(w, g);
}

static void with_faults(bool uring, const char *what, int error, enum disk_durability durability)
{
	uint64_t operations = UINT64_MAX, n = 1;

	world_make(&world, layouts[1], uring);
	world.durability = durability;
	for (; n <= operations; n++) {
		struct world *w = &world;
		char spec[64];

		/* The namespace is opened without faults: it is the jobs that are tried. */
		assert_int_equal(world_start(w, 1, ""), 0);
		struct record *r = record_make(w, 5, true, 0);

		snprintf(spec, sizeof(spec), "any:%s:=%llu", what, (unsigned long long)n);
		uint64_t before = disk_ops_fault_count(w->ops, DISK_OPS);

		assert_int_equal(disk_ops_fault_set(w->ops, spec, NULL), 0);
		script(w, r, error);
		uint64_t counted = disk_ops_fault_count(w->ops, DISK_OPS) - before;

		if (counted < n)
			operations = n; /* none failed */
		assert_int_equal(disk_ops_fault_set(w->ops, "", NULL), 0);
		world_stop(w);
		assert_int_equal(world_start(w, 1, NULL), 0);
		assert_int_equal(disk_dir_list(w->dir, &(struct disk_listing){.parts = 1, .clear = true}, see, &(struct seen){0}, NULL), 0);
		assert_int_equal(files_with(w, ".tmp"), 0);
		remove_record(w, r->consumed, &r->id.endpoint);
		remove_record(w, 2 * 64, &r->keys[1]);
		assert_int_equal(files_with(w, ""), 0);
		world_stop(w);
		record_free(r);
		world.used = 0;
	}
	print_message("%s, %s: %llu operations\n", uring ? "uring" : "plain", what, (unsigned long long)n - 2);
	assert_true(n > 20);
	assert_int_equal(world_start(&world, 1, NULL), 0);
	world_end(&world);
}

static void test_faults(void **state)
{
	(void)state;
	EACH_MAKE {
		with_faults(uring, "EIO", -EIO, DISK_DURABILITY_NONE);
		with_faults(uring, "ENOSPC", -ENOSPC, DISK_DURABILITY_DATA);
	}
	with_faults(true, "short", -EIO, DISK_DURABILITY_NONE);
}

/* ---- damage ------------------------------------------------------------------------------------------------------------- */

static void flip(struct world *w, struct record *r, uint64_t offset)
{
	char path[256], byte;

	path_of(w, r->consumed, &r->id.endpoint, path, sizeof(path));
	int fd = open(path, O_RDWR);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void test_damage(void **state)
{
	(void)state;
	EACH_MAKE {
		struct world *w = begin(1, uring, NULL);
		struct record *r = record_make(w, 12, true, 0);
		struct reading *g = reading_of(w, r, 12, true);
		struct record_file_plan plan;
		struct disk_file_info info;

		record_file_plan(w->layout, 12, true, NULL, &plan);
		assert_int_equal(write_record(w, r), 0);
		for (int i = 0; i < 40; i++) {
			uint64_t at = next_random() % plan.page_offset;

			flip(w, r, at);
			int result = run(w, &g->read.job);

			assert_true(result == -EBADMSG || (at < 12 && result == -ENOTSUP));
			assert_int_equal(g->values[0].result, result);
			result = disk_file_look(w->dir, r->consumed, &r->id.endpoint, &info, NULL);
			assert_true(result == -EINVAL || (at < 12 && result == -ENOTSUP));
			flip(w, r, at);
		}
		for (uint32_t i = 0; i < g->read.count; i++) {
			uint32_t v = g->numbers[i];

			if (!r->bytes[v])
				continue;
			uint64_t at = record_file_offset(w->layout, &plan, NULL, g->values[i].page, g->values[i].column) +
				next_random() % share_of(w, r, v)->slot_bytes;

			flip(w, r, at);
			assert_int_equal(run(w, &g->read.job), 0);
			for (uint32_t k = 0; k < g->read.count; k++)
				if (k == i)
					assert_int_equal(g->values[k].result, -EBADMSG);
				else
					check_value(w, r, g, k);
			flip(w, r, at);
		}
		/* another key is another value */
		g->keys[3].bytes[31] ^= 1;
		assert_int_equal(run(w, &g->read.job), 0);
		assert_int_equal(g->values[3].result, -EBADMSG);
		check_value(w, r, g, 0);
		g->keys[3].bytes[31] ^= 1;
		/* Another number of pages: the header says where things lie. */
		for (uint32_t pages = 1; pages < 400; pages += 133) {
			g->read.file_pages = pages;
			int result = run(w, &g->read.job);

			if (pages > 12) { /* longer than the file can be */
				assert_true(result == -EBADMSG || result == 0);
			} else {
				assert_int_equal(result, 0);
				assert_int_equal(g->read.file_pages, 12);
				for (uint32_t k = 0; k < g->read.count; k++)
					check_value(w, r, g, k);
			}
		}
		g->read.file_pages = 12;
		/* cut short */
		char path[256];

		path_of(w, r->consumed, &r->id.endpoint, path, sizeof(path));
		assert_int_equal(truncate(path, (off_t)(plan.page_offset + 5 * plan.page_stride + 100)), 0);
		assert_int_equal(run(w, &g->read.job), 0);
		for (uint32_t k = 0; k < g->read.count; k++)
			if (g->values[k].page < 5)
				check_value(w, r, g, k);
			else
				assert_int_equal(g->values[k].result, -ENODATA);
		assert_int_equal(disk_file_look(w->dir, r->consumed, &r->id.endpoint, &info, NULL), 0);
		assert_int_equal(info.pages, 5);
		assert_false(info.row);
		free(info.segment);
		assert_int_equal(truncate(path, (off_t)plan.page_offset - 1), 0);
		assert_int_equal(run(w, &g->read.job), -EBADMSG);
		assert_int_equal(truncate(path, 100), 0);
		assert_int_equal(run(w, &g->read.job), -EBADMSG);
		assert_int_equal(disk_file_look(w->dir, r->consumed, &r->id.endpoint, &info, NULL), -EINVAL);
		reading_free(w, g);
		record_free(r);
		world_end(w);
	}
}

/* What was damaged stays damaged when it is carried into a new file. */
static void test_damage_carried(void **state)
{
	struct world *w = begin(0, false, NULL);
	struct record *r = record_make(w, 4, false, 0);
	struct record_file_plan plan;

	(void)state;
	record_file_plan(w->layout, 4, false, NULL, &plan);
	assert_int_equal(write_record(w, r), 0);
	flip(w, r, plan.page_offset + plan.page_stride + 17);
	struct disk_write write = write_of(w, r);

	write.from_old = true;
	write.old_consumed = r->consumed;
	write.old_endpoint = r->id.endpoint;
	write.old_file_pages = 4;
	r->values[1] = r->values[2] = DISK_FROM_OLD;
	assert_int_equal(run(w, &write.job), 0);
	struct reading *g = reading_of(w, r, 4, false);

	assert_int_equal(run(w, &g->read.job), 0);
	assert_int_equal(g->values[1].result, -EBADMSG);
	check_value(w, r, g, 0);
	check_value(w, r, g, 2);
	check_value(w, r, g, 3);
	reading_free(w, g);
	record_free(r);
	world_end(w);
}

/* ---- others ----------------------------------------------------------------------------------------------------------------- */

static void test_two_owners(void **state)
{
	struct world *w = begin(0, false, NULL);
	struct disk_config config = {.path = w->folder, .workers = 1};
	struct disk *second = NULL;
	struct disk_dir *dir = NULL;
	struct why why = WHY_INIT;
	char pid[32];

	(void)state;
	assert_int_equal(disk_new(&config, &second, &why), -EWOULDBLOCK);
	snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
	assert_non_null(strstr(why.text, pid));
	assert_non_null(strstr(why.text, w->folder));
	assert_int_equal(disk_dir_open(w->disk, w->layout, NULL, &dir, &why), -EBUSY);
	assert_null(dir);
	config.path = "/tmp/prefixfs-there-is-none";
	assert_int_equal(disk_new(&config, &second, &why), -ENOENT);
	config.path = "/dev/null";
	assert_int_equal(disk_new(&config, &second, &why), -ENOTDIR);
	config.workers = 0;
	assert_int_equal(disk_new(&config, &second, &why), -EINVAL);
	/* what the lock keeps out is let in afterwards */
	world_stop(w);
	assert_int_equal(world_start(w, 16, NULL), 0);
	world_end(w);
}

static void test_foreign(void **state)
{
	static const char *const ours[] = {"namespace.json", "namespace.json.tmp", "catalogue.sqlite", "catalogue.sqlite-wal",
		"catalogue.sqlite-shm", "catalogue.sqlite.damaged", "catalogue.sqlite.damaged-wal"};
	struct world *w = begin(0, false, NULL);
	struct record *r = record_make(w, 4, false, 0), *other = record_make(w, 4, false, 0);
	struct reading *g = reading_of(w, r, 4, false);
	struct disk_file_info info;
	struct why why = WHY_INIT;
	char path[256], folder[256];

	(void)state;
	assert_int_equal(write_record(w, r), 0);
	assert_int_equal(write_record(w, other), 0);
	path_of(w, r->consumed, &r->id.endpoint, path, sizeof(path));
	flip(w, r, 8); /* version */
	assert_int_equal(run(w, &g->read.job), -ENOTSUP);
	assert_int_equal(disk_file_look(w->dir, r->consumed, &r->id.endpoint, &info, &why), -ENOTSUP);
	assert_non_null(strstr(why.text, path));
	/* removing the namespace leaves that file where it is, and its folders */
	snprintf(folder, sizeof(folder), "%s", disk_dir_path(w->dir));
	for (unsigned i = 0; i < sizeof(ours) / sizeof(*ours); i++) {
		int fd = openat(disk_dir_fd(w->dir), ours[i], O_WRONLY | O_CREAT, 0600);

		assert_true(fd >= 0);
		close(fd);
	}
	disk_dir_close(&w->dir, true);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(unlink(path), 0);
	*strrchr(path, '/') = 0;
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(folder), 0); /* there was nothing else */
	disk_free(&w->disk, MINUTE_NS);
	reading_free(w, g);
	record_free(other);
	record_free(r);
	assert_int_equal(world_start(w, 1, NULL), 0);
	world_end(w);
}

static void test_other_layout(void **state)
{
	struct world *w = begin(0, false, NULL);
	struct layout *other = parse(layouts[2]);
	struct record *r = record_make(w, 4, false, 0);
	struct disk_dir *second = NULL;
	struct disk_file_info info;
	struct why why = WHY_INIT;
	char from[256], to[300];

	(void)state;
	assert_int_equal(write_record(w, r), 0);
	assert_int_equal(disk_dir_open(w->disk, other, NULL, &second, &why), 0);
	assert_string_not_equal(disk_dir_path(second), disk_dir_path(w->dir));
	path_of(w, r->consumed, &r->id.endpoint, from, sizeof(from));
	snprintf(to, sizeof(to), "%s/%02x", disk_dir_path(second), record_file_folder(&r->id.endpoint));
	assert_int_equal(mkdir(to, 0700), 0);
	strcat(to, strrchr(from, '/'));
	assert_int_equal(rename(from, to), 0);
	assert_int_equal(disk_file_look(second, r->consumed, &r->id.endpoint, &info, &why), -EXDEV);
	struct disk_read read = {
		.job = {.kind = DISK_JOB_READ, .dir = second, .consumed = r->consumed, .endpoint = r->id.endpoint},
		.file_pages = 4,
	};

	assert_int_equal(run(w, &read.job), -EBADMSG);
	disk_dir_close(&second, true); /* it is of our writer */
	layout_free(&other);
	record_free(r);
	world_end(w);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

static void test_punched(void **state)
{
	(void)state;
	EACH_MAKE {
		struct world *w = begin(0, uring, NULL);
		struct record *r = record_make(w, 16, false, 0);
		struct reading *g = reading_of(w, r, 16, false);

		disk_piece_add(w->dir, 1, 0, 64 * MIB);
		assert_int_equal(write_record(w, r), 0);
		/* A client that gives its memory away writes zeros, and loses what it reads. */
		for (int i = 0; i < 30; i++) {
			_Atomic int done[2] = {0};
			struct disk_write write = write_of(w, r);

			give(w, &write.job, &done[0]);
			give(w, &g->read.job, &done[1]);
			fallocate(segment_fd(w->segment), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 64 * MIB);
			await(&done[0]);
			await(&done[1]);
			assert_int_equal(write.job.result, 0);
			assert_int_equal(g->read.job.result, 0);
		}
		disk_piece_drop(w->dir, 1);
		for (uint32_t v = 0; v < r->count; v++) {
			fill(w->memory + r->values[v], 102400);
			memcpy(r->bytes[v], w->memory + r->values[v], 100000);
		}
		assert_int_equal(write_record(w, r), 0);
		check_read(w, r, 16, false);
		reading_free(w, g);
		record_free(r);
		world_end(w);
	}
}

/* What lies together is moved together. */
static void test_merged(void **state)
{
	(void)state;
	EACH_MAKE {
		for (uint64_t gap = 0; gap < 8192; gap += 4096) {
			struct world *w = begin(0, uring, "");
			struct record *r = record_make(w, 64, false, gap);
			uint64_t before[2] = {
				disk_ops_fault_count(w->ops, DISK_OP_WRITE), disk_ops_fault_count(w->ops, DISK_OP_READ)};

			assert_int_equal(write_record(w, r), 0);
			check_read(w, r, 64, false);
			/* 6.4 MB of payload: one transfer, and one of header and keys */
			assert_int_equal(disk_ops_fault_count(w->ops, DISK_OP_WRITE) - before[0], 2);
			assert_int_equal(disk_ops_fault_count(w->ops, DISK_OP_READ) - before[1], 2);
			record_free(r);
			world_end(w);
		}
	}
}

static void test_pieces(void **state)
{
	struct world *w = begin(0, true, NULL);
	struct record *r = record_make(w, 64, false, 0);
	struct disk_report report;

	(void)state;
	disk_piece_add(w->dir, 3, 0, 2 * MIB);
	disk_piece_add(w->dir, 1, 4 * MIB, 2 * MIB);
	disk_piece_add(w->dir, 2, 2 * MIB, 2 * MIB);
	disk_report(w->disk, &report);
	assert_int_equal(report.workers, 2);
	assert_true(report.uring);
	assert_int_equal(report.buffers_registered, 6);
	assert_int_equal(write_record(w, r), 0);
	check_read(w, r, 64, false);
	for (int i = 0; i < 50; i++) { /* dropped while transfers use it: it waits for them */
		_Atomic int done = 0;
		struct disk_write write = write_of(w, r);

		give(w, &write.job, &done);
		disk_piece_drop(w->dir, i % 3 + 1);
		disk_piece_add(w->dir, i % 3 + 1, (uint64_t[]){4, 2, 0}[i % 3] * MIB, 2 * MIB);
		await(&done);
		assert_int_equal(write.job.result, 0);
	}
	check_read(w, r, 64, false);
	disk_piece_drop(w->dir, 7); /* there is none */
	for (uint32_t i = 1; i <= 3; i++)
		disk_piece_drop(w->dir, i);
	disk_report(w->disk, &report);
	assert_int_equal(report.buffers_registered, 0);
	assert_int_equal(report.jobs, 0);
	assert_int_equal(report.writes, 51);
	assert_int_equal(report.reads, 2);
	assert_true(report.written_bytes > 51 * 64 * 102400ull && report.free_bytes && report.total_bytes > report.free_bytes);
	record_free(r);
	world_end(w);
}

/* ---- many at once ---------------------------------------------------------------------------------------------------------------- */

enum { GIVERS = 4, EACH = 40 };

static struct record *records[GIVERS];
static struct reading *readings[GIVERS];

static void *giver(void *context)
{
	struct world *w = &world;
	uintptr_t me = (uintptr_t)context, wrong = 0;
	struct record *r = records[me];

	for (int i = 0; i < EACH; i++) {
		wrong += write_record(w, r) != 0;
		wrong += run(w, &readings[me]->read.job) != 0;
		for (uint32_t v = 0; v < readings[me]->read.count; v++) {
			const struct disk_read_value *value = &readings[me]->values[v];
			const char *bytes = r->bytes[readings[me]->numbers[v]];

			wrong += bytes ? value->result || memcmp(w->memory + value->to, bytes, share_of(w, r, v)->slot_bytes)
				       : value->result != -ENODATA;
		}
		wrong += trim_record(w, r, 3, false) != 0;
		wrong += remove_record(w, 3 * 64, &r->keys[2]) != 0;
	}
	return (void *)wrong;
}

static void test_threads(void **state)
{
	(void)state;
	EACH_MAKE {
		struct world *w = begin(1, uring, NULL);
		pthread_t threads[GIVERS];
		void *wrong;

		for (uintptr_t i = 0; i < GIVERS; i++) {
			records[i] = record_make(w, 10 + (uint32_t)i, true, 4096);
			readings[i] = reading_of(w, records[i], records[i]->id.pages, true);
		}
		for (uintptr_t i = 0; i < GIVERS; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, giver, (void *)i), 0);
		for (uint32_t i = 0; i < GIVERS; i++) {
			assert_int_equal(pthread_join(threads[i], &wrong), 0);
			assert_int_equal((uintptr_t)wrong, 0);
		}
		assert_int_equal(files_with(w, ""), 0);
		for (uint32_t i = 0; i < GIVERS; i++) {
			reading_free(w, readings[i]);
			record_free(records[i]);
		}
		world_end(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_listing_in_parts),
		cmocka_unit_test(test_lives),
		cmocka_unit_test(test_from_old),
		cmocka_unit_test(test_absent),
		cmocka_unit_test(test_other_memory),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_damage_carried),
		cmocka_unit_test(test_two_owners),
		cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_other_layout),
		cmocka_unit_test(test_punched),
		cmocka_unit_test(test_merged),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_threads),
	};
	struct disk_ops *ops = NULL;

	if (disk_ops_uring_new(&ops, NULL))
		return 77; /* half of each test needs it */
	ops->table->free(&ops);
	seed = clock_now_ns() | 1;
	print_message("seed %llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
