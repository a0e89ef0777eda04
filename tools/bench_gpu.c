/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: values to and from a GPU, beside the largest copies of the same run.
 */
#include "tools/bench_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/attach.h"

#define FILL_BYTES (32ull << 20)

static const char more[] =
	"\nMemory of its own, registered; values of planes of one size whose pages lie in random order. Each figure is one JSON object\n"
	"a line, as of bench control; rates are bytes moved, submission included, over the largest copies (1 GiB) measured right\n"
	"before and after; `disturbed` pairs, whose ceilings fell short of the run's best by over 3 %, were taken again. With\n"
	"--kernels ref plain C does it on ordinary memory, which only shows that it runs.\n"
	"\nFigures: h2d_ceiling_gbps, d2h_ceiling_gbps, h2d_ratio_BYTES, d2h_ratio_BYTES (planes of 1168 bytes and 4 KiB to 2 MiB; with\n"
	"--paths each path, a copy a plane and one batched call as well), duplex_ratio (both ways at once, over one way),\n"
	"h2d_gbps_BYTES_of_SIZE, d2h_..., duplex_... (copies of 4M to 256M; over a plain one of as many bytes; with --paths as above),\n"
	"small_restore_us (a value of 4.5 MiB, from call to event; _beside: beside copies), cpu_ms_per_gib,\n"
	"interference_LOOP_WAY_PATH_RATE (a loop of other work beside copies, over the loop alone), upload_p99_us (64 KiB beside copies;\n"
	"_plain: beside large plain ones, _pieces: of 16 MiB, _2gbps: at that rate),\n"
	"register_64gib_s (each backing, pages that were made before, as a daemon makes those that it grants; `first`, `again`: new ones;\n"
	"hugetlb pages have to be reserved first: vm.nr_hugepages),\n"
	"e2e_put_ratio, e2e_get_ratio (through a daemon, over the copy alone), attach_s_per_gib.";

int bench_gpu_complain(const char *what)
{
	char why[512];

	pfs_gpu_last_error(why, sizeof(why));
	return complain("%s: %s", what, why);
}

/* ---- memory and values --------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	return x * 0xc4ceb9fe1a85ec53ull;
}

uint64_t bench_planes_of(uint64_t plane_bytes)
{
	uint64_t planes = (4ull << 20) / plane_bytes;

	return planes > 72 ? 72 : planes < 2 ? 2 : planes;
}

static int take_lists(struct bench_values *v, uint64_t planes, uint32_t count)
{
	v->planes = calloc(planes, sizeof(*v->planes));
	v->values = malloc(count * sizeof(*v->values));
	v->pages = malloc(count * sizeof(*v->pages));
	return v->planes && v->values && v->pages ? 0 : complain("no memory for %u values", count);
}

int bench_values_make(struct bench_gpu *b, uint64_t plane_bytes, uint64_t planes, unsigned half, uint64_t bytes, struct bench_values *v)
{
	uint64_t slot = (plane_bytes * planes + 4095) / 4096 * 4096;
	uint32_t count = (uint32_t)(bytes / slot);

	*v = (struct bench_values){.bytes = count * plane_bytes * planes};
	if (count == 0)
		return complain("--bytes has no room for one value of %llu", (unsigned long long)slot);
	if (take_lists(v, planes, count)) {
		bench_values_free(v);
		return 1;
	}
	for (uint64_t i = 0; i < planes; i++)
		v->planes[i] = (struct pfs_gpu_plane){
			.base = b->planes + half * b->bytes + i * count * plane_bytes, .stride = plane_bytes, .bytes = plane_bytes};
	for (uint32_t i = 0; i < count; i++) {
		uint32_t other = (uint32_t)(mix(i) % (i + 1));

		v->values[i] = (uintptr_t)b->host + half * b->bytes + i * slot;
		v->pages[i] = v->pages[other]; /* a shuffle from the inside out */
		v->pages[other] = i;
	}
	v->pool = (struct pfs_gpu_pool){.planes = v->planes, .plane_count = (uint32_t)planes, .page_limit = count};
	v->copy = (struct pfs_gpu_copy){.pool = &v->pool, .values = v->values, .pages = v->pages, .count = count};
	return 0;
}

void bench_values_free(struct bench_values *v)
{
	free(v->planes);
	free(v->values);
	free(v->pages);
	*v = (struct bench_values){0};
}

int bench_copy(struct bench_gpu *b, struct bench_values *v, bool to_device, int path, double *seconds)
{
	struct pfs_gpu_op *op = NULL;
	uint64_t begin = clock_ns();
	int r;

	v->copy.pool = &v->pool; /* it may have been moved */
	r = work_start(b->gpu, &v->copy, to_device, path, &op);
	if (!r)
		r = pfs_gpu_wait(op, 60000);
	*seconds = (double)(clock_ns() - begin) / 1e9;
	pfs_gpu_end(&op);
	return r ? bench_gpu_complain("copying") : 0;
}

