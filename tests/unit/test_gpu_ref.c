/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole library on plain C: every layout, plane size, part and token range, each path, against a loop over bytes. All memory is
 * compared, so what lies between and behind targets is too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/work.h"
#include "tests/unit/gpu_world.h"

static struct dice d;
static struct pfs_gpu *gpu;

static int open_ref(void **state)
{
	struct pfs_gpu_options o;

	pfs_gpu_options_init(&o);
	o.kernels = "ref";
	assert_int_equal(pfs_gpu_open(&o, &gpu), 0);
	return 0;
}

static int close_ref(void **state)
{
	pfs_gpu_close(&gpu);
	assert_null(gpu);
	return 0;
}

/* Copies, and compares all memory with what is to be. */
static void copy_and_compare(struct world *w, const struct pfs_gpu_copy *c, bool to_device, int forced)
{
	uint8_t *device = world_map(w->device_bytes), *segment = world_map(w->segment_bytes);
	struct pfs_gpu_op *op = NULL;
	char why[512];
	int r;

	memcpy(device, w->device, w->device_bytes);
	memcpy(segment, w->segment, w->segment_bytes);
	world_expect(w, c, to_device, device, segment);
	assert_int_equal(pfs_gpu_register(gpu, w->segment, w->segment_bytes, 1), 0);
	r = work_start(gpu, c, to_device, forced, &op);
	pfs_gpu_last_error(why, sizeof(why));
	if (r)
		fail_msg("%s", why);
	assert_int_equal(pfs_gpu_wait(op, 0), 0);
	assert_int_equal(pfs_gpu_test(op), 0);
	pfs_gpu_end(&op);
	assert_null(op);
	assert_int_equal(pfs_gpu_unregister(gpu, w->segment, w->segment_bytes, 1), 0);
	assert_memory_equal(device, w->device, w->device_bytes);
	assert_memory_equal(segment, w->segment, w->segment_bytes);
	munmap(device, w->device_bytes);
	munmap(segment, w->segment_bytes);
}

static void random_parts(struct pfs_gpu_copy *c, struct pfs_gpu_part parts[8], uint32_t planes)
{
	uint32_t at = 0;

	c->parts = parts;
	while (at < planes && c->part_count < 8) {
		uint32_t n = 1 + (uint32_t)dice(&d, planes - at);

		parts[c->part_count++] = (struct pfs_gpu_part){at, n};
		at += n + (uint32_t)dice(&d, 2); /* some plane may be in none */
	}
}

/* One random copy of a random pool. */
static void random_copy(enum world_layout layout, uint32_t item)
{
	struct world w = {0};
	struct pfs_gpu_copy c = {.pool = &w.pool};
	struct pfs_gpu_part parts[8];
	uint32_t tokens = 1u << dice(&d, 5), each = 1u << dice(&d, 3), heads = 1u << dice(&d, 3), slots[64];
	uint32_t count = 1 + (uint32_t)dice(&d, 12);
	bool to_device = dice(&d, 2);
	uint64_t values[64];

	w.pool.pages_per_value = each == 1 ? (uint32_t)dice(&d, 2) : each;
	w.pool.page_limit = count * each + (uint32_t)dice(&d, 20) + 1;
	w.pool.value_tokens = tokens * each;
	w.slots = count + (uint32_t)dice(&d, 6);
	if (w.pool.pages_per_value == 0) {
		w.pool.pages_per_value = 1;
		world_planes(&w, layout, 1 + (uint32_t)dice(&d, 12), tokens, heads, item, &d);
		w.pool.pages_per_value = 0;
	} else {
		world_planes(&w, layout, 1 + (uint32_t)dice(&d, 12), tokens, heads, item, &d);
	}
	world_make(&w, &d);
	world_choose(&d, slots, count, w.slots);
	for (uint32_t i = 0; i < count; i++)
		values[i] = (uintptr_t)w.segment + 4096 + slots[i] * w.slot_bytes;
	uint32_t *pages = malloc(count * each * sizeof(*pages));

	world_choose(&d, pages, count * each, w.pool.page_limit);
	c.values = values;
	c.pages = pages;
	c.count = count;
	if (dice(&d, 2)) {
		uint64_t all = (uint64_t)w.pool.value_tokens * count;

		c.token_from = dice(&d, all);
		c.token_to = c.token_from + 1 + dice(&d, all - c.token_from);
	}
	if (dice(&d, 3) == 0)
		random_parts(&c, parts, w.pool.plane_count);
	c.flags = dice(&d, 4) == 0 ? PFS_GPU_URGENT : 0;
	copy_and_compare(&w, &c, to_device, (int)dice(&d, PATHS + 1) - 1);
	free(pages);
	world_free(&w);
}

