/* SPDX-License-Identifier: Apache-2.0
 *
 * check_faults ref|cuda lost|full|shared: what goes wrong with a device. Each in a process of its own, for a context that is lost does not come
 * back. Exits with 77 where there is no GPU, and says why.
 *
 *   lost   a kernel traps while copies are under way: they end, and all calls say so from then on
 *   full   no memory of the device is left: at open, and for copies later
 *   shared memory that somebody else has registered, whole and in part
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/attach.h"
#include "kernels/lab.h"
#include "tests/kernels/fragile.h"
#include "tests/kernels/must.h"
#include "tests/unit/gpu_world.h"

#define SKIPPED 77
#define HANGS_S 120u
#define PAGE 65536u
#define OPS 8u
#define CHUNKS 4096u

static struct lab *lab;
static struct pfs_gpu *gpu;
static bool cuda;
static struct dice d = {.state = 88172645463325252ull};

static void says(const char *what, const char *words)
{
	char why[512];

	pfs_gpu_last_error(why, sizeof(why));
	printf("%s: %s\n", what, why);
	if (strstr(why, words))
		return;
	printf("FAILED: that does not say '%s'\n", words);
	exit(1);
}

static int open_device(void)
{
	struct pfs_gpu_options o;
	const struct backend_ops *ops;
	int r = backend_select(cuda ? "cuda" : "ref", &ops);

	pfs_gpu_options_init(&o);
	return r ? r : gpu_open_with(cuda ? ops : fragile_ops(), &o, &gpu);
}

/* Pages of one plane, in any order; of a segment whose second half is not theirs. */
struct memory {
	uint8_t *segment, *rest;
	uint64_t bytes, device;
	uint32_t count;
	uint64_t *values;
	uint32_t *pages;
	struct pfs_gpu_plane plane;
	struct pfs_gpu_pool pool;
	struct pfs_gpu_copy copy;
};

static void take(struct memory *m, uint64_t bytes)
{
	*m = (struct memory){.segment = world_map(2 * bytes), .bytes = bytes, .count = (uint32_t)(bytes / PAGE)};
	m->rest = malloc(bytes);
	m->values = malloc(m->count * sizeof(*m->values));
	m->pages = malloc(m->count * sizeof(*m->pages));
	dice_fill(&d, m->segment, 2 * bytes);
	memcpy(m->rest, m->segment + bytes, bytes);
	MUST(!lab_take(lab, bytes, &m->device));
	for (uint32_t i = 0; i < m->count; i++)
		m->values[i] = (uintptr_t)m->segment + (uint64_t)i * PAGE;
	world_choose(&d, m->pages, m->count, m->count);
	m->plane = (struct pfs_gpu_plane){.base = m->device, .stride = PAGE, .bytes = PAGE};
	m->pool = (struct pfs_gpu_pool){.planes = &m->plane, .plane_count = 1, .page_limit = m->count};
	m->copy = (struct pfs_gpu_copy){.pool = &m->pool, .values = m->values, .pages = m->pages, .count = m->count};
}

static void give(struct memory *m)
{
	MUST(!memcmp(m->rest, m->segment + m->bytes, m->bytes)); /* nobody wrote there */
	lab_give(lab, m->device);
	munmap(m->segment, 2 * m->bytes);
	free(m->rest);
	free(m->values);
	free(m->pages);
}

/* ---- lost ---------------------------------------------------------------------------------------------------------- */

/* The first one of each direction is held up, so none can have ended before the context is lost. */
static void start_all(struct memory *m, struct pfs_gpu_op **ops)
{
	void *held;

	MUST(!lab_hold(lab, 3000, &held));
	if (!cuda)
		fragile_set(true, false);
	for (uint32_t i = 0; i < OPS; i++) {
		struct pfs_gpu_copy copy = m->copy;

		copy.after = i < 2 ? held : NULL;
		copy.flags = i == OPS - 1 ? PFS_GPU_URGENT : 0;
		copy.count = i == OPS - 1 ? 16 : m->count;
		MUST(!work_start(gpu, &copy, i & 1, i < 4 ? PATH_STAGED : -1, &ops[i]));
	}
}

