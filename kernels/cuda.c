/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend on a GPU. It lives in the primary context of its device, as engines do; the context that is current to a caller is put
 * back by every function.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cuda_api.h"
#include "kernels/move.h"
#include "kernels/say.h"

/* Blocks that a kernel gets: as few as carry the bus, for the rest of the device is the engine's. */
#define BLOCKS_RING 32u /* between ring and planes, both in memory of the device */
#define BLOCKS_BULK 8u

typedef unsigned long long ull;

struct cuda {
	struct backend backend; /* first */
	const struct cuda_api *api;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction move[2], bulk[2]; /* [to_device] */
	CUfunction tables;
	CUstream lanes[LANES];
	CUdeviceptr staging;
	bool read_only_pins;
};

struct gpu_event {
	CUevent event;
};

static struct cuda *cuda_of(struct backend *b)
{
	return (struct cuda *)b;
}

/* What a caller who waits for work is told: -ECANCELED where the driver has ended with the process, so that nobody knows what the device
 * still does. */
static int of_work(CUresult r, int error)
{
	return r == CUDA_ERROR_DEINITIALIZED ? -ECANCELED : error;
}

static int enter(struct cuda *c)
{
	CUresult r = c->api->p_cuCtxPushCurrent(c->context);

	return r ? of_work(r, cuda_said(c->api, r, "the device's context")) : 0;
}

/* Ends what enter began; what has come of the function between. */
static int leave(struct cuda *c, CUresult r, const char *what)
{
	CUcontext context;
	int error = r ? cuda_said(c->api, r, what) : 0;

	c->api->p_cuCtxPopCurrent(&context);
	return error;
}

/* ---- open and close -------------------------------------------------------------------------------------------------- */

/* @result: of the first that fails. */
static int attribute(struct cuda *c, CUdevice_attribute which, CUresult *result)
{
	int value = 0;
	CUresult r = c->api->p_cuDeviceGetAttribute(&value, which, c->device);

	*result = *result ? *result : r;
	return r ? 0 : value;
}

/* What drivers may not know of; those have it not. */
static bool feature(struct cuda *c, CUdevice_attribute which, CUresult *result)
{
	CUresult r = CUDA_SUCCESS;
	bool has = attribute(c, which, &r) != 0;

	if (r != CUDA_ERROR_INVALID_VALUE)
		*result = *result ? *result : r;
	return has;
}

static int check_device(struct cuda *c, int32_t ordinal)
{
	CUresult r = CUDA_SUCCESS;
	int major = attribute(c, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &r);
	int minor = attribute(c, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &r);
	int same_addresses = attribute(c, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, &r);

	c->backend.blocks[KERNEL_BUS] = (uint32_t)attribute(c, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &r);
	c->backend.mps = feature(c, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, &r);
	c->read_only_pins = feature(c, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, &r);
	if (r)
		return cuda_said(c->api, r, "asking for the device's attributes");
	c->backend.compute_capability = (uint32_t)(major * 10 + minor);
	if (major < 8)
		return gpu_say(ENOTSUP, "device %d, %s, has compute capability %d.%d, 8.0 or newer is needed", ordinal,
			c->backend.device_name, major, minor);
	if (!same_addresses)
		return gpu_say(ENOTSUP, "device %d, %s, sees registered memory at other addresses than the process", ordinal,
			c->backend.device_name);
	c->backend.bulk = major >= 9;
	c->backend.blocks[KERNEL_RING] = BLOCKS_RING;
	c->backend.blocks[KERNEL_BULK] = BLOCKS_BULK;
	return 0;
}

static int find_device(struct cuda *c, int32_t ordinal)
{
	int count = 0;
	CUresult r = c->api->p_cuDeviceGetCount(&count);

	if (r)
		return cuda_said(c->api, r, "counting devices");
	if (ordinal >= count)
		return gpu_say(ENODEV, "device %d, and there are %d", ordinal, count);
	r = c->api->p_cuDeviceGet(&c->device, ordinal);
	if (!r)
		r = c->api->p_cuDeviceGetName(c->backend.device_name, sizeof(c->backend.device_name), c->device);
	if (r)
		return cuda_said(c->api, r, "asking for the device");
	r = (CUresult)check_device(c, ordinal);
	if (r)
		return (int)r;
	r = c->api->p_cuDevicePrimaryCtxRetain(&c->context, c->device);
	return r ? cuda_said(c->api, r, "taking the device's context") : 0;
}

