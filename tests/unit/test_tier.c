/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory, null and fault tiers behind their one interface.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/clock.h"
#include "store/tier.h"

#define MIB (1ull << 20)

static struct segment *make_segment(void)
{
	struct segment_config config = {.name = "test", .bytes = 4 * MIB, .wish = SEGMENT_WISH_SMALL};
	struct segment *s = NULL;

	assert_int_equal(segment_new(&config, &s, NULL), 0);
	return s;
}

static void tier_free(struct tier **tier)
{
	(*tier)->ops->free(tier);
	assert_null(*tier);
}

static void test_memory(void **state)
{
	struct segment *s = make_segment();
	struct tier *t = tier_memory_new(s);
	char text[6] = {0};

	(void)state;
	assert_non_null(t);
	assert_string_equal(t->ops->name, "memory");
	assert_int_equal(tier_write(t, 4095, "hello", 5), 0);
	assert_int_equal(tier_read(t, 4095, text, 5), 0);
	assert_string_equal(text, "hello");
	assert_int_equal(tier_read(t, 0, text, 0), 0);
	assert_int_equal(t->ops->errors(t), 0);
	assert_int_equal(tier_read(t, 4 * MIB - 1, text, 2), -EINVAL);
	assert_int_equal(tier_write(t, 4 * MIB, "x", 1), -EINVAL);
	assert_int_equal(t->ops->errors(t), 2);
	tier_free(&t);
	segment_free(&s);
}

static void test_null(void **state)
{
	struct tier *t = tier_null_new();
	char c = 'a';

	(void)state;
	assert_non_null(t);
	assert_string_equal(t->ops->name, "null");
	assert_int_equal(tier_write(t, 0, &c, 1), 0);
	assert_int_equal(tier_read(t, 0, &c, 1), -ENODATA);
	assert_int_equal(c, 'a');
	assert_int_equal(t->ops->errors(t), 1);
	tier_free(&t);
}

static struct tier *make_fault(struct tier *under, const char *spec)
{
	struct tier *t = NULL;
	struct why why = WHY_INIT;

	assert_non_null(under);
	if (tier_fault_new(under, spec, &t, &why))
		fail_msg("'%s': %s", spec, why.text);
	assert_string_equal(t->ops->name, "fault");
	return t;
}

static void test_specification(void **state)
{
	static const char *const good[] = {
		"",
		"seed=7",
		"read:EIO",
		"read:EIO:1/100,write:ENOSPC:3,read:delay:5ms,read:flip:1,seed=7",
		"write:delay:1us:=4",
		"write:delay:0s:1/2",
		"read:short:2,",
		"write:flip",
	};
	static const char *const bad[] = {
		"reed:EIO",
		"read",
		"read:",
		"read:EWHAT",
		"read:EIO:",
		"read:EIO:0",
		"read:EIO:x",
		"read:EIO:1/0",
		"read:EIO:3/2",
		"read:EIO:0/5",
		"read:EIO:=1/5",
		"read:EIO:-1",
		"read:delay",
		"read:delay:5",
		"read:delay:5h",
		"read:delay:99999999999999999999s",
		"read:delay:3601s",
		"seed=",
		"seed=x",
		"seed=1x",
		"read:EIO:1:2",
		"read:EIO:1 ",
	};
	struct tier *under = tier_null_new();

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct tier *t = make_fault(tier_null_new(), good[i]);

		tier_free(&t);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tier *t = NULL;
		struct why why = WHY_INIT;
		char spec[128];

		snprintf(spec, sizeof(spec), "read:EIO:1,%s,write:EIO", bad[i]);
		if (tier_fault_new(under, spec, &t, &why) != -EINVAL)
			fail_msg("'%s' was understood", bad[i]);
		assert_null(t);
		snprintf(spec, sizeof(spec), "'%s'", bad[i]);
		if (!strstr(why.text, spec))
			fail_msg("'%s' does not name %s", why.text, spec);
	}
	tier_free(&under);
}

static void test_errors(void **state)
{
	struct segment *s = make_segment();
	struct tier *t = make_fault(tier_memory_new(s), "write:ENOSPC:3,read:EIO:=2,read:EROFS:=2");
	char c = 'a';

	(void)state;
	for (int n = 1; n <= 5; n++) {
		assert_int_equal(tier_write(t, (uint64_t)n, &c, 1), n >= 3 ? -ENOSPC : 0);
		assert_int_equal(tier_read(t, 0, &c, 1), n == 2 ? -EIO : 0);
		c = 'a';
	}
	assert_int_equal(t->ops->errors(t), 4);
	assert_int_equal(segment_read(s, 3, &c, 1), 0);
	assert_int_equal(c, 0); /* the tier below was not asked */
	tier_free(&t);
	segment_free(&s);
}

static uint64_t failures(const char *spec, char *pattern)
{
	struct tier *t = make_fault(tier_null_new(), spec);
	char c = 0;

	for (int n = 0; n < 4000; n++) {
		pattern[n] = (char)(tier_write(t, 0, &c, 1) != 0);
		if (n % 3 == 0)
			tier_read(t, 0, &c, 1); /* is none of the writes' business */
	}
	uint64_t n = t->ops->errors(t);

	tier_free(&t);
	return n - 1334;
}

