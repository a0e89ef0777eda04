/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done by hand: TOUCH, REMOVE, PIN, DRAIN, RESET.
 */
#include <errno.h>
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

/* One request with keys and, where @answers is not NULL, a word for each: where they lie is written to *keys_offset and
 * *answers_offset, which are of @request. @told: the error after which the answers are there too. */
static int ask_keys(struct pfs_session *session, struct conn *conn, unsigned long op, struct pfs_call *request, size_t size,
	const struct pfs_key *keys, uint32_t count, __u64 *keys_offset, uint32_t *answers, __u64 *answers_offset, int told)
{
	__u64 keys_area = AREA_NONE, answers_area = AREA_NONE;
	int r = call_place_keys(session, conn, keys, count, keys_offset, &keys_area);

	if (!r && answers)
		r = area_take(session, conn, (uint64_t)count * sizeof(*answers), &answers_area);
	if (!r) {
		if (answers_offset)
			*answers_offset = answers ? answers_area : PFS_OFFSET_NONE;
		r = call_run(session, conn, op, request, size, 0, 0);
		if (answers && (!r || r == -told))
			memcpy(answers, conn->buffer + answers_area, count * sizeof(*answers));
	}
	area_give(session, conn, answers_area);
	area_give(session, conn, keys_area);
	return r;
}

int pfs_touch(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t priority,
	uint32_t pause_ms, uint32_t *touched)
{
	struct conn *conn;
	int r = check_keys("touch", keys, count);

	for (unsigned turn = 0; !r; turn++) {
		struct pfs_touch a = {.keys = count, .priority = priority, .pause_ms = pause_ms};

		r = conn_get(session, &conn);
		if (r)
			return r;
		r = ask_keys(session, conn, PFS_IOC_TOUCH, &a.call, sizeof(a), keys, count, &a.keys_offset, NULL, NULL, 0);
		if (!r && touched)
			*touched = a.touched;
		if (!conn_again(session, &conn, r, turn))
			return r;
		r = 0;
	}
	return r;
}

int pfs_remove(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t class_mask,
	uint32_t *answers, struct pfs_remove_result *ret)
{
	struct conn *conn;
	int r = check_keys("remove", keys, count);

	for (unsigned turn = 0; !r; turn++) {
		struct pfs_remove a = {.keys = count, .class_mask = class_mask};

		r = conn_get(session, &conn);
		if (r)
			return r;
		r = ask_keys(session, conn, PFS_IOC_REMOVE, &a.call, sizeof(a), keys, count, &a.keys_offset, answers,
			&a.answers_offset, 0);
		if (!r && ret)
			*ret = (struct pfs_remove_result){
				.removed = a.removed, .absent = a.absent, .busy = a.busy, .values = a.values};
		if (!conn_again(session, &conn, r, turn))
			return r;
		r = 0;
	}
	return r;
}

int pfs_pin(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint32_t flags, uint32_t *answers,
	struct pfs_pin_result *ret)
{
	struct conn *conn;
	int r = check_keys("pin", keys, count);

	for (unsigned turn = 0; !r; turn++) {
		struct pfs_pin a = {.keys = count, .flags = flags};

		r = conn_get(session, &conn);
		if (r)
			return r;
		r = ask_keys(session, conn, PFS_IOC_PIN, &a.call, sizeof(a), keys, count, &a.keys_offset, answers,
			&a.answers_offset, ENOSPC);
		if ((!r || r == -ENOSPC) && ret)
			*ret = (struct pfs_pin_result){.changed = a.changed,
				.absent = a.absent,
				.pinned_bytes = a.pinned_bytes,
				.limit_bytes = a.limit_bytes};
		if (!conn_again(session, &conn, r, turn))
			return r;
		r = 0;
	}
	return r;
}

int pfs_drain(struct pfs_session *session, uint64_t *values)
{
	struct conn *conn;

	for (unsigned turn = 0;; turn++) {
		struct pfs_drain a = {0};
		int r = conn_get(session, &conn);

		if (r)
			return r;
		r = call_run(session, conn, PFS_IOC_DRAIN, &a.call, sizeof(a), 0, 0);
		if (!r && values)
			*values = a.values;
		if (!conn_again(session, &conn, r, turn))
			return r;
	}
}

int pfs_reset(struct pfs_session *session, struct pfs_reset_result *ret)
{
	struct conn *conn;

	for (unsigned turn = 0;; turn++) {
		struct pfs_reset a = {0};
		int r = conn_get(session, &conn);

		if (r)
			return r;
		r = call_run(session, conn, PFS_IOC_RESET, &a.call, sizeof(a), 0, 0);
		if (!r && ret)
			*ret = (struct pfs_reset_result){.generation = a.generation, .values = a.values, .held = a.held};
		if (!conn_again(session, &conn, r, turn))
			return r;
	}
}
