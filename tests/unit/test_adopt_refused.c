/* SPDX-License-Identifier: Apache-2.0
 *
 * Adoption of a namespace by the next serving process: what is refused, and what is dropped because it is torn.
 */
#include "tests/unit/adopt_pages.h"

#include "index/internal.h"

static void assert_refused(struct fixture *f, struct adoption *a, int error, const char *words)
{
	struct heir heir;
	struct host_report report;

	world_adopt(&heir, a, MEMORY);
	assert_int_equal(heir.error, -error);
	assert_true(adopt_refused(heir.error));
	if (!strstr(heir.why.text, words))
		fail_msg("'%s' does not say '%s'", heir.why.text, words);
	host_report(heir.f.host, &report); /* nothing is left of it */
	assert_int_equal(report.floors_bytes, 0);
	assert_int_equal(report.granted_bytes, 0);
	assert_int_equal(report.spaces, 0);
	assert_int_equal(fcntl(a->segment_fd, F_GETFD), -1);
	assert_int_equal(fcntl(a->tables_fd, F_GETFD), -1);
	host_free(&heir.f.host);
	(void)f;
}

static void poke(int fd, off_t at, uint8_t byte)
{
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void each_refusal_has_its_sentence(void **state)
{
	struct fixture f;
	struct adoption a;
	struct session *s;
	struct why why = WHY_INIT;
	int fd;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 7, 0, 10);

	a = world_adoption(&f, NULL);
	assert_int_equal(adopt_tables_version(a.tables_fd), 4);
	poke(a.tables_fd, offsetof(struct tables_header, version), 5);
	assert_int_equal(adopt_tables_version(a.tables_fd), 5);
	assert_refused(&f, &a, EPROTO, "tables have version 5, this program knows 4");

	a = world_adoption(&f, NULL);
	poke(a.tables_fd, offsetof(struct tables_header, records), 1);
	assert_refused(&f, &a, EINVAL, "the header of the tables has check");

	a = world_adoption(&f, NULL);
	poke(a.tables_fd, 0, 1);
	assert_int_equal(adopt_tables_version(a.tables_fd), 0);
	assert_refused(&f, &a, EINVAL, "tables begin with");

	a = world_adoption(&f, NULL);
	assert_int_equal(ftruncate(a.tables_fd, 1 << 20), 0);
	assert_refused(&f, &a, EINVAL, "tables are 1048576 bytes long, their header asks for");

	a = world_adoption(&f, NULL);
	assert_int_equal(ftruncate(a.tables_fd, 0), 0);
	assert_refused(&f, &a, EINVAL, "the tables are no memory file with something in it");

	struct layout *layout = fixture_layout(CLASS_IX, 1, 32 * MIB);

	a = world_adoption(&f, layout->json);
	layout_free(&layout);
	assert_refused(&f, &a, EXDEV, "the tables are of identity and layout");

	/* the other namespace's segment: of the same length, another file */
	struct fixture g;

	world_open(&g, CLASS_KV, 1, MEMORY, 32 * MIB);
	a = world_adoption(&f, NULL);
	close(a.segment_fd);
	a.segment_fd = dup(segment_fd(g.space->segment));
	assert_refused(&f, &a, ESTALE, "the segment is not the one that the tables are of");
	fixture_close(&g);

	a = world_adoption(&f, NULL);
	close(a.segment_fd);
	a.segment_fd = fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, (off_t)MEMORY), 0);
	assert_refused(&f, &a, EINVAL, "the segment has seals 0x0");

	a = world_adoption(&f, NULL);
	close(a.segment_fd);
	a.segment_fd = fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_refused(&f, &a, EINVAL, "the segment's length 4096 is no multiple of");

	/* not refusals: floors over the budget, a name that is taken */
	struct heir heir;

	a = world_adoption(&f, NULL);
	a.layout->floor_bytes = 2 * MEMORY;
	world_adopt(&heir, &a, MEMORY);
	assert_int_equal(heir.error, -ENOSPC);
	assert_false(adopt_refused(heir.error));
	host_free(&heir.f.host);
	a = world_adoption(&f, NULL);
	world_adopt(&heir, &a, 2 * MEMORY);
	a = world_adoption(&f, NULL);
	struct space *twice;

	assert_int_equal(host_space_adopt(heir.f.host, &a, &twice, &heir.report, &why), -EEXIST);
	fixture_close(&heir.f);
	world_session_end(&s);
	fixture_close(&f);
}

/* What is torn goes, and is counted. */
static void torn_things_are_dropped_and_counted(void **state)
{
	struct fixture f;
	struct heir heir;
	struct session *s, *t;

	(void)state;
	world_open(&f, CLASS_KV, 1, MEMORY, 32 * MIB);
	s = world_session(&f, 1, 5, 50);
	store_pages(&f, s, 1, 7, 0, 10);
	store_pages(&f, s, 2, 8, 0, 10);
	store_pages(&f, s, 3, 9, 0, 10);
	struct adoption a = world_adoption(&f, NULL);
	struct tables tables;
	struct why why = WHY_INIT;
	void *memory = mmap(NULL, f.space->tables.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a.tables_fd, 0);
	struct key end = fixture_key(8, 9);
	uint32_t record;

	assert_int_equal(tables_open(&tables, memory, f.space->tables.bytes, &why), 0);
	lock_take(&f.space->lock);
	record = index_find_endpoint(f.space->index, &end);
	lock_drop(&f.space->lock);
	tables.records[record].check++;                   /* ten values go with it */
	for (uint32_t e = 0; e < tables.slot_capacity; e++)
		if (tables.entries[e].state == ENTRY_VALUE && tables.entries[e].key.words[1] == 9 && tables.entries[e].page == 9)
			tables.entries[e].check ^= 4;
	tables.groups[5].state = GROUP_COMMITTED;         /* without a seal */
	tables.grants[3].used = 2;                        /* likewise */
	tables.grants[3].length += 4096;
	tables.seats[9].state = SEAT_TAKEN;               /* likewise */
	tables.users[2000] = 1ull << 9;                   /* nobody's */
	munmap(memory, f.space->tables.bytes);
	world_adopt(&heir, &a, MEMORY);
	assert_int_equal(heir.error, 0);
	assert_int_equal(heir.report.values, 19);
	assert_int_equal(heir.report.torn_records, 1);
	assert_int_equal(heir.report.torn_entries, 11);
	assert_int_equal(heir.report.torn_groups, 1);
	assert_int_equal(heir.report.torn_grants, 1);
	assert_int_equal(heir.report.torn_seats, 1);
	assert_int_equal(heir.report.kept_slots, 0);
	t = world_session(&heir.f, 1, 5, 51);
	assert_true(found(t, 1, 7, 10));
	assert_false(found(t, 2, 8, 1));
	assert_true(found(t, 3, 9, 9));
	assert_false(found(t, 4, 9, 10));
	world_session_end(&t);
	host_process_gone(heir.f.host, session_number(s));
	assert_nothing_kept(&heir, 0);
	world_session_end(&s);
	fixture_close(&heir.f);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_refusal_has_its_sentence),
		cmocka_unit_test(torn_things_are_dropped_and_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