static void test_chance_is_seeded(void **state)
{
	static char a[4000], b[4000];

	(void)state;
	uint64_t n = failures("write:EIO:1/10,seed=5", a);

	assert_in_range(n, 300, 500);
	assert_int_equal(failures("write:EIO:1/10,seed=5", b), n);
	assert_memory_equal(a, b, sizeof(a));
	failures("write:EIO:1/10,seed=6", b);
	assert_int_not_equal(memcmp(a, b, sizeof(a)), 0);
	assert_int_equal(failures("write:EIO:1/1", b), 4000);
}

static int bits_apart(const char *a, const char *b, size_t bytes)
{
	int n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += __builtin_popcount((unsigned char)(a[i] ^ b[i]));
	return n;
}

static void test_damaged_data(void **state)
{
	struct segment *s = make_segment();
	struct tier *t = make_fault(tier_memory_new(s), "read:flip:2,write:flip:2,read:short:=4");
	static char out[4096], in[4096], zero[4096];

	(void)state;
	memset(out, 'x', sizeof(out));
	assert_int_equal(tier_write(t, 0, out, sizeof(out)), 0);
	for (int n = 1; n <= 3; n++) {
		assert_int_equal(tier_read(t, 0, in, sizeof(in)), 0);
		assert_int_equal(bits_apart(in, out, sizeof(in)), n == 2);
	}
	memset(in, 0, sizeof(in));
	assert_int_equal(tier_read(t, 0, in, sizeof(in)), -EIO);
	assert_memory_equal(in, out, sizeof(in) / 2);
	assert_memory_equal(in + sizeof(in) / 2, zero, sizeof(in) / 2);
	assert_int_equal(t->ops->errors(t), 1);
	/* the second write is wrong in the tier, right in the caller's buffer */
	assert_int_equal(tier_write(t, 0, out, sizeof(out)), 0);
	for (size_t i = 0; i < sizeof(out); i++)
		assert_int_equal(out[i], 'x');
	assert_int_equal(tier_read(t, 0, in, sizeof(in)), 0);
	assert_int_equal(bits_apart(in, out, sizeof(in)), 1);
	tier_free(&t);
	segment_free(&s);
}

static void test_delay(void **state)
{
	struct tier *t = make_fault(tier_null_new(), "write:delay:20ms,write:delay:10ms:=2,read:delay:1ms:1/2");
	uint64_t since = clock_now_ns();
	char c = 0;

	(void)state;
	assert_int_equal(tier_write(t, 0, &c, 1), 0);
	uint64_t took = clock_now_ns() - since;

	assert_true(took >= 20000000);
	since = clock_now_ns();
	assert_int_equal(tier_write(t, 0, &c, 1), 0);
	assert_true(clock_now_ns() - since >= 30000000);
	tier_free(&t);
}

/* ---- many at once ---------------------------------------------------------------------------------------------- */

static _Atomic unsigned ended;

static void count_end(struct tier_io *io)
{
	_Atomic int *seen = io->context;

	assert_int_equal((*seen)++, 0);
	ended++;
}

#define EACH 200

static void *many(void *argument)
{
	struct tier *t = argument;
	struct tier_io *io = calloc(EACH, sizeof(*io));
	_Atomic int *seen = calloc(EACH, sizeof(*seen));
	char *data = calloc(EACH, 64);

	for (int i = 0; i < EACH; i++) {
		io[i] = (struct tier_io){
			.offset = (uint64_t)i * 64,
			.buffer = data + i * 64,
			.bytes = 64,
			.done = count_end,
			.context = (void *)&seen[i],
		};
		(i % 2 ? t->ops->write : t->ops->read)(t, &io[i]);
	}
	for (int i = 0; i < EACH; i++)
		while (!seen[i])
			;
	char byte;

	for (int i = 0; i < 20; i++)
		tier_read(t, 0, &byte, 1);
	free(io);
	free((void *)seen);
	free(data);
	return NULL;
}

static void test_many_at_once(void **state)
{
	struct segment *s = make_segment();
	struct tier *t = make_fault(tier_memory_new(s),
		"read:EIO:1/7,write:EIO:1/9,read:delay:300us:1/3,"
		"write:delay:1ms:1/5,read:flip:1/4,write:flip:1/4,write:short:1/6");
	pthread_t thread[4];

	(void)state;
	ended = 0;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, many, t), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(ended, 4 * EACH);
	assert_true(t->ops->errors(t) > 0);
	tier_free(&t);
	segment_free(&s);
}

static void test_free_waits(void **state)
{
	struct tier *t = make_fault(tier_null_new(), "write:delay:20ms");
	_Atomic int seen = 0;
	char c = 0;
	struct tier_io io = {.buffer = &c, .bytes = 1, .done = count_end, .context = (void *)&seen};

	(void)state;
	t->ops->write(t, &io);
	assert_int_equal(seen, 0);
	tier_free(&t);
	assert_int_equal(seen, 1);
	assert_int_equal(io.result, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_null),
		cmocka_unit_test(test_specification),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_chance_is_seeded),
		cmocka_unit_test(test_damaged_data),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_many_at_once),
		cmocka_unit_test(test_free_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
