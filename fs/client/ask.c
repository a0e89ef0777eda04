/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions that change nothing: PROBE, STAT.
 */
#include <errno.h>
#include <string.h>

#include "fs/client/client.h"

#define STAT_MAX_BYTES (1u << 20)

static int probe_on(struct pfs_session *session, struct conn *conn, const struct pfs_key *keys, uint32_t count,
	uint8_t *hit_bits, struct pfs_probe *a)
{
	__u64 keys_area = AREA_NONE, bits_area = AREA_NONE;
	int r = call_place_keys(session, conn, keys, count, &a->keys_offset, &keys_area);

	if (!r && hit_bits)
		r = area_take(session, conn, ((uint64_t)count + 63) / 64 * 8, &bits_area);
	if (!r) {
		a->keys = count;
		a->hits_offset = hit_bits ? bits_area : PFS_OFFSET_NONE;
		r = call_run(session, conn, PFS_IOC_PROBE, &a->call, sizeof(*a), 0, 0);
		if (!r && hit_bits)
			memcpy(hit_bits, conn->buffer + bits_area, ((size_t)count + 7) / 8);
	}
	area_give(session, conn, bits_area);
	area_give(session, conn, keys_area);
	return r;
}

int pfs_probe(struct pfs_session *session, const struct pfs_key *keys, uint32_t count, uint8_t *hit_bits,
	struct pfs_probe_result *ret)
{
	struct conn *conn;
	int r;

	if (!keys || count == 0)
		return say(EINVAL, "probe: at least one key is needed");
	if (count > PFS_MAX_KEYS)
		return say(E2BIG, "probe: %u keys, at most %u are possible", count, PFS_MAX_KEYS);
	for (unsigned turn = 0;; turn++) {
		struct pfs_probe a = {0};

		r = conn_get(session, &conn);
		if (r)
			return r;
		r = probe_on(session, conn, keys, count, hit_bits, &a);
		if (!r && ret)
			*ret = (struct pfs_probe_result){.hits = a.hits, .prefix = a.prefix};
		if (!conn_again(session, &conn, r, turn))
			return r;
	}
}

int pfs_stat(struct pfs_session *session, char *to, size_t size, size_t *length)
{
	struct conn *conn;
	int r;

	if (!to || size == 0 || size > STAT_MAX_BYTES)
		return say(EINVAL, "stat: a buffer of %zu bytes, 1..%u are possible", size, STAT_MAX_BYTES);
	for (unsigned turn = 0;; turn++) {
		struct pfs_stat a = {.capacity = (uint32_t)size - 1};

		r = conn_get(session, &conn);
		if (r)
			return r;
		r = area_take(session, conn, size, &a.text_offset);
		if (!r) {
			r = call_run(session, conn, PFS_IOC_STAT, &a.call, sizeof(a), 0, 0);
			if (!r) {
				size_t n = a.bytes < size - 1 ? a.bytes : size - 1;

				memcpy(to, conn->buffer + a.text_offset, n);
				to[n] = '\0';
				if (length)
					*length = a.bytes;
			}
			area_give(session, conn, a.text_offset);
		}
		if (!conn_again(session, &conn, r, turn))
			return r;
	}
}