/* In the context. */
static CUresult load_kernels(struct cuda *c)
{
	CUresult r = c->api->p_cuModuleLoadData(&c->module, gpu_image);

	if (!r)
		r = c->api->p_cuModuleGetFunction(&c->move[1], c->module, "pfs_scatter");
	if (!r)
		r = c->api->p_cuModuleGetFunction(&c->move[0], c->module, "pfs_gather");
	if (!r)
		r = c->api->p_cuModuleGetFunction(&c->bulk[1], c->module, "pfs_bulk_scatter");
	if (!r)
		r = c->api->p_cuModuleGetFunction(&c->bulk[0], c->module, "pfs_bulk_gather");
	if (!r)
		r = c->api->p_cuModuleGetFunction(&c->tables, c->module, "pfs_tables");
	for (int i = 0; i < 2 && !r && c->backend.bulk; i++)
		r = c->api->p_cuFuncSetAttribute(c->bulk[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, BULK_SHARED_BYTES);
	return r;
}

/* In the context. */
static CUresult make_lanes(struct cuda *c, const struct backend_needs *needs)
{
	int least = 0, greatest = 0;
	CUresult r = c->api->p_cuCtxGetStreamPriorityRange(&least, &greatest);

	for (int i = 0; i < LANES && !r; i++) {
		bool first = needs->kernels_first && (i == LANE_IN_WORK || i == LANE_OUT_WORK);

		r = c->api->p_cuStreamCreateWithPriority(&c->lanes[i], CU_STREAM_NON_BLOCKING, first ? greatest : least);
	}
	return r;
}

/* In the context. */
static CUresult take_memory(struct cuda *c, const struct backend_needs *needs)
{
	void *mirror = NULL;
	CUresult r = c->api->p_cuMemAlloc(&c->staging, needs->staging_bytes);

	if (!r)
		r = c->api->p_cuMemHostAlloc(&mirror, needs->mirror_bytes, 0);
	c->backend.staging = c->staging;
	c->backend.mirror = mirror;
	return r;
}

/* In the context. */
static int set_up(struct cuda *c, const struct backend_needs *needs)
{
	size_t unused = 0, all;
	CUresult r = load_kernels(c);

	if (r)
		return cuda_said(c->api, r, "loading the kernels");
	r = make_lanes(c, needs);
	if (r)
		return cuda_said(c->api, r, "making streams");
	r = take_memory(c, needs);
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		c->api->p_cuMemGetInfo(&unused, &all);
		return gpu_say(ENOMEM, "no memory of the device for a ring of %llu bytes, %zu are free",
			(unsigned long long)needs->staging_bytes, unused);
	}
	return r ? cuda_said(c->api, r, "taking memory for the ring") : 0;
}

static void cuda_close(struct backend *b)
{
	struct cuda *c = cuda_of(b);

	if (c->context && !enter(c)) {
		for (int i = 0; i < LANES; i++)
			if (c->lanes[i]) {
				c->api->p_cuStreamSynchronize(c->lanes[i]);
				c->api->p_cuStreamDestroy(c->lanes[i]);
			}
		if (c->backend.mirror)
			c->api->p_cuMemFreeHost(c->backend.mirror);
		if (c->staging)
			c->api->p_cuMemFree(c->staging);
		if (c->module)
			c->api->p_cuModuleUnload(c->module);
		leave(c, CUDA_SUCCESS, NULL);
	}
	if (c->context)
		c->api->p_cuDevicePrimaryCtxRelease(c->device);
	free(c);
}

