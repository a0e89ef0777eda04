/* SPDX-License-Identifier: Apache-2.0
 *
 * What is decided before a device is asked: merging and batches, places in the ring, registrations, the choice of a path.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/merge.h"
#include "kernels/paths.h"
#include "kernels/say.h"
#include "kernels/stage.h"
#include "tests/unit/gpu_world.h"

#define GIB (1ull << 30)

static struct dice d;

/* ---- merging -------------------------------------------------------------------------------------------------------- */

static struct {
	struct gpu_entry all[20000];
	uint32_t count, batches, most;
	uint64_t largest;
} got;

static int take_batch(void *context, const struct gpu_entry *entries, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++) {
		got.all[got.count++] = entries[i];
		bytes += entries[i].bytes;
	}
	got.batches++;
	got.most = count > got.most ? count : got.most;
	got.largest = bytes > got.largest ? bytes : got.largest;
	return context ? -*(int *)context : 0;
}

static struct spans two_spans(void)
{
	static struct registration one = {.begin = GIB, .end = 2 * GIB}, two = {.begin = 2 * GIB, .end = 3 * GIB};
	static struct registration *list[] = {&one, &two};

	memset(&got, 0, sizeof(got));
	return (struct spans){list, 2};
}

static void neighbours(void **state)
{
	struct spans spans = two_spans();
	struct merger *m = malloc(sizeof(*m));

	merge_begin(m, &spans, take_batch, NULL);
	for (unsigned i = 0; i < 100; i++) /* neighbours on both sides */
		assert_int_equal(merge_add(m, 4096 * i, GIB + 4096 * i, 4096), 0);
	assert_int_equal(merge_add(m, 4096 * 101, GIB + 4096 * 100, 4096), 0); /* here alone */
	assert_int_equal(merge_add(m, 4096 * 102, GIB + 4096 * 102, 4096), 0); /* on the device alone */
	assert_int_equal(merge_end(m), 0);
	assert_int_equal(got.count, 3);
	assert_int_equal(got.batches, 1);
	assert_int_equal(got.all[0].bytes, 409600);
	assert_int_equal(got.all[2].host, GIB + 4096 * 102);
	assert_int_equal(merge_end(m), 0);
	assert_int_equal(got.batches, 1); /* nothing was left */
	free(m);
}

static void limits(void **state)
{
	struct spans spans = two_spans();
	struct merger *m = malloc(sizeof(*m));
	int error = EIO;

	merge_begin(m, &spans, take_batch, NULL);
	for (uint64_t i = 0; i < 9000; i++)
		assert_int_equal(merge_add(m, 128 * i, GIB + 256 * i, 64), 0);
	assert_int_equal(merge_end(m), 0);
	assert_int_equal(got.count, 9000);
	assert_int_equal(got.batches, 3);
	assert_int_equal(got.most, MERGE_MAX_ENTRIES);

	memset(&got, 0, sizeof(got));
	assert_int_equal(merge_add(m, 0, 2 * GIB - (20 << 20), 50 << 20), 0); /* across two registrations and three batches */
	assert_int_equal(merge_end(m), 0);
	assert_int_equal(got.largest, MERGE_MAX_BYTES);
	assert_int_equal(got.batches, 4);
	for (uint64_t i = 0, at = 2 * GIB - (20 << 20); i < got.count; at += got.all[i++].bytes) {
		assert_int_equal(got.all[i].host, at);
		assert_int_equal(got.all[i].device, at - 2 * GIB + (20 << 20));
		assert_true(got.all[i].host >= 2 * GIB || got.all[i].host + got.all[i].bytes <= 2 * GIB);
	}

	merge_begin(m, &spans, take_batch, &error);
	assert_int_equal(merge_add(m, 0, GIB, 40 << 20), -EIO);
	free(m);
}

/* ---- the ring ------------------------------------------------------------------------------------------------------- */

