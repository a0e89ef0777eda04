/* SPDX-License-Identifier: Apache-2.0
 *
 * client_gpu_ranges NAMESPACE [two | long [CLASSES]]: what pfs_gpu_get fetches of which range, by values. Exits with 0, or says what was not
 * so. With `two` dense values are of two pages; with `long` it is a chain that is longer than the daemon's memory, with CLASSES, a mask, one
 * of which the disk does not give all.
 *
 * The namespace has pages of 64 tokens, a dense class of 4,096 bytes (`long`: 262,144), a window of the first value and the last two of
 * 2,048, and a state class of 1,000. Contents are told apart by their class and key.
 */
#include <errno.h>

#include "kernels/attach.h"
#include "tests/scenario/client_gpu.h"
#include "tests/unit/gpu_world.h"

#define PAGE 64u
#define KEYS 192u /* at most */
#define POOL 200u /* pages of the device */

enum {
	DENSE,
	WINDOW,
	STATE,
	CLASSES,
};

static struct {
	struct pfs_session *session;
	struct pfs_gpu *gpu;
	uint64_t bytes[CLASSES];
	struct pfs_gpu_plane planes[CLASSES];
	struct pfs_gpu_pool pools[CLASSES];
	struct pfs_gpu_pages classes[CLASSES];
	uint8_t *memory[CLASSES];
	uint32_t ids[CLASSES][KEYS], keys_count;
	struct pfs_key keys[KEYS];
	struct dice dice;
} e;

/* Which values are to be there: bit k of key k. */
struct want {
	uint64_t dense, window;
	int row; /* of which key; -1: none */
	uint64_t restored;
};

static void open_engine(const char *path)
{
	struct pfs_gpu_options o;
	struct pfs_options options;

	e.dice.state = 88172645463325252ull;
	pfs_options_init(&options);
	options.rank = 0;
	options.auto_ack = 0;
	options.wait_prewarm = 1;
	MUST(!pfs_open(path, &options, &e.session));
	pfs_gpu_options_init(&o);
	o.kernels = "ref";
	MUST(!pfs_gpu_open(&o, &e.gpu));
	MUST(!pfs_gpu_attach(e.gpu, e.session, NULL, NULL));
	for (unsigned c = 0; c < CLASSES; c++) {
		e.memory[c] = world_map(POOL * e.bytes[c]);
		e.planes[c] = (struct pfs_gpu_plane){.base = (uintptr_t)e.memory[c], .stride = e.bytes[c], .bytes = e.bytes[c]};
		e.pools[c] = (struct pfs_gpu_pool){.planes = &e.planes[c], .plane_count = 1, .page_limit = POOL, .value_tokens = c == STATE ? 0 : PAGE};
		e.classes[c] = (struct pfs_gpu_pages){&e.pools[c], e.ids[c]};
	}
	for (uint32_t i = 0; i < e.keys_count; i++) {
		char name[64];
		int length = snprintf(name, sizeof(name), "page %u", i);

		MUST(!pfs_key_from_bytes(name, (size_t)length, &e.keys[i]));
	}
}

static void close_engine(void)
{
	MUST(!pfs_gpu_detach(e.gpu, e.session));
	pfs_close(&e.session);
	pfs_gpu_close(&e.gpu);
	for (unsigned c = 0; c < CLASSES; c++)
		munmap(e.memory[c], POOL * e.bytes[c]);
}

/* The value of class @c of key @k. */
static void content(unsigned c, uint32_t k, uint8_t *to)
{
	struct dice d = {.state = (uint64_t)(c + 1) << 32 | (k + 1)};

	dice_fill(&d, to, e.bytes[c]);
}

static void new_pages(void)
{
	for (unsigned c = 0; c < CLASSES; c++) {
		world_choose(&e.dice, e.ids[c], e.keys_count, POOL);
		memset(e.memory[c], 0x5a, POOL * e.bytes[c]);
	}
}

/* Page ids of class @c: of keys from @first on, or of rows. */
static uint32_t page_of(unsigned c, uint32_t i)
{
	return e.ids[c][i];
}

static bool is(unsigned c, uint32_t page, int k)
{
	uint8_t *value = malloc(e.bytes[c]);
	bool same;

	memset(value, 0x5a, e.bytes[c]);
	if (k >= 0)
		content(c, (uint32_t)k, value);
	same = !memcmp(e.memory[c] + page * e.bytes[c], value, e.bytes[c]);
	free(value);
	return same;
}

