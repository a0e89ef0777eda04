/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of a namespace that were changed, and their adoption. An input is a row of changes: where, which, which word of it, what is to
 * be there instead, and whether its check is made right again.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/adopt_world.h"

#include "index/files.h"
#include "store/manage.h"

#define MEMORY (16ull << 20)
#define KV 1u
#define STATE 2u

struct change {
	uint8_t section, mend, word, how;
	uint16_t number;
	uint16_t value;
};

enum { HEADER, GRANT, RECORD, GROUP, VALUE_ENTRY, ANY_ENTRY, HOLLOW, SEAT, USER, CLEAN, SECTIONS };

static struct fixture model;
static struct session *holder;
static struct put_result result;

static void model_end(void)
{
	world_session_end(&holder);
	fixture_close(&model);
}

/* Chains that share pages, one WHOLE, rows, one aborted in its middle, an open put and an open get plan. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct put_group row = { .consumed = 4 * FIXTURE_PAGE, .keys = 4, .class_mask = KV | STATE, .flags = PUT_ROOT };
	struct get_start get = { 0 };
	struct get_transfer transfer = { 0 };
	struct why why = WHY_INIT;
	uint64_t offsets[64];
	struct key keys[4];

	world_open(&model, CLASS_KV "," CLASS_STATE, 1, MEMORY, MEMORY);
	holder = world_session(&model, 1, 5, 50);
	atexit(model_end);
	for (uint32_t c = 0; c < 6; c++) {
		put_chain(holder, 10 + c, c, 0, 20, KV, c == 3 ? PUT_WHOLE : 0, &result);
		commit_all(holder, 10 + c, 1);
		put_chain(holder, 20 + c, c, 20, 10, KV, 0, &result);
		commit_all(holder, 20 + c, 1);
	}
	for (uint32_t i = 0; i < 4; i++)
		keys[i] = fixture_key(9, i);
	put_run(holder, 30, &row, 1, keys, 4, KV | STATE, &result);
	commit_all(holder, 30, 1);
	put_chain(holder, 31, 10, 0, 12, KV, 0, &result);
	if (!get_chain(holder, 1, 2, 30, 0, &get, &why))
		transfer_run(holder, 1, 32, 30 * FIXTURE_PAGE, 0, 30 * FIXTURE_PAGE, offsets, 64, &transfer, &why);
	return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *to)
{
	struct change c[2] = {
		{ .section = (uint8_t)(n % SECTIONS), .mend = n / SECTIONS % 2, .word = (uint8_t)(n / (2 * SECTIONS)), .how = n % 3, .number = (uint16_t)n, .value = 7 },
		{ .section = (uint8_t)(n * 7 % SECTIONS), .mend = 1, .word = (uint8_t)n, .how = 2, .number = (uint16_t)(n * 3), .value = 0xffff },
	};

	if (n >= 16 * SECTIONS)
		return 0;
	memcpy(to, c, sizeof(c));
	return sizeof(c);
}

/* ---- changing ------------------------------------------------------------------------------------------------------------- */

static void change_word(void *thing, size_t bytes, const struct change *c)
{
	uint32_t *word = (uint32_t *)thing + c->word % (bytes / 4);

	switch (c->how % 4) {
	case 0:
		*word ^= 1u << c->value % 32;
		break;
	case 1:
		*word = c->value;
		break;
	case 2:
		*word = c->value | (uint32_t)c->value << 16;
		break;
	case 3:
		*word += c->value % 64;
		break;
	}
}

/* Entries in use, or any. */
static uint32_t entry_of(const struct tables *t, const struct change *c)
{
	uint32_t n = c->number;

	switch (c->section) {
	case VALUE_ENTRY:
		for (uint32_t i = 0; i < t->slot_capacity; i++)
			if (t->entries[i].state != ENTRY_FREE && n-- % 256 == 0)
				return i;
		return 0;
	case HOLLOW:
		return t->entry_capacity - 1 - n % 64;
	default:
		return n % t->entry_capacity;
	}
}