static void places(void **state)
{
	for (unsigned turn = 0; turn < 300; turn++) {
		struct gpu_column columns[3] = {0};
		uint64_t values[200], stand_ins[200], slot = 1ull << 40, gap = dice(&d, 2) ? STAGE_MAX_GAP : 0, span, low,
			bytes = STAGE_RING_BYTES / 2 / (2 + dice(&d, STAGE_MAX_SLOTS - 1));
		struct gpu_rect rect = {.columns = columns, .values = values, .column_count = 3, .row_count = 1 + (uint32_t)dice(&d, 200),
			.pages_per_value = 1};
		struct stretch stretches[3];
		uint32_t n, sure, first = 0;

		for (uint32_t i = 0; i < 3; i++) {
			columns[i].bytes = 1 + dice(&d, 200000);
			columns[i].offset = i ? columns[i - 1].offset + columns[i - 1].bytes + dice(&d, 2) * dice(&d, 9000) : dice(&d, 9000);
		}
		low = columns[0].offset;
		span = columns[2].offset + columns[2].bytes - low;
		values[0] = GIB + dice(&d, 4096);
		for (uint32_t i = 1; i < rect.row_count; i++) /* going on exactly, nearly, or not at all */
			values[i] = values[i - 1] + span + (uint64_t[]){0, dice(&d, 4096), dice(&d, 100000)}[dice(&d, 3)];
		n = stage_stretches(&rect, gap, stretches);
		assert_true(n >= 1 && n <= 3 && stretches[0].offset == low);
		for (uint32_t i = 1; i < n; i++)
			assert_true(stretches[i].offset - stretches[i - 1].offset - stretches[i - 1].bytes > gap);
		sure = stage_sure_rows(&rect, n, bytes, gap);
		assert_true(sure >= 1);
		while (first < rect.row_count) {
			uint32_t rows = stage_place(&rect, n, first, slot, bytes, gap, stand_ins);
			uint64_t end = slot;

			assert_true(rows >= 1 && first + rows <= rect.row_count);
			assert_true(rows >= sure || first + rows == rect.row_count);
			for (uint32_t i = 0; i < rows; i++) {
				uint64_t at = stand_ins[i] + low;

				assert_true(at >= end && at - end <= (gap ? gap : 15));
				assert_int_equal(at % 16, (values[first + i] + low) % 16);
				end = at + span;
				if (i > 0 && values[first + i] + low == values[first + i - 1] + low + span)
					assert_int_equal(stand_ins[i] - stand_ins[i - 1], values[first + i] - values[first + i - 1]);
			}
			assert_true(end <= slot + bytes);
			first += rows;
		}
	}
}

/* ---- registrations ---------------------------------------------------------------------------------------------------- */

/* One piece less. 1: nobody is left, and it is forgotten. */
static int drop(struct registry *registry, uint64_t begin, uint64_t bytes, uint64_t generation, bool unmapping)
{
	struct piece piece = {.begin = begin, .bytes = bytes, .generation = generation};
	int r = registry_drop(registry, &piece, 1, unmapping);

	if (r || !piece.last)
		return r;
	registry_forget(registry, piece.last);
	return 1;
}