/* All of the device's memory is what it is to be; ids are those of keys from @first on. */
static void compare(uint32_t first, struct want want)
{
	for (unsigned c = 0; c < CLASSES; c++)
		for (uint32_t page = 0; page < POOL; page++) {
			uint64_t keys = c == DENSE ? want.dense : want.window;
			int k = -1;

			for (uint32_t i = 0; i < e.keys_count && c != STATE; i++)
				if (page_of(c, i) == page && first + i < 64 && keys >> (first + i) & 1)
					k = (int)(first + i);
			if (c == STATE && page_of(c, 0) == page)
				k = want.row;
			if (is(c, page, k))
				continue;
			fprintf(stderr, "page %u of class %u is not value %d\n", page, c, k);
			exit(1);
		}
}

static int get(const struct pfs_get_request *look, struct pfs_gpu_get_request q, struct pfs_gpu_get_result *got)
{
	q.get = look;
	q.classes = q.classes ? q.classes : e.classes;
	q.class_count = q.class_count ? q.class_count : CLASSES;
	new_pages();
	return pfs_gpu_get(e.gpu, e.session, &q, got);
}

static void fetch(uint32_t first, uint64_t have, struct pfs_gpu_get_request q, struct want want)
{
	const struct pfs_get_request look = {
		.keys = e.keys + first, .key_count = e.keys_count - first, .start = first * PAGE, .have = have, .class_mask = q.class_mask};
	struct pfs_gpu_get_result got;

	MUST(!get(&look, q, &got));
	compare(first, want);
	MUST(got.restored_len == want.restored);
	MUST(got.values == (uint32_t)__builtin_popcountll(want.dense) + (uint32_t)__builtin_popcountll(want.window) + (want.row >= 0));
	nothing_is_left(e.session);
}

static void refuse(uint32_t first, uint64_t have, uint64_t from, uint64_t to, const char *sentence)
{
	const struct pfs_get_request look = {
		.keys = e.keys + first, .key_count = e.keys_count - first, .start = first * PAGE, .have = have};
	int64_t calls = counter(e.session, "get_calls");

	MUST(get(&look, (struct pfs_gpu_get_request){.from = from, .to = to}, NULL) == -EINVAL);
	said(sentence);
	MUST(counter(e.session, "get_calls") == calls);
	nothing_is_left(e.session);
}

/* Groups of which each ends with a row. */
static void put(const uint32_t *ends, uint32_t groups, uint32_t class_mask, uint64_t *new_values)
{
	struct pfs_put_group list[4];
	struct pfs_put_request request = {
		.groups = list, .keys = e.keys, .group_count = groups, .key_count = ends[groups - 1], .class_mask = class_mask};
	struct pfs_gpu_put_request q = {.put = &request, .classes = e.classes};
	struct pfs_gpu_put_result stored;
	uint32_t status[4];

	new_pages();
	for (uint32_t g = 0, k = 0; g < groups; g++) {
		list[g] = (struct pfs_put_group){.consumed = ends[g] * PAGE, .keys = ends[g] - k, .class_mask = class_mask,
			.flags = k ? 0 : PFS_GROUP_ROOT};
		if (k)
			list[g].parent = e.keys[k - 1];
		content(STATE, ends[g] - 1, e.memory[STATE] + page_of(STATE, g) * e.bytes[STATE]);
		for (; k < ends[g]; k++)
			for (unsigned c = DENSE; c < STATE; c++)
				content(c, k, e.memory[c] + page_of(c, k) * e.bytes[c]);
	}
	MUST(!pfs_gpu_put(e.gpu, e.session, &q, status, &stored));
	for (uint32_t g = 0; g < groups; g++)
		MUST(status[g] == PFS_GROUP_COMMITTED);
	*new_values = stored.new_values;
	nothing_is_left(e.session);
}

/* Pools are there for all classes, and some are looked up: these are fetched, and no others can be. */
static void look_up_less(void)
{
	const struct pfs_get_request look = {.keys = e.keys, .key_count = e.keys_count, .class_mask = 3};
	struct pfs_gpu_get_result got;

	MUST(!get(&look, (struct pfs_gpu_get_request){0}, &got));
	compare(0, (struct want){0x3ff, 0x301, -1, 640});
	MUST(got.restored_len == 640 && got.values == 13);
	MUST(get(&look, (struct pfs_gpu_get_request){.class_mask = 5}, NULL) == -EINVAL);
	said("classes 0x5 are fetched, 0x3 are looked up");
	nothing_is_left(e.session);
}

