/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend without a GPU: memory of the device is memory of the process, and all work is done when it is submitted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/backend.h"
#include "kernels/say.h"

static uint8_t *at(uint64_t address)
{
	return (uint8_t *)(uintptr_t)address;
}

void twin_move(bool to_device, const struct gpu_rect *rect)
{
	for (uint32_t r = 0; r < rect->row_count; r++) {
		const uint32_t *pages = rect->pages + (uint64_t)r * rect->pages_per_value;

		for (uint32_t i = 0; i < rect->column_count; i++) {
			const struct gpu_column *c = &rect->columns[i];
			uint8_t *value = at(rect->values[r] + c->offset), *plane = at(c->base + pages[c->page] * c->stride);

			for (uint64_t done = 0; done < c->bytes; done += c->row_bytes) {
				if (to_device)
					memcpy(plane, value + done, c->row_bytes);
				else
					memcpy(value + done, plane, c->row_bytes);
				plane += c->row_stride;
			}
		}
	}
}

static int ref_open(const struct backend_needs *needs, struct backend **ret)
{
	struct backend *b = calloc(1, sizeof(*b));
	void *staging = aligned_alloc(4096, needs->staging_bytes), *mirror = aligned_alloc(4096, needs->mirror_bytes);

	if (!b || !staging || !mirror) {
		free(b);
		free(staging);
		free(mirror);
		return gpu_say(ENOMEM, "no memory for a ring of %llu bytes", (unsigned long long)needs->staging_bytes);
	}
	b->ops = &backend_ref;
	b->staging = (uintptr_t)staging;
	b->mirror = mirror;
	b->bulk = true;
	snprintf(b->device_name, sizeof(b->device_name), "plain C");
	*ret = b;
	return 0;
}

static void ref_close(struct backend *b)
{
	free(at(b->staging));
	free(b->mirror);
	free(b);
}

/* Memory that is not there is refused, as a driver does. */
static int ref_register(struct backend *b, uint64_t address, uint64_t bytes, bool read_only, bool *foreign)
{
	*foreign = false;
	if (madvise(at(address), bytes, MADV_POPULATE_READ))
		return gpu_say(EIO, "registering %llu bytes at 0x%llx: %s", (unsigned long long)bytes, (unsigned long long)address,
			strerror(errno));
	return 0;
}

static int ref_unregister(struct backend *b, uint64_t address)
{
	return 0;
}

static int ref_copy(struct backend *b, enum lane lane, bool to_device, const struct gpu_entry *entries, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (to_device)
			memcpy(at(entries[i].device), at(entries[i].host), entries[i].bytes);
		else
			memcpy(at(entries[i].host), at(entries[i].device), entries[i].bytes);
	}
	return 0;
}

static int ref_upload(struct backend *b, enum lane lane, uint64_t device, const void *mirror, size_t bytes)
{
	memcpy(at(device), mirror, bytes);
	return 0;
}

static int ref_move(struct backend *b, enum lane lane, enum gpu_kernel kernel, bool to_device, const struct gpu_rect *rect,
	const struct rect_measure *measure)
{
	twin_move(to_device, rect);
	return 0;
}

/* An event is done when it is recorded. */
static int ref_event_new(struct backend *b, struct gpu_event **ret)
{
	*ret = malloc(1);
	return *ret ? 0 : gpu_say(ENOMEM, "no memory for an event");
}

static void ref_event_free(struct backend *b, struct gpu_event *event)
{
	free(event);
}

static int ref_event(struct backend *b, enum lane lane, struct gpu_event *event)
{
	return 0;
}

static int ref_event_wait_foreign(struct backend *b, enum lane lane, void *event)
{
	return 0;
}

static int ref_event_finish(struct backend *b, struct gpu_event *event)
{
	return 0;
}

static int ref_event_reached(struct backend *b, struct gpu_event *event)
{
	return 1;
}

static void *ref_event_handle(struct gpu_event *event)
{
	return NULL;
}

static int ref_drain(struct backend *b, enum lane lane)
{
	return 0;
}

const struct backend_ops backend_ref = {
	.name = "ref",
	.open = ref_open,
	.close = ref_close,
	.host_register = ref_register,
	.host_unregister = ref_unregister,
	.copy = ref_copy,
	.upload = ref_upload,
	.move = ref_move,
	.event_new = ref_event_new,
	.event_free = ref_event_free,
	.event_record = ref_event,
	.event_wait = ref_event,
	.event_wait_foreign = ref_event_wait_foreign,
	.event_finish = ref_event_finish,
	.event_reached = ref_event_reached,
	.event_handle = ref_event_handle,
	.drain = ref_drain,
};