static void registrations(void **state)
{
	struct registration *a, *b, *c;
	struct registry registry;
	struct spans spans;
	uint64_t values[3] = {0x100000, 0x10f000, 0x103000};
	uint32_t at = 0;

	registry_init(&registry);
	assert_int_equal(registry_want(&registry, 0x100000, 0x10000, 1, &a), REGISTRY_NEW);
	registry_settle(&registry, a, false, false, false);
	assert_int_equal(registry_want(&registry, 0x100000, 0x10000, 1, &b), REGISTRY_HELD);
	assert_int_equal(registry_want(&registry, 0x100001, 0x10000, 1, &b), -EINVAL);
	assert_int_equal(registry_want(&registry, 0x108000, 0x10000, 1, &b), -EINVAL);
	assert_string_equal(gpu_said(), "0x108000..0x118000 overlaps what is registered at 0x100000..0x110000");
	assert_int_equal(registry_claim(&registry, values, 3, 0x1001, false, &spans), -EFAULT);
	assert_string_equal(gpu_said(), "value 1: 4097 bytes at 0x10f000 leave their registration at 0x110000");
	assert_int_equal(a->users, 0);
	assert_int_equal(registry_want(&registry, 0x110000, 0x1000, 1, &b), REGISTRY_NEW);
	registry_settle(&registry, b, false, true, false);
	assert_int_equal(registry_claim(&registry, values, 3, 0x1001, true, &spans), -EROFS);
	assert_int_equal(registry_claim(&registry, values, 3, 0x1001, false, &spans), 0);
	assert_int_equal(spans.count, 2);
	assert_int_equal(a->users, 1);
	assert_int_equal(spans_end(&spans, 0x110000, &at), 0x111000);
	assert_int_equal(spans_end(&spans, 0x10ffff, &at), 0x110000);
	assert_int_equal(registry_want(&registry, 0x100000, 0x10000, 2, &c), -EBUSY);
	assert_int_equal(drop(&registry, 0x110000, 0x1000, 1, false), -EBUSY);
	registry_release(&registry, &spans);
	assert_int_equal(registry_want(&registry, 0x100000, 0x10000, 2, &c), REGISTRY_ANEW);
	registry_settle(&registry, c, false, false, false);
	assert_int_equal(drop(&registry, 0x100000, 0x10000, 1, false), -ESTALE);
	assert_int_equal(drop(&registry, 0x100000, 0x10000, 2, false), 1);
	assert_int_equal(drop(&registry, 0x100000, 0x10000, 2, false), -ENOENT);
	values[0] = 0x120000;
	assert_int_equal(registry_claim(&registry, values, 1, 1, false, &spans), -EFAULT);
	assert_string_equal(gpu_said(), "value 0: the memory at 0x120000 is not registered");
	registry_forget(&registry, registry_any(&registry));
	assert_null(registry_any(&registry));
	registry_deinit(&registry);
}

/* Three pieces, of 0x1000 bytes from 0x100000 on, in generation 5. */
static void three_pieces(struct registry *registry, struct piece pieces[3])
{
	struct registration *made;

	registry_init(registry);
	for (unsigned i = 0; i < 3; i++) {
		pieces[i] = (struct piece){.begin = 0x100000 + 0x1000 * i, .bytes = 0x1000, .generation = 5};
		assert_int_equal(registry_want(registry, pieces[i].begin, 0x1000, 5, &made), REGISTRY_NEW);
		registry_settle(registry, made, false, false, false);
	}
}

static void assert_counts(struct registry *registry, uint32_t count)
{
	uint32_t registrations;
	uint64_t bytes;

	registry_counts(registry, &registrations, &bytes);
	assert_true(registrations == count && bytes == count * 0x1000);
	for (uint32_t i = 0; i < count; i++)
		assert_false(registry->sorted[i]->busy);
}

/* Of pieces of which one cannot go, none goes. */
static void dropped_all_or_none(void **state)
{
	struct piece pieces[3];
	struct registration *held;
	struct registry registry;
	struct spans spans;
	uint64_t value = 0x102000;

	three_pieces(&registry, pieces);
	assert_int_equal(registry_claim(&registry, &value, 1, 1, false, &spans), 0);
	assert_int_equal(registry_drop(&registry, pieces, 3, false), -EBUSY);
	assert_string_equal(gpu_said(), "1 copies use the memory at 0x102000");
	assert_counts(&registry, 3);
	assert_int_equal(registry_want(&registry, 0x102000, 0x1000, 5, &held), REGISTRY_HELD);
	assert_int_equal(registry_drop(&registry, pieces, 3, true), -EBUSY); /* its memory would go, whoever else holds it */
	assert_counts(&registry, 3);
	registry_release(&registry, &spans);
	pieces[2].generation = 6;
	assert_int_equal(registry_drop(&registry, pieces, 3, false), -ESTALE);
	pieces[2].begin += 0x1000;
	assert_int_equal(registry_drop(&registry, pieces, 3, false), -ENOENT);
	assert_counts(&registry, 3);
	pieces[2] = (struct piece){.begin = 0x102000, .bytes = 0x1000, .generation = 5};
	assert_int_equal(registry_drop(&registry, pieces, 3, false), 0);
	assert_true(pieces[0].last && pieces[1].last && !pieces[2].last); /* another one holds the third */
	assert_int_equal(pieces[1].last->begin, 0x101000);
	registry_forget(&registry, pieces[0].last);
	registry_forget(&registry, pieces[1].last);
	assert_counts(&registry, 1);
	pieces[2].generation = 6;
	assert_int_equal(registry_drop(&registry, pieces, 3, true), 0); /* two are gone, and one is another's */
	assert_true(!pieces[0].last && !pieces[1].last && !pieces[2].last);
	assert_int_equal(drop(&registry, 0x102000, 0x1000, 5, true), 1);
	registry_deinit(&registry);
}

