/* SPDX-License-Identifier: Apache-2.0
 *
 * Pointer tables: what a kernel that copies values is given.
 */
#include <errno.h>
#include <stdlib.h>

#include "fs/client/client.h"

#define HEAD_WORDS 2u

static int table_reserve(struct table *t, uint32_t count)
{
	uint64_t *words;
	uint32_t *index;

	if (t->words && t->capacity >= count)
		return 0;
	words = malloc((HEAD_WORDS + (size_t)count) * sizeof(*words));
	index = malloc(((size_t)count + 1) * sizeof(*index));
	if (!words || !index) {
		free(words);
		free(index);
		return say(ENOMEM, "no memory for a table of %u values", count);
	}
	free(t->words);
	free(t->index);
	*t = (struct table){.words = words, .index = index, .capacity = count};
	return 0;
}

static void table_add(struct table *t, const struct plan *plan, uint32_t i, uint64_t offset)
{
	t->words[HEAD_WORDS + t->count] = (uint64_t)(uintptr_t)(plan->conn->segment + offset);
	t->index[t->count++] = i;
}

static void fill_from_get(struct table *t, const struct plan *plan, const uint64_t *offsets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (offsets[i] < PFS_ANSWER_MIN)
			table_add(t, plan, i, offsets[i]);
}

/* NEW values of groups that are still open. */
static void fill_from_put(struct table *t, const struct plan *plan, const uint64_t *answers, bool row)
{
	const uint32_t *status = (const uint32_t *)(plan->conn->buffer + plan->status_offset);
	uint32_t key = 0;

	for (uint32_t g = 0; g < plan->groups; g++) {
		uint32_t begin = row ? g : key, end = row ? g + 1 : key + plan->group_keys[g];

		for (uint32_t i = begin; i < end && status[g] == PFS_GROUP_OK; i++)
			if (answers[i] < PFS_ANSWER_MIN)
				table_add(t, plan, i, answers[i]);
		key += plan->group_keys[g];
	}
}

static int build(struct plan *plan, uint32_t c)
{
	bool row = plan->conn->state_mask >> c & 1, put = plan->kind == PLAN_PUT;
	uint32_t most = row ? (put ? plan->groups : 1) : plan->keys;
	struct table *t = &plan->tables[c];
	int r = table_reserve(t, most);

	if (r)
		return r;
	t->count = 0;
	if (put)
		fill_from_put(t, plan, plan->values[c], row);
	else
		fill_from_get(t, plan, plan->values[c], most);
	t->words[0] = PFS_BLOB_MAGIC;
	t->words[1] = t->count;
	t->built = true;
	return 0;
}

int pfs_blob(struct pfs_session *session, uint64_t id, uint32_t kind, uint32_t class_index, struct pfs_blob *ret)
{
	struct plan *plan;
	int r;

	if (kind != PFS_BLOB_WRITE && kind != PFS_BLOB_READ)
		return say(EINVAL, "blob: kind is %u, PFS_BLOB_WRITE and PFS_BLOB_READ are possible", kind);
	r = plan_find(session, id, kind == PFS_BLOB_WRITE ? PLAN_PUT : PLAN_GET, &plan);
	if (r)
		return r;
	pthread_mutex_lock(&session->lock);
	if (class_index >= PFS_MAX_CLASSES || !plan->values[class_index])
		r = say(EINVAL, "blob: plan %#llx has no values of class %u", (unsigned long long)id, class_index);
	else if (!plan->tables[class_index].built)
		r = build(plan, class_index);
	if (!r) {
		const struct table *t = &plan->tables[class_index];

		*ret = (struct pfs_blob){
			.words = t->words,
			.bytes = (HEAD_WORDS + (size_t)t->count) * sizeof(*t->words),
			.index = t->index,
			.count = t->count,
			.kind = kind,
		};
	}
	pthread_mutex_unlock(&session->lock);
	plan_leave(session, plan, false);
	return r;
}
