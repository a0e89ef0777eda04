/* SPDX-License-Identifier: Apache-2.0
 *
 * The laboratory on a GPU: a context's worth of plain CUDA.
 */
#include <errno.h>
#include <stdlib.h>

#include "kernels/cuda_api.h"
#include "kernels/lab_ops.h"
#include "kernels/say.h"

#define LOOP_BYTES (4ull << 30) /* half read, half written, many times the caches */
#define MATRIX 4096u

extern const unsigned char lab_image[];

struct lab_gpu {
	struct lab lab; /* first */
	const struct cuda_api *api;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction memory, matrix, hold, scribble, trap;
	CUstream copies[2], work; /* copies[to_device] */
	CUevent begin, end;
	CUdeviceptr loop; /* LOOP_BYTES, taken when it is needed first */
	int processors;
};

static struct lab_gpu *of(struct lab *lab)
{
	return (struct lab_gpu *)lab;
}

/* The context stays current: this is a program's own thread. */
static int said(struct lab_gpu *l, CUresult r, const char *what)
{
	return r ? cuda_said(l->api, r, what) : 0;
}

static CUresult set_up(struct lab_gpu *l, int device)
{
	const struct cuda_api *a = l->api;
	CUresult r = a->p_cuDeviceGet(&l->device, device);

	if (!r)
		r = a->p_cuDevicePrimaryCtxRetain(&l->context, l->device);
	if (!r)
		r = a->p_cuCtxPushCurrent(l->context);
	if (!r)
		r = a->p_cuModuleLoadData(&l->module, lab_image);
	if (!r)
		r = a->p_cuModuleGetFunction(&l->memory, l->module, "lab_memory");
	if (!r)
		r = a->p_cuModuleGetFunction(&l->matrix, l->module, "lab_matrix");
	if (!r)
		r = a->p_cuModuleGetFunction(&l->hold, l->module, "lab_hold");
	if (!r)
		r = a->p_cuModuleGetFunction(&l->scribble, l->module, "lab_scribble");
	if (!r)
		r = a->p_cuModuleGetFunction(&l->trap, l->module, "lab_trap");
	for (int i = 0; i < 2 && !r; i++)
		r = a->p_cuStreamCreateWithPriority(&l->copies[i], CU_STREAM_NON_BLOCKING, 0);
	if (!r)
		r = a->p_cuStreamCreateWithPriority(&l->work, CU_STREAM_NON_BLOCKING, 0);
	if (!r)
		r = a->p_cuEventCreate(&l->begin, CU_EVENT_DEFAULT);
	if (!r)
		r = a->p_cuEventCreate(&l->end, CU_EVENT_DEFAULT);
	if (!r)
		r = a->p_cuDeviceGetAttribute(&l->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, l->device);
	return r;
}

static int gpu_open(int device, struct lab **ret)
{
	struct lab_gpu *l = calloc(1, sizeof(*l));
	int r = l ? cuda_load(&l->api) : gpu_say(ENOMEM, "no memory");

	if (!r)
		r = said(l, set_up(l, device), "opening the device");
	if (r) {
		free(l);
		return r;
	}
	*ret = &l->lab;
	return 0;
}

static void gpu_close(struct lab *lab)
{
	struct lab_gpu *l = of(lab);

	if (l->loop)
		l->api->p_cuMemFree(l->loop);
	for (int i = 0; i < 2; i++)
		l->api->p_cuStreamDestroy(l->copies[i]);
	l->api->p_cuStreamDestroy(l->work);
	l->api->p_cuEventDestroy(l->begin);
	l->api->p_cuEventDestroy(l->end);
	l->api->p_cuModuleUnload(l->module);
	l->api->p_cuDevicePrimaryCtxRelease(l->device);
	free(l);
}

static int gpu_take(struct lab *lab, uint64_t bytes, uint64_t *ret)
{
	CUdeviceptr memory = 0;
	int r = said(of(lab), of(lab)->api->p_cuMemAlloc(&memory, bytes), "taking memory of the device");

	*ret = memory;
	return r;
}

static void gpu_give(struct lab *lab, uint64_t memory)
{
	of(lab)->api->p_cuMemFree(memory);
}

static int gpu_finish(struct lab *lab, bool to_device)
{
	return said(of(lab), of(lab)->api->p_cuStreamSynchronize(of(lab)->copies[to_device]), "waiting for copies");
}

static int gpu_write(struct lab *lab, uint64_t device, const void *from, uint64_t bytes)
{
	int r = said(of(lab), of(lab)->api->p_cuMemcpyHtoDAsync(device, from, bytes, of(lab)->copies[1]), "writing to the device");

	return r ? r : gpu_finish(lab, true);
}

static int gpu_read(struct lab *lab, void *to, uint64_t device, uint64_t bytes)
{
	int r = said(of(lab), of(lab)->api->p_cuMemcpyDtoHAsync(to, device, bytes, of(lab)->copies[0]), "reading from the device");

	return r ? r : gpu_finish(lab, false);
}

