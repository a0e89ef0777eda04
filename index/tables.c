/* SPDX-License-Identifier: Apache-2.0 */
#include "index/files.h"
#include "index/seats.h"
#include "index/tables.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define TABLES_ALIGN 4096u

static uint64_t check_word(uint64_t check, uint64_t word)
{
	return mix_64(check ^ word, 0x8ebc6af09c88c6e3ull);
}

static uint64_t grant_check(const struct tables *tables, uint32_t number)
{
	const struct grant_entry *g = &tables->grants[number];
	uint64_t check = tables_check_number(TABLES_KIND_GRANT, number);

	check = check_word(check_word(check_word(check, g->offset), g->length), g->slot_bytes);
	check = check_word(check, (uint64_t)g->first_entry << 32 | g->slots);
	check = check_word(check, (uint64_t)g->class_index << 48 | (uint64_t)g->share << 32 | g->node);
	return tables_check_end(check, (uint64_t)g->generation << 32 | g->used);
}

static uint64_t header_check(const struct tables_header *h)
{
	uint64_t check = tables_check_number(TABLES_KIND_HEADER, h->version);
	uint64_t words[6];

	memcpy(words, h->identity, 32);
	memcpy(words + 4, h->fingerprint, 16);
	check = check_word(check, h->magic);
	check = check_word(check, (uint64_t)h->grants << 32 | h->records);
	check = check_word(check, (uint64_t)h->groups << 32 | h->entries);
	for (unsigned i = 0; i < 6; i++)
		check = check_word(check, words[i]);
	check = check_word(check, (uint64_t)h->slots << 32 | h->places);
	check = check_word(check_word(check_word(check, h->hollow), h->serial), h->created_s);
	return tables_check_end(check_word(check, h->segment_inode), h->segment_bytes);
}

/* ---- where things lie ---------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
	return (bytes + TABLES_ALIGN - 1) & ~(size_t)(TABLES_ALIGN - 1);
}

/* Sets the pointers of @tables into @memory, which may be NULL. Returns the bytes of the whole. */
static size_t tables_place(struct tables *tables, void *memory)
{
	char *base = memory;
	size_t at = TABLES_ALIGN;

	_Static_assert(sizeof(struct tables_header) <= TABLES_ALIGN, "the header is one page");
	tables->header = memory;
	tables->grants = base ? (void *)(base + at) : NULL;
	at += aligned(tables->grant_capacity * sizeof(struct grant_entry));
	tables->records = base ? (void *)(base + at) : NULL;
	at += aligned(tables->record_capacity * sizeof(struct record_entry));
	tables->groups = base ? (void *)(base + at) : NULL;
	at += aligned(tables->group_capacity * sizeof(struct group_entry));
	tables->entries = base ? (void *)(base + at) : NULL;
	at += aligned(tables->entry_capacity * sizeof(struct entry));
	tables->seats = base ? (void *)(base + at) : NULL;
	at += aligned(SEATS * sizeof(struct seat));
	tables->users = base ? (void *)(base + at) : NULL;
	at += aligned(tables->slot_capacity * sizeof(uint64_t));
	tables->rows = base ? (void *)(base + at) : NULL;
	at += aligned(tables->record_capacity * 2 * sizeof(struct file_row));
	tables->clean = base ? (void *)(base + at) : NULL;
	at += aligned(((size_t)tables->slot_capacity + 63) / 64 * sizeof(uint64_t));
	tables->bytes = at;
	return at;
}

static struct tables tables_of(const struct tables_config *config)
{
	return (struct tables){
		.grant_capacity = config->grants,
		.record_capacity = config->records,
		.group_capacity = config->groups,
		.entry_capacity = config->entries,
		.slot_capacity = config->slots,
	};
}

size_t tables_bytes(const struct tables_config *config)
{
	struct tables tables = tables_of(config);

	return tables_place(&tables, NULL);
}

void tables_seal_header(struct tables_header *header)
{
	__atomic_store_n(&header->check, header_check(header), __ATOMIC_RELEASE);
}

void tables_format(struct tables *tables, void *memory, const struct tables_config *config)
{
	assert(config->entries % TABLES_GRANT_ENTRIES == 0 && config->entries <= TABLES_MAX_ENTRIES);
	assert(config->records < TABLES_NONE && config->groups < TABLES_NONE);
	assert((uint64_t)config->slots + config->places + config->hollow <= config->entries);
	*tables = tables_of(config);
	tables_place(tables, memory);

	struct tables_header *h = tables->header;

	h->magic = TABLES_MAGIC;
	h->version = TABLES_VERSION;
	h->grants = config->grants;
	h->records = config->records;
	h->groups = config->groups;
	h->entries = config->entries;
	h->slots = config->slots;
	h->places = config->places;
	h->hollow = config->hollow;
	h->generation = config->generation;
	h->serial = config->serial;
	h->created_s = config->created_s;
	h->segment_inode = config->segment_inode;
	h->segment_bytes = config->segment_bytes;
	memcpy(h->identity, config->identity, sizeof(h->identity));
	memcpy(h->fingerprint, config->fingerprint, sizeof(h->fingerprint));
	tables_seal_header(h);
}

int tables_open(struct tables *tables, void *memory, size_t bytes, struct why *why)
{
	const struct tables_header *h = memory;
	struct tables t;

	if (bytes < TABLES_ALIGN)
		return why_set(why, EINVAL, "tables of %zu bytes have no header, which takes %u", bytes, TABLES_ALIGN);
	if (h->magic != TABLES_MAGIC)
		return why_set(why, EINVAL, "tables begin with %#llx, not with %#llx", (unsigned long long)h->magic,
			(unsigned long long)TABLES_MAGIC);
	if (h->version != TABLES_VERSION)
		return why_set(
			why, EPROTO, "tables have version %u, this program knows %u", h->version, TABLES_VERSION);
	if (h->check != header_check(h))
		return why_set(why, EINVAL, "the header of the tables has check %#llx, its content %#llx",
			(unsigned long long)h->check, (unsigned long long)header_check(h));
	if (h->entries > TABLES_MAX_ENTRIES || h->entries % TABLES_GRANT_ENTRIES || h->records == TABLES_NONE)
		return why_set(why, EINVAL, "tables have %u entries; at most %u, in multiples of %u, can be",
			h->entries, TABLES_MAX_ENTRIES, TABLES_GRANT_ENTRIES);
	if ((uint64_t)h->slots + h->places + h->hollow > h->entries)
		return why_set(why, EINVAL, "tables cut %u entries into %u slots, %u places and %u hollow ones", h->entries,
			h->slots, h->places, h->hollow);
	t = tables_of(&(struct tables_config){
		.grants = h->grants, .records = h->records, .groups = h->groups, .entries = h->entries, .slots = h->slots});
	if (tables_place(&t, memory) != bytes)
		return why_set(why, EINVAL, "tables are %zu bytes long, their header asks for %zu", bytes, t.bytes);
	*tables = t;
	return 0;
}

/* ---- seals of grants, which are rare -------------------------------------------------------------------------- */

void tables_seal_grant(struct tables *tables, uint32_t number)
{
	__atomic_store_n(&tables->grants[number].check, grant_check(tables, number), __ATOMIC_RELEASE);
}

bool tables_grant_intact(const struct tables *tables, uint32_t number)
{
	return tables->grants[number].check == grant_check(tables, number);
}