static void ranges(void)
{
	const struct pfs_gpu_get_request all = {0};
	uint64_t stored;

	put((uint32_t[]){4, 10}, 2, 7, &stored);
	MUST(stored == 22);

	fetch(0, 0, all, (struct want){0x3ff, 0x301, 9, 640}); /* of the window the sink and the last two */
	fetch(0, 256, all, (struct want){0x3f0, 0x300, 9, 640});
	fetch(0, 300, all, (struct want){0x3f0, 0x300, 9, 640}); /* have within a page: all of it */
	fetch(0, 600, all, (struct want){0x200, 0x200, 9, 640});
	fetch(0, 640, all, (struct want){0, 0, -1, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.from = 384}, (struct want){0x3c0, 0x300, 9, 640}); /* what lies between is left */
	fetch(0, 256, (struct pfs_gpu_get_request){.from = 384}, (struct want){0x3c0, 0x300, 9, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.to = 256}, (struct want){0xf, 0xd, 3, 256});
	fetch(0, 0, (struct pfs_gpu_get_request){.from = 64, .to = 256}, (struct want){0xe, 0xc, 3, 256});
	fetch(0, 0, (struct pfs_gpu_get_request){.to = 6400}, (struct want){0x3ff, 0x301, 9, 640}); /* as much as there is */
	fetch(0, 0, (struct pfs_gpu_get_request){.from = 640}, (struct want){0, 0, -1, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.from = 6400}, (struct want){0, 0, -1, 6400});
	fetch(0, 256, (struct pfs_gpu_get_request){.to = 256}, (struct want){0, 0, -1, 256});
	fetch(4, 256, all, (struct want){0x3f0, 0x300, 9, 640}); /* keys from the fifth on */
	fetch(4, 0, all, (struct want){0x3f0, 0x300, 9, 640});
	fetch(4, 384, all, (struct want){0x3c0, 0x300, 9, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.class_mask = 1}, (struct want){0x3ff, 0, -1, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.class_mask = 2}, (struct want){0, 0x301, -1, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.class_mask = 4}, (struct want){0, 0, 9, 640});
	fetch(0, 0, (struct pfs_gpu_get_request){.class_mask = 5, .to = 256}, (struct want){0xf, 0, 3, 256});

	fetch(0, 256, (struct pfs_gpu_get_request){.flags = PFS_GPU_URGENT}, (struct want){0x3f0, 0x300, 9, 640});
	look_up_less();

	refuse(0, 0, 10, 0, "tokens 10..0 of keys from 0 on are to be fetched, and pages have 64");
	refuse(0, 0, 0, 100, "tokens 0..100 of keys from 0 on are to be fetched, and pages have 64");
	refuse(0, 0, 256, 256, "tokens 256..256 are to be fetched, and the first key is at 0");
	refuse(0, 0, 256, 128, "tokens 256..128 are to be fetched, and the first key is at 0");
	refuse(4, 0, 128, 0, "tokens 128..0 are to be fetched, and the first key is at 256");
	refuse(0, 300, 192, 0, "tokens from 192 on are to be fetched, and have is 300");
	refuse(0, 256, 192, 512, "tokens from 192 on are to be fetched, and have is 256");
}

/* A dense value is of two pages: it is at the second one's key. */
static void values_of_two_pages(void)
{
	const struct pfs_gpu_get_request all = {0};
	uint64_t stored;

	put((uint32_t[]){4, 10}, 2, 7, &stored);
	MUST(stored == 17);
	fetch(0, 0, all, (struct want){0x2aa, 0x301, 9, 640});
	fetch(0, 256, all, (struct want){0x2a0, 0x300, 9, 640});
	fetch(0, 320, all, (struct want){0x2a0, 0x300, 9, 640}); /* have within a value */
	fetch(0, 0, (struct pfs_gpu_get_request){.to = 256}, (struct want){0xa, 0xd, 3, 256});
	e.pools[DENSE].value_tokens = PAGE / 2;
	refuse(0, 0, 0, 0, "class 0: value_tokens of its pool is 32, pages have 64 tokens");
}

