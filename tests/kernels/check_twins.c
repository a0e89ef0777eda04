/* SPDX-License-Identifier: Apache-2.0
 *
 * On a GPU: what kernels and copies make of random copies, on each path, against a loop over bytes; all memory is compared. With
 * `ref` in its place it checks itself. Exits with 77 where there is no GPU, and says why.
 *
 *   check_twins [ref|cuda] [COPIES] [small] [turns] [pieces]    SEED=number in the environment
 *
 * `small`: planes of 64 KiB at most, nothing of many GiB (for checkers). `turns`: the option of bench gpu. `pieces`: slots are as small
 * as they can be, and the end of each copy is looked for.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/attach.h"
#include "kernels/lab.h"
#include "kernels/work.h"
#include "tests/unit/gpu_world.h"

#define SKIPPED 77
#define FAR_PAGES 8u /* of 4.5 GiB */

static struct dice d;
static struct lab *lab;
static struct pfs_gpu *gpu;

static int complain(const char *what)
{
	char why[512];

	pfs_gpu_last_error(why, sizeof(why));
	printf("FAILED: %s: %s\n", what, why);
	return 1;
}

/* The same copy with planes on the device. */
struct twin {
	struct pfs_gpu_plane planes[128];
	struct pfs_gpu_pool pool;
	struct pfs_gpu_copy copy;
	uint64_t memory;
};

static int twin_make(struct twin *t, const struct world *w, const struct pfs_gpu_copy *c)
{
	t->pool = w->pool;
	t->copy = *c;
	t->pool.planes = t->planes;
	t->copy.pool = &t->pool;
	if (lab_take(lab, w->device_bytes, &t->memory) || lab_write(lab, t->memory, w->device, w->device_bytes))
		return complain("memory for a pool");
	for (uint32_t i = 0; i < w->pool.plane_count; i++) {
		t->planes[i] = w->planes[i];
		t->planes[i].base += t->memory - (uintptr_t)w->device;
	}
	return 0;
}

static int differ(const char *what, const uint8_t *got, const uint8_t *want, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != want[i]) {
			printf("FAILED: byte %zu of %zu of the %s is %u, not %u\n", i, bytes, what, got[i], want[i]);
			return 1;
		}
	return 0;
}

static int copy_and_compare(struct world *w, const struct pfs_gpu_copy *c, bool to_device, int path)
{
	uint8_t *device = world_map(w->device_bytes), *segment = world_map(w->segment_bytes), *got = world_map(w->device_bytes);
	struct twin t = {0};
	struct pfs_gpu_op *op = NULL;
	int r = twin_make(&t, w, c);

	memcpy(device, w->device, w->device_bytes);
	memcpy(segment, w->segment, w->segment_bytes);
	world_expect(w, c, to_device, device, segment);
	if (!r && pfs_gpu_register(gpu, w->segment, w->segment_bytes, 1))
		r = complain("registering");
	if (!r && work_start(gpu, &t.copy, to_device, path, &op))
		r = complain("starting");
	if (!r && pfs_gpu_wait(op, 0))
		r = complain("copying");
	pfs_gpu_end(&op);
	if (!r && pfs_gpu_unregister(gpu, w->segment, w->segment_bytes, 1))
		r = complain("unregistering");
	if (!r && lab_read(lab, got, t.memory, w->device_bytes))
		r = complain("reading back");
	if (!r)
		r = differ("device", got, device, w->device_bytes) + differ("segment", w->segment, segment, w->segment_bytes);
	lab_give(lab, t.memory);
	munmap(device, w->device_bytes);
	munmap(segment, w->segment_bytes);
	munmap(got, w->device_bytes);
	return r;
}

static void random_parts(struct pfs_gpu_copy *c, struct pfs_gpu_part parts[8], uint32_t planes)
{
	uint32_t at = 0;

	c->parts = parts;
	while (at < planes && c->part_count < 8) {
		uint32_t n = 1 + (uint32_t)dice(&d, planes - at);

		parts[c->part_count++] = (struct pfs_gpu_part){at, n};
		at += n;
	}
}

