/* SPDX-License-Identifier: Apache-2.0
 *
 * Nanoseconds a take, a give, an offset and a seek cost: in fresh grants, and after random takes and gives left every
 * grant as ragged as it gets.
 *
 *	bench_slots [value bytes] [segment GiB]
 */
#include <stdio.h>
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/base/memory.h"
#include "store/slots.h"

#define BATCH 1000u

static const struct slots_filter everything = {NULL};
static uint64_t random_state = 88172645463325252u;

static uint32_t pick(uint32_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 16) % below);
}

static void report(const char *what, uint64_t since, uint64_t times)
{
	printf("%-64s %8.1f ns\n", what, (double)(clock_now_ns() - since) / (double)times);
}

static void must(int r)
{
	if (r) {
		fprintf(stderr, "bench_slots: error %d\n", r);
		exit(1);
	}
}

/* @batches times: seek @run neighbours and take them until BATCH are taken; its time, per slot. Giving them back, if
 * @give_at_once, is not counted. */
static void put_batches(struct slots *slots, const char *what, uint32_t run, uint32_t batches,
	struct slots_filter filter, bool give_at_once)
{
	uint64_t take_ns = 0, worst = 0, merged = 0;
	static uint32_t entry[BATCH];
	char text[128];

	for (uint32_t b = 0; b < batches; b++) {
		struct slots_cursor c;
		uint64_t since = clock_now_ns();

		for (uint32_t i = 0; i < BATCH; i++) {
			if (i % run == 0)
				slots_seek(slots, &c, 0, 0, run, filter);
			entry[i] = slots_take(slots, &c, filter);
		}
		uint64_t took = clock_now_ns() - since;

		take_ns += took;
		worst = took > worst ? took : worst;
		for (uint32_t i = 1; i < BATCH; i++)
			merged += entry[i] == entry[i - 1] + 1;
		for (uint32_t i = 0; give_at_once && i < BATCH; i++)
			slots_give(slots, entry[i]);
	}
	snprintf(text, sizeof(text), "%s, runs of %u (%.0f%% merge; worst %u: %.1f us)", what, run,
		100.0 * (double)merged / (double)batches / BATCH, BATCH, (double)worst / 1000);
	printf("%-64s %8.1f ns\n", text, (double)take_ns / ((double)batches * BATCH));
}

int main(int argc, char **argv)
{
	uint64_t value = argc > 1 ? strtoull(argv[1], NULL, 0) : 65536;
	uint64_t segment = (argc > 2 ? strtoull(argv[2], NULL, 0) : 256) << 30;
	struct layout *layout = calloc(1, sizeof(*layout));
	uint64_t most = segment / value + 128 * 16384;

	if (!layout || most > UINT32_MAX)
		return 1;
	layout->classes = 1;
	layout->class[0].shares = 1;
	layout->class[0].share[0].payload_bytes = value;
	layout->class[0].share[0].slot_bytes = (value + 4095) / 4096 * 4096;
	struct tables_config sizes = {
		.grants = SLOTS_MAX_GRANTS,
		.records = 1,
		.groups = 1,
		.entries = (uint32_t)most / TABLES_GRANT_ENTRIES * TABLES_GRANT_ENTRIES,
		.identity = (const uint8_t[32]){0},
		.fingerprint = (const uint8_t[16]){0},
	};
	size_t bytes = tables_bytes(&sizes);
	void *memory = memory_reserve(bytes, false);
	struct tables tables;

	if (!memory)
		return 1;
	tables_format(&tables, memory, &sizes);
	struct lock lock;

	lock_init(&lock, LOCK_SPACE);
	struct slots_config config = {
		.layout = layout,
		.tables = &tables,
		.guard = &lock,
		.segment_bytes = segment,
		.budget_bytes = segment,
		.entry_limit = sizes.entries,
	};
	struct slots *slots;

	for (uint32_t i = 0; i < sizes.entries; i++) /* as if the index had been there */
		((volatile struct entry *)tables.entries)[i].state = ENTRY_FREE;
	must(slots_new(&config, &slots, NULL));
	lock_take(&lock);
	uint32_t grants = 0, id;
	uint64_t since = clock_now_ns();

	while (slots_grant_begin(slots, 0, 0, 0, &id) == 0) {
		slots_grant_ready(slots, id);
		grants++;
	}
	report("cut a grant", since, grants);
	uint32_t total = slots_free_count(slots, 0, 0, everything);
	uint32_t *held = malloc(total * sizeof(*held));
	static uint64_t acknowledged[SLOTS_MAX_GRANTS / 64];
	struct slots_filter all = {acknowledged};

	if (!held)
		return 1;
	for (uint32_t i = 0; i < SLOTS_MAX_GRANTS / 64; i++)
		acknowledged[i] = ~0ull;
	printf("%u grants, %u slots of %llu bytes\n", grants, total,
		(unsigned long long)layout->class[0].share[0].slot_bytes);

	struct slots_cursor c;

	slots_seek(slots, &c, 0, 0, total, everything);
	since = clock_now_ns();
	for (uint32_t i = 0; i < total; i++)
		held[i] = slots_take(slots, &c, all);
	report("take all, one after the other", since, total);
	since = clock_now_ns();
	uint64_t sum = 0;

	for (uint32_t i = 0; i < total; i++)
		sum += slots_offset(slots, held[i]);
	report("offset, one after the other", since, total);
	since = clock_now_ns();
	for (uint32_t i = 0; i < total; i++)
		slots_give(slots, held[i]);
	report("give all, one after the other", since, total);
	put_batches(slots, "fresh", BATCH, 200, all, true);
	put_batches(slots, "fresh", 64, 200, all, true);
	put_batches(slots, "fresh", 1, 200, all, true);

	/* All taken, then a fifth given back in random order. */
	slots_seek(slots, &c, 0, 0, 1, everything);
	for (uint32_t i = 0; i < total; i++)
		held[i] = slots_take(slots, &c, everything);
	for (uint32_t i = total - 1; i > 0; i--) {
		uint32_t j = pick(i + 1), swap = held[i];

		held[i] = held[j];
		held[j] = swap;
	}
	since = clock_now_ns();
	for (uint32_t i = 0; i < total; i++)
		sum += slots_offset(slots, held[i]);
	report("offset, random", since, total);
	since = clock_now_ns();
	for (uint32_t i = 0; i < total / 5; i++)
		slots_give(slots, held[i]);
	report("give a fifth, random", since, total / 5);
	uint32_t batches = total / 5 / BATCH / 4;

	batches = batches > 200 ? 200 : batches;
	put_batches(slots, "ragged", BATCH, batches, all, false);
	put_batches(slots, "ragged", 16, batches, all, false);
	put_batches(slots, "ragged", 1, batches, all, false);
	since = clock_now_ns();
	for (uint32_t i = 0; i < 1000; i++)
		sum += slots_free_count(slots, 0, 0, all);
	report("count what a session may have", since, 1000);
	slots_check(slots);
	lock_drop(&lock);
	slots_free(&slots);
	memory_release(&memory, bytes);
	free(held);
	free(layout);
	return sum == 1;
}
