/* SPDX-License-Identifier: Apache-2.0
 *
 * bench gpu: values to and from a GPU, beside the largest copies of the same run.
 */
#include "tools/bench_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char more[] =
	"\nMemory of its own, registered; values of planes of one size whose pages lie in random order. Each figure is one JSON object\n"
	"a line, as of bench control; rates are bytes moved, submission included, over the largest copies (1 GiB) measured just\n"
	"before. With --kernels ref plain C does it on ordinary memory, which only shows that it runs.\n"
	"\nFigures: h2d_ceiling_gbps, d2h_ceiling_gbps, h2d_ratio_BYTES, d2h_ratio_BYTES (planes of 1168 bytes and 4 KiB to 2 MiB; with\n"
	"--paths each path, a copy a plane and one batched call as well), duplex_ratio (both ways at once, over one way),\n"
	"small_restore_us (a value of 4.5 MiB, from call to event), cpu_ms_per_gib, interference_LOOP_WAY_PATH_RATE (a loop of other work\n"
	"beside copies, over the loop alone), upload_p99_us (64 KiB beside copies), register_64gib_s (each backing),\n"
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

int bench_rate(struct bench_gpu *b, struct bench_values *v, bool to_device, int path, double *ret)
{
	double took[BENCH_GPU_TURNS];
	int r = bench_copy(b, v, to_device, path, &took[0]);

	for (uint32_t i = 0; i < BENCH_GPU_TURNS && !r; i++)
		r = bench_copy(b, v, to_device, path, &took[i]);
	*ret = r ? 0 : (double)v->bytes / 1e9 / bench_median(took, BENCH_GPU_TURNS);
	return r;
}

int bench_ceiling(struct bench_gpu *b, bool to_device, double *ret)
{
	uint64_t bytes = b->bytes < 1ull << 30 ? b->bytes : 1ull << 30;
	const struct gpu_entry entry = {b->planes, (uintptr_t)b->host, bytes};
	double took[BENCH_GPU_TURNS];

	for (uint32_t i = 0; i < BENCH_GPU_TURNS; i++) {
		uint64_t begin = clock_ns();

		if (lab_copy(b->lab, to_device, &entry, 1, false) || lab_finish(b->lab, to_device))
			return bench_gpu_complain("the largest copies");
		took[i] = (double)(clock_ns() - begin) / 1e9;
	}
	*ret = (double)bytes / 1e9 / bench_median(took, BENCH_GPU_TURNS);
	b->ceiling[to_device] = *ret;
	return 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------------ */

static int take_memory(struct bench_gpu *b)
{
	b->host = mmap(NULL, 2 * b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->host == MAP_FAILED) {
		b->host = NULL;
		return complain("no memory for 2 x %llu bytes", (unsigned long long)b->bytes);
	}
	madvise(b->host, 2 * b->bytes, MADV_HUGEPAGE);
	if (pfs_gpu_register(b->gpu, b->host, 2 * b->bytes, 1))
		return bench_gpu_complain("registering");
	for (uint64_t i = 0; i < 2 * b->bytes; i += 8)
		*(uint64_t *)(b->host + i) = mix(i);
	return lab_take(b->lab, 2 * b->bytes, &b->planes) ? bench_gpu_complain("memory of the device") : 0;
}

static int begin(struct bench_gpu *b)
{
	struct pfs_gpu_options o;
	struct pfs_gpu_info info;

	pfs_gpu_options_init(&o);
	o.kernels = b->kernels;
	o.device = (int32_t)b->device;
	if (lab_open(b->kernels, (int)b->device, &b->lab) || pfs_gpu_open(&o, &b->gpu))
		return bench_gpu_complain("opening the device");
	for (int i = 0; i < KERNELS; i++)
		if (b->blocks[i])
			b->gpu->backend->blocks[i] = (uint32_t)b->blocks[i];
	if (b->gap != UINT64_MAX)
		b->gpu->gap = b->gap;
	pfs_gpu_info(b->gpu, &info);
	bench_print(&b->o, "gpu_staging_mib", (double)info.staging_bytes / (1 << 20), "MiB", 0,
		json_pack("{s:s, s:s, s:i, s:i, s:b}", "kernels", info.kernels, "device", info.device_name, "capability",
			(int)info.compute_capability, "driver", (int)info.driver_version, "mps", (int)info.mps));
	return take_memory(b);
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

int bench_gpu(const struct command *self, int argc, char **argv)
{
	struct bench_gpu b = {.bytes = 2ull << 30, .register_bytes = 8ull << 30, .memory = 6ull << 30, .gap = UINT64_MAX};
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
		{"gap", OPTION_BYTES, &b.gap, "SIZE", "between values, that is copied rather than cut out (4K)", 0, 4096},
		{"paths", OPTION_FLAG, &b.paths, NULL, "each path by itself, and what one would write otherwise", 0, 0},
		{"figure", OPTION_TEXT, &b.o.figure, "NAME", "only figures whose names begin so", 0, 0},
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
	r = begin(&b);
	if (!r)
		r = bench_gpu_rates(&b);
	if (!r)
		r = bench_gpu_beside(&b);
	if (!r)
		r = bench_gpu_register(&b);
	if (!r)
		r = bench_gpu_daemon(&b);
	end(&b);
	return r;
}
