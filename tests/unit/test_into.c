/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_INTO and the memory files that it writes to: what is accepted, where bytes go, from slots and from disk; failures, ends in
 * the middle, and that nothing else of the file is touched.
 */
#include "tests/unit/tier_world.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/import.h"
#include "store/into.h"
#include "store/get_private.h"

#define KV_ROW WORLD_KV "," CLASS_STATE
#define KV_LONG "{\"name\":\"kv\",\"kind\":\"dense\",\"every\":128,\"planes\":[{\"name\":\"k\",\"bytes\":16384}]}"
#define KV_IX CLASS_KV "," CLASS_IX
#define MEMORY (16ull << 20)
#define PAGES 100u
#define STATE 10000u
#define FILL 0xee

static struct tier_world world; /* static: cmocka leaves a failed test by longjmp */

/* ---- memory files ------------------------------------------------------------------------------------------------------- */

/* A memory file, full of FILL. */
static int file_new(uint64_t bytes)
{
	int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char *fill = malloc(bytes);

	assert_true(fd >= 0);
	memset(fill, FILL, bytes);
	assert_int_equal(pwrite(fd, fill, bytes, 0), bytes);
	free(fill);
	return fd;
}

/* Brings a copy of @fd as import @id. */
static int bring(struct fixture *f, struct session *s, uint64_t id, int fd, struct why *why)
{
	uint8_t token[16];

	if (import_offer(s, id, token, why))
		fail_msg("offer: %s", why->text);
	return import_bring(f->host, token, 0, fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0), why);
}

static int file_of(struct fixture *f, struct session *s, uint64_t id, uint64_t bytes)
{
	struct why why = WHY_INIT;
	int fd = file_new(bytes);

	if (bring(f, s, id, fd, &why))
		fail_msg("import: %s", why.text);
	return fd;
}

static void is_filler(int fd, uint64_t from, uint64_t to)
{
	char byte;

	for (; from < to; from++) {
		assert_int_equal(pread(fd, &byte, 1, (off_t)from), 1);
		if ((unsigned char)byte != FILL)
			fail_msg("byte %llu was written", (unsigned long long)from);
	}
}

