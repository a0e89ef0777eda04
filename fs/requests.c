/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/requests.h"

#include <assert.h>
#include <linux/fuse.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fs/ioctl.h"

#define OTHER 0u

/* Kinds below REQUESTS_IOCTL. */
static const struct {
	uint32_t opcode;
	const char *name;
} fuse_kinds[] = {
	{0, "other"},
	{FUSE_LOOKUP, "lookup"},
	{FUSE_GETATTR, "getattr"},
	{FUSE_SETATTR, "setattr"},
	{FUSE_READLINK, "readlink"},
	{FUSE_MKDIR, "mkdir"},
	{FUSE_UNLINK, "unlink"},
	{FUSE_RMDIR, "rmdir"},
	{FUSE_OPEN, "open"},
	{FUSE_READ, "read"},
	{FUSE_WRITE, "write"},
	{FUSE_RELEASE, "release"},
	{FUSE_OPENDIR, "opendir"},
	{FUSE_READDIR, "readdir"},
	{FUSE_READDIRPLUS, "readdirplus"},
	{FUSE_STATFS, "statfs"},
	{FUSE_POLL, "poll"},
	{FUSE_GETXATTR, "getxattr"},
	{FUSE_SETXATTR, "setxattr"},
	{FUSE_LISTXATTR, "listxattr"},
	{FUSE_REMOVEXATTR, "removexattr"},
};
#define FUSE_KINDS (sizeof(fuse_kinds) / sizeof(fuse_kinds[0]))
_Static_assert(FUSE_KINDS <= REQUESTS_IOCTL, "they fit");
_Static_assert(REQUESTS_IOCTL + PFS_IOC_NR_LAST < REQUESTS_KINDS, "they fit");

struct row {
	_Atomic uint64_t bucket[REQUESTS_BUCKETS];
	_Atomic uint64_t ns;
};

struct block { /* written by its thread only */
	_Alignas(128) struct row row[REQUESTS_KINDS];
};

struct requests {
	unsigned threads;
	struct block *block;
};

static _Thread_local struct block *mine; /* NULL: this thread does not count */

struct requests *requests_new(unsigned threads)
{
	struct requests *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->threads = threads;
	r->block = aligned_alloc(_Alignof(struct block), threads * sizeof(*r->block));
	if (r->block)
		memset(r->block, 0, threads * sizeof(*r->block));
	else
		requests_free(&r);
	return r;
}

void requests_free(struct requests **rp)
{
	struct requests *r = *rp;

	*rp = NULL;
	if (!r)
		return;
	free(r->block);
	free(r);
}

void requests_enter(struct requests *r, unsigned thread)
{
	assert(thread < r->threads);
	mine = &r->block[thread];
}

unsigned requests_kind(uint32_t opcode)
{
	for (unsigned i = 1; i < FUSE_KINDS; i++)
		if (fuse_kinds[i].opcode == opcode)
			return i;
	return OTHER;
}

static void add(_Atomic uint64_t *to, uint64_t n)
{
	atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

uint64_t requests_bucket_us(unsigned bucket)
{
	return 4ull << 2 * bucket;
}

void requests_count(unsigned kind, uint64_t ns)
{
	unsigned b = 0;

	assert(kind < REQUESTS_KINDS);
	if (!mine)
		return;
	while (b < REQUESTS_BUCKETS - 1 && ns > requests_bucket_us(b) * 1000)
		b++;
	add(&mine->row[kind].bucket[b], 1);
	add(&mine->row[kind].ns, ns);
}

const char *requests_name(unsigned kind)
{
	if (kind < FUSE_KINDS)
		return fuse_kinds[kind].name;
	return kind < REQUESTS_IOCTL ? NULL : ioctl_name(kind - REQUESTS_IOCTL);
}

const char *requests_read(const struct requests *r, unsigned kind, struct requests_sum *ret)
{
	const char *name = requests_name(kind);

	if (!name)
		return NULL;
	memset(ret, 0, sizeof(*ret));
	for (unsigned t = 0; t < r->threads; t++) {
		const struct row *row = &r->block[t].row[kind];

		for (unsigned b = 0; b < REQUESTS_BUCKETS; b++)
			ret->bucket[b] += atomic_load_explicit(&row->bucket[b], memory_order_relaxed);
		ret->ns += atomic_load_explicit(&row->ns, memory_order_relaxed);
	}
	return name;
}