int bench_path(const struct bench_gpu *b)
{
	int path = 0;

	while (b->path && path < PATHS && strcmp(b->path, path_name((enum gpu_path)path)))
		path++;
	return b->path && path < PATHS ? path : -1;
}

bool bench_gpu_wants(struct bench_gpu *b, const char *figure)
{
	if (!bench_wants(&b->o, figure))
		return false;
	b->found++;
	return !b->looking;
}

/* ---- the command ------------------------------------------------------------------------------------------------------ */

void bench_gpu_fill(uint8_t *memory, uint64_t bytes)
{
	uint64_t first = bytes < FILL_BYTES ? bytes : FILL_BYTES;

	for (uint64_t i = 0; i < first; i += 8)
		*(uint64_t *)(memory + i) = mix(i);
	for (uint64_t at = first; at < bytes; at += first)
		memcpy(memory + at, memory, bytes - at < first ? bytes - at : first);
	for (uint64_t at = 0; at < bytes; at += 512)
		*(uint64_t *)(memory + at) = mix(at ^ bytes);
}

/* Of hugetlb pages where the host has enough of them free. */
static void *take_pages(uint64_t bytes, bool *hugetlb)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	*hugetlb = memory != MAP_FAILED;
	if (*hugetlb)
		return memory;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

static int take_memory(struct bench_gpu *b)
{
	b->host = take_pages(2 * b->bytes, &b->hugetlb);
	if (!b->host)
		return complain("no memory for 2 x %llu bytes", (unsigned long long)b->bytes);
	if (pfs_gpu_register(b->gpu, b->host, 2 * b->bytes, 1))
		return bench_gpu_complain("registering");
	bench_gpu_fill(b->host, 2 * b->bytes);
	return lab_take(b->lab, 2 * b->bytes, &b->planes) ? bench_gpu_complain("memory of the device") : 0;
}

static struct gpu_tuning tuning_of(const struct bench_gpu *b)
{
	struct gpu_tuning t;

	tuning_init(&t);
	t.in_bytes = b->ring_in ? b->ring_in : t.in_bytes;
	t.slots = b->slots ? (uint32_t)b->slots : t.slots;
	t.spin_us = b->spin != UINT64_MAX ? (uint32_t)b->spin : t.spin_us;
	t.copy_lanes = b->lanes ? (uint32_t)b->lanes : t.copy_lanes;
	t.ahead = b->ahead ? (uint32_t)b->ahead : t.ahead;
	t.gap = b->gap != UINT64_MAX ? b->gap : t.gap;
	t.turns |= b->turns;
	t.kernels_first |= b->kernels_first;
	t.prefer_overlap |= b->prefer_overlap;
	for (int i = 0; i < KERNELS; i++)
		t.blocks[i] = (uint32_t)b->blocks[i];
	return t;
}

static int open_device(struct bench_gpu *b, const struct gpu_tuning *t)
{
	const struct backend_ops *ops;
	struct pfs_gpu_options o;

	pfs_gpu_options_init(&o);
	o.device = (int32_t)b->device;
	if (backend_select(b->kernels, &ops) || lab_open(b->kernels, (int)b->device, &b->lab) || gpu_open_tuned(ops, &o, t, &b->gpu))
		return bench_gpu_complain("opening the device");
	return 0;
}

static int begin(struct bench_gpu *b)
{
	struct gpu_tuning t = tuning_of(b);
	struct pfs_gpu_info info;

	if (open_device(b, &t) || take_memory(b))
		return 1;
	pfs_gpu_info(b->gpu, &info);
	bench_print(&b->o, "gpu_staging_mib", (double)info.staging_bytes / (1 << 20), "MiB", 0,
		json_pack("{s:s, s:s, s:i, s:i, s:b, s:b, s:I, s:i, s:i, s:s, s:i, s:b, s:i, s:b, s:b, s:[iii]}", "kernels", info.kernels,
			"device", info.device_name, "capability", (int)info.compute_capability, "driver", (int)info.driver_version, "mps",
			(int)info.mps, "hugetlb", (int)b->hugetlb, "ring_in", (json_int_t)t.in_bytes, "ring_slots", (int)t.slots, "spin_us",
			(int)t.spin_us, "path", b->path ? b->path : "chosen", "copy_lanes", (int)t.copy_lanes, "turns", (int)t.turns, "ahead",
			(int)t.ahead, "kernels_first", (int)t.kernels_first, "prefer_overlap", (int)t.prefer_overlap, "blocks", (int)b->gpu->backend->blocks[0], (int)b->gpu->backend->blocks[1],
			(int)b->gpu->backend->blocks[2]));
	return 0;
}

static void end(struct bench_gpu *b)
{
	if (b->lab)
		lab_give(b->lab, b->planes);
	pfs_gpu_close(&b->gpu);
	lab_close(&b->lab);
	if (b->host)
		munmap(b->host, 2 * b->bytes);
}