static void lose(void)
{
	if (cuda)
		MUST(!lab_trap(lab));
	else
		fragile_set(false, true);
}

static void all_calls_say_so(struct memory *m)
{
	struct pfs_gpu_op *op = NULL;
	struct pfs_gpu_info info;

	MUST(pfs_gpu_gather(gpu, &m->copy, &op) == -EIO && !op);
	says("a copy", "the device is lost, it has to be opened anew: ");
	m->copy.flags = PFS_GPU_URGENT;
	MUST(pfs_gpu_scatter(gpu, &m->copy, &op) == -EIO && !op);
	says("an urgent copy", "the device is lost, it has to be opened anew: ");
	MUST(pfs_gpu_register(gpu, m->rest, 4096, 7) == -EIO || (uintptr_t)m->rest % 4096);
	says("registering", "the device is lost, it has to be opened anew: ");
	MUST(!pfs_gpu_info(gpu, &info));
	MUST(info.registrations == 1);
	MUST(pfs_gpu_unregister(gpu, m->segment, 2 * m->bytes, 1) == -EIO);
	says("unregistering", "the device is lost, it has to be opened anew: ");
	MUST(!pfs_gpu_info(gpu, &info));
	MUST(info.registrations == 0);
}

static void lost(void)
{
	struct pfs_gpu_op *ops[OPS] = {NULL};
	uint32_t failed = 0;
	struct memory m;

	MUST(!open_device());
	take(&m, cuda ? 512ull << 20 : 8ull << 20);
	MUST(!pfs_gpu_register(gpu, m.segment, 2 * m.bytes, 1));
	start_all(&m, ops);
	lose();
	for (uint32_t i = 0; i < OPS; i++) {
		int r = pfs_gpu_wait(ops[i], 60000);

		MUST(r == 0 || r == -EIO);
		MUST(r || i >= 2); /* those that were held up */
		if (r && failed++ == 0)
			says("a copy under way", "CUDA_ERROR_");
		MUST(pfs_gpu_test(ops[i]) == r);
		pfs_gpu_end(&ops[i]);
	}
	printf("%u of %u copies ended with an error\n", failed, OPS);
	all_calls_say_so(&m);
	pfs_gpu_close(&gpu);
	give(&m);
	if (!cuda)
		fragile_set(false, false);
	lab_close(&lab); /* the context's last holder */
	if (open_device()) {
		char why[512];

		pfs_gpu_last_error(why, sizeof(why));
		printf("opened anew in the same process: %s\n", why);
		return;
	}
	printf("opened anew in the same process: it works\n");
	pfs_gpu_close(&gpu);
}

/* ---- full ---------------------------------------------------------------------------------------------------------- */

static uint64_t chunks[CHUNKS];
static uint32_t chunk_count;

/* All that is left, down to pieces of @least bytes. */
static void fill_device(uint64_t least)
{
	for (uint64_t bytes = 4ull << 30; bytes >= least; bytes /= 2)
		while (chunk_count < CHUNKS && !lab_take(lab, bytes, &chunks[chunk_count]))
			chunk_count++;
}

static void empty_device(void)
{
	while (chunk_count > 0)
		lab_give(lab, chunks[--chunk_count]);
}