static int random_copy(uint32_t turn)
{
	static const uint32_t items[] = {16, 72, 2, 256, 146, 1, 584, 4096};
	enum world_layout layout = (enum world_layout)(turn % LAYOUTS);
	uint32_t tokens = 1u << dice(&d, 5), each = 1u << dice(&d, 3), heads = 1u << dice(&d, 3), slots[64], pages[64 * 8];
	uint32_t count = 1 + (uint32_t)dice(&d, 24), item = items[dice(&d, 8)], layers = 1 + (uint32_t)dice(&d, 12);
	struct world w = {.pool = {.pages_per_value = each}};
	struct pfs_gpu_copy c = {.pool = &w.pool, .pages = pages};
	bool to_device = dice(&d, 2), cut = dice(&d, 3) == 0;
	int path = (int)dice(&d, PATHS + 1) - 1, r;
	struct pfs_gpu_part parts[8];
	uint64_t values[64];

	w.pool.page_limit = count * each + (uint32_t)dice(&d, 20) + 1;
	w.pool.value_tokens = tokens * each;
	w.slots = count + (uint32_t)dice(&d, 6);
	world_planes(&w, layout, layers, tokens, heads, item, &d);
	world_make(&w, &d);
	world_choose(&d, slots, count, w.slots);
	for (uint32_t i = 0; i < count; i++)
		values[i] = (uintptr_t)w.segment + 4096 + slots[i] * w.slot_bytes;
	world_choose(&d, pages, count * each, w.pool.page_limit);
	c.values = values;
	c.count = count;
	if (cut) {
		uint64_t all = (uint64_t)w.pool.value_tokens * count;

		c.token_from = dice(&d, all);
		c.token_to = c.token_from + 1 + dice(&d, all - c.token_from);
	}
	if (dice(&d, 3) == 0)
		random_parts(&c, parts, w.pool.plane_count);
	c.flags = dice(&d, 4) == 0 ? PFS_GPU_URGENT : 0;
	r = copy_and_compare(&w, &c, to_device, path);
	if (r)
		printf("        copy %u: layout %u, %u values of %u pages of %u tokens, %u heads, item %u, %u layers, %s, path %d, flags %u\n", turn,
			layout, count, each, tokens, heads, item, layers, to_device ? "to the device" : "to the host", path, c.flags);
	world_free(&w);
	return r;
}

static int every_plane_size(bool small)
{
	static const uint64_t sizes[] = {1168, 1172, 4096, 8192, 16384, 32768, 65536, 262144, 1 << 20, 4 << 20};
	int r = 0;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes) && (!small || sizes[i] <= 65536); i++)
		for (int turn = 0; turn < 2 * (PATHS + 1); turn++) {
			uint32_t count = sizes[i] < 8192 ? 40 : 5, planes = sizes[i] < 65536 ? 24 : 3, pages[40], slots[40];
			struct world w = {.pool = {.page_limit = count + 9, .pages_per_value = 1}, .slots = count + 1};
			struct pfs_gpu_copy c = {.pool = &w.pool, .pages = pages, .count = count};
			uint64_t values[40];

			world_planes(&w, LAYOUT_MLA, planes, 1, 1, (uint32_t)sizes[i], &d);
			world_make(&w, &d);
			world_choose(&d, slots, count, w.slots);
			world_choose(&d, pages, count, w.pool.page_limit);
			for (uint32_t k = 0; k < count; k++)
				values[k] = (uintptr_t)w.segment + slots[k] * w.slot_bytes;
			c.values = values;
			if (copy_and_compare(&w, &c, turn & 1, turn / 2 - 1)) {
				printf("        planes of %llu bytes, %s, path %d\n", (unsigned long long)sizes[i],
					turn & 1 ? "to the device" : "to the host", turn / 2 - 1);
				r = 1;
			}
			world_free(&w);
		}
	return r;
}