static int figures(struct bench_gpu *b)
{
	int r = bench_gpu_rates(b);

	if (!r)
		r = bench_gpu_batches(b);
	if (!r)
		r = bench_gpu_beside(b);
	if (!r)
		r = bench_gpu_register(b);
	return r ? r : bench_gpu_daemon(b);
}

/* A --figure that means nothing is found out before a device is asked for. */
static bool known(struct bench_gpu *b)
{
	b->looking = true;
	figures(b);
	b->looking = false;
	return b->found > 0;
}

int bench_gpu(const struct command *self, int argc, char **argv)
{
	struct bench_gpu b = {.bytes = 2ull << 30, .register_bytes = 8ull << 30, .memory = 6ull << 30, .gap = UINT64_MAX, .spin = UINT64_MAX};
	bool json = false;
	const struct option_row rows[] = {
		{"kernels", OPTION_TEXT, &b.kernels, "NAME", "cuda or ref ($PFS_KERNELS, else cuda)", 0, 0},
		{"device", OPTION_NUMBER, &b.device, "N", "ordinal of the device (0)", 0, 1023},
		{"bytes", OPTION_BYTES, &b.bytes, "SIZE", "moved for each figure (2G)", 16 << 20, 64ull << 30},
		{"register-bytes", OPTION_BYTES, &b.register_bytes, "SIZE", "registered, and scaled to 64 GiB (8G)", 2 << 20, 64ull << 30},
		{"memory", OPTION_BYTES, &b.memory, "SIZE", "of the daemon that is started (6G)", 64 << 20, 0},
		{"ring-blocks", OPTION_NUMBER, &b.blocks[KERNEL_RING], "N", "of kernels between ring and planes", 1, 1024},
		{"bulk-blocks", OPTION_NUMBER, &b.blocks[KERNEL_BULK], "N", "of bulk kernels", 1, 1024},
		{"bus-blocks", OPTION_NUMBER, &b.blocks[KERNEL_BUS], "N", "of kernels across the bus", 1, 1024},
		{"ring-in", OPTION_BYTES, &b.ring_in, "SIZE", "of the ring's 59M, for the way to the device (32M)", 2 * STAGE_SLOT_BYTES,
			STAGE_RING_BYTES - 2 * STAGE_SLOT_BYTES},
		{"ring-slots", OPTION_NUMBER, &b.slots, "N", "that a direction's share of the ring is cut into", 2, STAGE_MAX_SLOTS},
		{"copy-lanes", OPTION_NUMBER, &b.lanes, "N", "that copies of a direction take in turn", 1, COPY_LANES},
		{"turns", OPTION_FLAG, &b.turns, NULL, "copy lanes wait for each other", 0, 0},
		{"ahead", OPTION_NUMBER, &b.ahead, "N", "turns of the ring submitted ahead of the device", 2, MIRRORS},
		{"kernels-first", OPTION_FLAG, &b.kernels_first, NULL, "kernels of the ring at the highest priority", 0, 0},
		{"prefer-overlap", OPTION_FLAG, &b.prefer_overlap, NULL, "batches leave compute work alone", 0, 0},
		{"gap", OPTION_BYTES, &b.gap, "SIZE", "between values, that is copied rather than cut out (4K)", 0, 4096},
		{"paths", OPTION_FLAG, &b.paths, NULL, "each path by itself, and what one would write otherwise", 0, 0},
		{"spin", OPTION_NUMBER, &b.spin, "US", "that threads look for an end that is near before they sleep (1000)", 0, 10000},
		{"times", OPTION_FLAG, &b.times, NULL, "where the time of copies and of registration goes", 0, 0},
		{"path", OPTION_TEXT, &b.path, "NAME", "that copies take: staged, bulk, direct or batched", 0, 0},
		{"backing", OPTION_TEXT, &b.backing, "NAME", "that registration is measured with: hugetlb, thp or 4k (each)", 0, 0},
		{"figure", OPTION_TEXT, &b.o.figure, "NAME", "only figures whose names begin so; several with commas", 0, 0},
		{"mount", OPTION_TEXT, &b.o.mount, "DIR", "a mount to measure instead of one of its own", 0, 0},
		{"human", OPTION_FLAG, &b.o.human, NULL, "aligned text instead of JSON", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line (the default)", 0, 0},
		{0},
	};
	struct command with_more = *self;
	int r;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	b.bytes = b.bytes / (2 << 20) * (2 << 20);
	if (b.path && bench_path(&b) < 0)
		return usage_error(self, "there is no path '%s'", b.path);
	if (!known(&b))
		return usage_error(self, "no figure begins with '%s'", b.o.figure);
	r = begin(&b);
	if (!r)
		r = figures(&b);
	end(&b);
	return r;
}