/* There and back on each path. */
static uint32_t copy_on_all_paths(struct memory *m)
{
	uint8_t *want = malloc(m->bytes);
	uint32_t refused = 0;

	for (int path = -1; path < PATHS; path++) {
		int r = 0;

		dice_fill(&d, m->segment, m->bytes);
		memcpy(want, m->segment, m->bytes);
		for (int to_device = 1; to_device >= 0 && !r; to_device--) {
			struct pfs_gpu_op *op = NULL;

			r = work_start(gpu, &m->copy, to_device, path, &op);
			if (!r)
				r = pfs_gpu_wait(op, 60000);
			pfs_gpu_end(&op);
			if (!r && to_device)
				memset(m->segment, 0xa5, m->bytes);
		}
		if (r) {
			MUST(r == -ENOMEM);
			says("a copy without memory", "");
			refused++;
		} else {
			MUST(!memcmp(want, m->segment, m->bytes));
		}
	}
	free(want);
	return refused;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static void full_at_open(void)
{
	int r;

	if (!cuda && SANITIZED) {
		printf("  opening without memory: skipped: a sanitizer's program does not fit so little memory\n");
		return;
	}
	if (cuda)
		fill_device(1 << 20);
	else
		MUST(!setrlimit(RLIMIT_AS, &(struct rlimit){1, RLIM_INFINITY}));
	r = open_device();
	if (!cuda)
		MUST(!setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}));
	MUST(r == -ENOMEM && !gpu);
	says("opening without memory", cuda ? "" : "no memory for a ring of 67108864 bytes");
	empty_device();
}

/* Memory that is there, but too little for the ring. */
static void nearly_full_at_open(void)
{
	uint64_t left = 0;

	if (!cuda)
		return;
	MUST(!lab_take(lab, 48ull << 20, &left));
	fill_device(1 << 20);
	lab_give(lab, left);
	if (open_device())
		says("opening with 48 MiB", "");
	else
		printf("FAILED: it opened with 48 MiB\n"), exit(1);
	empty_device();
}

static void full(void)
{
	struct memory m;

	full_at_open();
	nearly_full_at_open();
	MUST(!open_device());
	take(&m, cuda ? 64ull << 20 : 8ull << 20);
	MUST(!pfs_gpu_register(gpu, m.segment, 2 * m.bytes, 1));
	if (cuda)
		fill_device(1 << 16);
	printf("copies without memory: %u of %u paths were refused\n", copy_on_all_paths(&m), PATHS + 1u);
	empty_device();
	MUST(copy_on_all_paths(&m) == 0);
	MUST(!pfs_gpu_unregister(gpu, m.segment, 2 * m.bytes, 1));
	give(&m);
	pfs_gpu_close(&gpu);
	lab_close(&lab);
}

/* ---- shared ---------------------------------------------------------------------------------------------------------- */

static struct pfs_gpu *other; /* another user of the device */

static uint32_t registrations(void)
{
	struct pfs_gpu_info info;

	MUST(!pfs_gpu_info(gpu, &info));
	return info.registrations;
}

/* The other one has registered @bytes at @from of @m. What is refused leaves nothing registered: the other one can have the rest. */
static void refused(struct memory *m, uint64_t from, uint64_t bytes, uint64_t hole)
{
	struct pfs_gpu_op *op;
	uint64_t end = from + bytes;
	char words[200];

	snprintf(words, sizeof(words), "%llu bytes at 0x%llx: somebody has registered a part of them, not what is at 0x%llx",
		(unsigned long long)(2 * m->bytes), (unsigned long long)(uintptr_t)m->segment, (unsigned long long)(uintptr_t)(m->segment + hole));
	MUST(!pfs_gpu_register(other, m->segment + from, bytes, 1));
	MUST(pfs_gpu_register(gpu, m->segment, 2 * m->bytes, 1) == -EINVAL);
	says("registering what is registered in part", words);
	MUST(registrations() == 0);
	MUST(pfs_gpu_scatter(gpu, &m->copy, &op) == -EFAULT);
	MUST(from == 0 || !pfs_gpu_register(other, m->segment, from, 1));
	MUST(end == 2 * m->bytes || !pfs_gpu_register(other, m->segment + end, 2 * m->bytes - end, 1));
	MUST(pfs_gpu_register(gpu, m->segment, 2 * m->bytes, 1) == -EINVAL);
	says("registering what is registered in pieces", "somebody has registered them in several pieces, one up to 0x");
	MUST(registrations() == 0);
	MUST(from == 0 || !pfs_gpu_unregister(other, m->segment, from, 1));
	MUST(end == 2 * m->bytes || !pfs_gpu_unregister(other, m->segment + end, 2 * m->bytes - end, 1));
	MUST(!pfs_gpu_unregister(other, m->segment + from, bytes, 1)); /* it was theirs still */
}

