/* SPDX-License-Identifier: Apache-2.0
 *
 * The laboratory on ordinary memory, and the way to the other one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/lab_ops.h"
#include "kernels/say.h"

static void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static int ref_open(int device, struct lab **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : gpu_say(ENOMEM, "no memory");
}

static void ref_close(struct lab *lab)
{
	free(lab);
}

static int ref_take(struct lab *lab, uint64_t bytes, uint64_t *ret)
{
	*ret = (uintptr_t)aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	return *ret ? 0 : gpu_say(ENOMEM, "no memory for %llu bytes", (unsigned long long)bytes);
}

static void ref_give(struct lab *lab, uint64_t memory)
{
	free(at(memory));
}

static int ref_write(struct lab *lab, uint64_t device, const void *from, uint64_t bytes)
{
	memcpy(at(device), from, bytes);
	return 0;
}

static int ref_read(struct lab *lab, void *to, uint64_t device, uint64_t bytes)
{
	memcpy(to, at(device), bytes);
	return 0;
}

static int ref_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes)
{
	memset(at(device), byte, bytes);
	return 0;
}

static int ref_copy(struct lab *lab, bool to_device, const struct gpu_entry *entries, uint32_t count, bool batched)
{
	return backend_ref.copy(NULL, LANE_IN_COPY, to_device, entries, count);
}

static int ref_copy_rows(struct lab *lab, bool to_device, const struct lab_rows *list, uint32_t count, bool batched)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint64_t row = 0; row < list[i].rows; row++) {
			const struct gpu_entry entry = {
				list[i].device + row * list[i].pitch, list[i].host + row * list[i].row_bytes, list[i].row_bytes};

			backend_ref.copy(NULL, LANE_IN_COPY, to_device, &entry, 1);
		}
	return 0;
}

static int ref_finish(struct lab *lab, bool to_device)
{
	return 0;
}

static bool ref_batches(const struct lab *lab)
{
	return true;
}

static int ref_loop(struct lab *lab, enum lab_work work, uint32_t turns, double *ret)
{
	return gpu_say(EOPNOTSUPP, "plain C has no device that could work beside copies");
}

static int ref_late_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes, void **event)
{
	*event = NULL;
	return ref_set(lab, device, byte, bytes);
}

static int ref_hold(struct lab *lab, uint32_t ms, void **event)
{
	*event = NULL;
	return 0;
}

static int ref_scribble(struct lab *lab, uint64_t host, uint32_t ms)
{
	return gpu_say(EOPNOTSUPP, "plain C does not go on without its caller");
}

static int ref_trap(struct lab *lab)
{
	return gpu_say(EOPNOTSUPP, "plain C has no context that could be lost");
}

static int ref_thread(struct lab *lab)
{
	return 0;
}

static int ref_spin(struct lab *lab, void *event)
{
	return 0;
}

const struct lab_ops lab_ref = {
	.open = ref_open,
	.close = ref_close,
	.take = ref_take,
	.give = ref_give,
	.write = ref_write,
	.read = ref_read,
	.set = ref_set,
	.copy = ref_copy,
	.copy_rows = ref_copy_rows,
	.finish = ref_finish,
	.upload = ref_write,
	.batches = ref_batches,
	.loop = ref_loop,
	.late_set = ref_late_set,
	.hold = ref_hold,
	.scribble = ref_scribble,
	.trap = ref_trap,
	.thread = ref_thread,
	.spin = ref_spin,
};

int lab_open(const char *kernels, int device, struct lab **ret)
{
	const struct backend_ops *chosen;
	const struct lab_ops *ops;
	int r = backend_select(kernels, &chosen);

	if (r)
		return r;
	ops = chosen == &backend_ref ? &lab_ref : &lab_cuda;
	r = ops->open(device, ret);
	if (!r)
		(*ret)->ops = ops;
	return r;
}

void lab_close(struct lab **lab)
{
	if (*lab)
		(*lab)->ops->close(*lab);
	*lab = NULL;
}

int lab_take(struct lab *lab, uint64_t bytes, uint64_t *ret)
{
	return lab->ops->take(lab, bytes, ret);
}

void lab_give(struct lab *lab, uint64_t memory)
{
	if (memory)
		lab->ops->give(lab, memory);
}

int lab_write(struct lab *lab, uint64_t device, const void *from, uint64_t bytes)
{
	return lab->ops->write(lab, device, from, bytes);
}

int lab_read(struct lab *lab, void *to, uint64_t device, uint64_t bytes)
{
	return lab->ops->read(lab, to, device, bytes);
}

int lab_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes)
{
	return lab->ops->set(lab, device, byte, bytes);
}

int lab_copy(struct lab *lab, bool to_device, const struct gpu_entry *entries, uint32_t count, bool batched)
{
	return lab->ops->copy(lab, to_device, entries, count, batched);
}

int lab_copy_rows(struct lab *lab, bool to_device, const struct lab_rows *list, uint32_t count, bool batched)
{
	return lab->ops->copy_rows(lab, to_device, list, count, batched);
}

int lab_upload(struct lab *lab, uint64_t device, const void *from, uint64_t bytes)
{
	return lab->ops->upload(lab, device, from, bytes);
}

int lab_finish(struct lab *lab, bool to_device)
{
	return lab->ops->finish(lab, to_device);
}

bool lab_batches(const struct lab *lab)
{
	return lab->ops->batches(lab);
}

int lab_loop(struct lab *lab, enum lab_work work, uint32_t turns, double *ret)
{
	return lab->ops->loop(lab, work, turns, ret);
}

int lab_late_set(struct lab *lab, uint64_t device, uint8_t byte, uint64_t bytes, void **event)
{
	return lab->ops->late_set(lab, device, byte, bytes, event);
}

int lab_hold(struct lab *lab, uint32_t ms, void **event)
{
	return lab->ops->hold(lab, ms, event);
}

int lab_scribble(struct lab *lab, uint64_t host, uint32_t ms)
{
	return lab->ops->scribble(lab, host, ms);
}

int lab_trap(struct lab *lab)
{
	return lab->ops->trap(lab);
}

int lab_thread(struct lab *lab)
{
	return lab->ops->thread(lab);
}

int lab_spin(struct lab *lab, void *event)
{
	return lab->ops->spin(lab, event);
}