static int cuda_open(const struct backend_needs *needs, struct backend **ret)
{
	struct cuda *c = calloc(1, sizeof(*c));
	int r = c ? cuda_load(&c->api) : gpu_say(ENOMEM, "no memory for a device");

	if (r) {
		free(c);
		return r;
	}
	c->backend.ops = &backend_cuda;
	c->backend.driver_version = (uint32_t)c->api->driver_version;
	r = find_device(c, needs->device);
	if (!r)
		r = enter(c);
	if (!r) {
		r = set_up(c, needs);
		leave(c, CUDA_SUCCESS, NULL);
	}
	if (r) {
		cuda_close(&c->backend);
		return r;
	}
	*ret = &c->backend;
	return 0;
}

/* ---- memory --------------------------------------------------------------------------------------------------------------- */

/* In the context. *ret: where the registered memory around @at ends; 0: nobody has registered what is there. That the driver does not know an
 * address is an answer like others, and no later call fails for it. It knows memory by its address on the device, which is the process's own
 * (check_device), however it was registered. */
static CUresult registered_until(struct cuda *c, uint64_t at, uint64_t *ret)
{
	unsigned type = 0;
	CUdeviceptr begin = 0;
	size_t bytes = 0;
	CUresult r = c->api->p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);

	if (!r)
		r = c->api->p_cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
	if (!r)
		r = c->api->p_cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
	*ret = !r && type == CU_MEMORYTYPE_HOST && begin <= at && bytes > at - begin ? begin + bytes : 0;
	return r == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : r;
}

/* In the context. CUDA refuses what was registered by somebody, be it only a part: that will not do for copies of the rest. And no copy may cross
 * two registrations, so all has to lie in one. */
static int accept_foreign(struct cuda *c, uint64_t address, uint64_t bytes)
{
	uint64_t until, next = 0;
	CUresult r = registered_until(c, address, &until);

	if (!r && until && until - address >= bytes)
		return 0;
	if (!r && until)
		r = registered_until(c, until, &next);
	if (r)
		return cuda_said(c->api, r, "asking what is registered");
	if (next)
		return gpu_say(EINVAL, "%llu bytes at 0x%llx: somebody has registered them in several pieces, one up to 0x%llx", (ull)bytes, (ull)address,
			(ull)until);
	return gpu_say(EINVAL, "%llu bytes at 0x%llx: somebody has registered a part of them, not what is at 0x%llx", (ull)bytes, (ull)address,
		(ull)(until ? until : address));
}

static int cuda_register(struct backend *b, uint64_t address, uint64_t bytes, bool read_only, bool *foreign)
{
	struct cuda *c = cuda_of(b);
	unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | (read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0);
	char what[96];
	int error = 0;
	CUresult r;

	*foreign = false;
	if (read_only && !c->read_only_pins)
		return gpu_say(EIO, "%llu bytes at 0x%llx can only be read, and the device cannot register such memory",
			(unsigned long long)bytes, (unsigned long long)address);
	if (enter(c))
		return -EIO;
	r = c->api->p_cuMemHostRegister((void *)(uintptr_t)address, bytes, flags);
	if (r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
		error = accept_foreign(c, address, bytes);
		*foreign = !error;
		r = CUDA_SUCCESS;
	}
	snprintf(what, sizeof(what), "registering %llu bytes at 0x%llx", (unsigned long long)bytes, (unsigned long long)address);
	if (r)
		return leave(c, r, what);
	leave(c, r, NULL);
	return error;
}

static int cuda_unregister(struct backend *b, uint64_t address)
{
	struct cuda *c = cuda_of(b);

	if (enter(c))
		return -EIO;
	return leave(c, c->api->p_cuMemHostUnregister((void *)(uintptr_t)address), "unregistering memory");
}

/* ---- work ----------------------------------------------------------------------------------------------------------------- */

/* In the context. */
static CUresult copy_singly(struct cuda *c, CUstream stream, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	CUresult r = CUDA_SUCCESS;

	for (uint32_t i = 0; i < count && !r; i++) {
		void *host = (void *)(uintptr_t)entries[i].host;

		r = to_device ? c->api->p_cuMemcpyHtoDAsync(entries[i].device, host, entries[i].bytes, stream) :
				c->api->p_cuMemcpyDtoHAsync(host, entries[i].device, entries[i].bytes, stream);
	}
	return r;
}