static int gpu_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes)
{
	int r = said(of(lab), of(lab)->api->p_cuMemsetD8Async(device, byte, bytes, of(lab)->copies[1]), "filling memory of the device");

	return r ? r : gpu_finish(lab, true);
}

static bool gpu_batches(const struct lab *lab)
{
	const struct lab_gpu *l = (const struct lab_gpu *)lab;

	return l->api->batch_12 || l->api->batch_13;
}

static CUresult copy_all_at_once(struct lab_gpu *l, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr *lists = malloc(3 * (size_t)count * sizeof(*lists)), *to = lists, *from = lists + count;
	size_t *bytes = (size_t *)(lists + 2 * (size_t)count), place = 0, failed;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	for (uint32_t i = 0; lists && i < count; i++) {
		to[i] = to_device ? entries[i].device : entries[i].host;
		from[i] = to_device ? entries[i].host : entries[i].device;
		bytes[i] = entries[i].bytes;
	}
	if (lists && l->api->batch_13)
		r = l->api->batch_13(to, from, bytes, count, &attributes, &place, 1, l->copies[to_device]);
	else if (lists)
		r = l->api->batch_12(to, from, bytes, count, &attributes, &place, 1, &failed, l->copies[to_device]);
	free(lists);
	return r;
}

static int gpu_copy(struct lab *lab, bool to_device, const struct gpu_entry *entries, uint32_t count, bool batched)
{
	struct lab_gpu *l = of(lab);
	CUresult r = CUDA_SUCCESS;

	if (batched && gpu_batches(lab))
		return said(l, copy_all_at_once(l, to_device, entries, count), "copying in a batch");
	for (uint32_t i = 0; i < count && !r; i++) {
		void *host = (void *)(uintptr_t)entries[i].host;

		r = to_device ? l->api->p_cuMemcpyHtoDAsync(entries[i].device, host, entries[i].bytes, l->copies[1]) :
				l->api->p_cuMemcpyDtoHAsync(host, entries[i].device, entries[i].bytes, l->copies[0]);
	}
	return said(l, r, "copying");
}

static CUresult rows_all_at_once(struct lab_gpu *l, bool to_device, const struct lab_rows *list, uint32_t count)
{
	CUDA_MEMCPY3D_BATCH_OP *ops = calloc(count, sizeof(*ops));
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	size_t failed;

	for (uint32_t i = 0; ops && i < count; i++) {
		CUmemcpy3DOperand *here = to_device ? &ops[i].src : &ops[i].dst, *there = to_device ? &ops[i].dst : &ops[i].src;

		here->type = there->type = CU_MEMCPY_OPERAND_TYPE_POINTER;
		here->op.ptr.ptr = list[i].host;
		here->op.ptr.rowLength = list[i].row_bytes;
		there->op.ptr.ptr = list[i].device;
		there->op.ptr.rowLength = list[i].pitch;
		ops[i].extent = (CUextent3D){list[i].row_bytes, list[i].rows, 1};
		ops[i].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	}
	if (ops && l->api->batch_3d_13)
		r = l->api->batch_3d_13(count, ops, 0, l->copies[to_device]);
	else if (ops)
		r = l->api->batch_3d_12(count, ops, &failed, 0, l->copies[to_device]);
	free(ops);
	return r;
}

static CUresult rows_singly(struct lab_gpu *l, bool to_device, const struct lab_rows *rows)
{
	CUDA_MEMCPY2D c = {.WidthInBytes = rows->row_bytes, .Height = rows->rows};

	if (to_device) {
		c.srcMemoryType = CU_MEMORYTYPE_HOST;
		c.srcHost = (const void *)(uintptr_t)rows->host;
		c.srcPitch = rows->row_bytes;
		c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		c.dstDevice = rows->device;
		c.dstPitch = rows->pitch;
	} else {
		c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		c.srcDevice = rows->device;
		c.srcPitch = rows->pitch;
		c.dstMemoryType = CU_MEMORYTYPE_HOST;
		c.dstHost = (void *)(uintptr_t)rows->host;
		c.dstPitch = rows->row_bytes;
	}
	return l->api->p_cuMemcpy2DAsync(&c, l->copies[to_device]);
}

static int gpu_copy_rows(struct lab *lab, bool to_device, const struct lab_rows *list, uint32_t count, bool batched)
{
	struct lab_gpu *l = of(lab);
	CUresult r = CUDA_SUCCESS;

	if (batched && (l->api->batch_3d_12 || l->api->batch_3d_13))
		return said(l, rows_all_at_once(l, to_device, list, count), "copying rows in a batch");
	for (uint32_t i = 0; i < count && !r; i++)
		r = rows_singly(l, to_device, &list[i]);
	return said(l, r, "copying rows");
}

static int gpu_upload(struct lab *lab, uint64_t device, const void *from, uint64_t bytes)
{
	struct lab_gpu *l = of(lab);
	CUresult r = l->api->p_cuMemcpyHtoDAsync(device, from, bytes, l->work);

	if (!r)
		r = l->api->p_cuStreamSynchronize(l->work);
	return said(l, r, "uploading");
}