static void every_layout(void **state)
{
	for (unsigned turn = 0; turn < 240; turn++)
		random_copy((enum world_layout)(turn % LAYOUTS), (uint32_t[]){16, 72, 2, 256, 146, 1}[dice(&d, 6)]);
}

/* Planes of one size from 1,168 bytes to 4 MiB, on each path, both ways. */
static void every_plane_size(void **state)
{
	static const uint64_t sizes[] = {1168, 4096, 8192, 16384, 65536, 262144, 1 << 20, 4 << 20};

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (int path = -1; path < PATHS; path++) {
			uint32_t count = sizes[i] < 65536 ? 9 : 2, planes = sizes[i] < 65536 ? 7 : 2, pages[9], slots[9];
			struct world w = {.pool = {.page_limit = 12, .pages_per_value = 1}, .slots = count + 1};
			struct pfs_gpu_copy c = {.pool = &w.pool, .pages = pages, .count = count};
			uint64_t values[9];

			world_planes(&w, LAYOUT_MLA, planes, 1, 1, (uint32_t)sizes[i], &d);
			world_make(&w, &d);
			world_choose(&d, slots, count, w.slots);
			world_choose(&d, pages, count, w.pool.page_limit);
			for (uint32_t k = 0; k < count; k++)
				values[k] = (uintptr_t)w.segment + slots[k] * w.slot_bytes;
			c.values = values;
			copy_and_compare(&w, &c, path & 1, path);
			world_free(&w);
		}
}

/* A window of frames in a ring that has rolled, sink and all: the frames that a naive ring has. */
static void windows(void **state)
{
	uint32_t last[2];

	for (unsigned turn = 0; turn < 60; turn++) {
		uint32_t each = 1 + (uint32_t)dice(&d, 4), sink = each * (uint32_t)dice(&d, 2), window = each * (1 + (uint32_t)dice(&d, 5));
		struct pfs_gpu_ring ring = {.capacity = sink + window, .sink = sink, .roll = dice(&d, window)};
		struct world w = {.pool = {.page_limit = ring.capacity, .pages_per_value = each}, .slots = ring.capacity / each};
		struct pfs_gpu_copy c = {.pool = &w.pool, .count = w.slots};
		uint64_t first = sink + each * dice(&d, 100), values[16];
		uint32_t pages[64], where[64];

		world_planes(&w, LAYOUT_LAYER_FIRST, 3, 1, 1, 320, &d);
		world_make(&w, &d);
		assert_int_equal(pfs_gpu_ring_pages(&ring, 0, sink, pages), 0);
		assert_int_equal(pfs_gpu_ring_pages(&ring, first, window, pages + sink), 0);
		for (uint32_t f = 0; f < sink; f++)
			assert_int_equal(pages[f], f);
		/* A ring written frame by frame from frame `sink` on, the place of which is roll behind the sink. */
		for (uint64_t f = sink, at = ring.roll; f < first + window; f++, at = (at + 1) % window)
			if (f >= first)
				where[f - first] = (uint32_t)(sink + at);
		for (uint32_t f = 0; f < window; f++)
			assert_int_equal(pages[sink + f], where[f]);
		for (uint32_t i = 0; i < c.count; i++)
			values[i] = (uintptr_t)w.segment + (c.count - 1 - i) * w.slot_bytes;
		c.values = values;
		c.pages = pages;
		copy_and_compare(&w, &c, turn & 1, turn % 3 ? -1 : PATH_BATCHED);
		world_free(&w);
	}
	/* Frames near the last number: 2^64 - 3 is 1 of three, and rolled by two more it is 0. */
	assert_int_equal(pfs_gpu_ring_pages(&(struct pfs_gpu_ring){3, 0, 2}, UINT64_MAX - 2, 2, last), 0);
	assert_int_equal(last[0], 0);
	assert_int_equal(last[1], 1);
	assert_int_equal(pfs_gpu_ring_pages(&(struct pfs_gpu_ring){4, 4, 0}, 0, 1, (uint32_t[1]){0}), -EINVAL);
	assert_int_equal(pfs_gpu_ring_pages(&(struct pfs_gpu_ring){4, 1, 0}, 1, 4, (uint32_t[4]){0}), -ERANGE);
	assert_int_equal(pfs_gpu_ring_pages(&(struct pfs_gpu_ring){4, 1, 0}, UINT64_MAX, 2, (uint32_t[2]){0}), -ERANGE);
}