static void change(struct tables *t, const struct change *c)
{
	uint32_t n = c->number, e;

	switch (c->section % SECTIONS) {
	case HEADER:
		change_word(t->header, sizeof(*t->header), c);
		if (c->mend & 1)
			tables_seal_header(t->header);
		break;
	case GRANT:
		n %= c->mend & 2 ? t->grant_capacity : 8;
		change_word(&t->grants[n], sizeof(t->grants[n]), c);
		if (c->mend & 1)
			tables_seal_grant(t, n);
		break;
	case RECORD:
		n %= 20;
		change_word(&t->records[n], sizeof(t->records[n]), c);
		if (c->mend & 1)
			tables_seal_record(&t->records[n], n);
		break;
	case GROUP:
		n %= c->mend & 2 ? t->group_capacity : 4;
		change_word(&t->groups[n], sizeof(t->groups[n]), c);
		if (c->mend & 1)
			tables_seal_group(&t->groups[n], n);
		break;
	case VALUE_ENTRY:
	case ANY_ENTRY:
	case HOLLOW:
		e = entry_of(t, c);
		change_word(&t->entries[e], sizeof(t->entries[e]), c);
		if (c->mend & 1)
			tables_seal_entry(&t->entries[e], e);
		break;
	case SEAT:
		change_word(&t->seats[n % SEATS], sizeof(t->seats[0]), c);
		break;
	case USER:
		change_word(&t->users[n % t->slot_capacity], sizeof(t->users[0]), c);
		break;
	case CLEAN:
		change_word(t->clean, t->slot_capacity / 64 * 8, c);
		break;
	}
}

static void damage(int fd, const uint8_t *data, size_t bytes)
{
	size_t length = model.space->tables.bytes;
	struct why why = WHY_INIT;
	struct tables t;
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert(memory != MAP_FAILED && !tables_open(&t, memory, length, &why));
	for (size_t at = 0; at + sizeof(struct change) <= bytes; at += sizeof(struct change)) {
		struct change c;

		memcpy(&c, data + at, sizeof(c));
		change(&t, &c);
	}
	munmap(memory, length);
}

/* ---- what must hold --------------------------------------------------------------------------------------------------------- */

static void check(struct space *space)
{
	const struct tables *t = &space->tables;
	struct slots_grant g;
	bool is;

	lock_take(&space->lock);
	index_check(space->index);
	slots_check(space->slots);
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++)
		for (uint32_t n = 0; slots_grant_get(space->slots, id, &g) && n < g.slots; n++) {
			uint32_t entry = g.first_entry + n;
			const struct entry *e = &t->entries[entry];

			if (e->state != ENTRY_VALUE)
				continue;
			assert(tables_entry_intact(t, entry) && tables_record_intact(t, e->record));
			assert(index_value(space->index, e->record, e->page, layout_column(space->layout, e->class_index, e->share), &is) == entry);
			assert(is || e->group);
		}
	lock_drop(&space->lock);
}

static void use(struct fixture *f)
{
	struct session *t = world_session(f, 3, 5, 60);
	struct eviction all = { .session = t, .goal_bytes = EVICTION_ALL };
	struct remnant_info info[SEATS];
	struct why why = WHY_INIT;

	put_chain(t, 1, 50, 0, 40, KV, 0, &result);
	check(f->space);
	for (uint32_t i = 0, n = remnants_list(f->space, info, SEATS); i < n; i++)
		host_process_gone(f->host, info[i].session);
	check(f->space);
	eviction_begin(&all, &why);
	while (eviction_step(&all, &why) == STEP_MORE)
		;
	world_session_end(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct adoption a = world_adoption(&model, NULL);
	struct adopt_report report;
	struct why why = WHY_INIT;
	struct fixture f = { .host = world_host(MEMORY) };

	damage(a.tables_fd, data, bytes);
	int r = host_space_adopt(f.host, &a, &f.space, &report, &why);

	if (!r) {
		host_adopted(f.host);
		check(f.space);
		use(&f);
		space_unref(&f.space);
	} else {
		assert(why.text[0]);
	}
	host_free(&f.host);
	return 0;
}