/* No row stands at `to`: the daemon refuses the boundary. A put of rows alone mends it. */
static void rows_alone(void)
{
	const struct pfs_get_request look = {.keys = e.keys, .key_count = e.keys_count};
	const struct pfs_gpu_get_request six = {.to = 384};
	struct pfs_put_group group = {
		.parent = e.keys[4], .consumed = 384, .keys = 1, .class_mask = 4, .flags = PFS_GROUP_ROW_ONLY};
	struct pfs_put_request request = {
		.groups = &group, .keys = &e.keys[5], .group_count = 1, .key_count = 1, .class_mask = 4};
	struct pfs_gpu_pages state[CLASSES] = {[STATE] = e.classes[STATE]};
	struct pfs_gpu_put_request q = {.put = &request, .classes = state};
	struct pfs_gpu_put_result stored;
	uint32_t status = 99;

	MUST(get(&look, six, NULL) == -EINVAL);
	nothing_is_left(e.session);
	new_pages();
	content(STATE, 5, e.memory[STATE] + page_of(STATE, 0) * e.bytes[STATE]);
	MUST(!pfs_gpu_put(e.gpu, e.session, &q, &status, &stored));
	MUST(status == PFS_GROUP_COMMITTED && stored.new_values == 1 && stored.bytes == e.bytes[STATE]);
	nothing_is_left(e.session);
	fetch(0, 0, six, (struct want){0x3f, 0x31, 5, 384});
}

/* A handle of one's own, whose keys begin at a token, and a range that begins behind it. */
static void handles(void)
{
	const struct pfs_get_request look = {.keys = e.keys + 4, .key_count = 6, .start = 256, .have = 256};
	struct pfs_gpu_get_request q = {.start = 256, .from = 320, .to = 640};
	struct pfs_gpu_get_result got;
	struct pfs_get_result found;

	MUST(!pfs_get_start(e.session, &look, &found));
	q.handle = found.handle;
	MUST(!get(NULL, q, &got));
	compare(4, (struct want){0x3e0, 0x300, 9, 640});
	MUST(got.restored_len == 640 && got.values == 8);
	nothing_is_left(e.session);
}

/* A key of a WHOLE group that another plan puts: it is asked about until the deadline, and then the group is given back. */
static void pending(const char *path)
{
	struct pfs_put_group group = {.consumed = 128, .keys = 2, .class_mask = 1, .flags = PFS_GROUP_ROOT};
	struct pfs_put_request request = {.groups = &group, .group_count = 1, .key_count = 2, .class_mask = 1};
	struct pfs_gpu_put_request q = {.put = &request, .classes = e.classes, .deadline_ms = 50};
	struct pfs_gpu_put_result stored;
	struct pfs_options options;
	struct pfs_session *other;
	struct pfs_put_result plan;
	struct pfs_key keys[2];
	uint32_t status = 99;

	MUST(!pfs_key_from_bytes("pending 0", 9, &keys[0]) && !pfs_key_from_bytes("pending 1", 9, &keys[1]));
	request.keys = keys;
	pfs_options_init(&options);
	options.rank = 0;
	MUST(!pfs_open(path, &options, &other));
	request.key_count = group.keys = 1;
	group.consumed = 64;
	MUST(!pfs_put_start(other, &request, &plan));
	MUST(plan.new_values == 1);
	request.key_count = group.keys = 2;
	group.consumed = 128;
	group.flags |= PFS_GROUP_WHOLE;
	new_pages();
	MUST(!pfs_gpu_put(e.gpu, e.session, &q, &status, &stored));
	MUST(status == PFS_GROUP_ABORTED && stored.groups_aborted == 1 && stored.groups_committed == 0 && stored.new_values == 1);
	MUST(counter(e.session, "put_plans") == 1); /* the other's */
	MUST(!pfs_put_commit(other, plan.plan, 0, 0, NULL, NULL));
	MUST(!pfs_gpu_put(e.gpu, e.session, &q, &status, &stored));
	MUST(status == PFS_GROUP_COMMITTED && stored.groups_committed == 1 && stored.new_values == 1);
	pfs_close(&other);
	nothing_is_left(e.session);
}

#define GROUP 16u /* keys of a put */