/* Values that lie in two registrations side by side. */
static void across_registrations(void **state)
{
	struct world w = {.pool = {.page_limit = 4, .pages_per_value = 1}, .slots = 2};
	uint64_t values[2];
	uint32_t pages[2] = {3, 1};
	struct pfs_gpu_copy c = {.pool = &w.pool, .pages = pages, .values = values, .count = 2};
	struct pfs_gpu_op *op;

	world_planes(&w, LAYOUT_LAYER_FIRST, 4, 16, 1, 128, &d);
	world_make(&w, &d);
	values[0] = (uintptr_t)w.segment;
	values[1] = (uintptr_t)w.segment + w.slot_bytes;
	assert_int_equal(pfs_gpu_register(gpu, w.segment, 4096, 1), 0);
	assert_int_equal(pfs_gpu_gather(gpu, &c, &op), -EFAULT);
	assert_int_equal(pfs_gpu_register(gpu, w.segment + 4096, w.segment_bytes - 4096, 1), 0);
	for (int path = -1; path < PATHS; path++) {
		uint8_t *segment = malloc(w.segment_bytes);

		memcpy(segment, w.segment, w.segment_bytes);
		world_expect(&w, &c, false, NULL, segment);
		assert_int_equal(work_start(gpu, &c, false, path, &op), 0);
		assert_int_equal(pfs_gpu_wait(op, 0), 0);
		pfs_gpu_end(&op);
		assert_memory_equal(segment, w.segment, w.segment_bytes);
		dice_fill(&d, w.segment, w.segment_bytes);
		free(segment);
	}
	assert_int_equal(pfs_gpu_unregister(gpu, w.segment, 4096, 2), -ESTALE);
	assert_int_equal(pfs_gpu_unregister(gpu, w.segment, 4096, 1), 0);
	assert_int_equal(pfs_gpu_unregister(gpu, w.segment, 4096, 1), -ENOENT);
	assert_int_equal(pfs_gpu_unregister(gpu, w.segment + 4096, w.segment_bytes - 4096, 1), 0);
	world_free(&w);
}

