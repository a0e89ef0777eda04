/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions that change nothing: PROBE, STAT.
 */
#include <errno.h>
#include <string.h>

#include "fs/client/client.h"

#define STAT_MAX_BYTES (1u << 20)

struct probe {
	const struct pfs_key *keys;
	uint32_t count;
	uint8_t *hit_bits;
	struct pfs_probe answer;
};

static int probe_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct probe *p = context;
	struct pfs_probe a = {.keys = p->count};
	__u64 keys_area = AREA_NONE, bits_area = AREA_NONE;
	int r = call_place_keys(session, conn, p->keys, p->count, &a.keys_offset, &keys_area);

	if (!r && p->hit_bits)
		r = area_take(session, conn, ((uint64_t)p->count + 63) / 64 * 8, &bits_area);
	if (!r) {
		a.hits_offset = p->hit_bits ? bits_area : PFS_OFFSET_NONE;
		r = call_run(session, conn, PFS_IOC_PROBE, &a.call, sizeof(a), 0, 0);
		if (!r && p->hit_bits)
			memcpy(p->hit_bits, conn->buffer + bits_area, ((size_t)p->count + 7) / 8);
	}
	area_give(session, conn, bits_area);
	area_give(session, conn, keys_area);
	p->answer = a;
	return r;
}

int pfs_probe(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint8_t *hit_bits,
	struct pfs_probe_result *ret)
{
	struct probe p = {.keys = keys, .count = count, .hit_bits = hit_bits};
	int r;

	if (!keys || count == 0)
		return say(EINVAL, "probe: at least one key is needed");
	if (count > PFS_MAX_KEYS)
		return say(E2BIG, "probe: %u keys, at most %u are possible", count, PFS_MAX_KEYS);
	r = conn_run(session, probe_on, &p);
	if (!r && ret)
		*ret = (struct pfs_probe_result){.hits = p.answer.hits, .prefix = p.answer.prefix};
	return r;
}

struct text {
	char *to;
	size_t size, *length;
};

static int stat_on(struct pfs_session *session, struct conn *conn, void *context)
{
	struct text *t = context;
	struct pfs_stat a = {.capacity = (uint32_t)t->size - 1};
	int r = area_take(session, conn, t->size, &a.text_offset);

	if (r)
		return r;
	r = call_run(session, conn, PFS_IOC_STAT, &a.call, sizeof(a), 0, 0);
	if (!r) {
		size_t n = a.bytes < t->size - 1 ? a.bytes : t->size - 1;

		memcpy(t->to, conn->buffer + a.text_offset, n);
		t->to[n] = '\0';
		if (t->length)
			*t->length = a.bytes;
	}
	area_give(session, conn, a.text_offset);
	return r;
}

int pfs_stat(struct pfs_session *session, char *to, size_t size, size_t *length)
{
	struct text t = {to, size, length};

	if (!to || size == 0 || size > STAT_MAX_BYTES)
		return say(EINVAL, "stat: a buffer of %zu bytes, 1..%u are possible", size, STAT_MAX_BYTES);
	return conn_run(session, stat_on, &t);
}