static void is_value(int fd, uint64_t at, uint64_t bytes, uint64_t chain, uint32_t page)
{
	uint64_t words[2048];

	assert_int_equal(pread(fd, words, bytes, (off_t)at), bytes);
	if (!world_is(words, bytes, chain, page))
		fail_msg("byte %llu: not page %u of chain %llu", (unsigned long long)at, page, (unsigned long long)chain);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------- */

static void into_of(struct get_into *call, struct session *s, uint64_t handle, uint32_t boundary, uint32_t from, uint32_t to)
{
	*call = (struct get_into){
		.transfer = {
			.session = s,
			.handle = handle,
			.boundary = (uint64_t)boundary * FIXTURE_PAGE,
			.from = (uint64_t)from * FIXTURE_PAGE,
			.to = (uint64_t)to * FIXTURE_PAGE,
			.deadline_ns = clock_now_ns() + WORLD_NS,
		},
		.import = 1,
		.stride = WORLD_VALUE,
	};
}

static int into_run(struct get_into *call, struct why *why)
{
	int r = session_enter(call->transfer.session, 0, why);

	if (r)
		return r;
	r = get_into_begin(call, why);
	r = r ? r : get_into_run(call, why);
	session_leave(call->transfer.session);
	return r;
}

static void into_well(struct get_into *call)
{
	struct why why = WHY_INIT;

	if (into_run(call, &why))
		fail_msg("into: %s", why.text);
}

/* The next page to be got anew: a handle of all of chain 1. */
static void handle_of(struct session *s, uint64_t handle, uint32_t pages)
{
	struct get_start start;

	world_get(s, handle, 1, pages, &start);
	assert_int_equal(start.transferable_len, pages * FIXTURE_PAGE);
}

/* One chain in memory and, if asked for, on disk alone; without reads ahead. */
static struct session *begin(struct tier_world *w, bool row, bool disk)
{
	world_open(w, row ? KV_ROW : WORLD_KV, MEMORY);
	struct session *s = fixture_session(&w->f, 0);

	world_put(w, s, 1, 1, 0, PAGES, row);
	if (disk)
		world_to_disk(w);
	return s;
}

static void end(struct tier_world *w, struct session *s, int fd)
{
	world_at_base(w, 1);
	session_release(s);
	session_unref(&s);
	assert_int_equal(atomic_load(&w->f.host->imports), 0);
	world_close(w);
	close(fd);
}

static int failing_verdict(void *context)
{
	return atomic_load((_Atomic int *)context);
}

/* ---- what is accepted -------------------------------------------------------------------------------------------------------- */

static void refused(struct fixture *f, struct session *s, int fd, int error, const char *sentence)
{
	struct why why = WHY_INIT;

	assert_int_equal(bring(f, s, 9, fd, &why), -error);
	if (!strstr(why.text, sentence))
		fail_msg("%s: not \"%s\"", why.text, sentence);
	if (fd >= 0)
		close(fd);
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void files_that_are_no_memory(void **state)
{
	struct fixture f;
	struct why why = WHY_INIT;
	char path[64];
	int fd;

	fixture_open(&f, CLASS_KV, 1, MEMORY, MEMORY, NULL);
	struct session *s = fixture_session(&f, 0);

	refused(&f, s, -1, EBADF, "no descriptor");
	refused(&f, s, opened("/dev/null", O_RDWR), EINVAL, "no file in memory");
	refused(&f, s, opened("/proc/self/comm", O_RDWR), EINVAL, "no file in memory");
	fd = file_new(4096);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	refused(&f, s, opened(path, O_RDONLY), EBADF, "not open for writing");
	refused(&f, s, opened(path, O_PATH), EBADF, "not open for writing");
	refused(&f, s, opened(path, O_WRONLY | O_APPEND), EINVAL, "O_APPEND");
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	refused(&f, s, opened(path, O_RDWR), EINVAL, "of which 4096 are present");
	assert_int_equal(fallocate(fd, 0, 0, 1 << 20), 0);
	assert_int_equal(bring(&f, s, 1, fd, &why), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	refused(&f, s, fd, EPERM, "sealed against writing");
	fd = memfd_create("empty", MFD_CLOEXEC);
	refused(&f, s, fd, EINVAL, "empty");
	fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
	if (fd >= 0)
		refused(&f, s, fd, EOPNOTSUPP, "hugetlbfs");
	session_release(s);
	session_unref(&s);
	assert_int_equal(atomic_load(&f.host->imports), 0);
	fixture_close(&f);
}

static void tokens_and_limits(void **state)
{
	struct fixture f;
	struct session_info *info = malloc(sizeof(*info));
	struct why why = WHY_INIT;
	uint8_t token[16], other[16], wrong[16] = { 0 };
	int fd = file_new(4096);

	fixture_open(&f, CLASS_KV, 1, MEMORY, MEMORY, NULL);
	struct session *s = fixture_session(&f, 0);

	assert_int_equal(import_offer(s, 0, token, &why), -EINVAL);
	assert_int_equal(import_offer(s, 7, token, &why), 0);
	assert_int_equal(import_offer(s, 7, other, &why), 0); /* a new token, and the first is void */
	assert_int_equal(import_bring(f.host, token, 0, fcntl(fd, F_DUPFD_CLOEXEC, 0), &why), -ENOENT);
	assert_int_equal(import_bring(f.host, wrong, 0, fcntl(fd, F_DUPFD_CLOEXEC, 0), &why), -ENOENT);
	assert_int_equal(import_bring(f.host, other, 12345, fcntl(fd, F_DUPFD_CLOEXEC, 0), &why), -EACCES);
	assert_int_equal(session_info(f.host, session_number(s), info), 0);
	assert_int_equal(info->imports, 1);
	assert_false(info->import[0].here);
	assert_int_equal(import_bring(f.host, other, 0, fcntl(fd, F_DUPFD_CLOEXEC, 0), &why), 0);
	assert_int_equal(import_bring(f.host, other, 0, fcntl(fd, F_DUPFD_CLOEXEC, 0), &why), -ENOENT); /* good once */
	assert_int_equal(import_offer(s, 7, token, &why), -EEXIST);
	assert_int_equal(session_info(f.host, session_number(s), info), 0);
	assert_true(info->import[0].here);
	assert_int_equal(info->import[0].id, 7);
	assert_int_equal(info->import[0].bytes, 4096);
	for (uint64_t id = 100; id < 100 + SESSION_MAX_IMPORTS - 1; id++)
		assert_int_equal(import_offer(s, id, token, &why), 0);
	assert_int_equal(import_offer(s, 99, token, &why), -EDQUOT);
	assert_non_null(strstr(why.text, "16"));
	assert_int_equal(import_drop(s, 99, &why), -ENOENT);
	assert_int_equal(import_drop(s, 0, &why), -EINVAL);
	assert_int_equal(import_drop(s, 7, &why), 0);
	assert_int_equal(import_drop(s, 7, &why), -ENOENT);
	assert_int_equal(import_offer(s, 99, token, &why), 0);
	assert_int_equal(atomic_load(&f.host->imports), SESSION_MAX_IMPORTS);
	session_release(s);
	session_unref(&s);
	assert_int_equal(atomic_load(&f.host->imports), 0);
	assert_int_equal(import_bring(f.host, token, 0, fd, &why), -ENOENT);
	fixture_close(&f);
	free(info);
}

/* ---- memory alone ------------------------------------------------------------------------------------------------------------ */

static void put_two_classes(struct fixture *f, struct session *s, uint32_t pages)
{
	static struct put_result r;
	uint64_t bytes[512];

	assert_int_equal(put_chain(s, 1, 1, 0, pages, 3, 0, &r), 0);
	for (uint32_t i = 0; i < pages; i++) {
		world_fill(bytes, 4096, 1, i);
		assert_int_equal(segment_write(f->space->segment, r.answers[i], bytes, 4096), 0);
		world_fill(bytes, 1000, 2, i);
		assert_int_equal(segment_write(f->space->segment, r.answers[pages + i], bytes, 1000), 0);
	}
	commit_all(s, 1, 1);
}

/* A namespace without a disk; odd places, blocks in any order, one class of two; nothing between them is touched. */
static void strides_and_blocks(void **state)
{
	static const uint32_t blocks[] = { 5, 0, 9, 2 };
	struct fixture f;
	struct get_into call;
	struct get_start start = { 0 };
	struct why why = WHY_INIT;

	fixture_open(&f, KV_IX, 1, MEMORY, MEMORY, NULL);
	struct session *s = fixture_session(&f, 0);
	int fd = file_of(&f, s, 1, 100000);

	put_two_classes(&f, s, 6);
	assert_int_equal(get_chain(s, 1, 1, 6, 0, &start, &why), 0);
	into_of(&call, s, 1, 6, 1, 5);
	call.base = 13;
	call.stride = 5200;
	call.class_offset[0] = 7;
	call.class_offset[1] = 4107;
	call.blocks = blocks;
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 5 * FIXTURE_PAGE);
	assert_int_equal(call.transfer.values, 8);
	assert_int_equal(call.transfer.bytes, 4 * 5096);
	assert_false(call.transfer.handle_ended);
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t at = 13 + blocks[i] * 5200u;

		is_value(fd, at + 7, 4096, 1, i + 1);
		is_value(fd, at + 4107, 1000, 2, i + 1);
		is_filler(fd, at + 7 + 4096, at + 4107);
		is_filler(fd, at + 4107 + 1000, at + 5200 + 7);
	}
	is_filler(fd, 0, 20);
	into_of(&call, s, 1, 6, 5, 6); /* the last page, one class, at the very end of the file */
	call.base = 99000;
	call.transfer.class_mask = 2;
	into_well(&call);
	assert_true(call.transfer.handle_ended);
	assert_int_equal(call.transfer.values, 1);
	is_value(fd, 99000, 1000, 2, 5);
	assert_int_equal(get_cancel(s, 1, &why), -EALREADY);
	struct space_report r = fixture_report(&f);

	assert_int_equal(r.stats.values_imported, 9);
	assert_int_equal(r.stats.bytes_imported, 4 * 5096 + 1000);
	assert_int_equal(r.stats.values_given, 0);
	assert_at_base(&f, 1);
	session_release(s);
	session_unref(&s);
	fixture_close(&f);
	close(fd);
}

static void wrong_arguments(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false, false);
	int fd = file_of(&w->f, s, 1, 4 * WORLD_VALUE);
	struct get_into call;
	struct why why = WHY_INIT;

	handle_of(s, 1, PAGES);
	into_of(&call, s, 1, PAGES, 0, 5); /* one too many */
	assert_int_equal(into_run(&call, &why), -ERANGE);
	assert_string_equal(why.text, "class 0: a value would end at byte 81920 of import 1, which has 65536");
	into_of(&call, s, 1, PAGES, 0, 4);
	call.base = 1;
	assert_int_equal(into_run(&call, &why), -ERANGE);
	call.base = UINT64_MAX;
	assert_int_equal(into_run(&call, &why), -ERANGE);
	into_of(&call, s, 1, PAGES, 0, 4);
	call.class_offset[0] = UINT64_MAX - 20000;
	assert_int_equal(into_run(&call, &why), -ERANGE);
	into_of(&call, s, 1, PAGES, 0, 4);
	call.stride = WORLD_VALUE - 1;
	assert_int_equal(into_run(&call, &why), -EINVAL);
	assert_non_null(strstr(why.text, "stride: 16383"));
	into_of(&call, s, 1, PAGES, 0, 1);
	call.stride = 0; /* of one page it says nothing */
	into_well(&call);
	into_of(&call, s, 1, PAGES, 1, 4);
	call.stride = UINT64_MAX / 2;
	assert_int_equal(into_run(&call, &why), -ERANGE);
	into_of(&call, s, 1, PAGES, 0, 4);
	assert_int_equal(into_run(&call, &why), -EINVAL); /* from */
	into_of(&call, s, 1, PAGES, 1, 4);
	call.import = 2;
	assert_int_equal(into_run(&call, &why), -ENOENT);
	into_of(&call, s, 2, PAGES, 1, 4);
	assert_int_equal(into_run(&call, &why), -ENOENT);
	into_of(&call, s, 1, PAGES, 1, 4);
	call.transfer.class_mask = 4;
	assert_int_equal(into_run(&call, &why), -EINVAL);
	into_of(&call, s, 1, PAGES, 1, 4); /* the handle is as it was */
	into_well(&call);
	is_value(fd, 0, WORLD_VALUE, 1, 1);
	assert_int_equal(get_cancel(s, 1, &why), 0);
	end(w, s, fd);
}

