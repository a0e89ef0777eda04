/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace and its heirs, without a mount: each heir adopts a copy of the tables as they are in that moment, over the same segment.
 * So the one that "died" stays whole, and can be taken apart at the end.
 */
#ifndef PREFIXFS_TESTS_UNIT_ADOPT_WORLD_H
#define PREFIXFS_TESTS_UNIT_ADOPT_WORLD_H

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/adopt.h"
#include "store/host_private.h"
#include "store/outcomes.h"
#include "store/remnants.h"
#include "tests/unit/store_fixture.h"

static _Atomic uint64_t last_session, last_serial; /* as the will has them */

static inline struct host *world_host(uint64_t memory)
{
	struct host_config config = {
		.memory_bytes = memory,
		.wish = SEGMENT_WISH_SMALL,
		.populate = false,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 10000,
		.last_session = &last_session,
		.last_serial = &last_serial,
	};
	struct why why = WHY_INIT;
	struct host *host;

	if (host_new(&config, &host, &why))
		fail_msg("host: %s", why.text);
	return host;
}

static inline void world_open(struct fixture *f, const char *classes, uint32_t world, uint64_t memory, uint64_t floor)
{
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	f->host = world_host(memory);
	if (host_space_create(f->host, "test", fixture_layout(classes, world, floor), &access, &f->space, &why))
		fail_msg("space: %s", why.text);
	fixture_await_prewarm(f);
}

/* A memory file with the same bytes and the same holes. */
static inline int copy_file(int from)
{
	int to = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	static char buffer[1 << 20];
	struct stat st;
	off_t at = 0;

	assert_int_equal(fstat(from, &st), 0);
	assert_int_equal(ftruncate(to, st.st_size), 0);
	while ((at = lseek(from, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(from, at, SEEK_HOLE);

		while (at < end) {
			size_t n = (size_t)(end - at) < sizeof(buffer) ? (size_t)(end - at) : sizeof(buffer);

			assert_int_equal(pread(from, buffer, n, at), (ssize_t)n);
			assert_int_equal(pwrite(to, buffer, n, at), (ssize_t)n);
			at += (off_t)n;
		}
	}
	return to;
}

struct heir {
	struct fixture f;
	struct adopt_report report;
	struct why why;
	int error;
};

/* What an heir of @dead is given. */
static inline struct adoption world_adoption(const struct fixture *dead, const char *layout_json)
{
	static const struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;
	struct adoption a = {
		.name = "test",
		.serial = space_serial(dead->space),
		.access = &access,
		.segment_fd = dup(segment_fd(dead->space->segment)),
		.tables_fd = copy_file(dead->space->tables_fd),
	};

	if (!layout_json)
		layout_json = space_layout(dead->space)->json;
	assert_int_equal(layout_parse(layout_json, strlen(layout_json), &a.layout, &why), 0);
	a.layout->floor_bytes = space_floor_bytes(dead->space);
	return a;
}

/* Takes the adoption's descriptors; the host is @heir's in any case. */
static inline void world_adopt(struct heir *heir, struct adoption *a, uint64_t memory)
{
	*heir = (struct heir){ .why = WHY_INIT };
	heir->f.host = world_host(memory);
	heir->error = host_space_adopt(heir->f.host, a, &heir->f.space, &heir->report, &heir->why);
	if (heir->error)
		return;
	host_adopted(heir->f.host);
	fixture_await_prewarm(&heir->f);
	lock_take(&heir->f.space->lock);
	index_check(heir->f.space->index);
	slots_check(heir->f.space->slots);
	lock_drop(&heir->f.space->lock);
}

static inline void world_inherit(struct heir *heir, const struct fixture *dead)
{
	struct adoption a = world_adoption(dead, NULL);

	world_adopt(heir, &a, dead->host->config.memory_bytes);
	if (heir->error)
		fail_msg("adoption: %s", heir->why.text);
}

static inline struct session *world_session(struct fixture *f, uint8_t client, uint64_t process, uint64_t handle)
{
	struct session_attach attach = { .rank = 0, .node = 0, .handle = handle, .call_buffer_bytes = 1 << 16 };
	struct session *s, *welcome;
	struct why why = WHY_INIT;
	struct space_range ranges[256];
	struct session_ack acks[256];
	uint32_t total, accepted, n;
	uint64_t version;
	int segment, buffer;

	attach.client_id[0] = client;
	if (session_new(f->host, f->space, 1, 0, 0, false, &s, &why) || session_attach(s, &attach, &why) ||
	    session_welcome(f->host, attach.token, 1, process, 0, 0, NULL, 0, &welcome, &segment, &buffer, &why))
		fail_msg("session: %s", why.text);
	session_unref(&welcome);
	n = space_ranges(f->space, 0, ranges, 256, &total, &version);
	for (uint32_t i = 0; i < n; i++)
		acks[i] = (struct session_ack){ ranges[i].id, ranges[i].generation };
	assert_int_equal(session_ack_ranges(s, acks, n, &accepted, &why), 0);
	return s;
}

static inline void world_session_end(struct session **s)
{
	uint64_t number = session_number(*s);
	struct host *host = session_host(*s);

	session_release(*s);
	session_unref(s);
	host_process_gone(host, number); /* nothing of it rests */
}

#define WORLD_SLOT 4096u

/* What a value has to hold: told by its key. */
static inline void value_bytes(uint64_t chain, uint64_t page, uint8_t to[WORLD_SLOT])
{
	uint64_t word = fixture_key(chain, page).words[0] ^ 0x5bd1e995;

	for (size_t i = 0; i < WORLD_SLOT / 8; i++, word = word * 6364136223846793005ull + 1442695040888963407ull)
		memcpy(to + i * 8, &word, 8);
}

static inline void write_value(struct fixture *f, uint64_t offset, uint64_t chain, uint64_t page)
{
	uint8_t bytes[WORLD_SLOT];

	value_bytes(chain, page, bytes);
	assert_int_equal(segment_write(f->space->segment, offset, bytes, sizeof(bytes)), 0);
}

static inline void assert_value(struct fixture *f, uint64_t offset, uint64_t chain, uint64_t page)
{
	uint8_t bytes[WORLD_SLOT], wanted[WORLD_SLOT];

	value_bytes(chain, page, wanted);
	assert_int_equal(segment_read(f->space->segment, offset, bytes, sizeof(bytes)), 0);
	assert_memory_equal(bytes, wanted, sizeof(bytes));
}

#endif