/* In one piece, ours all of it, or in the midst; in two pieces, each of which is ours. */
static void accepted(struct memory *m)
{
	MUST(!pfs_gpu_register(other, m->segment, 2 * m->bytes, 1));
	MUST(!pfs_gpu_register(gpu, m->segment + PAGE, PAGE, 1));
	MUST(!pfs_gpu_unregister(gpu, m->segment + PAGE, PAGE, 1));
	MUST(!pfs_gpu_register(gpu, m->segment, 2 * m->bytes, 1));
	MUST(copy_on_all_paths(m) == 0);
	MUST(!pfs_gpu_unregister(gpu, m->segment, 2 * m->bytes, 1));
	MUST(!pfs_gpu_unregister(other, m->segment, 2 * m->bytes, 1));
	MUST(!pfs_gpu_register(other, m->segment, PAGE, 1));
	MUST(!pfs_gpu_register(other, m->segment + PAGE, m->bytes, 1));
	MUST(!pfs_gpu_register(gpu, m->segment, PAGE, 1));
	MUST(!pfs_gpu_register(gpu, m->segment + PAGE, m->bytes, 1));
	MUST(copy_on_all_paths(m) == 0); /* neighbours in two registrations among them */
	MUST(!pfs_gpu_unregister(gpu, m->segment + PAGE, m->bytes, 1));
	MUST(!pfs_gpu_unregister(gpu, m->segment, PAGE, 1));
	MUST(!pfs_gpu_unregister(other, m->segment + PAGE, m->bytes, 1));
	MUST(!pfs_gpu_unregister(other, m->segment, PAGE, 1));
}

/* Memory that is mapped read-only is known to the driver as other memory is. */
static void accepted_for_reading(struct memory *m)
{
	MUST(!mprotect(m->segment, m->bytes, PROT_READ));
	if (pfs_gpu_register(other, m->segment, m->bytes, 1)) {
		says("registering what can only be read", "the device cannot register such memory");
	} else {
		MUST(!pfs_gpu_register(gpu, m->segment, m->bytes, 1));
		MUST(!pfs_gpu_unregister(gpu, m->segment, m->bytes, 1));
		MUST(!pfs_gpu_unregister(other, m->segment, m->bytes, 1));
	}
	MUST(!mprotect(m->segment, m->bytes, PROT_READ | PROT_WRITE));
}

/* Which part of it others have registered only a driver can tell. */
static void shared(void)
{
	struct memory m;

	MUST(!open_device());
	other = gpu;
	gpu = NULL;
	MUST(!open_device());
	take(&m, 8ull << 20);
	accepted(&m);
	accepted_for_reading(&m);
	if (cuda) {
		refused(&m, 0, m.bytes, m.bytes);
		refused(&m, m.bytes, m.bytes, 0);
		refused(&m, PAGE, m.bytes, 0);
	}
	MUST(registrations() == 0);
	MUST(!pfs_gpu_register(gpu, m.segment, 2 * m.bytes, 1)); /* ours alone */
	MUST(copy_on_all_paths(&m) == 0);
	MUST(!pfs_gpu_unregister(gpu, m.segment, 2 * m.bytes, 1));
	give(&m);
	pfs_gpu_close(&other);
	pfs_gpu_close(&gpu);
	lab_close(&lab);
}

int main(int argc, char **argv)
{
	char why[512];
	int r;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc == 3);
	cuda = !strcmp(argv[1], "cuda");
	r = lab_open(argv[1], 0, &lab);
	if (r) {
		pfs_gpu_last_error(why, sizeof(why));
		printf("%s: %s\n", r == -ENODEV || r == -ENOTSUP ? "skipped" : "FAILED", why);
		return r == -ENODEV || r == -ENOTSUP ? SKIPPED : 1;
	}
	alarm(HANGS_S); /* that nothing hangs is a part of it */
	if (!strcmp(argv[2], "lost"))
		lost();
	else if (!strcmp(argv[2], "shared"))
		shared();
	else
		full();
	printf("%s: ok\n", argv[2]);
	return 0;
}