/* ---- from disk ---------------------------------------------------------------------------------------------------------------- */

/* All of it from disk: no slot is taken, nothing is promoted, and the row has its place. */
static void from_disk(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true, true);
	uint64_t state_at = PAGES * (WORLD_VALUE + 100ull);
	int fd = file_of(&w->f, s, 1, state_at + STATE + 50);
	struct get_start start = { .no_ahead = true };
	struct get_into call;
	struct why why = WHY_INIT;

	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	assert_int_equal(fixture_report(&w->f).stats.loads, 0);
	into_of(&call, s, 1, PAGES, 0, PAGES);
	call.stride = WORLD_VALUE + 100;
	call.state_base = state_at;
	call.class_offset[1] = 50;
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, PAGES * FIXTURE_PAGE);
	assert_int_equal(call.transfer.values, PAGES + 1);
	assert_int_equal(call.transfer.bytes, PAGES * WORLD_VALUE + STATE);
	assert_true(call.transfer.handle_ended);
	for (uint32_t i = 0; i < PAGES; i++) {
		is_value(fd, i * (WORLD_VALUE + 100ull), WORLD_VALUE, 1, i);
		is_filler(fd, i * (WORLD_VALUE + 100ull) + WORLD_VALUE, (i + 1) * (WORLD_VALUE + 100ull));
	}
	is_filler(fd, state_at, state_at + 50);
	is_value(fd, state_at + 50, STATE, 1, WORLD_ROW);
	struct space_report r = fixture_report(&w->f);

	assert_int_equal(r.stats.values_promoted, 0);
	assert_int_equal(r.stats.keys_led, PAGES);
	assert_int_equal(r.stats.keys_local, 0);
	assert_int_equal(w->f.space->tiering->places_used, PAGES + 1);
	end(w, s, fd);
}

