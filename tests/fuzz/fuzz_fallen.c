/* SPDX-License-Identifier: Apache-2.0
 *
 * A request to the fallen mount, as bytes. Each has no answer, or one that is whole, within its room and the request's.
 */
#include <assert.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>

#include "fs/fallen.h"
#include "fs/node.h"
#include "tests/fuzz/fuzz.h"

static const char text[] = "state: fallen\nreason: signal 9 (Killed)\n";
static const struct fallen fallen = {.fuse = -1, .text = text, .bytes = sizeof(text) - 1};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

static uint64_t health(void)
{
	return node_pack((struct node){.kind = NODE_HEALTH});
}

size_t fuzz_seed(unsigned n, uint8_t *to)
{
	static const uint32_t opcodes[] = {FUSE_LOOKUP, FUSE_FORGET, FUSE_GETATTR, FUSE_OPEN, FUSE_READ, FUSE_RELEASE, FUSE_INIT, FUSE_OPENDIR,
		FUSE_READDIR, FUSE_READDIRPLUS, FUSE_INTERRUPT, FUSE_IOCTL};
	struct fuse_in_header header = {.len = sizeof(header) + 64, .unique = 2};

	if (n >= 2 * sizeof(opcodes) / sizeof(opcodes[0]))
		return 0;
	header.opcode = opcodes[n / 2];
	header.nodeid = n % 2 ? health() : FUSE_ROOT_ID;
	memcpy(to, &header, sizeof(header));
	memset(to + sizeof(header), 0, 64);
	if (header.opcode == FUSE_LOOKUP)
		memcpy(to + sizeof(header), "health", 7);
	if (header.opcode == FUSE_INIT)
		to[sizeof(header)] = FUSE_KERNEL_VERSION;
	if (header.opcode == FUSE_READ || header.opcode == FUSE_READDIR || header.opcode == FUSE_READDIRPLUS)
		to[sizeof(header) + offsetof(struct fuse_read_in, size) + 1] = 16;
	return header.opcode == FUSE_LOOKUP ? sizeof(header) + 7 : sizeof(header) + 64;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	uint8_t *request = malloc(bytes + 1), *reply = malloc(FALLEN_REPLY_BYTES); /* memory of its very length */
	struct fuse_in_header in;
	struct fuse_out_header out;

	if (bytes)
		memcpy(request, data, bytes);
	size_t n = fallen_reply(&fallen, request, bytes, reply, FALLEN_REPLY_BYTES);
	assert(bytes >= sizeof(in) || !n);
	if (n) {
		memcpy(&in, data, sizeof(in));
		memcpy(&out, reply, sizeof(out));
		assert(n <= FALLEN_REPLY_BYTES && n >= sizeof(out) && out.len == n && out.unique == in.unique);
		assert(out.error <= 0 && out.error > -1000 && (!out.error || n == sizeof(out)));
		assert(in.opcode != FUSE_FORGET && in.opcode != FUSE_INTERRUPT);
	}
	free(request);
	free(reply);
	return 0;
}
