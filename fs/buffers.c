/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/buffers.h"

#include <stdint.h>
#include <stdlib.h>

/* The largest holds the groups of one call: PFS_MAX_GROUPS of 64 bytes. */
static const struct {
	size_t bytes;
	unsigned keep;
} sizes[BUFFER_SIZES] = {{4u << 10, 256}, {64u << 10, 64}, {512u << 10, 16}, {4u << 20, 4}};

/* Before what the user gets. */
struct buffer {
	uint64_t size; /* index into sizes */
	struct buffer *next;
};

void buffers_init(struct buffers *b)
{
	*b = (struct buffers){0};
	lock_init(&b->lock, LOCK_QUEUE);
}

void buffers_deinit(struct buffers *b)
{
	for (unsigned i = 0; i < BUFFER_SIZES; i++)
		while (b->free[i]) {
			struct buffer *first = b->free[i];

			b->free[i] = first->next;
			free(first);
		}
	lock_destroy(&b->lock);
}

void *buffers_get(struct buffers *b, size_t bytes)
{
	unsigned i = 0;

	while (i < BUFFER_SIZES && sizes[i].bytes < bytes)
		i++;
	if (i == BUFFER_SIZES)
		return NULL;
	lock_take(&b->lock);
	struct buffer *buffer = b->free[i];
	if (buffer) {
		b->free[i] = buffer->next;
		b->count[i]--;
	}
	lock_drop(&b->lock);
	if (!buffer) {
		buffer = malloc(sizeof(*buffer) + sizes[i].bytes);
		if (!buffer)
			return NULL;
		buffer->size = i;
	}
	return buffer + 1;
}

void buffers_put(struct buffers *b, void *memory)
{
	if (!memory)
		return;
	struct buffer *buffer = (struct buffer *)memory - 1;
	uint64_t i = buffer->size;

	lock_take(&b->lock);
	if (b->count[i] < sizes[i].keep) {
		buffer->next = b->free[i];
		b->free[i] = buffer;
		b->count[i]++;
		buffer = NULL;
	}
	lock_drop(&b->lock);
	free(buffer);
}
