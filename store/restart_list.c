/* SPDX-License-Identifier: Apache-2.0
 *
 * What the folders of a namespace hold, by name. A folder is read by one thread from beginning to end, and there are 256 of them.
 */
#include "store/restart_private.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "index/mix.h"

/* Of one thread. */
struct part {
	pthread_t thread;
	struct disk_dir *dir;
	struct disk_listing what;
	struct listed *files;
	uint32_t count, capacity;
	bool no_memory;
	int error;
	struct why why;
};

/* ---- listing -------------------------------------------------------------------------------------------------------- */

static bool list_one(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s)
{
	struct part *p = context;

	if (p->count == p->capacity) {
		uint32_t capacity = p->capacity ? 2 * p->capacity : 4096;
		struct listed *files = realloc(p->files, capacity * sizeof(*files));

		p->no_memory = !files;
		if (!files)
			return false;
		p->files = files;
		p->capacity = capacity;
	}
	p->files[p->count++] = (struct listed){.endpoint = *endpoint, .consumed = consumed, .bytes = bytes, .mtime_s = mtime_s};
	return true;
}

static void *part_main(void *context)
{
	struct part *p = context;

	p->error = disk_dir_list(p->dir, &p->what, list_one, p, &p->why);
	return NULL;
}

static unsigned parts_wanted(void)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	return processors < 1 ? 1 : processors > LISTING_THREADS_MOST ? LISTING_THREADS_MOST : (unsigned)processors;
}

/* The last part, and those for which there is no thread, are done by the caller's. */
static void list_parts(struct part *parts, unsigned n)
{
	bool started[LISTING_THREADS_MOST] = {false};

	for (unsigned i = 0; i + 1 < n; i++)
		started[i] = !pthread_create(&parts[i].thread, NULL, part_main, &parts[i]);
	for (unsigned i = 0; i < n; i++)
		if (!started[i])
			part_main(&parts[i]);
	for (unsigned i = 0; i < n; i++)
		if (started[i])
			pthread_join(parts[i].thread, NULL);
}

/* ---- one list of all ------------------------------------------------------------------------------------------------ */

static uint32_t bucket_of(const struct listing *l, const struct key *endpoint)
{
	return (uint32_t)mix_64(endpoint->words[0] ^ endpoint->words[2], endpoint->words[1] ^ 0x9e3779b97f4a7c15ull) & l->mask;
}

static bool make_table(struct listing *l)
{
	uint32_t size = 1024;

	while (size < 2 * l->count)
		size *= 2;
	l->table = calloc(size, sizeof(*l->table));
	if (!l->table)
		return false;
	l->mask = size - 1;
	for (uint32_t i = 0; i < l->count; i++) {
		uint32_t at = bucket_of(l, &l->files[i].endpoint);

		l->newest_s = l->files[i].mtime_s > l->newest_s ? l->files[i].mtime_s : l->newest_s;
		while (l->table[at])
			at = (at + 1) & l->mask;
		l->table[at] = i + 1;
	}
	return true;
}

/* False: no memory, or more than can be numbered. */
static bool join(struct listing *l, const struct part *parts, unsigned n)
{
	uint64_t count = 0;

	for (unsigned i = 0; i < n; i++) {
		if (parts[i].no_memory)
			return false;
		count += parts[i].count;
	}
	l->files = count < 1u << 30 ? malloc((count + 1) * sizeof(*l->files)) : NULL;
	if (!l->files)
		return false;
	for (unsigned i = 0; i < n; i++) {
		if (parts[i].count)
			memcpy(&l->files[l->count], parts[i].files, parts[i].count * sizeof(*l->files));
		l->count += parts[i].count;
	}
	return make_table(l);
}

int listing_make(struct disk_dir *dir, bool sizes, struct listing *ret, struct why *why)
{
	struct part parts[LISTING_THREADS_MOST];
	unsigned n = parts_wanted();
	int error = 0;

	lock_assert_none_held();
	*ret = (struct listing){0};
	for (unsigned i = 0; i < n; i++)
		parts[i] = (struct part){
			.dir = dir, .what = {.part = i, .parts = n, .sizes = sizes, .clear = true}, .why = WHY_INIT};
	list_parts(parts, n);
	for (unsigned i = 0; i < n && !error; i++)
		if (parts[i].error)
			error = why_set(why, -parts[i].error, "%s", parts[i].why.text);
	if (!error && !join(ret, parts, n))
		error = why_set(why, ENOMEM, "%s: no memory for the names of its record files", disk_dir_path(dir));
	for (unsigned i = 0; i < n; i++)
		free(parts[i].files);
	return error;
}

struct listed *listing_find(const struct listing *l, uint64_t consumed, const struct key *endpoint)
{
	for (uint32_t at = bucket_of(l, endpoint); l->table[at]; at = (at + 1) & l->mask) {
		struct listed *f = &l->files[l->table[at] - 1];

		if (f->consumed == consumed && !memcmp(&f->endpoint, endpoint, sizeof(*endpoint)))
			return f;
	}
	return NULL;
}

void listing_free(struct listing *l)
{
	free(l->files);
	free(l->table);
	*l = (struct listing){0};
}