/* Parts are told one by one, in order. */
static void parts_and_info(void **state)
{
	struct world w = {.pool = {.page_limit = 4, .pages_per_value = 1}, .slots = 1};
	struct pfs_gpu_part parts[2] = {{0, 4}, {4, 4}};
	uint64_t value;
	struct pfs_gpu_copy c = {.pool = &w.pool, .pages = (uint32_t[]){2}, .values = &value, .count = 1, .parts = parts, .part_count = 2};
	struct pfs_gpu_info before, after;
	struct pfs_gpu_op *op;
	void *event = &w;

	world_planes(&w, LAYOUT_LAYER_FIRST, 4, 16, 1, 128, &d);
	world_make(&w, &d);
	value = (uintptr_t)w.segment;
	assert_int_equal(pfs_gpu_register(gpu, w.segment, w.segment_bytes, 7), 0);
	assert_int_equal(pfs_gpu_info(gpu, &before), 0);
	assert_int_equal(pfs_gpu_scatter(gpu, &c, &op), 0);
	assert_int_equal(pfs_gpu_event(op, 0, 0, &event), 0);
	assert_null(event);
	assert_int_equal(pfs_gpu_event(op, 1, 0, &event), 0);
	assert_int_equal(pfs_gpu_event(op, 2, 0, &event), -ERANGE);
	assert_int_equal(pfs_gpu_wait(op, 0), 0);
	pfs_gpu_end(&op);
	assert_int_equal(pfs_gpu_info(gpu, &after), 0);
	assert_string_equal(after.kernels, "ref");
	assert_int_equal(after.registrations, 1);
	assert_int_equal(after.registered_bytes, w.segment_bytes);
	assert_int_equal(after.bytes_to_device - before.bytes_to_device, w.value_bytes);
	assert_int_equal(after.bytes_to_host, before.bytes_to_host);
	assert_true(after.staging_bytes <= 64 << 20);
	assert_int_equal(pfs_gpu_unregister(gpu, w.segment, w.segment_bytes, 7), 0);
	world_free(&w);
}

/* More than one call of the driver may take; and what overlaps is refused without leaving anything. */
static void large_registrations(void **state)
{
	uint64_t bytes = PFS_GPU_REGISTER_BYTES + (2 << 20);
	uint8_t *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct pfs_gpu_info info;

	assert_true(memory != MAP_FAILED);
	assert_int_equal(pfs_gpu_register(gpu, memory, bytes, 3), 0);
	assert_int_equal(pfs_gpu_register(gpu, memory, bytes, 3), 0);
	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, 2);
	assert_int_equal(info.registered_bytes, bytes);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, bytes, 3), 0);
	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, 2); /* held once more */
	assert_int_equal(pfs_gpu_unregister(gpu, memory, bytes, 3), 0);
	assert_int_equal(pfs_gpu_register(gpu, memory + PFS_GPU_REGISTER_BYTES, 4096, 3), 0);
	assert_int_equal(pfs_gpu_register(gpu, memory, bytes, 3), -EINVAL);
	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, 1);
	assert_int_equal(pfs_gpu_unregister(gpu, memory + PFS_GPU_REGISTER_BYTES, 4096, 3), 0);
	assert_int_equal(pfs_gpu_register(gpu, memory, 0, 3), -EINVAL);
	assert_int_equal(pfs_gpu_register(gpu, memory + 1, 4096, 3), -EINVAL);
	munmap(memory, bytes);
}

static void says(const char *wanted)
{
	char why[200];

	pfs_gpu_last_error(why, sizeof(why));
	assert_string_equal(why, wanted);
}

/* What no process can have is refused before a list of its pieces is made, which would be longer than memory. */
static void absurd_registrations(void **state)
{
	void *page = (void *)4096;
	struct pfs_gpu_info info;

	assert_int_equal(pfs_gpu_register(gpu, page, 1ull << 62, 1), -EINVAL);
	says("a range at 0x1000 has 4611686018427387904 bytes, at most 140737488355328 are possible");
	assert_int_equal(pfs_gpu_register(gpu, page, UINT64_MAX - 4095, 1), -EINVAL);
	assert_int_equal(pfs_gpu_unregister(gpu, page, 1ull << 62, 1), -EINVAL);
	assert_int_equal(pfs_gpu_unregister(gpu, page, UINT64_MAX - 8191, 1), -EINVAL);
	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, 0);
}

