/* SPDX-License-Identifier: Apache-2.0
 *
 * Random pools and copies in ordinary memory, and what is to come of them by a loop over bytes.
 */
#ifndef PREFIXFS_TESTS_UNIT_GPU_WORLD_H
#define PREFIXFS_TESTS_UNIT_GPU_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/prefixfs_gpu.h"

struct dice {
	uint64_t state;
};

static inline uint64_t dice(struct dice *d, uint64_t sides)
{
	d->state ^= d->state << 13;
	d->state ^= d->state >> 7;
	d->state ^= d->state << 17;
	return d->state * 0x2545f4914f6cdd1dull % (sides ? sides : 1);
}

static inline void dice_fill(struct dice *d, uint8_t *to, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = dice(d, UINT64_MAX);

		memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

enum world_layout {
	LAYOUT_LAYER_FIRST,
	LAYOUT_MLA,
	LAYOUT_PAGE_FIRST,        /* whole pages */
	LAYOUT_PAGE_FIRST_LAYERS, /* a plane a layer, in rows */
	LAYOUT_PAGE_HEAD,         /* the same, head by head */
	LAYOUT_UNEQUAL,           /* planes of any sizes, some odd */
	LAYOUTS,
};

struct world {
	struct pfs_gpu_plane planes[128];
	struct pfs_gpu_pool pool;
	uint8_t *device;  /* all planes */
	uint8_t *segment; /* whole pages of memory, to be registered */
	size_t device_bytes, segment_bytes;
	uint64_t value_bytes, slot_bytes;
	uint32_t slots;
};

static inline uint8_t *world_map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static inline void world_tensor(struct world *w, uint64_t page_bytes, uint64_t *at)
{
	*at = w->device_bytes;
	w->device_bytes += (page_bytes * w->pool.page_limit + 511) / 256 * 256; /* with something between tensors */
}

/* Tensors of a pool of @layers layers, @tokens tokens a page of the device, @item bytes a token, layer and (K or V) in
 * all of @heads heads. Addresses are places in w->device until world_make has it. */
static inline void world_planes(struct world *w, enum world_layout layout, uint32_t layers, uint32_t tokens, uint32_t heads,
	uint32_t item, struct dice *d)
{
	uint32_t kv = layout == LAYOUT_MLA ? 1 : 2, n = 0;
	uint64_t token = (uint64_t)heads * item, m = w->pool.pages_per_value, at = 0;

	for (uint32_t k = 0; k < kv && (layout == LAYOUT_PAGE_FIRST_LAYERS || layout == LAYOUT_PAGE_HEAD); k++) {
		world_tensor(w, token * tokens * layers, &at);
		for (uint32_t l = 0; l < layers; l++) {
			uint64_t row = layout == LAYOUT_PAGE_HEAD ? item : token;

			w->planes[n++] = (struct pfs_gpu_plane){.base = at + l * row, .stride = token * tokens * layers,
				.bytes = token * tokens * m, .row_bytes = row, .row_stride = row * layers,
				.blocks = layout == LAYOUT_PAGE_HEAD ? heads : 0};
		}
	}
	for (uint32_t l = 0; l < (layout == LAYOUT_PAGE_FIRST ? 1 : layers) && n < 128; l++)
		for (uint32_t k = 0; k < kv && (layout <= LAYOUT_PAGE_FIRST || layout == LAYOUT_UNEQUAL); k++) {
			uint64_t bytes = layout == LAYOUT_PAGE_FIRST ? token * tokens * layers : token * tokens;
			uint64_t gap = layout == LAYOUT_UNEQUAL ? dice(d, 3) * 16 : 0;

			if (layout == LAYOUT_UNEQUAL)
				bytes = (1 + dice(d, 300)) * (dice(d, 3) ? 16 : 1) * tokens;
			world_tensor(w, bytes + gap, &at);
			w->planes[n++] = (struct pfs_gpu_plane){.base = at, .stride = bytes + gap, .bytes = bytes * m};
		}
	w->pool.plane_count = n;
	for (uint32_t i = 0; i < n; i++)
		w->value_bytes += w->planes[i].bytes;
}

/* Takes memory and fills it. */
static inline void world_make(struct world *w, struct dice *d)
{
	w->pool.planes = w->planes;
	w->device_bytes += 4096;
	w->device = world_map(w->device_bytes);
	w->slot_bytes = (w->value_bytes + 4095) / 4096 * 4096;
	w->segment_bytes = w->slot_bytes * w->slots + 8192;
	w->segment = world_map(w->segment_bytes);
	for (uint32_t i = 0; i < w->pool.plane_count; i++)
		w->planes[i].base += (uintptr_t)w->device;
	dice_fill(d, w->device, w->device_bytes);
	dice_fill(d, w->segment, w->segment_bytes);
}

static inline void world_free(struct world *w)
{
	munmap(w->device, w->device_bytes);
	munmap(w->segment, w->segment_bytes);
}

/* @count different numbers below @limit, sometimes in runs. */
static inline void world_choose(struct dice *d, uint32_t *to, uint32_t count, uint32_t limit)
{
	uint8_t *taken = calloc(limit, 1);
	uint32_t next = (uint32_t)dice(d, limit);

	for (uint32_t i = 0; i < count; i++) {
		while (taken[next])
			next = (next + 1) % limit;
		taken[next] = 1;
		to[i] = next;
		next = dice(d, 3) ? (next + 1) % limit : (uint32_t)dice(d, limit);
	}
	free(taken);
}

/* What is to be: byte by byte, in copies of both memories. Planes of parts alone, if there are parts. */
static inline void world_expect(const struct world *w, const struct pfs_gpu_copy *c, bool to_device, uint8_t *device, uint8_t *segment)
{
	uint32_t m = w->pool.pages_per_value ? w->pool.pages_per_value : 1;

	for (uint32_t v = 0; v < c->count; v++) {
		uint64_t at = c->values[v] - (uintptr_t)w->segment;

		for (uint32_t p = 0; p < w->pool.plane_count; p++) {
			const struct pfs_gpu_plane *plane = &w->planes[p];
			uint64_t cell = plane->bytes / m, row = plane->row_bytes ? plane->row_bytes : cell;
			uint64_t block = cell / (plane->blocks ? plane->blocks : 1);
			bool wanted = !c->parts;

			for (uint32_t i = 0; i < c->part_count; i++)
				wanted |= p >= c->parts[i].first_plane && p < c->parts[i].first_plane + c->parts[i].plane_count;
			for (uint32_t j = 0; wanted && !c->token_to && row == cell && j < m; j++) { /* the same, faster */
				uint64_t place = plane->base + c->pages[(uint64_t)v * m + j] * plane->stride - (uintptr_t)w->device;

				if (to_device)
					memcpy(device + place, w->segment + at + j * cell, cell);
				else
					memcpy(segment + at + j * cell, w->device + place, cell);
			}
			for (uint64_t x = 0; x < plane->bytes && wanted && (c->token_to || row != cell); x++) {
				uint64_t j = x / cell, y = x % cell;
				uint64_t place = plane->base + c->pages[(uint64_t)v * m + j] * plane->stride + y / row * plane->row_stride +
						 y % row - (uintptr_t)w->device;

				if (c->token_to) {
					uint64_t page_tokens = w->pool.value_tokens / m;
					uint64_t token = (uint64_t)v * w->pool.value_tokens + j * page_tokens + y % block / (block / page_tokens);

					if (token < c->token_from || token >= c->token_to)
						continue;
				}
				if (to_device)
					device[place] = w->segment[at + x];
				else
					segment[at + x] = w->device[place];
			}
			at += plane->bytes;
		}
	}
}

#endif