struct forgetting {
	struct registry *registry;
	struct registration *registration;
};

static void *forget(void *context)
{
	struct forgetting *f = context;

	registry_forget(f->registry, f->registration);
	return NULL;
}

/* Whoever drops what another thread is about to have unregistered waits, and finds nothing. */
static void dropped_while_it_goes(void **state)
{
	struct piece pieces[3], same[3];
	struct registry registry;
	struct forgetting f = {.registry = &registry};
	pthread_t thread;

	three_pieces(&registry, pieces);
	memcpy(same, pieces, sizeof(same));
	assert_int_equal(registry_drop(&registry, &pieces[2], 1, false), 0);
	f.registration = pieces[2].last;
	assert_int_equal(pthread_create(&thread, NULL, forget, &f), 0);
	assert_int_equal(registry_drop(&registry, same, 3, false), -ENOENT);
	pthread_join(thread, NULL);
	assert_counts(&registry, 2);
	assert_int_equal(drop(&registry, 0x100000, 0x1000, 5, false), 1);
	assert_int_equal(drop(&registry, 0x101000, 0x1000, 5, false), 1);
	registry_deinit(&registry);
}

/* ---- paths -------------------------------------------------------------------------------------------------------------- */

static enum gpu_path choice(uint64_t piece, uint64_t stretch, bool to_device, bool urgent, bool bulk, bool aligned)
{
	return path_choose(&(struct path_question){
		.measure = {.bytes = 64 << 20, .pieces = (64 << 20) / piece, .stretches = (64 << 20) / stretch, .aligned = aligned},
		.to_device = to_device, .urgent = urgent, .stages = !urgent, .bulk = bulk});
}

static void choices(void **state)
{
	for (int in = 0; in < 2; in++) {
		for (uint64_t piece = 1024; piece <= 32768; piece *= 2)
			assert_int_equal(choice(piece, 128 * piece < 1 << 20 ? 128 * piece : 1 << 20, in, false, true, true), PATH_STAGED);
		for (uint64_t piece = 65536; piece <= 2 << 20; piece *= 2) { /* entries of a batch are long enough: no kernels, if they gain nothing */
			assert_int_equal(choice(piece, 4 << 20, in, false, true, true), in || piece < 131072 ? PATH_STAGED : PATH_BATCHED);
			assert_int_equal(choice(piece, piece, in, false, true, true), PATH_BATCHED);
		}
		assert_int_equal(choice(4 << 20, 4 << 20, in, false, true, true), PATH_BATCHED);
		assert_int_equal(choice(4096, 1 << 20, in, true, true, true), PATH_BULK);
		assert_int_equal(choice(4096, 1 << 20, in, true, false, true), PATH_DIRECT);
		assert_int_equal(choice(4096, 1 << 20, in, true, true, false), PATH_DIRECT);
		/* A layer of each value: short stretches. */
		assert_int_equal(choice(4096, 8192, in, false, true, true), PATH_BULK);
		assert_int_equal(choice(4096, 8192, in, false, false, true), PATH_DIRECT);
		assert_int_equal(choice(4096, 32768, in, false, true, true), PATH_STAGED); /* what kernels across the bus take from others counts */
		assert_int_equal(choice(4096, 16384, in, false, true, true), in ? PATH_BULK : PATH_STAGED);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(neighbours),
		cmocka_unit_test(limits),
		cmocka_unit_test(places),
		cmocka_unit_test(registrations),
		cmocka_unit_test(dropped_all_or_none),
		cmocka_unit_test(dropped_while_it_goes),
		cmocka_unit_test(choices),
	};
	const char *seed = getenv("SEED");

	d.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("SEED=%llu\n", (unsigned long long)d.state);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