/* In the context. One call, for which CUDA wants three lists; it has read them when it returns. */
static CUresult copy_batch(struct cuda *c, CUstream stream, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	static _Thread_local CUdeviceptr device[MERGE_MAX_ENTRIES], host[MERGE_MAX_ENTRIES];
	static _Thread_local size_t bytes[MERGE_MAX_ENTRIES];
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr *to = to_device ? device : host, *from = to_device ? host : device;
	size_t place = 0, failed;

	attributes.flags = c->backend.prefer_overlap ? CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE : 0;
	for (uint32_t i = 0; i < count; i++) {
		device[i] = entries[i].device;
		host[i] = entries[i].host;
		bytes[i] = entries[i].bytes;
	}
	if (c->api->batch_13)
		return c->api->batch_13(to, from, bytes, count, &attributes, &place, 1, stream);
	return c->api->batch_12(to, from, bytes, count, &attributes, &place, 1, &failed, stream);
}

static int cuda_copy(struct backend *b, enum lane lane, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	struct cuda *c = cuda_of(b);
	CUresult r;

	if (enter(c))
		return -EIO;
	if (count == 1 || (!c->api->batch_12 && !c->api->batch_13))
		r = copy_singly(c, c->lanes[lane], to_device, entries, count);
	else
		r = copy_batch(c, c->lanes[lane], to_device, entries, count);
	return leave(c, r, to_device ? "copying to the device" : "copying from the device");
}

/* By a kernel: to the copy engine tables would stand behind the copies of all slots that are free (docs/gpu.md, "Measured"). */
static int cuda_upload(struct backend *b, enum lane lane, uint64_t device, const void *mirror, size_t bytes)
{
	struct cuda *c = cuda_of(b);
	struct tables_args args = {.to = (void *)(uintptr_t)device, .from = mirror, .bytes = (uint32_t)bytes};
	uint32_t blocks = (uint32_t)((bytes + TABLES_A_BLOCK - 1) / TABLES_A_BLOCK), most = c->backend.blocks[KERNEL_RING];
	void *parameters[] = {&args};

	if (enter(c))
		return -EIO;
	CUresult r = c->api->p_cuLaunchKernel(c->tables, blocks < most ? blocks : most, 1, 1, TABLES_THREADS, 1, 1, 0, c->lanes[lane], parameters, NULL);
	return leave(c, r, "copying tables to the device");
}

/* Threads that share a piece: a quarter of its 16-byte words, for each has four on their way. */
static uint32_t lanes_for(uint64_t bytes)
{
	uint32_t lanes = 32;

	while (lanes < MOVE_THREADS && lanes < bytes / 64)
		lanes *= 2;
	return lanes;
}

static uint32_t blocks_for(const struct cuda *c, enum gpu_kernel kernel, uint64_t work, uint64_t a_block)
{
	uint32_t most = c->backend.blocks[kernel];
	uint64_t enough = (work + a_block - 1) / a_block;

	return enough < most ? (uint32_t)enough : most;
}

static int cuda_move(struct backend *b, enum lane lane, enum gpu_kernel kernel, bool to_device, const struct gpu_rect *rect,
	const struct rect_measure *measure)
{
	struct cuda *c = cuda_of(b);
	uint64_t pieces = (uint64_t)rect->column_count * rect->row_count;
	struct move_args args = {
		.columns = rect->columns,
		.values = rect->values,
		.pages = rect->pages,
		.column_count = rect->column_count,
		.row_count = rect->row_count,
		.pages_per_value = rect->pages_per_value,
		.lanes = lanes_for(measure->longest),
		.chunks = (measure->longest + BULK_CHUNK - 1) / BULK_CHUNK,
	};
	void *parameters[] = {&args};
	bool bulk = kernel == KERNEL_BULK;
	uint32_t blocks = bulk ? blocks_for(c, kernel, pieces * args.chunks, BULK_LANES) :
				 blocks_for(c, kernel, pieces, MOVE_THREADS / args.lanes);
	CUresult r;

	if (enter(c))
		return -EIO;
	r = c->api->p_cuLaunchKernel(bulk ? c->bulk[to_device] : c->move[to_device], blocks, 1, 1, bulk ? BULK_LANES : MOVE_THREADS, 1, 1,
		bulk ? BULK_SHARED_BYTES : 0, c->lanes[lane], parameters, NULL);
	return leave(c, r, "starting a kernel");
}