/* Every 4 KiB of @memory begin with their number and @salt. */
static void mark(uint8_t *memory, uint64_t bytes, uint64_t salt)
{
	for (uint64_t at = 0; at < bytes; at += 4096)
		*(uint64_t *)(memory + at) = at ^ salt;
	memory[bytes - 1] = (uint8_t)salt;
}

static int marked(const uint8_t *memory, uint64_t bytes, uint64_t salt)
{
	for (uint64_t at = 0; at < bytes; at += 4096)
		if (*(const uint64_t *)(memory + at) != (at ^ salt)) {
			printf("FAILED: what came back at %llu is not what went\n", (unsigned long long)at);
			return 1;
		}
	if (memory[bytes - 1] != (uint8_t)salt) {
		printf("FAILED: the last byte of %llu did not come back\n", (unsigned long long)bytes);
		return 1;
	}
	return 0;
}

/* There and back with a value of @bytes at page @page of a pool of strides of @stride, on one path. */
static int there_and_back(uint8_t *segment, uint64_t memory, uint64_t stride, uint32_t page, uint64_t bytes, int path, uint64_t salt)
{
	const struct pfs_gpu_plane plane = {.base = memory, .stride = stride, .bytes = bytes};
	const struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = page + 1};
	const uint64_t value = (uintptr_t)segment;
	const struct pfs_gpu_copy c = {.pool = &pool, .values = &value, .pages = &page, .count = 1};
	int r = 0;

	for (int to_device = 1; to_device >= 0 && !r; to_device--) {
		struct pfs_gpu_op *op = NULL;

		if (to_device)
			mark(segment, bytes, salt);
		else
			mark(segment, bytes, ~salt); /* poison */
		if (work_start(gpu, &c, to_device, path, &op) || pfs_gpu_wait(op, 60000))
			r = complain("a large copy");
		pfs_gpu_end(&op);
	}
	return r ? r : marked(segment, bytes, salt);
}

/* Beyond 4 GiB and 2^31 16-byte words: a far page of a pool, and one value; the last byte of either is the pool's last or near it. */
static int large(void)
{
	const uint64_t value_bytes = (9ull << 29) + 4096, pool_bytes = FAR_PAGES * value_bytes;
	const uint32_t far_small = (uint32_t)(pool_bytes >> 20) - 1;
	uint8_t *segment = world_map(value_bytes);
	uint64_t memory = 0;
	int r = 0;

	if (lab_take(lab, pool_bytes, &memory)) {
		printf("skipped: copies beyond 4 GiB: the device has no %llu bytes\n", (unsigned long long)pool_bytes);
		return 0;
	}
	if (pfs_gpu_register(gpu, segment, value_bytes, 1))
		r = complain("registering 4.5 GiB");
	for (int path = -1; path < PATHS && !r; path++) {
		r = there_and_back(segment, memory, 1 << 20, far_small, 1 << 20, path, 0x5a5a5a5a5a00 + (uint64_t)path);
		if (!r)
			r = there_and_back(segment, memory, value_bytes, FAR_PAGES - 1, value_bytes, path, 0x123456789000 + (uint64_t)path);
		if (r)
			printf("        path %d\n", path);
	}
	if (pfs_gpu_unregister(gpu, segment, value_bytes, 1) && !r)
		r = complain("unregistering 4.5 GiB");
	lab_give(lab, memory);
	munmap(segment, value_bytes);
	return r;
}

