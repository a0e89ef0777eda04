/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done by hand: TOUCH, REMOVE, PIN, DRAIN, RESET.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "fs/client/client.h"

static int check_keys(const char *what, const struct pfs_key *keys, uint32_t count)
{
	if (!keys || count == 0)
		return say(EINVAL, "%s: at least one key is needed", what);
	if (count > PFS_MAX_KEYS)
		return say(E2BIG, "%s: %u keys, at most %u are possible", what, count, PFS_MAX_KEYS);
	return 0;
}

/* One request, built anew for each connection it runs on: @request is what it says, @answer what was said. */
struct ask {
	unsigned long op;
	size_t size;
	const struct pfs_key *keys; /* NULL: it has none */
	uint32_t count;
	uint32_t *answers; /* a word for each key, or NULL */
	int told;          /* the error after which the answers are there too, or 0 */
	size_t keys_at, answers_at; /* of the offsets in the request; answers_at 0: it has no answers */
	union {
		struct pfs_call call;
		struct pfs_touch touch;
		struct pfs_remove remove;
		struct pfs_pin pin;
		struct pfs_drain drain;
		struct pfs_reset reset;
	} request, answer;
};

static void set_offset(struct ask *ask, size_t at, __u64 offset)
{
	memcpy((char *)&ask->answer + at, &offset, sizeof(offset));
}

static int ask_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct ask *ask = context;
	__u64 keys_area = AREA_NONE, answers_area = AREA_NONE, keys_offset = 0;
	int r = 0;

	ask->answer = ask->request;
	if (ask->keys) {
		r = call_place_keys(session, conn, ask->keys, ask->count, &keys_offset, &keys_area);
		set_offset(ask, ask->keys_at, keys_offset);
	}
	if (!r && ask->answers)
		r = area_take(session, conn, (uint64_t)ask->count * sizeof(*ask->answers), &answers_area);
	if (!r) {
		if (ask->answers_at)
			set_offset(ask, ask->answers_at, ask->answers ? answers_area : PFS_OFFSET_NONE);
		r = call_run(session, conn, ask->op, &ask->answer.call, ask->size, 0, 0);
		if (ask->answers && (!r || r == -ask->told))
			memcpy(ask->answers, conn->buffer + answers_area, ask->count * sizeof(*ask->answers));
	}
	area_give(session, conn, answers_area);
	area_give(session, conn, keys_area);
	return r;
}

int pfs_touch(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t priority,
	uint32_t pause_ms, uint32_t *touched)
{
	struct ask ask = {
		.op = PFS_IOC_TOUCH,
		.size = sizeof(struct pfs_touch),
		.keys = keys,
		.count = count,
		.keys_at = offsetof(struct pfs_touch, keys_offset),
		.request.touch = {.keys = count, .priority = priority, .pause_ms = pause_ms},
	};
	int r = check_keys("touch", keys, count);

	if (!r)
		r = conn_run(session, ask_on, &ask);
	if (!r && touched)
		*touched = ask.answer.touch.touched;
	return r;
}

int pfs_remove(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t class_mask,
	uint32_t *answers, struct pfs_remove_result *ret)
{
	struct ask ask = {
		.op = PFS_IOC_REMOVE,
		.size = sizeof(struct pfs_remove),
		.keys = keys,
		.count = count,
		.answers = answers,
		.keys_at = offsetof(struct pfs_remove, keys_offset),
		.answers_at = offsetof(struct pfs_remove, answers_offset),
		.request.remove = {.keys = count, .class_mask = class_mask},
	};
	const struct pfs_remove *a = &ask.answer.remove;
	int r = check_keys("remove", keys, count);

	if (!r)
		r = conn_run(session, ask_on, &ask);
	if (!r && ret)
		*ret = (struct pfs_remove_result){
			.removed = a->removed, .absent = a->absent, .busy = a->busy, .values = a->values};
	return r;
}

int pfs_pin(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t flags, uint32_t *answers,
	struct pfs_pin_result *ret)
{
	struct ask ask = {
		.op = PFS_IOC_PIN,
		.size = sizeof(struct pfs_pin),
		.keys = keys,
		.count = count,
		.answers = answers,
		.told = ENOSPC,
		.keys_at = offsetof(struct pfs_pin, keys_offset),
		.answers_at = offsetof(struct pfs_pin, answers_offset),
		.request.pin = {.keys = count, .flags = flags},
	};
	const struct pfs_pin *a = &ask.answer.pin;
	int r = check_keys("pin", keys, count);

	if (!r)
		r = conn_run(session, ask_on, &ask);
	if ((!r || r == -ENOSPC) && ret)
		*ret = (struct pfs_pin_result){.changed = a->changed,
			.absent = a->absent,
			.pinned_bytes = a->pinned_bytes,
			.limit_bytes = a->limit_bytes};
	return r;
}

int pfs_drain(struct pfs_session *session, uint64_t *values)
{
	struct ask ask = {.op = PFS_IOC_DRAIN, .size = sizeof(struct pfs_drain)};
	int r = conn_run(session, ask_on, &ask);

	if (!r && values)
		*values = ask.answer.drain.values;
	return r;
}

int pfs_reset(struct pfs_session *session, struct pfs_reset_result *ret)
{
	struct ask ask = {.op = PFS_IOC_RESET, .size = sizeof(struct pfs_reset)};
	int r = conn_run(session, ask_on, &ask);

	if (!r && ret)
		*ret = (struct pfs_reset_result){
			.generation = ask.answer.reset.generation,
			.values = ask.answer.reset.values,
			.held = ask.answer.reset.held};
	return r;
}
