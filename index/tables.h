/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent tables of a namespace: what is enough to build its index again.
 *
 * They lie in a memory file that clients never see and that outlives the serving process. Writers are the serving
 * process alone, under the space lock; the reader after a death is its successor. A process that is killed leaves a
 * prefix of its stores. So every entry carries a checksum over what never changes in its life and over its number,
 * written last when it is made: an entry whose checksum is wrong was being made and holds nothing. Everything that does
 * change later is one aligned word outside the checksum, stored at once: no moment of a settling, a quarantine, a
 * trimming or a joining of twins leaves an entry torn.
 *
 * Whether a value or a record is committed is said by one word: `group` 0 means it is, else the state of that put
 * group means it for all of the group's values and records at once. The commit of a group is the one store
 * tables_group_publish(); afterwards the group's entries are settled (group = 0) at leisure and the group freed.
 *
 *   entry   Free -> Value (group g) -> Value (group 0) -> Free      a value in a slot: entry number = slot number
 *                                                                   or in a place on disk: a number behind all slots'
 *           Free -> Hollow -> Free                                  the key of a page without values
 *           Value (group g) -> Quarantined -> Free                  nobody knows who still writes there
 *   record  Free -> Used (group g) -> Used (group 0) -> Free
 *   group   Free -> Prepared -> Committed | Lost -> Free
 *
 * Behind them: who may be touching a slot (seats.h), and what lies on the disk (files.h).
 */
#ifndef PREFIXFS_INDEX_TABLES_H
#define PREFIXFS_INDEX_TABLES_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>

#include "index/mix.h"
#include "store/base/why.h"

struct seat;
struct file_row;

#define TABLES_NONE 0xffffffffu
#define TABLES_PAGE_ROW 0xffffu /* `page` of a row value: it stands at the record's endpoint */
#define TABLES_HELD_UNIT 4096u
#define TABLES_MAX_ENTRIES 0x3fffff00u /* an entry number and two marks fit in a word */
#define TABLES_GRANT_ENTRIES 128u /* a grant's entries begin at a multiple of this */

struct key {
	union {
		uint8_t bytes[32];
		uint64_t words[4];
	};
};

enum entry_state {
	ENTRY_FREE,
	ENTRY_VALUE,
	ENTRY_HOLLOW,
	ENTRY_QUARANTINED,
};

/* One slot's or place's value, or a hollow page's key. 64 bytes, one cache line. */
struct entry {
	struct key key;
	uint32_t record;
	uint16_t page; /* in the record, or TABLES_PAGE_ROW */
	uint8_t class_index;
	uint8_t share;
	uint32_t group; /* 0 = committed, else 1 + number in the groups' table */
	uint8_t state;  /* enum entry_state */
	uint8_t reserved[3];
	uint64_t check; /* over key, page, class_index, share and the entry's number */
	uint64_t unused;
};
_Static_assert(sizeof(struct entry) == 64, "one cache line");

enum record_flags {
	RECORD_USED = 1,
	RECORD_ROOT = 2,   /* begins a chain: parent_key is zero and means nothing */
	RECORD_WHOLE = 4,  /* its group was put WHOLE */
	RECORD_PINNED = 8, /* by an operator */
	/* of a record with a row, which the next one of its chain does not replace; a stale one only misleads the policy, an older program
	 * passes them over */
	RECORD_RUNG = 16,     /* put as one of the ladder's */
	RECORD_DEMANDED = 32, /* somebody's hit would have been longer with it */
};

/* One record. 128 bytes. */
struct record_entry {
	struct key parent_key; /* page before the first one (of a zero-page record: before its endpoint) */
	/* Copies, exact while the process lives, set right again by a rebuild (except a zero-page record's endpoint, which
	 * never changes): they change when `pages` does, and that one store is the truth. */
	struct key endpoint;
	uint64_t consumed;     /* tokens at the endpoint: start + pages x page_tokens */
	uint32_t pages;
	uint32_t flags;
	uint32_t group;        /* 0 = committed, else 1 + number of the group that made it */
	uint32_t whole_next;   /* ring of the records of one WHOLE group; itself when alone, TABLES_NONE without WHOLE */
	uint64_t check;        /* over parent_key, start and the record's number */
	uint64_t start;        /* tokens before the first page; of a zero-page record: at its endpoint */
	/* a stale value only misleads the policy */
	uint32_t created_s;    /* wall clock, seconds */
	uint32_t last_use_s;
	uint32_t hits;         /* GET_STARTs that used it */
	uint32_t reuse;        /* generation of the number and its length, for whoever comes back to it: rises only, not under check */
	uint32_t generation;   /* low bits of the header's when it was made, which never change; older ones are gone */
	uint32_t held_units;   /* while RECORD_PINNED: what it was counted as when it was pinned, in TABLES_HELD_UNIT */
};
_Static_assert(sizeof(struct record_entry) == 128, "two cache lines");