static void put_group(uint32_t first)
{
	struct pfs_put_group group = {.consumed = (first + GROUP) * PAGE, .keys = GROUP, .class_mask = 7, .flags = PFS_GROUP_RUNG | (first ? 0 : PFS_GROUP_ROOT)};
	struct pfs_put_request request = {
		.groups = &group, .keys = e.keys + first, .group_count = 1, .key_count = GROUP, .class_mask = 7};
	struct pfs_gpu_put_request q = {.put = &request, .classes = e.classes};
	uint32_t status = PFS_GROUP_NOROOM;

	if (first)
		group.parent = e.keys[first - 1];
	new_pages();
	content(STATE, first + GROUP - 1, e.memory[STATE] + page_of(STATE, 0) * e.bytes[STATE]);
	for (uint32_t i = 0; i < GROUP; i++)
		for (unsigned c = DENSE; c < STATE; c++)
			content(c, first + i, e.memory[c] + page_of(c, i) * e.bytes[c]);
	for (unsigned turn = 0; turn < 200 && status == PFS_GROUP_NOROOM; turn++) {
		MUST(!pfs_gpu_put(e.gpu, e.session, &q, &status, NULL));
		if (status == PFS_GROUP_NOROOM) /* what is granted meanwhile the put itself takes up */
			pfs_news(e.session, 100);
	}
	MUST(status == PFS_GROUP_COMMITTED);
}

/* A chain of which memory holds a part at a time. */
static struct pfs_gpu_get_result get_long(uint32_t class_mask)
{
	const struct pfs_get_request look = {.keys = e.keys, .key_count = e.keys_count, .class_mask = class_mask};
	struct pfs_gpu_get_result got;

	for (uint32_t first = 0; first < e.keys_count; first += GROUP) {
		put_group(first);
		MUST(!pfs_drain(e.session, NULL));
	}
	/* What is read from the disk may land in memory that is granted for it. */
	MUST(!get(&look, (struct pfs_gpu_get_request){.class_mask = class_mask}, &got));
	nothing_is_left(e.session);
	return got;
}

/* A value cannot be read: of dense values alone one goes on from those in front of it; where a state is wanted, from the last row in front of
 * it, which is that of a group. */
static void unread(uint32_t class_mask)
{
	struct pfs_gpu_get_result got = get_long(class_mask);
	uint32_t pages = (uint32_t)(got.restored_len / PAGE);

	MUST(got.values > 0 && pages > 0 && pages < e.keys_count);
	for (uint32_t k = 0; k < pages; k++)
		MUST(is(DENSE, page_of(DENSE, k), (int)k));
	if (class_mask == 1) {
		MUST(got.values == pages);
		return;
	}
	MUST(pages % GROUP == 0);
	MUST(is(STATE, page_of(STATE, 0), (int)pages - 1));
	MUST(is(WINDOW, page_of(WINDOW, pages - 2), (int)pages - 2));
	MUST(is(WINDOW, page_of(WINDOW, pages - 1), (int)pages - 1));
}

/* It is all there in the end. */
static void longer_than_memory(void)
{
	struct pfs_gpu_get_result got = get_long(7);

	MUST(got.restored_len == e.keys_count * PAGE && got.values == e.keys_count + 3 + 1);
	for (uint32_t k = 0; k < e.keys_count; k++) {
		bool in_window = k == 0 || k + 2 >= e.keys_count;

		MUST(is(DENSE, page_of(DENSE, k), (int)k));
		MUST(is(WINDOW, page_of(WINDOW, k), in_window ? (int)k : -1));
	}
	MUST(is(STATE, page_of(STATE, 0), (int)e.keys_count - 1));
}

int main(int argc, char **argv)
{
	bool is_long = argc > 2 && !strcmp(argv[2], "long");

	MUST(argc >= 2);
	e.bytes[DENSE] = is_long ? 262144 : 4096;
	e.bytes[WINDOW] = 2048;
	e.bytes[STATE] = 1000;
	e.keys_count = is_long ? KEYS : 10;
	open_engine(argv[1]);
	if (argc > 2 && !is_long) {
		e.pools[DENSE].value_tokens = 2 * PAGE;
		values_of_two_pages();
	} else if (argc > 3) {
		unread((uint32_t)atoi(argv[3]));
	} else if (is_long) {
		longer_than_memory();
	} else {
		ranges();
		rows_alone();
		handles();
		pending(argv[1]);
	}
	close_engine();
	return 0;
}