/* Some pages in memory, some on disk, in windows; what GET_START began to read is let go. */
static void from_both(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false, true);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE);
	static uint64_t offsets[PAGES];
	struct get_transfer transfer;
	struct get_into call;
	struct get_start start;
	struct why why = WHY_INIT;

	world_get(s, 1, 1, 40, &start);
	transfer_of(&transfer, s, 1, 2, 40, 30, 40, offsets, PAGES);
	assert_int_equal(transfer_all(&transfer, &why), 0);
	handle_of(s, 3, PAGES);
	for (uint32_t from = 0; from < PAGES; from += 20) {
		into_of(&call, s, 3, PAGES, from, from + 20);
		call.base = (uint64_t)from * WORLD_VALUE;
		into_well(&call);
		assert_int_equal(call.transfer.values, 20);
		assert_int_equal(call.transfer.handle_ended, from + 20 == PAGES);
	}
	for (uint32_t i = 0; i < PAGES; i++)
		is_value(fd, (uint64_t)i * WORLD_VALUE, WORLD_VALUE, 1, i);
	assert_int_equal(get_release(s, 2, &why), 0);
	end(w, s, fd);
}

/* More than four reads at once: values of many windows. */
static void longer_than_the_windows(void **state)
{
	struct tier_world *w = &world;
	uint32_t pages = 1500;

	world_open(w, WORLD_KV, 32ull << 20);
	struct session *s = fixture_session(&w->f, 0);

	for (uint32_t from = 0; from < pages; from += 500)
		world_put(w, s, 10 + from, 1, from, 500, false);
	world_to_disk(w);
	int fd = file_of(&w->f, s, 1, (uint64_t)pages * WORLD_VALUE);
	struct get_into call;
	struct get_start start = { .no_ahead = true };
	struct why why = WHY_INIT;

	assert_int_equal(get_chain(s, 1, 1, pages, 0, &start, &why), 0);
	assert_int_equal(start.transferable_len, (uint64_t)pages * FIXTURE_PAGE);
	into_of(&call, s, 1, pages, 0, pages);
	into_well(&call);
	assert_int_equal(call.transfer.values, pages);
	for (uint32_t i = 0; i < pages; i++)
		is_value(fd, (uint64_t)i * WORLD_VALUE, WORLD_VALUE, 1, i);
	end(w, s, fd);
}