enum group_state {
	GROUP_FREE,
	GROUP_PREPARED,
	GROUP_COMMITTED,
	GROUP_LOST,
};

struct group_entry {
	uint8_t client_id[16];
	uint64_t plan;
	uint32_t number;         /* in the plan */
	_Atomic uint32_t state;  /* enum group_state; the one word that commits; not under check */
	uint64_t check;          /* over client_id, plan, number, session and the entry's number */
	uint64_t session;        /* that made it: its number */
	uint64_t unused[2];
};
_Static_assert(sizeof(struct group_entry) == 64, "one cache line");

/* One grant: where a run of entries has its slots. */
struct grant_entry {
	uint64_t offset;     /* in the segment */
	uint64_t length;
	uint64_t slot_bytes;
	uint32_t first_entry;
	uint32_t slots;
	uint16_t class_index, share;
	uint32_t node;
	uint32_t generation;
	uint32_t used;       /* 0 = no such grant, 1 = being populated, 2 = its slots may be taken */
	uint64_t check;
	uint64_t unused;
};
_Static_assert(sizeof(struct grant_entry) == 64, "one cache line");

#define TABLES_MAGIC 0x5046535441423031ull /* "PFSTAB01" */
#define TABLES_VERSION 4u /* that is written, and the only one that is read */

struct tables_header { /* first page */
	uint64_t magic;
	uint32_t version;
	uint32_t grants, records, groups, entries; /* capacities */
	uint32_t records_high; /* records ever used have lower numbers; rises only, before the record is made; not under check */
	uint64_t generation; /* of the namespace: a reset raises it, one store; not under check */
	uint8_t identity[32];
	uint8_t fingerprint[16];
	uint64_t check;
	uint32_t places_high; /* places ever used have lower numbers; rises only, before the place is; not under check */
	uint32_t slots, places, hollow; /* how entries are cut, in this order */
	uint64_t serial;      /* of the namespace, its number in names of nodes */
	uint64_t created_s;   /* of the namespace, wall clock */
	uint64_t segment_inode, segment_bytes; /* of the memory file that slots are in: the other half of the pair */
	uint64_t clock;       /* tick << 32 | second when it was so: one store, once a second; not under check */
};

struct tables {
	struct tables_header *header;
	struct grant_entry *grants;
	struct record_entry *records;
	struct group_entry *groups;
	struct entry *entries;
	struct seat *seats;    /* [SEATS] (seats.h) */
	uint64_t *users;       /* [slots], sparse: touched where grants are (seats.h) */
	struct file_row *rows; /* [records][2], sparse (files.h) */
	uint64_t *clean;       /* bitmap [slots], sparse (files.h) */
	uint32_t grant_capacity, record_capacity, group_capacity, entry_capacity, slot_capacity;
	size_t bytes; /* of the whole mapping, sparse */
};

struct tables_config {
	uint32_t grants, records, groups, entries; /* capacities; entries a multiple of TABLES_GRANT_ENTRIES */
	uint32_t slots, places, hollow;            /* at most that many entries */
	uint64_t generation;
	uint64_t serial, created_s, segment_inode, segment_bytes;
	const uint8_t *identity;    /* 32 bytes */
	const uint8_t *fingerprint; /* 16 bytes */
};

/* Bytes that a memory file must have for @config. */
size_t tables_bytes(const struct tables_config *config);
/* Lays empty tables out in @memory, which is tables_bytes() long, zero-filled, page-aligned and stays the caller's. */
void tables_format(struct tables *tables, void *memory, const struct tables_config *config);
/* Finds tables in @memory that an earlier process formatted. EINVAL when header or sizes do not fit, EPROTO: of another version. */
int tables_open(struct tables *tables, void *memory, size_t bytes, struct why *why);

/* The header's check is right from here on. For tables_format, and whoever damages tables on purpose. */
void tables_seal_header(struct tables_header *header);

enum tables_kind {
	TABLES_KIND_HEADER = 1,
	TABLES_KIND_ENTRY,
	TABLES_KIND_RECORD,
	TABLES_KIND_GROUP,
	TABLES_KIND_GRANT,
	TABLES_KIND_SEAT,
	TABLES_KIND_ROW,
};