/* As a GPU refuses it: so tests on this backend find what would fail there. */
static void memory_that_is_not_there(void **state)
{
	uint8_t *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pfs_gpu_info info;
	char why[200];

	assert_true(memory != MAP_FAILED);
	munmap(memory + 4096, 4096);
	assert_int_equal(pfs_gpu_register(gpu, memory, 8192, 1), -EIO);
	snprintf(why, sizeof(why), "registering 8192 bytes at 0x%llx: Cannot allocate memory", (unsigned long long)(uintptr_t)memory);
	says(why);
	assert_int_equal(pfs_gpu_register(gpu, NULL, 4096, 1), -EIO);
	assert_int_equal(pfs_gpu_info(gpu, &info), 0);
	assert_int_equal(info.registrations, 0);
	munmap(memory, 4096);
}

/* That memory cannot be written is found out where it is registered, not by a gather that dies of it. */
static void read_only_memory(void **state)
{
	uint8_t *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0), device[4096];
	uint64_t value = (uintptr_t)memory;
	struct pfs_gpu_plane plane = {.base = (uintptr_t)device, .stride = 4096, .bytes = 4096};
	struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = 1};
	struct pfs_gpu_copy c = {.pool = &pool, .pages = (uint32_t[]){0}, .values = &value, .count = 1};
	struct pfs_gpu_op *op;

	assert_true(memory != MAP_FAILED);
	assert_int_equal(pfs_gpu_register(gpu, memory, 4096, 1), 0);
	assert_int_equal(pfs_gpu_gather(gpu, &c, &op), -EROFS);
	memset(device, 0x5a, sizeof(device));
	assert_int_equal(pfs_gpu_scatter(gpu, &c, &op), 0);
	assert_int_equal(pfs_gpu_wait(op, 0), 0);
	pfs_gpu_end(&op);
	assert_int_equal(device[0], 0);
	assert_int_equal(device[4095], 0);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, 4096, 1), 0);
	munmap(memory, 4096);
}

/* A child has neither the threads nor the locks: it is told so, and what it does changes nothing for its parent. */
static void in_a_child(void **state)
{
	uint8_t *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), device[4096];
	uint64_t value = (uintptr_t)memory;
	struct pfs_gpu_plane plane = {.base = (uintptr_t)device, .stride = 4096, .bytes = 4096};
	struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = 1};
	struct pfs_gpu_copy c = {.pool = &pool, .pages = (uint32_t[]){0}, .values = &value, .count = 1};
	struct pfs_gpu_op *op, *other;
	struct pfs_gpu_info info;
	void *event;
	int status;
	pid_t pid;

	memset(memory, 0x5a, 4096);
	assert_int_equal(pfs_gpu_register(gpu, memory, 4096, 1), 0);
	assert_int_equal(pfs_gpu_scatter(gpu, &c, &op), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct pfs_gpu *mine = gpu;
		char why[200], wanted[200];
		struct pfs_gpu_get_request get = {.handle = 5}; /* the parent's: it is not cancelled */
		int bad = pfs_gpu_scatter(gpu, &c, &other) != -EPERM;

		pfs_gpu_last_error(why, sizeof(why));
		snprintf(wanted, sizeof(wanted), "process %d opened the device, and this is %d: it does not survive fork(2)", getppid(), getpid());
		bad |= strcmp(why, wanted) != 0;
		bad |= pfs_gpu_wait(op, 1000) != -EPERM || pfs_gpu_test(op) != -EPERM || pfs_gpu_event(op, 0, 1000, &event) != -EPERM;
		bad |= pfs_gpu_register(gpu, memory, 4096, 1) != -EPERM || pfs_gpu_unregister(gpu, memory, 4096, 1) != -EPERM;
		bad |= pfs_gpu_attach(gpu, NULL, NULL, NULL) != -EPERM || pfs_gpu_detach(gpu, NULL) != -EPERM;
		bad |= pfs_gpu_info(gpu, &info) != -EPERM;
		bad |= pfs_gpu_get(gpu, (struct pfs_session *)1, &get, NULL) != -EPERM;
		pfs_gpu_end(&op);
		pfs_gpu_close(&mine);
		_exit(bad || op || mine);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(pfs_gpu_wait(op, 0), 0);
	pfs_gpu_end(&op);
	assert_int_equal(device[4095], 0x5a);
	assert_int_equal(pfs_gpu_unregister(gpu, memory, 4096, 1), 0);
	munmap(memory, 4096);
}