/* ---- failures -------------------------------------------------------------------------------------------------------------------- */

struct damage {
	uint64_t chain;
	uint32_t page;
	bool done;
};
static struct damage damage;

static int damage_file(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	size_t bytes = damage.page == WORLD_ROW ? STATE : WORLD_VALUE, length = strlen(path);
	uint64_t expected[WORLD_VALUE / 8];
	char *all;

	if (flag != FTW_F || length < 4 || strcmp(path + length - 4, ".rec") || damage.done)
		return 0;
	world_fill(expected, bytes, damage.chain, damage.page);
	int fd = open(path, O_RDWR);

	all = malloc((size_t)st->st_size);
	assert_int_equal(pread(fd, all, (size_t)st->st_size, 0), st->st_size);
	for (off_t i = 0; i + (off_t)bytes <= st->st_size && !damage.done; i += 512)
		if (!memcmp(all + i, expected, bytes)) {
			assert_int_equal(pwrite(fd, "damage", 6, i + 1000), 6);
			damage.done = true;
		}
	fdatasync(fd);
	close(fd);
	free(all);
	return 0;
}

/* The bytes of a value on disk change. */
static void spoil(struct tier_world *w, uint64_t chain, uint32_t page)
{
	damage = (struct damage){ chain, page, false };
	nftw(w->path, damage_file, 16, FTW_PHYS);
	assert_true(damage.done);
}