/* A check multiplies as few words after one another as it can: it is made for every page. */
static inline uint64_t tables_check_pair(uint64_t a, uint64_t b)
{
	return mix_64(a ^ 0xa0761d6478bd642full, b ^ 0xe7037ed1a0b428dbull);
}

/* Tells kinds and numbers apart, and never lets zero-filled memory look intact. */
static inline uint64_t tables_check_number(enum tables_kind kind, uint32_t number)
{
	return 0x9ae16a3b2f90404full + ((uint64_t)kind << 32 | number) * 0xc2b2ae3d27d4eb4full;
}

/* 0 is what unseal leaves. */
static inline uint64_t tables_check_end(uint64_t a, uint64_t b)
{
	uint64_t check = mix_64(a, b ^ 0x8ebc6af09c88c6e3ull);

	return check ? check : 1;
}

static inline uint64_t tables_check_key(const struct key *key, uint64_t word, uint64_t start)
{
	return tables_check_end(tables_check_pair(key->words[0], key->words[1]) ^ start,
				tables_check_pair(key->words[2], key->words[3]) + word);
}

static inline uint64_t tables_entry_check(const struct entry *e, uint32_t number)
{
	return tables_check_key(&e->key, (uint64_t)e->page | (uint64_t)e->class_index << 16 | (uint64_t)e->share << 24,
				tables_check_number(TABLES_KIND_ENTRY, number));
}

static inline uint64_t tables_record_check(const struct record_entry *r, uint32_t number)
{
	return tables_check_key(&r->parent_key, r->start, tables_check_number(TABLES_KIND_RECORD, number));
}

static inline uint64_t tables_group_check(const struct group_entry *g, uint32_t number)
{
	uint64_t id[2];

	memcpy(id, g->client_id, sizeof(id));
	return tables_check_end(tables_check_pair(id[0], id[1]) ^ tables_check_number(TABLES_KIND_GROUP, number),
				tables_check_pair(g->plan, g->number) ^ g->session);
}

/* Checksums: unseal makes it wrong before the first store of a making, seal writes it as the last one, intact tells
 * whether it is right. Here, because every put makes entries, records and groups; by pointer, so that the compiler knows
 * what was written and a check is not read back from bytes that are still on their way to memory. */
static inline void tables_unseal(uint64_t *check)
{
	/* A release store keeps what was written before it before it; the fence keeps what is written next after it. */
	__atomic_store_n(check, 0, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void tables_seal_entry(struct entry *e, uint32_t number)
{
	__atomic_store_n(&e->check, tables_entry_check(e, number), __ATOMIC_RELEASE);
}

static inline bool tables_entry_intact(const struct tables *tables, uint32_t number)
{
	return tables->entries[number].check == tables_entry_check(&tables->entries[number], number);
}

static inline void tables_seal_record(struct record_entry *r, uint32_t number)
{
	__atomic_store_n(&r->check, tables_record_check(r, number), __ATOMIC_RELEASE);
}

static inline bool tables_record_intact(const struct tables *tables, uint32_t number)
{
	return tables->records[number].check == tables_record_check(&tables->records[number], number);
}

static inline void tables_seal_group(struct group_entry *g, uint32_t number)
{
	__atomic_store_n(&g->check, tables_group_check(g, number), __ATOMIC_RELEASE);
}

static inline bool tables_group_intact(const struct tables *tables, uint32_t number)
{
	return tables->groups[number].check == tables_group_check(&tables->groups[number], number);
}

void tables_seal_grant(struct tables *tables, uint32_t number);
bool tables_grant_intact(const struct tables *tables, uint32_t number);

/* Moves an entry on (to ENTRY_FREE or ENTRY_QUARANTINED): one release store. Also how a quarantined entry is freed. */
static inline void tables_entry_set_state(struct tables *tables, uint32_t number, enum entry_state state)
{
	__atomic_store_n(&tables->entries[number].state, (uint8_t)state, __ATOMIC_RELEASE);
}

/* The commit of a put group: one release store. */
static inline void tables_group_publish(struct tables *tables, uint32_t number)
{
	__atomic_store_n((uint32_t *)&tables->groups[number].state, GROUP_COMMITTED, __ATOMIC_RELEASE);
}

static inline uint32_t tables_group_state(const struct tables *tables, uint32_t number)
{
	return __atomic_load_n((const uint32_t *)&tables->groups[number].state, __ATOMIC_ACQUIRE);
}

/* @group as it stands in an entry or record. */
static inline bool tables_committed(const struct tables *tables, uint32_t group)
{
	return group == 0 || tables_group_state(tables, group - 1) == GROUP_COMMITTED;
}

#endif