/* Pages that the engine is still writing are gathered behind its event, on each path. */
static int after_an_event(bool small)
{
	const uint64_t bytes = small ? 2 << 20 : 64 << 20, page = 65536;
	uint8_t *segment = world_map(bytes);
	const uint32_t count = (uint32_t)(bytes / page);
	uint32_t *pages = malloc(count * sizeof(*pages));
	uint64_t *values = malloc(count * sizeof(*values)), memory = 0;
	struct pfs_gpu_plane plane = {.stride = page, .bytes = page};
	const struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = count};
	int r = lab_take(lab, bytes, &memory) || pfs_gpu_register(gpu, segment, bytes, 1) ? complain("memory") : 0;

	plane.base = memory;
	world_choose(&d, pages, count, count);
	for (uint32_t i = 0; i < count; i++)
		values[i] = (uintptr_t)segment + i * page;
	for (int path = -1; path < PATHS && !r; path++) {
		struct pfs_gpu_copy c = {.pool = &pool, .values = values, .pages = pages, .count = count};
		struct pfs_gpu_op *op = NULL;
		void *event;

		if (lab_set(lab, memory, 0x11, bytes) || lab_late_set(lab, memory, (uint8_t)(0x40 + path), bytes, &c.after) ||
			work_start(gpu, &c, false, path, &op) || pfs_gpu_event(op, 0, 0, &event) || lab_spin(lab, event) ||
			pfs_gpu_wait(op, 0))
			r = complain("gathering behind an event");
		pfs_gpu_end(&op);
		for (uint64_t i = 0; i < bytes && !r; i++)
			if (segment[i] != 0x40 + path) {
				printf("FAILED: byte %llu is 0x%x, not 0x%x, path %d\n", (unsigned long long)i, segment[i], 0x40 + path, path);
				r = 1;
			}
	}
	if (pfs_gpu_unregister(gpu, segment, bytes, 1) && !r)
		r = complain("unregistering");
	lab_give(lab, memory);
	munmap(segment, bytes);
	free(pages);
	free(values);
	return r;
}

/* Errors that only a device can say. */
static int errors(void)
{
	struct pfs_gpu_options o;
	struct pfs_gpu *other = NULL;
	char why[512];
	int r = 0;

	pfs_gpu_options_init(&o);
	o.device = 1000;
	if (pfs_gpu_open(&o, &other) != -ENODEV)
		r = complain("device 1000 should not be there");
	pfs_gpu_last_error(why, sizeof(why));
	printf("device 1000 is refused, as it should be: %s\n", why);
	if (pfs_gpu_register(gpu, (void *)(1ull << 40), 1 << 21, 1) == 0)
		r = complain("memory that is not there was registered");
	pfs_gpu_last_error(why, sizeof(why));
	printf("memory that is not there is refused, as it should be: %s\n", why);
	return r;
}

#define READ_BYTES (2u << 20)

/* What is mapped for reading alone comes to the device by each path, and is not written. */
static int reading(void)
{
	int file = memfd_create("check_twins", MFD_CLOEXEC), r = file < 0 || ftruncate(file, READ_BYTES);
	uint8_t *here = r ? MAP_FAILED : mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	uint8_t *memory = r ? MAP_FAILED : mmap(NULL, READ_BYTES, PROT_READ, MAP_SHARED, file, 0), *got = malloc(READ_BYTES);
	uint64_t device = 0, value = (uintptr_t)memory;
	struct pfs_gpu_plane plane = {.stride = READ_BYTES, .bytes = READ_BYTES};
	struct pfs_gpu_pool pool = {.planes = &plane, .plane_count = 1, .page_limit = 1};
	struct pfs_gpu_copy c = {.pool = &pool, .values = &value, .pages = (uint32_t[]){0}, .count = 1};
	struct pfs_gpu_op *op;

	if (r || here == MAP_FAILED || memory == MAP_FAILED || !got || lab_take(lab, READ_BYTES, &device))
		return complain("no memory");
	plane.base = device;
	dice_fill(&d, here, READ_BYTES);
	if (pfs_gpu_register(gpu, memory, READ_BYTES, 1))
		return complain("registering memory that can only be read");
	if (pfs_gpu_gather(gpu, &c, &op) != -EROFS)
		r = complain("a gather into memory that can only be read was not refused");
	for (int path = 0; path < PATHS && !r; path++) {
		if (lab_set(lab, device, 0x5a, READ_BYTES) || work_start(gpu, &c, true, path, &op))
			return complain("copying from memory that can only be read");
		if (pfs_gpu_wait(op, 0) || lab_read(lab, got, device, READ_BYTES) || memcmp(got, here, READ_BYTES))
			r = complain("what came from memory that can only be read differs");
		pfs_gpu_end(&op);
	}
	if (pfs_gpu_unregister(gpu, memory, READ_BYTES, 1))
		r = complain("unregistering memory that can only be read");
	lab_give(lab, device);
	munmap(here, READ_BYTES);
	munmap(memory, READ_BYTES);
	close(file);
	free(got);
	return r;
}