static void a_damaged_value_cuts(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false, true);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE);
	struct get_start start = { .no_ahead = true };
	struct get_into call;
	struct why why = WHY_INIT;

	spoil(w, 1, 37);
	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	into_of(&call, s, 1, PAGES, 0, PAGES);
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 37 * FIXTURE_PAGE);
	assert_int_equal(call.transfer.values, 37);
	assert_int_equal(call.transfer.bytes, 37 * WORLD_VALUE);
	assert_false(call.transfer.handle_ended);
	for (uint32_t i = 0; i < 37; i++)
		is_value(fd, (uint64_t)i * WORLD_VALUE, WORLD_VALUE, 1, i);
	is_filler(fd, 37ull * WORLD_VALUE, 38ull * WORLD_VALUE); /* never wrong bytes */
	into_of(&call, s, 1, PAGES, 37, PAGES);
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 37 * FIXTURE_PAGE);
	assert_true(call.transfer.handle_ended);
	assert_int_equal(fixture_report(&w->f).stats.loads_failed, 1);
	assert_int_equal(atomic_load(&w->corrupt), 1);
	start = (struct get_start){ .no_ahead = true };
	assert_int_equal(get_chain(s, 2, 1, PAGES, 0, &start, &why), 0);
	assert_int_equal(start.raw_prefix_hit_len, 37 * FIXTURE_PAGE);
	assert_int_equal(get_cancel(s, 2, &why), 0);
	end(w, s, fd);
}

/* Values of two pages: what is before the failure ends with one. */
static void a_damaged_long_value_cuts(void **state)
{
	struct tier_world *w = &world;
	struct get_start start = { .no_ahead = true };
	struct get_into call;
	struct why why = WHY_INIT;

	world_open(w, KV_LONG, MEMORY);
	struct session *s = fixture_session(&w->f, 0);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE);

	world_put(w, s, 1, 1, 0, PAGES, false);
	world_to_disk(w);
	spoil(w, 1, 37);
	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	into_of(&call, s, 1, PAGES, 0, PAGES);
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 36 * FIXTURE_PAGE);
	assert_int_equal(call.transfer.values, 18);
	assert_int_equal(call.transfer.bytes, 18 * WORLD_VALUE);
	into_of(&call, s, 1, PAGES, 36, PAGES);
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 36 * FIXTURE_PAGE);
	assert_true(call.transfer.handle_ended);
	end(w, s, fd);
}

static void without_the_row_nothing(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, true, true);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE + STATE);
	struct get_start start = { .no_ahead = true };
	struct get_into call;
	struct why why = WHY_INIT;

	spoil(w, 1, WORLD_ROW);
	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	into_of(&call, s, 1, PAGES, 0, PAGES);
	call.state_base = PAGES * WORLD_VALUE;
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 0);
	assert_int_equal(call.transfer.values, 0);
	assert_true(call.transfer.handle_ended);
	is_filler(fd, PAGES * WORLD_VALUE, PAGES * WORLD_VALUE + STATE);
	end(w, s, fd);
}

