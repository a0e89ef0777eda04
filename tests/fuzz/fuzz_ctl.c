/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that comes through ctl: ioctls with their structs and call buffers, writes, reads and polls of the text face,
 * interrupts. The fuzzer plays the kernel: it hands libfuse raw requests of a real host with one small namespace, in one
 * thread, and sees each answered once. An input is a program (struct program below), so that mutations reach what lies
 * behind well-formed requests: plans, handles, evictions, resets.
 *
 * After each input everything is at its base, and index and slots are checked from end to end.
 */
#include <assert.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/record_name.h"
#include "store/import.h"
#include "store/session.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/kernel.h"

#define SESSIONS 2u
#define IMPORT_BYTES (1u << 20)
#define CHAINS 12u /* of up to 56 pages: more than there is room for */

static struct client clients[SESSIONS];

/* ---- programs -------------------------------------------------------------------------------------------------- */

/* Each instruction is a byte that chooses what and who, and what that reads next; 0 follows the last byte. */
struct program {
	const uint8_t *at, *end;
};

static uint8_t u8(struct program *p)
{
	return p->at < p->end ? *p->at++ : 0;
}

static uint64_t odd_number(struct program *p)
{
	static const uint64_t numbers[] = {0, 1, 7, 8, 63, 64, 65, 4096, 65535, 65536, 65537, BUFFER - 8, BUFFER, INT32_MAX,
		UINT32_MAX, 1ull << 32, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
	uint8_t which = u8(p);

	return which < sizeof(numbers) / sizeof(numbers[0]) ? numbers[which] : which | (uint64_t)u8(p) << 8;
}

static struct key key_of(uint8_t chain, unsigned page)
{
	struct key key = {.words = {chain * 0x9e3779b97f4a7c15ull + page, chain, page, ~page}};

	return key;
}

/* Keys from the program at @to: at most @most. */
static uint32_t keys(struct program *p, uint8_t *to, uint32_t most)
{
	uint8_t chain = u8(p) % CHAINS, from = u8(p) % 16;
	uint32_t n = 1 + u8(p) % most;

	for (uint32_t i = 0; i < n; i++) {
		struct key key = key_of(chain, from + i);

		memcpy(to + i * sizeof(key), &key, sizeof(key));
	}
	return n;
}

enum { KEYS_AT = 8192, ANSWERS_AT = 24576, MORE_AT = 40960, STATUS_AT = 57344, MOST_KEYS = 40 };

/* As programs built before it grew ask it. */
#define ATTACH_1 (unsigned)_IOC(_IOC_READ | _IOC_WRITE, PFS_IOC_TYPE, _IOC_NR(PFS_IOC_ATTACH), PFS_BYTES_ATTACH_1)

union any {
	struct pfs_call call;
	struct pfs_attach attach;
	struct pfs_put_start put_start;
	struct pfs_put_end put_end;
	struct pfs_get_start get_start;
	struct pfs_get_transfer get_transfer;
	struct pfs_import import;
	struct pfs_get_into get_into;
	struct pfs_get_confirm get_confirm;
	struct pfs_get_cancel get_cancel;
	struct pfs_release release;
	struct pfs_probe probe;
	struct pfs_stat stat;
	struct pfs_segments segments;
	struct pfs_segments_ack segments_ack;
	struct pfs_touch touch;
	struct pfs_remove remove;
	struct pfs_pin pin;
	struct pfs_drain drain;
	struct pfs_reset reset;
	struct pfs_last_error last_error;
	struct pfs_blob_put blob_put;
	struct pfs_blob_get blob_get;
	struct pfs_blob_remove blob_remove;
	struct pfs_blob_lock blob_lock;
	uint8_t bytes[4096];
};

/* The struct goes off, mostly as it is: some bytes of the program patch it first. */
static void issue(struct program *p, struct client *c, unsigned cmd, union any *arg)
{
	size_t bytes = _IOC_SIZE(cmd);
	uint8_t how = u8(p);

	arg->call.size = (uint32_t)bytes;
	arg->call.seq = ++c->seq;
	arg->call.acked_seq = how & 1 ? c->seq - 1 : 0;
	arg->call.flags = how & 2 ? PFS_CALL_NONBLOCK : 0;
	for (unsigned n = how >> 6; how & 4 && n; n--) {
		uint64_t value = odd_number(p);
		size_t at = u8(p) % (bytes / 4) * 4, width = how & 8 && at + 8 <= bytes ? 8 : 4;

		memcpy(arg->bytes + at, &value, width);
	}
	if (how & 16) /* the same again, later */
		arg->call.seq = c->seq = c->seq > 2 ? c->seq - u8(p) % 3 : 1;
	client_ioctl(c, cmd, arg->bytes, bytes, bytes);
}

/* None mostly, or one of a few. */
static uint8_t ticket(struct program *p)
{
	uint8_t what = u8(p);

	return what & 1 ? 1 + what / 2 % 4 : 0;
}

static void put_start(struct program *p, struct client *c)
{
	union any arg = {.put_start = {.plan = u8(p) % 8, .keys_offset = KEYS_AT, .answers_offset = ANSWERS_AT,
		.status_offset = STATUS_AT, .groups = 1 + u8(p) % 4}};
	struct pfs_put_start *s = &arg.put_start;

	for (uint32_t g = 0; g < s->groups; g++) {
		uint8_t what = u8(p), chain = u8(p) % CHAINS, from = u8(p) % 16;
		struct pfs_put_group group = {.keys = 1 + u8(p) % (what & 128 ? MOST_KEYS : 4), .class_mask = what & 3 ? what & 3 : 1};
		struct key key;

		if (what & 4 || !from)
			group.flags |= PFS_GROUP_ROOT;
		if (what & 8)
			group.flags |= PFS_GROUP_WHOLE;
		if ((what & 0x70) == 0x70) {
			group.flags |= PFS_GROUP_ROW_ONLY;
			group.class_mask = 2;
			group.keys = 1;
		}
		if ((what & 0x70) == 0x50)
			group.flags |= PFS_GROUP_RUNG;
		if (group.flags & PFS_GROUP_ROOT)
			from = 0;
		key = key_of(chain, from - 1u);
		if (from)
			memcpy(&group.parent, &key, sizeof(key));
		group.consumed = (uint64_t)(from + group.keys) * 64;
		if (group.flags & PFS_GROUP_ROW_ONLY)
			group.consumed = (uint64_t)from * 64 + u8(p);
		for (uint32_t i = 0; i < group.keys; i++) {
			key = key_of(chain, from + i);
			memcpy(c->buffer + KEYS_AT + (s->keys + i) * sizeof(key), &key, sizeof(key));
		}
		s->keys += group.keys;
		s->class_mask |= group.class_mask;
		memcpy(c->buffer + g * sizeof(group), &group, sizeof(group));
	}
	s->ticket[0] = ticket(p);
	issue(p, c, PFS_IOC_PUT_START, &arg);
}

static void put_end(struct program *p, struct client *c, unsigned cmd)
{
	union any arg = {.put_end = {.plan = u8(p) % 8, .status_offset = STATUS_AT, .first_group = u8(p) % 4, .groups = 1}};

	arg.put_end.groups += u8(p) % 4;
	issue(p, c, cmd, &arg);
}

static void get_start(struct program *p, struct client *c)
{
	uint8_t what = u8(p), handle = u8(p) % 8;
	union any arg = {.get_start = {.handle = handle, .keys_offset = KEYS_AT, .hits_offset = ANSWERS_AT,
		.restorable_offset = MORE_AT, .missing_offset = STATUS_AT, .missing_capacity = 16,
		.flags = what & 1, .class_mask = what >> 1 & 3}};

	arg.get_start.keys = keys(p, c->buffer + KEYS_AT, MOST_KEYS);
	if (what & 8)
		arg.get_start.have = u8(p) % 16 * 64u;
	if (what & 16)
		arg.get_start.limit = u8(p) * 16u;
	if (what & 32) {
		uint32_t two[2] = {1, arg.get_start.keys - 1};

		memcpy(c->buffer, two, sizeof(two));
		arg.get_start.groups = arg.get_start.keys > 1 ? 2 : 1;
	}
	if (what & 64)
		arg.get_start.hits_offset = arg.get_start.restorable_offset = PFS_OFFSET_NONE;
	if (what & 128)
		arg.call.deadline_ms = 1;
	arg.get_start.ticket[0] = ticket(p);
	if (handle & 4) {
		arg.get_start.candidates_offset = arg.get_start.wanted_offset = MORE_AT;
		arg.get_start.candidates_capacity = arg.get_start.wanted_capacity = 16;
		arg.get_start.prompt_len = u8(p) * 1000u;
		arg.get_start.room = u8(p);
	}
	issue(p, c, PFS_IOC_GET_START, &arg);
	if (kernel.error == 0) {
		memcpy(&arg, kernel.reply + sizeof(struct fuse_ioctl_out), sizeof(arg.get_start));
		c->transferable[handle] = arg.get_start.transferable_len;
	}
}

static void get_transfer(struct program *p, struct client *c)
{
	uint8_t what = u8(p), handle = u8(p) % 8;
	union any arg = {.get_transfer = {.handle = handle, .plan = u8(p) % 8, .boundary = c->transferable[handle],
		.offsets_offset = ANSWERS_AT, .offsets_capacity = 128}};
	struct pfs_get_transfer *t = &arg.get_transfer;

	if (what & 1)
		t->boundary = u8(p) % 64 * 64u;
	t->to = what & 2 ? u8(p) % 64 * 64u : t->boundary;
	if (what & 4)
		t->from = u8(p) % 16 * 64u;
	if (what & 8)
		t->class_mask = what >> 4 & 3;
	if (what & 64)
		t->candidate = what >> 7;
	arg.call.deadline_ms = 1; /* of what waits for other ranks */
	issue(p, c, PFS_IOC_GET_TRANSFER, &arg);
}

/* What the socket would bring: a memory file of a megabyte, or what is none. */
static void bring_import(struct program *p, const uint8_t token[16])
{
	uint8_t what = u8(p);
	int fd = what & 1 ? open("/dev/null", O_RDWR | O_CLOEXEC) : memfd_create("fuzz", MFD_CLOEXEC);
	struct why why = WHY_INIT;

	if (!(what & 1) && ftruncate(fd, IMPORT_BYTES))
		abort();
	if (!(what & 3) && posix_fallocate(fd, 0, IMPORT_BYTES))
		abort();
	import_bring(kernel_fs.host, token, 0, what & 4 ? fd : dup(fd), &why);
	if (!(what & 4)) {
		if (what & 8 && ftruncate(fd, what * 512)) /* shorter than it came */
			assert(what & 1);
		close(fd);
	}
}

static void import(struct program *p, struct client *c)
{
	uint8_t what = u8(p);
	union any arg = {.import = {.import = what % 4, .flags = what & 64 ? PFS_IMPORT_DROP : 0}};

	issue(p, c, PFS_IOC_IMPORT, &arg);
	if (kernel.error || what & 64)
		return;
	memcpy(&arg, kernel.reply + sizeof(struct fuse_ioctl_out), sizeof(arg.import));
	bring_import(p, arg.import.token);
}

static void get_into(struct program *p, struct client *c)
{
	uint8_t what = u8(p), handle = u8(p) % 8;
	union any arg = {.get_into = {.handle = handle, .boundary = c->transferable[handle], .import = u8(p) % 4,
		.stride = 65536, .blocks_offset = PFS_OFFSET_NONE, .state_base = IMPORT_BYTES - 20000}};
	struct pfs_get_into *t = &arg.get_into;

	t->to = what & 1 ? u8(p) % 64 * 64u : t->boundary;
	if (what & 2)
		t->from = u8(p) % 16 * 64u;
	if (what & 4)
		t->class_mask = u8(p) & 3;
	if (what & 8) {
		t->blocks_offset = ANSWERS_AT;
		for (unsigned i = 0; i < 64; i++)
			((uint32_t *)(c->buffer + ANSWERS_AT))[i] = (u8(p) + i) % 17;
	}
	if (what & 16)
		t->base = odd_number(p);
	if (what & 32)
		t->class_offset[u8(p) & 1] = odd_number(p);
	issue(p, c, PFS_IOC_GET_INTO, &arg);
}

static void end_some(struct program *p, struct client *c)
{
	uint64_t plans[4];
	uint8_t what = u8(p);
	union any arg = {0};

	if (what >= 0xc0) {
		import(p, c);
		return;
	}
	if (what >= 0x80) {
		get_into(p, c);
		return;
	}
	if ((what & 3) == 3) {
		arg.get_confirm = (struct pfs_get_confirm){.ticket = {ticket(p)}, .flags = what >> 2 & 1};
		arg.call.deadline_ms = 1;
		issue(p, c, PFS_IOC_GET_CONFIRM, &arg);
		return;
	}
	if (what & 1) {
		arg.get_cancel.handle = u8(p) % 8;
		issue(p, c, PFS_IOC_GET_CANCEL, &arg);
		return;
	}
	for (unsigned i = 0; i < 4; i++)
		plans[i] = u8(p) % 8;
	memcpy(c->buffer, plans, sizeof(plans));
	arg.release = (struct pfs_release){.status_offset = STATUS_AT, .count = 1u + u8(p) % 4};
	issue(p, c, PFS_IOC_RELEASE, &arg);
}

static void by_keys(struct program *p, struct client *c)
{
	uint8_t what = u8(p);
	union any arg = {0};
	uint32_t n = keys(p, c->buffer + KEYS_AT, MOST_KEYS);

	switch (what % 4) {
	case 0:
		arg.probe = (struct pfs_probe){.keys_offset = KEYS_AT, .hits_offset = ANSWERS_AT, .keys = n};
		issue(p, c, PFS_IOC_PROBE, &arg);
		break;
	case 1:
		arg.touch = (struct pfs_touch){.keys_offset = KEYS_AT, .keys = n};
		issue(p, c, PFS_IOC_TOUCH, &arg);
		break;
	case 2:
		arg.remove = (struct pfs_remove){
			.keys_offset = KEYS_AT, .answers_offset = ANSWERS_AT, .keys = n, .class_mask = what >> 4 & 3};
		issue(p, c, PFS_IOC_REMOVE, &arg);
		break;
	default:
		arg.pin = (struct pfs_pin){
			.keys_offset = KEYS_AT, .answers_offset = ANSWERS_AT, .keys = n, .flags = what >> 4 & 3};
		issue(p, c, PFS_IOC_PIN, &arg);
	}
}

static void others(struct program *p, struct client *c)
{
	const uint32_t guards[] = {0, (uint32_t)getpid(), (uint32_t)getppid(), UINT32_MAX};
	uint8_t what = u8(p);
	union any arg = {0};

	switch (what % 8) {
	case 0:
		issue(p, c, PFS_IOC_RESET, &arg);
		break;
	case 1:
		issue(p, c, PFS_IOC_DRAIN, &arg);
		break;
	case 2:
		arg.stat.capacity = what * 16u;
		issue(p, c, PFS_IOC_STAT, &arg);
		break;
	case 3:
		arg.segments.capacity = what;
		issue(p, c, PFS_IOC_SEGMENTS, &arg);
		break;
	case 4:
		arg.segments_ack.count = what;
		issue(p, c, PFS_IOC_SEGMENTS_ACK, &arg);
		break;
	case 5:
		issue(p, c, PFS_IOC_LAST_ERROR, &arg);
		break;
	case 6:
		arg.attach = (struct pfs_attach){.abi_version = 1, .call_buffer_bytes = BUFFER, .guard_pid = guards[what >> 6]};
		issue(p, c, what & 8 ? ATTACH_1 : PFS_IOC_ATTACH, &arg);
		break;
	default:
		host_maintain(kernel_fs.host);
	}
}

/* One blob of a few, by key or by name: whole, in pieces of 1,000 to 4,000 bytes, locked, removed. */
static void blobs(struct program *p, struct client *c)
{
	uint8_t what = u8(p), which = u8(p), size = u8(p);
	struct key key = key_of(which % 8, 0);
	union any arg = {0};
	struct pfs_blob_put *put = &arg.blob_put;
	struct pfs_blob_get *get = &arg.blob_get;
	uint32_t name_bytes = which & 64 ? which % 8 + 1 : 0;

	memset(c->buffer + KEYS_AT, 'n', 8);
	switch (what % 4) {
	case 0:
		*put = (struct pfs_blob_put){.name_offset = KEYS_AT, .name_bytes = name_bytes, .length = size * 500u,
			.bytes = size * 500u % 14000, .kind = what, .flags = what >> 6};
		put->write = what & 4 ? 1 + which % 3 : 0;
		put->offset = what & 8 ? put->bytes : 0;
		memcpy(&put->key, &key, sizeof(key));
		issue(p, c, PFS_IOC_BLOB_PUT, &arg);
		break;
	case 1:
		*get = (struct pfs_blob_get){.name_offset = KEYS_AT, .name_bytes = name_bytes, .data_offset = ANSWERS_AT,
			.read = what & 4 ? 1 + which % 3 : 0, .offset = what & 8 ? size * 100u : 0, .capacity = size * 60u,
			.flags = what >> 7};
		memcpy(&get->key, &key, sizeof(key));
		issue(p, c, PFS_IOC_BLOB_GET, &arg);
		break;
	case 2:
		arg.blob_lock = (struct pfs_blob_lock){.name_offset = KEYS_AT, .name_bytes = name_bytes, .flags = what >> 7,
			.hold_ms = size};
		arg.call.deadline_ms = what & 4 ? 1 : 0;
		memcpy(&arg.blob_lock.key, &key, sizeof(key));
		issue(p, c, PFS_IOC_BLOB_LOCK, &arg);
		break;
	default:
		arg.blob_remove = (struct pfs_blob_remove){.name_offset = KEYS_AT, .name_bytes = name_bytes};
		memcpy(&arg.blob_remove.key, &key, sizeof(key));
		issue(p, c, PFS_IOC_BLOB_REMOVE, &arg);
	}
}

/* Any number, any size, any bytes. */
static void raw_ioctl(struct program *p, struct client *c)
{
	uint8_t bytes[4096], nr = u8(p), what = u8(p);
	size_t n = (size_t)(what & 15) * 16 + (what >> 4);

	for (size_t i = 0; i < n; i++)
		bytes[i] = u8(p);
	client_ioctl(c, _IOC((unsigned)what & 3, u8(p) & 7 ? PFS_IOC_TYPE : 'T', nr, n), n ? bytes : NULL, n,
		what & 64 ? n : u8(p));
}

static void write_text(struct program *p, struct client *c)
{
	static const char *const lines[] = {"help\n", "stat\n", "plan\n", "drain\n", "reset\n", "evict --all\n",
		"evict --bytes 40000\n", "# nothing\n", "evict --bytes 1G\n", "blob list\n", "blob rm nnn\n", "blob stat nn\n"};
	static const char *const of_record[] = {"probe", "pin", "unpin", "touch", "evict"};
	struct fuse_write_in head = {.fh = c->handle};
	char text[512], name[RECORD_NAME_BYTES + 1];
	uint8_t what = u8(p);
	size_t n = 0;

	if (what < 96) { /* as it comes */
		for (; n < what; n++)
			text[n] = (char)u8(p);
	} else if (what < 128) {
		n = (size_t)snprintf(text, sizeof(text), "%s", lines[what % (sizeof(lines) / sizeof(lines[0]))]);
	} else {
		uint8_t chain = u8(p) % CHAINS, page = u8(p) % 24;
		struct key key = key_of(chain, page);

		record_name((page + 1) * 64u, &key, name);
		what %= sizeof(of_record) / sizeof(of_record[0]);
		n = (size_t)snprintf(text, sizeof(text), "%s %s\n", of_record[what], what ? name : name + 17);
	}
	head.size = (uint32_t)n;
	c->last = kernel_send(FUSE_WRITE, kernel_ctl, &head, sizeof(head), text, n);
	if (kernel.error == 0)
		assert(((struct fuse_write_out *)kernel.reply)->size <= n);
}

/* What is read is whole lines of JSON, when it is read in one go. */
static void read_text(struct program *p, struct client *c, size_t bytes)
{
	struct fuse_read_in head = {.fh = c->handle, .size = (uint32_t)bytes, .offset = u8(p) * 100u};

	kernel_send(FUSE_READ, kernel_ctl, &head, sizeof(head), NULL, 0);
	assert(kernel.error != 1 && (kernel.error || kernel.bytes <= bytes));
}

static void around(struct program *p, struct client *c)
{
	uint8_t what = u8(p);
	struct fuse_poll_in poll = {.fh = c->handle, .kh = what, .flags = FUSE_POLL_SCHEDULE_NOTIFY, .events = POLLIN};

	switch (what % 8) {
	case 0:
		kernel_interrupt(c->last);
		break;
	case 1:
	case 2:
		for (what /= 8; what && kernel_step(); what--)
			;
		break;
	case 3:
		kernel_send(FUSE_POLL, kernel_ctl, &poll, sizeof(poll), NULL, 0);
		break;
	case 4:
		read_text(p, c, 1 << 16);
		break;
	case 5:
		read_text(p, c, what);
		break;
	default: { /* the client writes where the daemon may be reading */
		uint64_t value = odd_number(p);

		memcpy(c->buffer + (u8(p) | u8(p) << 8) % (BUFFER / 8) * 8, &value, sizeof(value));
	}
	}
}

static void instruction(struct program *p)
{
	uint8_t what = u8(p);
	struct client *c = &clients[what >> 4 & 1];

	switch (what & 15) {
	case 0:
	case 1:
	case 2:
		put_start(p, c);
		break;
	case 3:
	case 4:
		put_end(p, c, PFS_IOC_PUT_COMMIT);
		break;
	case 5:
		put_end(p, c, PFS_IOC_PUT_ABORT);
		break;
	case 6:
	case 7:
		get_start(p, c);
		break;
	case 8:
		get_transfer(p, c);
		break;
	case 9:
		end_some(p, c);
		break;
	case 10:
		by_keys(p, c);
		break;
	case 11:
		if (what & 64)
			blobs(p, c);
		else
			others(p, c);
		break;
	case 12:
		raw_ioctl(p, c);
		break;
	case 13:
	case 14:
		write_text(p, c);
		break;
	default:
		around(p, c);
	}
	if (what & 32)
		while (kernel_step())
			;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	kernel_open();
	return 0;
}

static void finish(void)
{
	kernel_finish();
	for (unsigned i = 0; i < SESSIONS; i++)
		client_close(&clients[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct program p = {data, data + bytes};
	uint8_t how = u8(&p);

	for (unsigned i = 0; i < SESSIONS; i++)
		client_open(&clients[i], how >> i & 1);
	while (p.at < p.end && kernel.count < UNDER_WAY / 2)
		instruction(&p);
	finish();
	kernel_check();
	kernel_empty();
	return 0;
}

/* ---- seeds ----------------------------------------------------------------------------------------------------- */

size_t fuzz_seed(unsigned n, uint8_t *to)
{
	static const uint8_t programs[][64] = {
		/* put, commit, get, transfer, release */
		{0, 0x20, 1, 0, 1, 1, 0, 3, 0, 0x23, 1, 0, 0, 0, 0x26, 2, 1, 1, 0, 3, 0, 0x28, 2, 1, 2, 2, 0, 0x28, 4, 1, 3, 2, 0,
			0x29, 0, 2, 3, 2, 2, 1, 0},
		/* put, commit, get, into a memory file */
		{0, 0x20, 1, 0, 1, 1, 0, 3, 0, 0x23, 1, 0, 0, 0, 0x26, 2, 1, 1, 0, 3, 0, 0x29, 0xc0, 1, 0, 0, 0x29, 0x80, 0, 1, 1, 0,
			0x29, 0xc0, 65, 0},
		/* a chain of two records with rows, a WHOLE group, an abort */
		{0, 0x20, 1, 1, 3, 1, 0, 3, 3, 1, 4, 3, 0, 0x23, 1, 0, 1, 0, 0x20, 2, 0, 9, 2, 0, 3, 0, 0x25, 2, 0, 0, 0},
		/* one waits for what the other writes */
		{0, 0x20, 1, 0, 1, 1, 0, 3, 0, 0x16, 1, 1, 1, 0, 3, 0, 0x23, 1, 0, 0, 0, 0x2f, 1},
		/* by hand */
		{0, 0x20, 1, 0, 3, 1, 0, 3, 0, 0x23, 1, 0, 0, 0, 0x2a, 3, 1, 0, 3, 0, 0x2a, 2, 1, 0, 3, 0, 0x2a, 19, 1, 0, 3, 0,
			0x2a, 2, 1, 0, 1, 0, 0x2b, 0, 0},
		/* the text face */
		{0, 0x2d, 99, 0x2d, 100, 0x2f, 4, 0x2d, 128, 1, 3, 0x2d, 129, 1, 3, 0x2d, 101, 0x2d, 102, 0x2d, 104, 0x2f, 12},
		/* ... as it comes */
		{0, 0x2d, 20, 'h', 'e', 'l', 'p', '\n', 's', 't', 'a', 't', '\n', 'p', 'r', 'o', 'b', 'e', ' ', '0', '\n', 'x',
			0x2d, 7, 'h', 'e', '\r', '\n', 0, 'l', '\n', 0x2f, 5},
		/* rows without pages, before and after the pages come; a row dropped by key */
		{0, 0x20, 1, 0, 0x71, 1, 4, 0, 0, 0x23, 1, 0, 0, 0, 0x20, 2, 0, 1, 1, 0, 3, 0, 0x23, 2, 0, 0, 0, 0x2a, 0x22, 1, 3, 0,
			0, 0x20, 3, 0, 0x71, 1, 4, 1, 0, 0x20, 4, 0, 3, 1, 0, 3, 0, 0x23, 4, 0, 0, 0, 0x23, 3, 0, 0, 0},
		/* read-only, and raw */
		{2, 0x30, 1, 0, 1, 1, 0, 3, 0, 0x3d, 99, 0x2c, 4, 0x88, 80, 0, 0, 0, 0, 0, 0, 0, 1, 0x2c, 14, 0, 1, 0x2f, 3},
		/* blobs: whole, by name, in pieces, replaced under a reader, a lock that passes on */
		{0, 0x6b, 0, 1, 40, 0, 0x6b, 0, 0x41, 200, 0, 0x6b, 1, 1, 200, 0, 0x6b, 4, 1, 20, 0, 0x6b, 5, 1, 2, 0, 0x6b, 0, 1, 10, 0,
			0x6b, 2, 3, 9, 0, 0x7b, 2, 3, 9, 0, 0x6b, 3, 1, 0, 0, 0x6b, 130, 3, 0, 0},
		/* room runs out */
		{0, 0x20, 1, 3, 0x81, 1, 0, 39, 0x83, 2, 0, 39, 0x81, 3, 0, 39, 0x81, 4, 0, 39, 0, 0x23, 1, 0, 3, 0, 0x20, 2, 3,
			0x81, 5, 0, 39, 0x81, 0, 0, 39, 0x8b, 6, 0, 30, 0x81, 7, 0, 39, 0, 0x23, 2, 0, 3, 0, 0x2d, 102},
	};

	if (n >= sizeof(programs) / sizeof(programs[0]))
		return 0;
	memcpy(to, programs[n], sizeof(programs[n]));
	return sizeof(programs[n]);
}