/* Handlers of the engine's do not run on threads of the library. */
static void signals_are_blocked(void **state)
{
	unsigned threads = 0;
	DIR *dir = opendir("/proc/self/task");
	struct dirent *e;

	assert_non_null(dir);
	while ((e = readdir(dir))) {
		unsigned long long blocked = 0;
		char path[300], line[200], name[64] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (f && fgets(line, sizeof(line), f)) {
			sscanf(line, "Name: %63s", name);
			sscanf(line, "SigBlk: %llx", &blocked);
		}
		if (f)
			fclose(f);
		if (strncmp(name, "pfs-gpu-", 8))
			continue;
		threads++;
		assert_int_equal(blocked & 1ull << (SIGTERM - 1), 1ull << (SIGTERM - 1));
		assert_int_equal(blocked & 1ull << (SIGUSR1 - 1), 1ull << (SIGUSR1 - 1));
	}
	closedir(dir);
	assert_true(threads >= 6);
}

static void nothing_is_given(void **state)
{
	struct pfs_gpu_info info;

	assert_int_equal(pfs_gpu_info(NULL, &info), -EINVAL);
	says("no device was given");
	assert_int_equal(pfs_gpu_attach(NULL, NULL, NULL, NULL), -EINVAL);
	assert_int_equal(pfs_gpu_detach(NULL, NULL), -EINVAL);
	assert_int_equal(pfs_gpu_settle(NULL, NULL, 0), -EINVAL);
	assert_int_equal(pfs_gpu_register(NULL, NULL, 4096, 1), -EINVAL);
	assert_int_equal(pfs_gpu_attach(gpu, NULL, NULL, NULL), -EINVAL);
	says("no session was given");
	assert_int_equal(pfs_gpu_detach(gpu, NULL), -ENOENT);
	assert_int_equal(pfs_gpu_settle(gpu, NULL, 0), 0);
}

static void options(void **state)
{
	struct pfs_gpu_options o;
	struct pfs_gpu *other = NULL;
	char why[200];

	pfs_gpu_options_init(&o);
	o.kernels = "fast";
	assert_int_equal(pfs_gpu_open(&o, &other), -EINVAL);
	pfs_gpu_last_error(why, sizeof(why));
	assert_string_equal(why, "kernels are 'fast', ref and cuda are possible");
	o.kernels = "ref";
	o.register_threads = 65;
	assert_int_equal(pfs_gpu_open(&o, &other), -EINVAL);
	o.register_threads = 1;
	o.size--;
	assert_int_equal(pfs_gpu_open(&o, &other), -EINVAL);
	assert_int_equal(setenv("PFS_KERNELS", "ref", 1), 0);
	assert_int_equal(pfs_gpu_open(NULL, &other), 0);
	pfs_gpu_close(&other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_layout),
		cmocka_unit_test(every_plane_size),
		cmocka_unit_test(windows),
		cmocka_unit_test(across_registrations),
		cmocka_unit_test(parts_and_info),
		cmocka_unit_test(large_registrations),
		cmocka_unit_test(absurd_registrations),
		cmocka_unit_test(memory_that_is_not_there),
		cmocka_unit_test(read_only_memory),
		cmocka_unit_test(in_a_child),
		cmocka_unit_test(signals_are_blocked),
		cmocka_unit_test(nothing_is_given),
		cmocka_unit_test(options),
	};
	const char *seed = getenv("SEED");

	d.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("SEED=%llu\n", (unsigned long long)d.state);
	return cmocka_run_group_tests(tests, open_ref, close_ref);
}
