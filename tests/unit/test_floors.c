/* SPDX-License-Identifier: Apache-2.0
 *
 * What a floor and a budget must hold at least, and what is said where they do not.
 */
#include "tests/unit/store_fixture.h"

#include <errno.h>
#include <pthread.h>

#include "store/host_private.h"
#include "store/space_make.h"

#define MIB (1ull << 20)
#define CLASS_BIG "{\"name\":\"big\",\"kind\":\"state\",\"planes\":[{\"name\":\"s\",\"bytes\":10485760}]}"

static struct layout *layout_of(const char *members, uint32_t world, uint32_t page, const char *classes)
{
	struct why why = WHY_INIT;
	struct layout *layout = NULL;
	char text[4096];
	int n = snprintf(text, sizeof(text),
			 "{\"version\":1,\"identity\":{\"model\":\"test\"},\"world\":%u,\"page_tokens\":%u%s,\"classes\":[%s]}", world,
			 page, members, classes);

	if (layout_parse(text, (size_t)n, &layout, &why))
		fail_msg("layout: %s", why.text);
	return layout;
}

static struct host *host_of(uint64_t memory)
{
	struct host_config config = {
		.memory_bytes = memory,
		.wish = SEGMENT_WISH_SMALL,
		.populate = false,
		.populate_threads = 1,
		.handle_ttl_ms = 60000,
		.fill_ttl_ms = 60000,
		.token_ttl_ms = 10000,
	};
	struct why why = WHY_INIT;
	struct host *host;

	if (host_new(&config, &host, &why))
		fail_msg("host: %s", why.text);
	return host;
}

static const struct space_access access = { 0, 0, 0700 };

/* Makes a namespace on a host of its own; what host_space_create says. */
static int made(uint64_t memory, struct layout *layout, struct why *why, struct space_report *ret)
{
	struct host *host = host_of(memory);
	struct space *space = NULL;
	int r;

	*why = (struct why)WHY_INIT;
	r = host_space_create(host, "two", layout, &access, &space, why);
	if (!r)
		space_report(space, ret);
	space_unref(&space);
	host_free(&host);
	return r;
}

static unsigned long long number_after(const struct why *why, const char *words)
{
	const char *at = strstr(why->text, words);
	unsigned long long n = 0;

	if (!at || sscanf(at + strlen(words), "%llu", &n) != 1)
		fail_msg("no '%s' in: %s", words, why->text);
	return n;
}

static struct layout *with_floor(const char *more, unsigned long long floor, const char *classes)
{
	char members[160];

	snprintf(members, sizeof(members), ",\"memory\":{\"floor\":%llu}%s", floor, more);
	return layout_of(members, 1, 64, classes);
}

/* The sentence names what does not fit and two floors: the least that is accepted, and one that holds a request. */
static void a_floor_says_what_it_lacks(void **state)
{
	const char *classes = CLASS_KV "," CLASS_BIG;
	struct space_report r;
	struct why why;

	(void)state;
	assert_int_equal(made(64 * MIB, with_floor("", 4 * MIB, classes), &why, &r), -EINVAL);
	assert_memory_equal(why.text, "namespace two: a floor of 4194304 bytes is too small: class big needs a grant of 10485760", 89);
	unsigned long long least = number_after(&why, "a grant of each class and share needs ");
	/* 128 pages and, with a rung each 8,192 tokens, 2 rows. */
	unsigned long long whole = number_after(&why, "a request of 8192 tokens ");

	assert_int_equal(least, 12 * MIB);
	assert_true(whole >= 22 * MIB && whole < 28 * MIB);
	assert_int_equal(made(64 * MIB, with_floor("", least, classes), &why, &r), 0);
	assert_int_equal(made(64 * MIB, with_floor("", least - 1, classes), &why, &r), -EINVAL);
	assert_int_equal(number_after(&why, "a grant of each class and share needs "), least);
	assert_int_equal(made(64 * MIB, with_floor("", whole, classes), &why, &r), 0);
	/* The layout knows better how long a request is, and how far its rungs are apart. */
	assert_int_equal(made(64 * MIB, with_floor(",\"context\":64", 4 * MIB, classes), &why, &r), -EINVAL);
	assert_int_equal(number_after(&why, "a request of 64 tokens "), least);
	assert_int_equal(made(64 * MIB, with_floor(",\"ladder\":{\"interval\":0}", 4 * MIB, classes), &why, &r), -EINVAL);
	assert_true(number_after(&why, "a request of 8192 tokens ") < whole);
}