static bool told(int argc, char **argv, const char *word)
{
	for (int i = 3; i < argc; i++)
		if (!strcmp(argv[i], word))
			return true;
	return false;
}

/* Bytes that nobody copied into the ring are poison from the start: a kernel that reads them is seen in what it writes, and a checker
 * that does not know batched copies has nothing to say. */
static int open_poisoned(const char *kernels, const struct gpu_tuning *tuning)
{
	const struct backend_ops *ops;
	struct pfs_gpu_options o;
	int r = backend_select(kernels, &ops);

	pfs_gpu_options_init(&o);
	if (!r)
		r = lab_open(kernels, 0, &lab);
	if (!r)
		r = gpu_open_tuned(ops, &o, tuning, &gpu);
	return r ? r : lab_set(lab, gpu->backend->staging, 0xa7, PFS_GPU_STAGING_BYTES);
}

int main(int argc, char **argv)
{
	const char *kernels = argc > 1 ? argv[1] : NULL, *seed = getenv("SEED");
	uint32_t copies = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 500;
	bool small = told(argc, argv, "small");
	struct gpu_tuning tuning;
	struct pfs_gpu_info info;
	int r, failed = 0;
	char why[512];

	tuning_init(&tuning);
	tuning.turns |= told(argc, argv, "turns");
	if (told(argc, argv, "pieces")) {
		tuning.slots = STAGE_MAX_SLOTS;
		tuning.in_bytes = STAGE_MAX_SLOTS * STAGE_SLOT_BYTES;
		tuning.spin_bytes = 0;
	}
	r = open_poisoned(kernels, &tuning);
	if (r) {
		pfs_gpu_last_error(why, sizeof(why));
		printf("%s: %s\n", r == -ENODEV || r == -ENOTSUP ? "skipped" : "FAILED", why);
		return r == -ENODEV || r == -ENOTSUP ? SKIPPED : 1;
	}
	pfs_gpu_info(gpu, &info);
	d.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("%s on %s, compute capability %u, driver %u, mps %u; SEED=%llu\n", info.kernels, info.device_name, info.compute_capability,
		info.driver_version, info.mps, (unsigned long long)d.state);
	for (uint32_t i = 0; i < copies && failed < 5; i++)
		failed += random_copy(i);
	printf("%u random copies: %s\n", copies, failed ? "FAILED" : "ok");
	r = every_plane_size(small);
	printf("every plane size: %s\n", r ? "FAILED" : "ok");
	failed += r;
	r = after_an_event(small);
	printf("behind an event: %s\n", r ? "FAILED" : "ok");
	failed += r;
	r = reading();
	printf("memory that can only be read: %s\n", r ? "FAILED" : "ok");
	failed += r;
	if (!strcmp(info.kernels, "cuda"))
		failed += errors();
	if (!small && !strcmp(info.kernels, "cuda")) {
		r = large();
		printf("beyond 4 GiB: %s\n", r ? "FAILED" : "ok");
		failed += r;
	}
	pfs_gpu_info(gpu, &info);
	printf("rectangles: %llu staged, %llu bulk, %llu direct, %llu batched\n", (unsigned long long)info.copies[0],
		(unsigned long long)info.copies[1], (unsigned long long)info.copies[2], (unsigned long long)info.copies[3]);
	pfs_gpu_close(&gpu);
	lab_close(&lab);
	return failed != 0;
}
