/* SPDX-License-Identifier: Apache-2.0
 *
 * How long the adoption of a namespace takes: of a million pages of 4 KiB, in records of one and of 64, whose tables are mapped anew each
 * time; memory of the values themselves is not touched, as by an adoption.
 *
 *	bench_heir [pages]
 */
#include <time.h>

#include "store/seating.h"
#include "tests/unit/adopt_world.h"

#define GROUPS 4096u

static struct put_result result;

static void fill(struct fixture *f, uint32_t pages, uint32_t record)
{
	struct session *s = world_session(f, 1, 5, 50);
	static struct put_group groups[GROUPS];
	static struct key keys[GROUPS];
	uint64_t plan = 0;

	for (uint32_t at = 0; at < pages; at += GROUPS) {
		uint32_t count = GROUPS / record;

		for (uint32_t g = 0; g < count; g++)
			groups[g] = (struct put_group){ .consumed = (uint64_t)record * FIXTURE_PAGE, .keys = record, .class_mask = 1, .flags = PUT_ROOT };
		for (uint32_t i = 0; i < GROUPS; i++)
			keys[i] = fixture_key(at + i, i);
		if (put_run(s, ++plan, groups, count, keys, GROUPS, 1, &result))
			fail_msg("put: %s", result.why.text);
		commit_all(s, plan, count);
	}
	world_session_end(&s);
	seating_sweep(f->space);
}

static uint64_t cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void measure(uint32_t pages, uint32_t record)
{
	uint64_t memory = (uint64_t)pages * WORLD_SLOT * 9 / 8 + (64ull << 20);
	struct fixture f;

	memory = (memory + (2ull << 20) - 1) & ~((2ull << 20) - 1);
	world_open(&f, CLASS_KV, 1, memory, memory);
	fill(&f, pages, record);
	for (unsigned round = 0; round < 5; round++) {
		struct adoption a = world_adoption(&f, NULL);
		struct host *host = world_host(memory);
		struct adopt_report report;
		struct why why = WHY_INIT;
		struct space *space;

		close(a.tables_fd);
		a.tables_fd = dup(f.space->tables_fd);
		uint64_t began_ns = clock_now_ns(), began_cpu = cpu_us();

		if (host_space_adopt(host, &a, &space, &report, &why))
			fail_msg("adoption: %s", why.text);
		printf("%llu pages in %llu records: adopted in %.1f ms, %.1f of a processor\n", (unsigned long long)report.pages,
			(unsigned long long)report.records, (double)(clock_now_ns() - began_ns) / 1e6,
			(double)(cpu_us() - began_cpu) / 1e3);
		host_adopted(host);
		space_unref(&space);
		host_free(&host);
	}
	fixture_close(&f);
}

int main(int argc, char **argv)
{
	uint32_t pages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1u << 20;

	measure(pages, 1);
	measure(pages, 64);
	return 0;
}
