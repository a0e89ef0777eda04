/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory registered with a worker's queue: the kernel then looks up no page for a transfer. A piece that cannot be registered is
 * no piece: its transfers do without.
 */
#include "store/disk_private.h"

#include <assert.h>
#include <string.h>

#define BUFFER_MOST (1ull << 30) /* bytes that may be registered as one */

/* The last piece that does not begin behind @memory; -1: none. */
static int64_t last_before(const struct disk_worker *w, const char *memory)
{
	uint32_t low = 0, high = w->pieces_used;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (w->pieces[middle].memory <= memory)
			low = middle + 1;
		else
			high = middle;
	}
	return (int64_t)low - 1;
}

static void add(struct disk_worker *w, const struct disk_request *request, char *memory, uint64_t bytes)
{
	struct disk_ops *ops = w->disk->ops;
	uint32_t at = (uint32_t)(last_before(w, memory) + 1);

	if (w->pieces_used == DISK_BUFFERS)
		return;
	int32_t buffer = ops->table->buffer_add(w->queue, memory, bytes);

	if (buffer < 0)
		return;
	memmove(&w->pieces[at + 1], &w->pieces[at], (w->pieces_used - at) * sizeof(*w->pieces));
	w->pieces[at] = (struct disk_piece){
		.dir = request->dir, .grant = request->grant, .memory = memory, .bytes = bytes, .buffer = buffer};
	w->pieces_used++;
	atomic_fetch_add(&w->buffers, 1);
}

static void add_all(struct disk_worker *w, const struct disk_request *request)
{
	for (uint64_t at = 0; at < request->bytes; at += BUFFER_MOST)
		add(w, request, request->memory + at, request->bytes - at < BUFFER_MOST ? request->bytes - at : BUFFER_MOST);
}

/* False: a transfer uses one of them still. */
static bool drop_all(struct disk_worker *w, const struct disk_request *request)
{
	struct disk_ops *ops = w->disk->ops;
	uint32_t kept = 0;
	bool all = true;

	for (uint32_t i = 0; i < w->pieces_used; i++) {
		struct disk_piece *piece = &w->pieces[i];

		if (piece->dir == request->dir && piece->grant == request->grant) {
			piece->dropping = true;
			if (!piece->users) {
				ops->table->buffer_drop(w->queue, piece->buffer);
				atomic_fetch_sub(&w->buffers, 1);
				continue;
			}
			all = false;
		}
		w->pieces[kept++] = *piece;
	}
	w->pieces_used = kept;
	return all;
}

void disk_pieces_do(struct disk_worker *w, struct disk_request *request)
{
	if (!request->drop) {
		add_all(w, request);
	} else if (!drop_all(w, request)) {
		request->next = w->dropping;
		w->dropping = request;
		return;
	}
	disk_worker_answer(w, request);
}

int32_t disk_pieces_use(struct disk_worker *w, const char *memory, uint64_t bytes)
{
	int64_t at = last_before(w, memory);
	struct disk_piece *piece = at < 0 ? NULL : &w->pieces[at];

	if (!piece || piece->dropping || (uint64_t)(memory - piece->memory) >= piece->bytes ||
		bytes > piece->bytes - (uint64_t)(memory - piece->memory))
		return -1;
	piece->users++;
	return piece->buffer;
}

void disk_pieces_unuse(struct disk_worker *w, const char *memory)
{
	struct disk_piece *piece = &w->pieces[last_before(w, memory)];

	assert(piece->users);
	if (--piece->users || !piece->dropping)
		return;
	struct disk_request *waiting = w->dropping;

	w->dropping = NULL;
	while (waiting) {
		struct disk_request *request = waiting;

		waiting = request->next;
		disk_pieces_do(w, request);
	}
}

void disk_piece_add(struct disk_dir *dir, uint32_t grant, uint64_t offset, uint64_t length)
{
	struct disk *disk = dir->disk;

	if (!length || !disk_dir_holds(dir, offset, length))
		return;
	for (uint32_t i = 0; i < disk->workers; i++) {
		struct disk_request request = {.dir = dir, .grant = grant, .memory = dir->memory + offset, .bytes = length};

		disk_worker_ask(&disk->worker[i], &request);
	}
}

void disk_piece_drop(struct disk_dir *dir, uint32_t grant)
{
	struct disk *disk = dir->disk;

	for (uint32_t i = 0; i < disk->workers; i++) {
		struct disk_request request = {.drop = true, .dir = dir, .grant = grant};

		disk_worker_ask(&disk->worker[i], &request);
	}
}