/* ---- events ----------------------------------------------------------------------------------------------------------------- */

static int cuda_event_new(struct backend *b, struct gpu_event **ret)
{
	struct cuda *c = cuda_of(b);
	struct gpu_event *event = calloc(1, sizeof(*event));
	int r;

	if (!event)
		return gpu_say(ENOMEM, "no memory for an event");
	r = enter(c);
	if (!r)
		r = leave(c, c->api->p_cuEventCreate(&event->event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), "making an event");
	if (r) {
		free(event);
		return r;
	}
	*ret = event;
	return 0;
}

static void cuda_event_free(struct backend *b, struct gpu_event *event)
{
	struct cuda *c = cuda_of(b);

	/* The sentence of what went wrong before stays. */
	if (!c->api->p_cuCtxPushCurrent(c->context)) {
		c->api->p_cuEventDestroy(event->event);
		leave(c, CUDA_SUCCESS, NULL);
	}
	free(event);
}

static int cuda_event_record(struct backend *b, enum lane lane, struct gpu_event *event)
{
	struct cuda *c = cuda_of(b);

	if (enter(c))
		return -EIO;
	return leave(c, c->api->p_cuEventRecord(event->event, c->lanes[lane]), "recording an event");
}

static int cuda_event_wait_foreign(struct backend *b, enum lane lane, void *event)
{
	struct cuda *c = cuda_of(b);

	if (enter(c))
		return -EIO;
	return leave(c, c->api->p_cuStreamWaitEvent(c->lanes[lane], event, 0), "waiting for an event");
}

static int cuda_event_wait(struct backend *b, enum lane lane, struct gpu_event *event)
{
	return cuda_event_wait_foreign(b, lane, event->event);
}

static int cuda_event_finish(struct backend *b, struct gpu_event *event)
{
	struct cuda *c = cuda_of(b);
	int error = enter(c);
	CUresult r;

	if (error)
		return error;
	r = c->api->p_cuEventSynchronize(event->event);
	return of_work(r, leave(c, r, "copying"));
}

static int cuda_event_reached(struct backend *b, struct gpu_event *event)
{
	struct cuda *c = cuda_of(b);
	CUresult r;
	int error;

	if (enter(c))
		return -EIO;
	r = c->api->p_cuEventQuery(event->event);
	error = leave(c, r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r, "copying");
	return error ? error : r == CUDA_SUCCESS;
}

static void *cuda_event_handle(struct gpu_event *event)
{
	return event->event;
}

static int cuda_drain(struct backend *b, enum lane lane)
{
	struct cuda *c = cuda_of(b);
	int error = enter(c);
	CUresult r;

	if (error)
		return error;
	r = c->api->p_cuStreamSynchronize(c->lanes[lane]);
	return of_work(r, leave(c, r, "waiting for a stream"));
}

const struct backend_ops backend_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.host_register = cuda_register,
	.host_unregister = cuda_unregister,
	.copy = cuda_copy,
	.upload = cuda_upload,
	.move = cuda_move,
	.event_new = cuda_event_new,
	.event_free = cuda_event_free,
	.event_record = cuda_event_record,
	.event_wait = cuda_event_wait,
	.event_wait_foreign = cuda_event_wait_foreign,
	.event_finish = cuda_event_finish,
	.event_reached = cuda_event_reached,
	.event_handle = cuda_event_handle,
	.drain = cuda_drain,
};