static void the_disk_errs(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false, true);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE);
	struct get_start start = { .no_ahead = true };
	struct get_into call;
	struct why why = WHY_INIT;

	assert_int_equal(disk_ops_fault_set(w->faults, "read:EIO:=1", &why), 0); /* once: is asked again */
	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	into_of(&call, s, 1, PAGES, 0, 50);
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 50 * FIXTURE_PAGE);
	for (uint32_t i = 0; i < 50; i++)
		is_value(fd, (uint64_t)i * WORLD_VALUE, WORLD_VALUE, 1, i);
	assert_int_equal(disk_ops_fault_set(w->faults, "read:EIO", &why), 0); /* always */
	into_of(&call, s, 1, PAGES, 50, PAGES);
	into_well(&call);
	assert_int_equal(call.transfer.delivered_len, 50 * FIXTURE_PAGE);
	assert_true(call.transfer.handle_ended);
	assert_int_equal(disk_ops_fault_set(w->faults, "", &why), 0);
	assert_true(fixture_report(&w->f).stats.loads_failed >= 1);
	end(w, s, fd);
}

/* The file changes after it came. */
static void the_memory_goes(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false, true);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE), two = file_of(&w->f, s, 2, PAGES * WORLD_VALUE);
	struct get_start start = { .no_ahead = true };
	struct get_into call;
	struct why why = WHY_INIT;

	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	assert_int_equal(ftruncate(fd, 3 * WORLD_VALUE), 0);
	into_of(&call, s, 1, PAGES, 0, PAGES);
	assert_int_equal(into_run(&call, &why), -EFAULT);
	assert_string_equal(why.text, "import 1 has 49152 bytes, it had 1638400 when it came");
	assert_int_equal(call.transfer.delivered_len, 0);
	assert_int_equal(fallocate(two, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
	call.import = 2;
	assert_int_equal(into_run(&call, &why), -EFAULT);
	assert_non_null(strstr(why.text, "holes were punched"));
	assert_int_equal(fallocate(two, 0, 0, 8192), 0);
	assert_int_equal(fcntl(two, F_ADD_SEALS, F_SEAL_WRITE), 0);
	assert_int_equal(into_run(&call, &why), -EFAULT);
	assert_non_null(strstr(why.text, "import 2: 16384 bytes at 0 cannot be written"));
	assert_int_equal(import_drop(s, 1, &why), 0);
	assert_int_equal(import_drop(s, 2, &why), 0);
	close(two);
	two = file_of(&w->f, s, 2, PAGES * WORLD_VALUE);
	into_well(&call); /* the handle is as it was */
	assert_int_equal(call.transfer.values, PAGES);
	close(two);
	end(w, s, fd);
}

/* ---- the middle ------------------------------------------------------------------------------------------------------------------- */

struct runner {
	struct get_into call;
	struct why why;
	int r;
};

static void *run_into(void *argument)
{
	struct runner *u = argument;

	u->r = into_run(&u->call, &u->why);
	return NULL;
}

/* While a read stands at the gate: the verdict, the session's end, the deadline. The late read finds nobody. */
static void ends_in_the_middle(void **state)
{
	struct tier_world *w = &world;
	struct session *s = begin(w, false, true);
	int fd = file_of(&w->f, s, 1, PAGES * WORLD_VALUE);
	struct get_start start = { .no_ahead = true };
	static struct runner u;
	_Atomic int wanted = 0;
	struct why why = WHY_INIT;
	pthread_t thread;

	assert_int_equal(get_chain(s, 1, 1, PAGES, 0, &start, &why), 0);
	gate_set(w->gate, true);
	into_of(&u.call, s, 1, PAGES, 0, PAGES);
	u.call.verdict = failing_verdict;
	u.call.context = (void *)&wanted;
	assert_int_equal(pthread_create(&thread, NULL, run_into, &u), 0);
	gate_await(w->gate);
	assert_int_equal(import_drop(s, 1, &why), -EBUSY);
	atomic_store(&wanted, EINTR);
	pthread_join(thread, NULL);
	assert_int_equal(u.r, -EINTR);
	into_of(&u.call, s, 1, PAGES, 0, PAGES);
	u.call.transfer.deadline_ns = clock_now_ns() + 30000000;
	assert_int_equal(into_run(&u.call, &why), -EAGAIN);
	into_of(&u.call, s, 1, PAGES, 0, PAGES);
	u.call.nonblock = true;
	assert_int_equal(into_run(&u.call, &why), -EAGAIN);
	assert_non_null(strstr(why.text, "NONBLOCK"));
	is_filler(fd, 0, 4 * WORLD_VALUE);
	gate_set(w->gate, false);
	into_of(&u.call, s, 1, PAGES, 0, PAGES);
	into_well(&u.call);
	assert_int_equal(u.call.transfer.values, PAGES);
	start = (struct get_start){ .no_ahead = true };
	assert_int_equal(get_chain(s, 2, 1, PAGES, 0, &start, &why), 0);
	while (atomic_load(&w->f.space->tiering->jobs))
		sched_yield();
	gate_set(w->gate, true);
	into_of(&u.call, s, 2, PAGES, 0, PAGES);
	assert_int_equal(pthread_create(&thread, NULL, run_into, &u), 0);
	gate_await(w->gate);
	session_release(s);
	pthread_join(thread, NULL);
	assert_int_equal(u.r, -ESHUTDOWN);
	gate_set(w->gate, false);
	session_unref(&s);
	assert_int_equal(atomic_load(&w->f.host->imports), 0);
	world_at_base(w, 0);
	world_close(w);
	close(fd);
}

/* Two sessions, each into its own file, while the pages are removed under them. */
static void two_at_once(void **state)
{
	struct tier_world *w = &world;
	struct session *a = begin(w, true, true), *b = fixture_session(&w->f, 0);
	int one = file_of(&w->f, a, 1, PAGES * WORLD_VALUE + STATE), two = file_of(&w->f, b, 1, PAGES * WORLD_VALUE + STATE);
	static struct runner u[2];
	pthread_t thread[2];

	for (uint32_t round = 1; round <= 10; round++) {
		handle_of(a, round, PAGES);
		handle_of(b, round, PAGES);
		for (int i = 0; i < 2; i++) {
			into_of(&u[i].call, i ? b : a, round, PAGES, 0, PAGES);
			u[i].call.state_base = PAGES * WORLD_VALUE;
			assert_int_equal(pthread_create(&thread[i], NULL, run_into, &u[i]), 0);
		}
		for (int i = 0; i < 2; i++) {
			pthread_join(thread[i], NULL);
			assert_int_equal(u[i].r, 0);
			assert_int_equal(u[i].call.transfer.values, PAGES + 1);
		}
	}
	for (uint32_t i = 0; i < PAGES; i++) {
		is_value(one, (uint64_t)i * WORLD_VALUE, WORLD_VALUE, 1, i);
		is_value(two, (uint64_t)i * WORLD_VALUE, WORLD_VALUE, 1, i);
	}
	is_value(two, PAGES * WORLD_VALUE, STATE, 1, WORLD_ROW);
	world_at_base(w, 2);
	session_release(b);
	session_unref(&b);
	close(two);
	end(w, a, one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_that_are_no_memory),
		cmocka_unit_test(tokens_and_limits),
		cmocka_unit_test(strides_and_blocks),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(from_disk),
		cmocka_unit_test(from_both),
		cmocka_unit_test(longer_than_the_windows),
		cmocka_unit_test(a_damaged_value_cuts),
		cmocka_unit_test(a_damaged_long_value_cuts),
		cmocka_unit_test(without_the_row_nothing),
		cmocka_unit_test(the_disk_errs),
		cmocka_unit_test(the_memory_goes),
		cmocka_unit_test(ends_in_the_middle),
		cmocka_unit_test(two_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
