/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/upgrade.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/client/prefixfs_abi.h"
#include "fs/connection.h"
#include "fs/fs.h"
#include "fs/passthrough.h"
#include "fs/version.h"
#include "index/tables.h"
#include "store/base/clock.h"

/* ---- what this program says of itself --------------------------------------------------------------------------------- */

/* The bytes on standard input, at most @capacity; those that came in time. */
static size_t read_input(uint8_t *to, size_t capacity)
{
	uint64_t until = clock_now_ns() + UPGRADE_JUDGE_MS * 1000000ull;
	size_t used = 0;

	while (used < capacity) {
		uint64_t now = clock_now_ns();
		struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

		if (now >= until || poll(&input, 1, (int)((until - now) / 1000000) + 1) <= 0)
			break;
		ssize_t n = read(STDIN_FILENO, to + used, capacity - used);
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	return used;
}

/* What libfuse and this program answer to @request with these options: as at a start, but to nobody. */
static size_t answer_init(const struct config *config, const uint8_t *request, size_t bytes, uint8_t reply[WILL_INIT_BYTES])
{
	struct why why = WHY_INIT;
	struct fs *fs = calloc(1, sizeof(*fs));
	int nowhere = eventfd(0, EFD_CLOEXEC);
	size_t length = 0;

	if (fs)
		fs->will = calloc(1, sizeof(*fs->will));
	if (fs && fs->will && nowhere >= 0) {
		fs->config = config;
		fs->disk = config->disk[0];
		fs->passthrough = passthrough_new(fs);
		connection_keep(fs->will, 0, request, bytes);
		if (fs->passthrough && connection_open(fs, &fs_ops, nowhere, &why) == 0) {
			length = connection_rehearse(fs, reply);
			fuse_session_destroy(fs->session);
			nowhere = -1;
		}
		if (fs->passthrough)
			passthrough_free(&fs->passthrough);
	}
	if (nowhere >= 0)
		close(nowhere);
	if (fs)
		free(fs->will);
	free(fs);
	return length;
}

int upgrade_judge(const struct config *config, int config_error, const struct why *why)
{
	static struct upgrade_verdict verdict;
	static uint8_t request[WILL_INIT_BYTES];
	size_t bytes = read_input(request, sizeof(request));

	verdict = (struct upgrade_verdict){
		.magic = UPGRADE_MAGIC,
		.bytes = sizeof(verdict),
		.will_version = WILL_VERSION,
		.tables_oldest = TABLES_VERSION,
		.tables_newest = TABLES_VERSION,
		.abi_version = PFS_ABI_VERSION,
		.error = (uint32_t)-config_error,
	};
	snprintf(verdict.version, sizeof(verdict.version), "%s", version_text);
	if (config_error)
		snprintf(verdict.text, sizeof(verdict.text), "%.*s", (int)sizeof(verdict.text) - 1, why->text);
	else if (bytes)
		verdict.reply_bytes = (uint32_t)answer_init(config, request, bytes, verdict.reply);
	return write(STDOUT_FILENO, &verdict, sizeof(verdict)) == sizeof(verdict) ? 0 : 1;
}

/* ---- what the parent makes of it -------------------------------------------------------------------------------------- */

/* 0, or EPROTO: they could not speak with each other. */
static int judge_parent(const struct upgrade_verdict *v, const char *name, struct why *why)
{
	if (v->will_version != WILL_VERSION)
		return why_set(why, EPROTO, "%s speaks version %u to its parent, this daemon %u: stop it and start the new one", name,
			v->will_version, WILL_VERSION);
	if (v->bytes != sizeof(*v))
		return why_set(why, EPROTO, "%s says %u bytes about itself, this daemon knows %zu: stop it and start the new one", name,
			v->bytes, sizeof(*v));
	return 0;
}

static int judge_tables(const struct upgrade_verdict *v, const char *name, uint32_t version, struct why *why)
{
	char known[64];

	if (!version || (version >= v->tables_oldest && version <= v->tables_newest))
		return 0;
	if (v->tables_oldest == v->tables_newest)
		snprintf(known, sizeof(known), "version %u", v->tables_newest);
	else
		snprintf(known, sizeof(known), "versions %u to %u", v->tables_oldest, v->tables_newest);
	return why_set(why, ENOTSUP,
		"%s knows tables of %s; those here have %u: %s program cannot take them over; stop with --drain, then start it", name, known,
		version, version > v->tables_newest ? "an older" : "so new a");
}

/* 0, or EXDEV: the kernel would have to be told otherwise. */
static int judge_init(const struct upgrade_verdict *v, const char *name, const struct will_init *init, struct why *why)
{
	char text[128];

	if (!atomic_load_explicit(&init->reply_bytes, memory_order_acquire))
		return 0;
	if (!v->reply_bytes || v->reply_bytes > sizeof(v->reply))
		return why_set(why, EXDEV, "%s gives no answer to the kernel's INIT; the mount would be made anew, which --remount allows",
			name);
	if (!connection_differs(init, v->reply, v->reply_bytes, text, sizeof(text)))
		return 0;
	return why_set(why, EXDEV, "%s answers the kernel's INIT otherwise: %s; the mount would be made anew, which --remount allows", name,
		text);
}

int upgrade_may_follow(const struct upgrade_verdict *v, uint32_t tables_version, const struct will_init *init, struct why *why)
{
	char name[64];
	int r;

	snprintf(name, sizeof(name), "prefixfsd %.*s", (int)strnlen(v->version, sizeof(v->version)), v->version);
	r = judge_parent(v, name, why);
	if (!r && v->error)
		r = why_set(why, EINVAL, "%s does not take this daemon's options: %.*s", name, (int)strnlen(v->text, sizeof(v->text)), v->text);
	if (!r)
		r = judge_tables(v, name, tables_version, why);
	return r ? r : judge_init(v, name, init, why);
}
