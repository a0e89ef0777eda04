/* SPDX-License-Identifier: Apache-2.0
 *
 * client_import NAMESPACE [wait]: values written to a memory file of its own, through libprefixfs. Exits with 0, or says what was not
 * so. With `wait` it says "ready" and waits for a line between two transfers, in which the daemon may die.
 *
 * The namespace has a dense class of 8,192 bytes, one of 4,500 and a state class of 3,000, and pages of 64 tokens.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"

#define PAGES 4u
#define BYTES (1u << 20)
#define MUST(condition) must(condition, #condition, __LINE__)

static const uint32_t sizes[] = {8192, 4500, 3000};

static void must(int holds, const char *text, int line)
{
	char why[512];

	if (holds)
		return;
	pfs_last_error(why, sizeof(why));
	fprintf(stderr, "line %d: not so: %s (%s)\n", line, text, why);
	exit(1);
}

static void make_keys(struct pfs_key *keys)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		char name[64];
		int length = snprintf(name, sizeof(name), "page %u", i);

		MUST(!pfs_key_from_bytes(name, (size_t)length, &keys[i]));
	}
}

static uint8_t byte_of(uint32_t class_index, uint32_t page, uint32_t i)
{
	return (uint8_t)(class_index * 101 + page * 31 + i * 7 + i / 256);
}

static void put(struct pfs_session *s, const struct pfs_key *keys)
{
	struct pfs_put_group group = {.consumed = PAGES * 64ull, .keys = PAGES, .class_mask = 7, .flags = PFS_GROUP_ROOT};
	struct pfs_put_request request = {
		.groups = &group, .keys = keys, .group_count = 1, .key_count = PAGES, .class_mask = 7};
	struct pfs_put_result plan;
	uint32_t status;

	MUST(!pfs_put_start(s, &request, &plan));
	MUST(plan.status[0] == PFS_GROUP_OK);
	for (uint32_t c = 0; c < 3; c++)
		for (uint32_t page = 0; page < (c == 2 ? 1 : PAGES); page++)
			for (uint32_t i = 0; i < sizes[c]; i++)
				plan.segment[plan.answers[c][page] + i] = byte_of(c, page, i);
	MUST(!pfs_put_commit(s, plan.plan, 0, 0, &status, NULL));
	MUST(status == PFS_GROUP_COMMITTED);
}

static uint64_t look_up(struct pfs_session *s, const struct pfs_key *keys)
{
	struct pfs_get_request request = {.keys = keys, .key_count = PAGES, .flags = PFS_GET_NO_BITS | PFS_GET_NO_AHEAD};
	struct pfs_get_result found;

	MUST(!pfs_get_start(s, &request, &found));
	MUST(found.transferable_len == PAGES * 64);
	return found.handle;
}

static void check(const uint8_t *at, uint32_t class_index, uint32_t page)
{
	for (uint32_t i = 0; i < sizes[class_index]; i++)
		MUST(at[i] == byte_of(class_index, page, i));
}

static void transfer(struct pfs_session *s, const struct pfs_key *keys, uint64_t import, uint8_t *memory)
{
	static const uint32_t blocks[PAGES] = {3, 11, 0, 7};
	struct pfs_into_request q = {
		.handle = look_up(s, keys),
		.boundary = PAGES * 64,
		.to = PAGES * 64,
		.import = import,
		.base = 5,
		.stride = 20000,
		.state_base = 900000,
		.blocks = blocks,
		.class_offset = {1, 9000, 77},
	};
	struct pfs_into_result r;

	memset(memory, 0xee, BYTES);
	MUST(!pfs_get_into(s, &q, &r));
	MUST(r.delivered_len == PAGES * 64 && r.values == 2 * PAGES + 1 && r.handle_ended == 1);
	MUST(r.bytes == PAGES * (8192 + 4500) + 3000);
	for (uint32_t i = 0; i < PAGES; i++) {
		check(memory + 5 + blocks[i] * 20000 + 1, 0, i);
		check(memory + 5 + blocks[i] * 20000 + 9000, 1, i);
	}
	check(memory + 900077, 2, 0);
	MUST(memory[5] == 0xee && memory[BYTES - 1] == 0xee && memory[900076] == 0xee && memory[903077] == 0xee);
	MUST(pfs_get_into(s, &q, &r) == -ENOENT); /* the handle has ended */
}

static void refusals(struct pfs_session *s, const struct pfs_key *keys, uint64_t import)
{
	struct pfs_into_request q = {
		.handle = look_up(s, keys), .boundary = PAGES * 64, .to = PAGES * 64, .import = import, .class_mask = 1};
	struct pfs_into_result r;
	uint64_t id, ids[PFS_MAX_IMPORTS];
	char why[512];
	int hole = memfd_create("holes", MFD_CLOEXEC);

	MUST(pfs_get_into(s, &q, &r) == -EINVAL); /* stride */
	q.stride = BYTES;
	MUST(pfs_get_into(s, &q, &r) == -ERANGE);
	q.import = import + 1000;
	MUST(pfs_get_into(s, &q, &r) == -ENOENT);
	q.import = import;
	q.reserved[4] = 1;
	MUST(pfs_get_into(s, &q, &r) == -EINVAL);
	MUST(!pfs_get_cancel(s, q.handle));
	MUST(pfs_import_add(s, -1, &id) == -EBADF);
	MUST(!ftruncate(hole, 8192));
	for (unsigned i = 0; i < 2 * PFS_MAX_IMPORTS; i++) { /* nothing is left of what was refused */
		MUST(pfs_import_add(s, hole, &id) == -EINVAL);
		pfs_last_error(why, sizeof(why));
		MUST(strstr(why, "of which 0 are present") != NULL);
	}
	MUST(!posix_fallocate(hole, 0, 8192));
	for (unsigned i = 1; i < PFS_MAX_IMPORTS; i++)
		MUST(!pfs_import_add(s, hole, &ids[i]));
	MUST(pfs_import_add(s, hole, &id) == -EDQUOT);
	for (unsigned i = 1; i < PFS_MAX_IMPORTS; i++)
		MUST(!pfs_import_drop(s, ids[i]));
	MUST(pfs_import_drop(s, ids[1]) == -ENOENT);
	MUST(pfs_import_drop(s, 0) == -ENOENT);
	close(hole);
}

int main(int argc, char **argv)
{
	int fd = memfd_create("engine", MFD_CLOEXEC);
	struct pfs_key keys[PAGES];
	struct pfs_session *s;
	struct pfs_options options;
	uint64_t import;
	uint8_t *memory;
	char line[16];

	MUST(argc > 1 && fd >= 0 && !posix_fallocate(fd, 0, BYTES));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(memory != MAP_FAILED);
	pfs_options_init(&options);
	options.rank = 0;
	options.wait_prewarm = 1;
	MUST(!pfs_open(argv[1], &options, &s));
	MUST(!pfs_import_add(s, fd, &import));
	close(fd); /* the session has a copy */
	make_keys(keys);
	put(s, keys);
	transfer(s, keys, import, memory);
	if (argc > 2) {
		puts("ready");
		fflush(stdout);
		MUST(fgets(line, sizeof(line), stdin) != NULL);
		transfer(s, keys, import, memory);
	} else {
		refusals(s, keys, import);
	}
	MUST(!pfs_import_drop(s, import));
	MUST(pfs_import_drop(s, import) == -ENOENT);
	pfs_close(&s);
	return 0;
}