static CUresult start_loop(struct lab_gpu *l, enum lab_work work)
{
	uint64_t half = LOOP_BYTES / 2, words = half / 16;
	CUdeviceptr a = l->loop, b = l->loop + half, c = l->loop + half / 2;
	uint32_t n = MATRIX;

	if (work == LAB_MEMORY) {
		void *parameters[] = {&a, &b, &words};

		return l->api->p_cuLaunchKernel(l->memory, (unsigned)l->processors * 4, 1, 1, 512, 1, 1, 0, l->work, parameters, NULL);
	}
	void *parameters[] = {&a, &b, &c, &n};

	return l->api->p_cuLaunchKernel(l->matrix, n / 64, n / 64, 1, 128, 1, 1, 0, l->work, parameters, NULL);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static CUresult need_loop(struct lab_gpu *l)
{
	CUresult r = CUDA_SUCCESS;

	if (!l->loop) {
		r = l->api->p_cuMemAlloc(&l->loop, LOOP_BYTES);
		if (!r)
			r = l->api->p_cuMemsetD8Async(l->loop, 0x3c, LOOP_BYTES, l->work);
	}
	return r;
}

static int gpu_late_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes, void **event)
{
	struct lab_gpu *l = of(lab);
	CUresult r = need_loop(l);

	for (int i = 0; i < 20 && !r; i++)
		r = start_loop(l, LAB_MEMORY);
	if (!r)
		r = l->api->p_cuMemsetD8Async(device, byte, bytes, l->work);
	if (!r)
		r = l->api->p_cuEventRecord(l->end, l->work);
	*event = l->end;
	return said(l, r, "filling memory behind other work");
}

static int gpu_hold(struct lab *lab, uint32_t ms, void **event)
{
	struct lab_gpu *l = of(lab);
	uint64_t ns = ms * 1000000ull;
	void *parameters[] = {&ns};
	CUresult r = l->api->p_cuLaunchKernel(l->hold, 1, 1, 1, 1, 1, 1, 0, l->work, parameters, NULL);

	if (!r)
		r = l->api->p_cuEventRecord(l->end, l->work);
	*event = l->end;
	return said(l, r, "holding a stream up");
}

static int gpu_scribble(struct lab *lab, uint64_t host, uint32_t ms)
{
	struct lab_gpu *l = of(lab);
	uint64_t ns = ms * 1000000ull;
	void *parameters[] = {&host, &ns};

	return said(l, l->api->p_cuLaunchKernel(l->scribble, 1, 1, 1, 1, 1, 1, 0, l->work, parameters, NULL), "writing to the host");
}

/* On a stream of its own, for the others may be held up. */
static int gpu_trap(struct lab *lab)
{
	struct lab_gpu *l = of(lab);

	return said(l, l->api->p_cuLaunchKernel(l->trap, 1, 1, 1, 1, 1, 1, 0, l->copies[0], NULL, NULL), "starting what traps");
}

static int gpu_loop(struct lab *lab, enum lab_work work, uint32_t turns, double *ret)
{
	struct lab_gpu *l = of(lab);
	double *took = calloc(turns, sizeof(*took));
	CUresult r = took ? need_loop(l) : CUDA_ERROR_OUT_OF_MEMORY;

	for (uint32_t i = 0; i < turns && !r; i++) {
		float ms = 0;

		r = l->api->p_cuEventRecord(l->begin, l->work);
		if (!r)
			r = start_loop(l, work);
		if (!r)
			r = l->api->p_cuEventRecord(l->end, l->work);
		if (!r)
			r = l->api->p_cuEventSynchronize(l->end);
		if (!r)
			r = l->api->p_cuEventElapsedTime(&ms, l->begin, l->end);
		took[i] = (double)ms / 1e3;
	}
	if (!r) {
		qsort(took, turns, sizeof(*took), by_size);
		*ret = took[turns / 2];
	}
	free(took);
	return said(l, r, "a loop of other work");
}

static int gpu_thread(struct lab *lab)
{
	return said(of(lab), of(lab)->api->p_cuCtxPushCurrent(of(lab)->context), "the device's context");
}

static int gpu_spin(struct lab *lab, void *event)
{
	CUresult r;

	do
		r = of(lab)->api->p_cuEventQuery(event);
	while (r == CUDA_ERROR_NOT_READY);
	return said(of(lab), r, "waiting for an event");
}

const struct lab_ops lab_cuda = {
	.open = gpu_open,
	.close = gpu_close,
	.take = gpu_take,
	.give = gpu_give,
	.write = gpu_write,
	.read = gpu_read,
	.set = gpu_set,
	.copy = gpu_copy,
	.copy_rows = gpu_copy_rows,
	.finish = gpu_finish,
	.upload = gpu_upload,
	.batches = gpu_batches,
	.loop = gpu_loop,
	.late_set = gpu_late_set,
	.hold = gpu_hold,
	.scribble = gpu_scribble,
	.trap = gpu_trap,
	.thread = gpu_thread,
	.spin = gpu_spin,
};