/* A request of the context that never fits is refused, whatever the floor, and the budget that is named would do. */
static void a_request_that_never_fits(void **state)
{
	const char *kv = "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"k\",\"bytes\":1048576}]}";
	char classes[512];
	struct space_report r;
	struct why why;

	(void)state;
	snprintf(classes, sizeof(classes), "%s,%s", kv, CLASS_BIG);
	assert_int_equal(made(64 * MIB, layout_of(",\"context\":8192", 1, 64, classes), &why, &r), -EINVAL);
	assert_memory_equal(why.text, "namespace two: one request of context, 8192 tokens, can never fit: ", 67);
	assert_non_null(strstr(why.text, "class kv passes the 67108864 that the budget of 67108864 has for values; "));
	unsigned long long needs = number_after(&why, "the smallest budget that would do is ");

	assert_true(needs >= 148 * MIB && needs < 160 * MIB); /* 128 pages of 1 MiB and two rows of 10 MiB */
	assert_int_equal(made(needs, layout_of(",\"context\":8192", 1, 64, classes), &why, &r), 0);
	assert_int_equal(made(needs - 1, layout_of(",\"context\":8192", 1, 64, classes), &why, &r), -EINVAL);
	assert_non_null(strstr(why.text, "class big passes "));
	assert_int_equal(number_after(&why, "the smallest budget that would do is "), needs);
	/* Nor with a floor of its own, and blobs take from what is there. */
	assert_int_equal(made(64 * MIB, with_floor(",\"context\":8192", 32 * MIB, classes), &why, &r), -EINVAL);
	assert_int_equal(made(needs, layout_of(",\"context\":8192,\"memory\":{\"blobs\":{\"bytes\":1048576}}", 1, 64, classes), &why, &r),
			 -EINVAL);
	assert_int_equal(number_after(&why, "the smallest budget that would do is "), needs + MIB);
	/* A row of which a quarter of the budget holds none: with what is named it does. */
	assert_int_equal(made(16 * MIB, layout_of(",\"context\":64", 1, 64, CLASS_KV ",{\"name\":\"big\",\"kind\":\"state\","
			      "\"planes\":[{\"name\":\"s\",\"bytes\":20971520}]}"), &why, &r), -EINVAL);
	needs = number_after(&why, "the smallest budget that would do is ");
	assert_true(needs >= 80 * MIB);
	assert_int_equal(made(needs, layout_of(",\"context\":64", 1, 64, CLASS_KV ",{\"name\":\"big\",\"kind\":\"state\","
			      "\"planes\":[{\"name\":\"s\",\"bytes\":20971520}]}"), &why, &r), 0);
	/* More than can be counted is no less clear. */
	assert_int_equal(made(64 * MIB, layout_of(",\"context\":1099511627776", 64, 1, "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":["
			      "{\"name\":\"k\",\"bytes\":4294967296}]}"), &why, &r), -EINVAL);
	assert_non_null(strstr(why.text, "1099511627776 tokens, have more bytes than can be counted"));
}

/* Where nobody says how long a request is, a page and a row must fit and no more. */
static void small_ones_are_possible(void **state)
{
	struct space_report r;
	struct why why;

	(void)state;
	assert_int_equal(made(64 * MIB, layout_of("", 1, 64, "{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":["
			      "{\"name\":\"k\",\"bytes\":1048576}]}"), &why, &r), 0);
	assert_int_equal(made(64 * MIB, with_floor("", 12 * MIB, CLASS_KV "," CLASS_BIG), &why, &r), 0);
	assert_int_equal(made(64 * MIB, with_floor(",\"context\":64", 12 * MIB, CLASS_KV "," CLASS_BIG), &why, &r), 0);
}

/* Each share has a grant before one has two, also where a grant is for fewer tokens than there are shares. */
static void each_share_has_one(void **state)
{
	struct space_report r;
	struct why why;

	(void)state;
	assert_int_equal(made(256 * MIB, layout_of(",\"memory\":{\"floor\":134217728}", 64, 1, "{\"name\":\"kv\",\"kind\":\"dense\","
			      "\"planes\":[{\"name\":\"k\",\"bytes\":262144}]}"), &why, &r), 0);
	assert_int_equal(r.granted_bytes, 128 * MIB);
}

/* ---- a floor that a removed namespace still has ---------------------------------------------------------------------- */

struct maker {
	struct host *host;
	struct layout *layout;
	struct space *space;
	struct why why;
	int r;
};

static void *make(void *argument)
{
	struct maker *m = argument;

	m->r = host_space_create(m->host, "two", m->layout, &access, &m->space, &m->why);
	return NULL;
}

/* A removed one that somebody refers to yet, and another of @floor that is made meanwhile. */
static void make_after_removal(uint64_t floor, uint64_t expected)
{
	struct maker m = { .host = host_of(64 * MIB), .layout = with_floor("", floor, CLASS_KV), .why = WHY_INIT };
	struct space *one;
	pthread_t thread;
	bool waits = false;

	assert_int_equal(host_space_create(m.host, "one", with_floor("", 64 * MIB, CLASS_KV), &access, &one, &m.why), 0);
	assert_int_equal(host_space_remove(m.host, "one", &m.why), 0);
	assert_int_equal(pthread_create(&thread, NULL, make, &m), 0);
	for (uint64_t deadline_ns = clock_now_ns() + 4000000000ull; !waits && clock_now_ns() < deadline_ns; sched_yield()) {
		lock_take(&m.host->lock);
		waits = m.host->await_going == 1;
		lock_drop(&m.host->lock);
	}
	assert_true(waits);
	space_unref(&one);
	pthread_join(thread, NULL);
	if (m.r)
		fail_msg("%s", m.why.text);
	assert_int_equal(space_floor_bytes(m.space), expected);
	space_unref(&m.space);
	host_free(&m.host);
}

static void a_removed_one_s_floor_is_waited_for(void **state)
{
	(void)state;
	make_after_removal(64 * MIB, 64 * MIB);
	make_after_removal(0, 16 * MIB); /* and a default is as large as if it were gone */
}

/* What it could not have with that either is refused at once. */
static void what_would_not_fit_waits_for_nobody(void **state)
{
	struct host *host = host_of(64 * MIB);
	struct space *one, *two;
	struct why why = WHY_INIT;
	uint64_t begun_ns;

	(void)state;
	assert_int_equal(host_space_create(host, "one", with_floor("", 32 * MIB, CLASS_KV), &access, &one, &why), 0);
	assert_int_equal(host_space_remove(host, "one", &why), 0);
	begun_ns = clock_now_ns();
	assert_int_equal(host_space_create(host, "two", with_floor("", 65 * MIB, CLASS_KV), &access, &two, &why), -ENOSPC);
	assert_true(clock_now_ns() - begun_ns < 4000000000ull);
	space_unref(&one);
	host_free(&host);
}

/* An adopted namespace serves before its floor is populated: a put may have grown it by then. */
static void what_grows_before_the_floor_is_populated(void **state)
{
	uint64_t deadline_ns = clock_now_ns() + 60000000000ull;
	struct slots_grant grant;
	bool all_ready = false;
	struct fixture f;

	(void)state;
	fixture_open(&f, CLASS_KV, 1, 256 * MIB, 16 * MIB, NULL);
	lock_take(&f.space->lock); /* the grower says of none that it is ready meanwhile */
	assert_int_equal(space_grow(f.space, 0, 0, TABLES_NONE), GROW_COMING);
	space_prewarm(f.space);
	lock_drop(&f.space->lock);
	while (!all_ready) {
		assert_true(clock_now_ns() < deadline_ns);
		lock_take(&f.space->lock);
		all_ready = true;
		for (uint32_t id = 0; id < slots_grant_limit(f.space->slots); id++)
			all_ready &= !slots_grant_get(f.space->slots, id, &grant) || grant.ready;
		lock_drop(&f.space->lock);
	}
	fixture_await_prewarm(&f); /* of what was promised only */
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_floor_says_what_it_lacks),
		cmocka_unit_test(a_request_that_never_fits),
		cmocka_unit_test(small_ones_are_possible),
		cmocka_unit_test(each_share_has_one),
		cmocka_unit_test(a_removed_one_s_floor_is_waited_for),
		cmocka_unit_test(what_would_not_fit_waits_for_nobody),
		cmocka_unit_test(what_grows_before_the_floor_is_populated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
