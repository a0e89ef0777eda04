/* SPDX-License-Identifier: Apache-2.0
 *
 * One namespace: its making and unmaking, its grants within the budget, its counters.
 */
#include "store/space.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/clock.h"
#include "store/base/memory.h"
#include "store/host_private.h"
#include "store/outcomes.h"
#include "store/remnants.h"
#include "store/seating.h"
#include "store/session_private.h"
#include "store/space_make.h"
#include "store/ticket.h"
#include "store/tiering.h"

#define SEGMENT_UNIT (2ull << 20)
#define MIN_HOLLOW 1024u

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- making -------------------------------------------------------------------------------------------------- */

static uint64_t layout_least_slot(const struct layout *layout)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++)
			if (layout->class[c].share[s].slot_bytes < least)
				least = layout->class[c].share[s].slot_bytes;
	return least;
}

/* The tables are as large as the whole budget in the smallest slots could need: address space, touched as it fills. */
static int space_tables(struct space *space, uint64_t budget, struct ranges *ret, struct why *why)
{
	uint64_t places = space->host->disk ? tiering_places(space->layout, space->host->disk_limit) : 0;
	uint64_t values = budget / layout_least_slot(space->layout);
	uint64_t entries = align_up(values, TABLES_GRANT_ENTRIES) +
			   (budget / SEGMENT_UNIT + 1) * (uint64_t)TABLES_GRANT_ENTRIES;
	uint64_t hollow = align_up((values + places) / 16 + MIN_HOLLOW, TABLES_GRANT_ENTRIES);
	uint64_t names = values + places + hollow;
	struct tables_config config;
	struct stat segment;
	void *memory;
	size_t bytes;

	if (entries + places + hollow > TABLES_MAX_ENTRIES)
		return why_set(why, EINVAL, "memory: %llu bytes in values of %llu need %llu entries; the limit is %u",
			       (unsigned long long)budget, (unsigned long long)layout_least_slot(space->layout),
			       (unsigned long long)(entries + places + hollow), TABLES_MAX_ENTRIES);
	if (fstat(segment_fd(space->segment), &segment))
		return why_set(why, errno, "namespace %s: its segment has no inode", space->name);
	config = (struct tables_config){
		.grants = SLOTS_MAX_GRANTS,
		.records = (uint32_t)names,
		.groups = SPACE_GROUPS,
		.entries = (uint32_t)(entries + places + hollow),
		.slots = (uint32_t)entries,
		.places = (uint32_t)places,
		.hollow = (uint32_t)hollow,
		.generation = atomic_load(&space->generation),
		.serial = space->serial,
		.created_s = (uint64_t)clock_wall_s(),
		.segment_inode = segment.st_ino,
		.segment_bytes = segment_bytes(space->segment),
		.identity = space->layout->identity,
		.fingerprint = space->layout->fingerprint,
	};
	bytes = tables_bytes(&config);
	space->tables_fd = memfd_create("prefixfs-tables", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (space->tables_fd < 0 || ftruncate(space->tables_fd, (off_t)bytes))
		return why_set(why, errno, "namespace %s: no memory file of %zu bytes for its tables", space->name, bytes);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, space->tables_fd, 0);
	if (memory == MAP_FAILED)
		return why_set(why, errno, "namespace %s: cannot map %zu bytes of tables", space->name, bytes);
	space->tables_memory = memory;
	madvise(memory, bytes, MADV_HUGEPAGE); /* where the host's shmem_enabled is advise: a fifth off GET_START */
	tables_format(&space->tables, memory, &config);
	*ret = (struct ranges){ (uint32_t)entries, (uint32_t)places, (uint32_t)names };
	return 0;
}

static int space_segment_new(struct space *space, uint64_t budget, struct why *why)
{
	struct segment_config config = {
		.name = space->name,
		.bytes = align_up(budget, SEGMENT_UNIT),
		.expected_bytes = align_up(space->floor_bytes, SEGMENT_UNIT),
		.wish = space->host->config.wish,
	};
	int r = segment_new(&config, &space->segment, why);

	return r ? r : space_memory_new(space, why);
}

int space_memory_new(struct space *space, struct why *why)
{
	space->memory = tier_memory_new(space->segment);
	if (!space->memory)
		return why_set(why, ENOMEM, "namespace %s: no memory for its tier", space->name);
	if (space->host->config.memory_fault) {
		struct tier *faulty;
		int r = tier_fault_new(space->memory, space->host->config.memory_fault, &faulty, why);

		if (r)
			return r;
		space->memory = faulty;
	}
	return 0;
}

void space_look_ahead(struct space *space)
{
	struct index_mark mark = index_mark(space->index);
	struct grower_job job = { .kind = GROWER_AHEAD, .space = space, .mark = mark };

	if (mark.record + INDEX_AHEAD_RECORDS / 2 < space->ahead.record &&
	    mark.unit + INDEX_AHEAD_UNITS / 2 < space->ahead.unit)
		return;
	if (!grower_push(space->host->grower, &job))
		return;
	space->ahead.record = mark.record + INDEX_AHEAD_RECORDS;
	space->ahead.unit = mark.unit + INDEX_AHEAD_UNITS;
}

void space_prewarm(struct space *space)
{
	space_look_ahead(space);
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++) {
		struct slots_grant grant;

		if (!(space->cold[id / 64] >> id % 64 & 1)) /* others are populated by who cut them, as space_grow does */
			continue;
		space->cold[id / 64] &= ~(1ull << id % 64);
		slots_grant_get(space->slots, id, &grant);
		if (space_push_grant(space, &grant, true))
			space->prewarm_goal += grant.length;
		else
			slots_grant_ready(space->slots, id);
	}
}

static void space_lost(void *context, enum index_loss what, uint32_t record, uint32_t other)
{
	struct space *space = context;

	if (space->tiering)
		tiering_lost(space->tiering, what, record, other);
	if (what == INDEX_JOINED && space->fills && index_half(space->index, record, INDEX_PAGE_ROW))
		fills_note(space->fills, record); /* it was noted of the other one */
}

/* For index_config.row_gone. */
static void space_row_gone(void *context, const struct key *key, uint64_t hash, bool empty)
{
	struct space *space = context;

	if (demands_any(space->demands))
		demands_gone(space->demands, key, hash, empty);
}

void space_row_settled(struct space *space, uint32_t entry)
{
	struct key key = space->tables.entries[entry].key;
	struct record_entry *t;
	uint32_t record;
	uint64_t hash;

	if (!demands_any(space->demands))
		return;
	index_prefetch(space->index, &key, 1, &hash);
	record = demands_has(space->demands, &key, hash) ? index_find_row(space->index, &key, ~0u) : INDEX_NONE;
	if (record == INDEX_NONE)
		return;
	demands_kept(space->demands, &key, hash);
	t = &space->tables.records[record];
	__atomic_store_n(&t->flags, t->flags | RECORD_DEMANDED, __ATOMIC_RELEASE);
}

int space_index_new(struct space *space, const struct ranges *ranges, struct why *why)
{
	space->holds = memory_reserve(ranges->slots * sizeof(*space->holds), false);
	struct slots_config slots = {
		.layout = space->layout,
		.tables = &space->tables,
		.guard = &space->lock,
		.segment_bytes = segment_bytes(space->segment),
		.budget_bytes = space->floor_bytes,
		.entry_limit = ranges->slots,
		.holds = space->holds,
		.told = !ranges->places,
	};
	struct index_config index = {
		.layout = space->layout,
		.tables = &space->tables,
		.guard = &space->lock,
		.max_pages = ranges->names,
		.place_first = ranges->slots,
		.place_count = ranges->places,
		.hollow_first = ranges->slots + ranges->places,
		.hollow_count = space->tables.entry_capacity - ranges->slots - ranges->places,
		.gone = space->host->config.events.record_gone ? space_record_gone : NULL,
		.gone_context = space,
		.news = space->host->config.events.note ? space_news : NULL,
		.news_context = space,
		.lost = ranges->places || space->layout->shared ? space_lost : NULL,
		.lost_context = space,
		.row_gone = space->layout->row_columns ? space_row_gone : NULL,
		.row_gone_context = space,
	};
	int r;

	if (!space->holds)
		return why_set(why, ENOMEM, "namespace %s: no memory for the uses of its %u slots", space->name, ranges->slots);
	r = index_new(&index, &space->index, why);
	r = r ? r : demands_new(&space->lock, &space->demands, why);
	r = r ? r : fills_new(space, &space->fills, why);
	return r ? r : slots_new(&slots, &space->slots, why);
}

void space_capacities(struct space *space)
{
	uint64_t memory = space->host->config.memory_bytes;

	for (uint32_t c = 0; c < space->layout->classes; c++)
		for (uint32_t s = 0; s < space->layout->class[c].shares; s++) {
			uint64_t prepared = memory / SESSION_PREPARED_PART / space->layout->class[c].share[s].slot_bytes + 1;
			uint64_t all = slots_capacity(space->slots, c, s, memory);

			space->capacity[c][s] = all < prepared ? all : prepared;
		}
}

static void blobs_changed(void *context)
{
	struct space *space = context;
	const struct host_events *events = &space->host->config.events;

	if (events->changed)
		events->changed(events->context, space, HOST_CHANGED_COMMIT);
}

static void blobs_hungry(void *context)
{
	struct space *space = context;

	balance_ask(space->host);
}

static int space_blobs_new(struct space *space, struct why *why)
{
	struct blobs_config config = {
		.space = space->name,
		.bytes = space->layout->blobs_bytes,
		.count = space->layout->blobs_count,
		.budget = &space->host->budget,
		.transfer_ttl_ns = space->host->config.handle_ttl_ms * 1000000ull,
		.changed = blobs_changed,
		.hungry = blobs_hungry,
		.context = space,
	};

	return config.bytes ? blobs_new(&config, &space->blobs, why) : 0;
}

int space_promise(struct space *space, struct why *why)
{
	struct host *host = space->host;
	uint64_t floors;

	if (!budget_promise(&host->budget, &space->floor_bytes, &floors))
		return why_set(why, ENOSPC, "namespace %s: its floor of %llu bytes and the %llu of other floors exceed the budget of "
			       "%llu", space->name, (unsigned long long)space->floor_bytes, (unsigned long long)floors,
			       (unsigned long long)host->config.memory_bytes);
	space->promised = true;
	return space_blobs_new(space, why);
}

int space_groups_new(struct space *space, struct why *why)
{
	space->group_free = memory_reserve(SPACE_GROUPS * sizeof(uint32_t), false);
	space->group_owner = memory_reserve(SPACE_GROUPS * sizeof(uint32_t), false);
	space->cut_at = memory_reserve(SLOTS_MAX_GRANTS * sizeof(uint32_t), false);
	if (!space->group_free || !space->group_owner || !space->cut_at)
		return why_set(why, ENOMEM, "namespace %s: no memory for its put groups", space->name);
	return tickets_new(space, &space->tickets, why) || put_tickets_new(space, &space->put_tickets, why) ? -ENOMEM : 0;
}

static int space_build(struct space *space, struct why *why)
{
	struct host *host = space->host;
	struct ranges ranges = { 0 };
	int r = space_promise(space, why);

	r = r ? r : space_judge_request(space, why);
	r = r ? r : space_segment_new(space, host->config.memory_bytes, why);
	r = r ? r : space_tables(space, host->config.memory_bytes, &ranges, why);
	r = r ? r : space_index_new(space, &ranges, why);
	if (!r && ranges.places)
		r = tiering_new(space, host->disk, ranges.slots, ranges.places, why);
	r = r ? r : space_groups_new(space, why);
	r = !r && space->tiering ? tiering_restart(space->tiering, why) : r;
	if (r)
		return r;
	space->fills_sweep = space->fills && space->tiering;
	lock_take(&space->lock);
	space_capacities(space);
	r = space_cut_floor(space, why);
	if (!r)
		space_prewarm(space);
	lock_drop(&space->lock);
	return r;
}

struct space *space_empty(struct host *host, const char *name, uint32_t serial, struct layout *layout,
			  const struct space_access *access)
{
	struct space *space = calloc(1, sizeof(*space));

	if (!space) {
		layout_free(&layout);
		return NULL;
	}
	space->host = host;
	snprintf(space->name, sizeof(space->name), "%s", name);
	space->serial = serial;
	atomic_store(&space->refs, 1);
	space->layout = layout;
	space->tables_fd = -1;
	atomic_store(&space->generation, 1);
	space->leaving = SLOTS_NONE;
	atomic_store(&space->idle_since_ns, clock_now_ns());
	space->access = *access;
	space->floor_bytes = layout->floor_bytes; /* 0: the budget says */
	lock_init(&space->lock, LOCK_SPACE);
	return space;
}

int space_new(struct host *host, const char *name, uint32_t serial, struct layout *layout,
	      const struct space_access *access, struct space **ret, struct why *why)
{
	struct space *space = space_empty(host, name, serial, layout, access);
	int r;

	if (!space)
		return why_set(why, ENOMEM, "no memory for namespace %s", name);
	r = space_build(space, why);
	if (r) {
		space_unref(&space);
		return r;
	}
	*ret = space;
	return 0;
}

/* ---- its life ------------------------------------------------------------------------------------------------ */

struct space *space_ref(struct space *space)
{
	atomic_fetch_add(&space->refs, 1);
	return space;
}

void space_unref(struct space **sp)
{
	struct space *space = *sp;

	*sp = NULL;
	if (!space || atomic_fetch_sub(&space->refs, 1) != 1)
		return;
	if (space->tiering && space->host->mover)
		mover_bury(space);
	else
		space_free(space);
}

void space_free(struct space *space)
{
	struct disk_dir *files = tiering_free(&space->tiering, space->tiering && space->tiering->remove);

	blobs_free(&space->blobs);
	if (space->promised) {
		budget_forget(&space->host->budget, space->floor_bytes, space->granted_bytes);
		atomic_store(&space->host->room_made, true);
		balance_ask(space->host);
	}
	host_space_gone(space);
	remnants_free(&space->remnants);
	tickets_free(&space->tickets);
	put_tickets_free(&space->put_tickets);
	outcomes_free(&space->outcomes);
	memory_release(&space->holds, space->tables.slot_capacity * sizeof(*space->holds));
	memory_release(&space->cut_at, SLOTS_MAX_GRANTS * sizeof(uint32_t));
	slots_free(&space->slots);
	fills_free(&space->fills);
	demands_free(&space->demands);
	index_free(&space->index);
	if (space->memory)
		space->memory->ops->free(&space->memory);
	segment_free(&space->segment);
	if (space->tables_memory)
		munmap(space->tables_memory, space->tables.bytes);
	if (space->tables_fd >= 0)
		close(space->tables_fd);
	memory_release(&space->group_free, SPACE_GROUPS * sizeof(uint32_t));
	memory_release(&space->group_owner, SPACE_GROUPS * sizeof(uint32_t));
	disk_dir_close(&files, true); /* the longest part, which nobody waits for */
	layout_free(&space->layout);
	lock_destroy(&space->lock);
	free(space);
}

uint32_t space_serial(const struct space *space)
{
	return space->serial;
}

const char *space_name(const struct space *space)
{
	return space->name;
}

const struct layout *space_layout(const struct space *space)
{
	return space->layout;
}

struct segment *space_segment(struct space *space)
{
	return space->segment;
}

uint64_t space_generation(const struct space *space)
{
	return atomic_load(&space->generation);
}

struct blobs *space_blobs(const struct space *space)
{
	return space->blobs;
}

uint64_t space_created_s(const struct space *space)
{
	return space->tables.header->created_s;
}

uint64_t space_floor_bytes(const struct space *space)
{
	return space->floor_bytes;
}

void space_access(struct space *space, struct space_access *ret)
{
	lock_take(&space->host->lock);
	*ret = space->access;
	lock_drop(&space->host->lock);
}

void space_set_access(struct space *space, const struct space_access *access)
{
	lock_take(&space->host->lock);
	space->access = *access;
	lock_drop(&space->host->lock);
	if (space->tiering) { /* a restart that finds the old access is no worse than one that finds none */
		struct why why = WHY_INIT;

		tiering_save_space(space, &why);
	}
}

/* ---- slots, groups, pins ------------------------------------------------------------------------------------- */

static void space_slot_freed(void *context, uint32_t entry)
{
	struct space *space = context;

	if (space->tiering)
		tiering_freed(space->tiering, entry);
	else
		slot_leaves(space, entry);
}

struct index_sink space_sink(struct space *space)
{
	return (struct index_sink){ space_slot_freed, space };
}

uint32_t space_group_new(struct space *space, const struct session *session, uint64_t plan, uint32_t number, uint32_t owner)
{
	struct group_entry *group;
	uint32_t n;

	lock_assert_held(&space->lock);
	if (space->group_free_count) {
		n = space->group_free[--space->group_free_count];
		if (space->group_free_count) /* the next one to be taken */
			__builtin_prefetch(&space->tables.groups[space->group_free[space->group_free_count - 1]], 1);
	} else if (space->group_next < SPACE_GROUPS) {
		n = space->group_next++;
	} else {
		return 0;
	}
	group = &space->tables.groups[n];
	memcpy(group->client_id, session->client_id, sizeof(group->client_id));
	group->session = session->number;
	group->plan = plan;
	group->number = number;
	atomic_store_explicit(&group->state, GROUP_PREPARED, memory_order_relaxed);
	tables_seal_group(group, n);
	space->group_owner[n] = owner;
	space->stats.groups_open++;
	return n + 1;
}

void space_group_free(struct space *space, uint32_t group)
{
	lock_assert_held(&space->lock);
	atomic_store_explicit(&space->tables.groups[group - 1].state, GROUP_FREE, memory_order_release);
	space->group_free[space->group_free_count++] = group - 1;
	space->stats.groups_open--;
}

void space_pin(struct space *space, uint32_t record)
{
	index_pin(space->index, record);
	space->stats.pins++;
}

void space_unpin(struct space *space, uint32_t record)
{
	struct index_sink sink = space_sink(space);

	space->stats.pins--;
	index_unpin(space->index, record, &sink);
}

/* ---- telling ------------------------------------------------------------------------------------------------- */

static void hand_on_notes(struct space *space)
{
	const struct host_events *events = &space->host->config.events;

	events->note(events->context, space, space->notes, space->note_count);
	space->note_count = 0;
}

/* Under the lock, between begin and end. */
static struct host_event *next_note(struct space *space)
{
	if (space->note_count == SPACE_NOTES)
		hand_on_notes(space);
	return &space->notes[space->note_count++];
}

void space_note(struct space *space, const struct host_event *event)
{
	const struct host_events *events = &space->host->config.events;

	if (!events->note)
		return;
	if (lock_held(&space->lock) && space->noting)
		*next_note(space) = *event;
	else
		events->note(events->context, space, event, 1);
}

void space_notes_begin(struct space *space)
{
	lock_assert_held(&space->lock);
	assert(!space->noting && !space->note_count);
	space->noting = true;
}

void space_notes_end(struct space *space)
{
	lock_assert_held(&space->lock);
	assert(space->noting);
	if (space->note_count)
		hand_on_notes(space);
	space->noting = false;
}

_Static_assert((int)INDEX_NEWS_STORED == HOST_EVENT_STORED && (int)INDEX_NEWS_EVICTED == HOST_EVENT_EVICTED &&
		       (int)INDEX_NEWS_TRIMMED == HOST_EVENT_TRIMMED &&
		       (int)INDEX_NEWS_ROW_DROPPED == HOST_EVENT_ROW_DROPPED,
	       "the same numbers");
_Static_assert((int)INDEX_WHY_ROOM == HOST_WHY_ROOM && (int)INDEX_WHY_HAND == HOST_WHY_HAND &&
		       (int)INDEX_WHY_LOST == HOST_WHY_LOST,
	       "the same numbers");

static inline void news_fill(const struct space *space, struct host_event *event, enum index_news_kind kind,
			     enum index_why why, uint64_t consumed, const struct key *endpoint, uint32_t pages,
			     uint32_t row_values)
{
	event->kind = (enum host_event_kind)kind;
	event->why = space->news_why != HOST_WHY_ROOM && why != INDEX_WHY_LOST ? space->news_why : (enum host_event_why)why;
	event->consumed = consumed;
	event->endpoint = *endpoint;
	event->number = row_values;
	event->pages = pages;
}

static __attribute__((noinline)) void news_alone(struct space *space, enum index_news_kind kind, enum index_why why,
						 uint64_t consumed, const struct key *endpoint, uint32_t pages,
						 uint32_t row_values)
{
	struct host_event event = { 0 };

	news_fill(space, &event, kind, why, consumed, endpoint, pages, row_values);
	space_note(space, &event);
}

/* On the way of a commit, once a record: straight into the notes, of which the fields of other kinds keep what they had. */
void space_news(void *context, enum index_news_kind kind, enum index_why why, uint64_t consumed,
		const struct key *endpoint, uint32_t pages, uint32_t row_values)
{
	struct space *space = context;

	if (space->noting)
		news_fill(space, next_note(space), kind, why, consumed, endpoint, pages, row_values);
	else
		news_alone(space, kind, why, consumed, endpoint, pages, row_values);
}

static void space_tell(struct space *space, enum host_change what)
{
	const struct host_events *events = &space->host->config.events;

	lock_assert_held(&space->lock);
	if (events->changed)
		events->changed(events->context, space, what);
}

void space_committed(struct space *space)
{
	if (atomic_load(&space->waiters) || (atomic_load(&space->asked) && atomic_exchange(&space->asked, false)))
		space_tell(space, HOST_CHANGED_COMMIT);
}

void space_refused(struct space *space, uint64_t session)
{
	lock_assert_held(&space->lock);
	space->refused = space->refused && space->refused != session ? UINT64_MAX : session;
}

void space_room(struct space *space)
{
	if (space->tiering && space->tiering->room_waiters)
		space_committed(space);
	if (!space->refused)
		return;
	space->refused = 0;
	space->undone = false;
	space_note(space, &(struct host_event){.kind = HOST_EVENT_ROOM});
	space_tell(space, HOST_CHANGED_ROOM);
}

void space_undone(struct space *space)
{
	lock_assert_held(&space->lock);
	space->undone |= space->refused != 0;
}

void space_ranges_changed(struct space *space)
{
	space_tell(space, HOST_CHANGED_RANGES);
}

void space_record_gone(void *context, uint64_t consumed, const struct key *endpoint)
{
	struct space *space = context;
	const struct host_events *events = &space->host->config.events;

	events->record_gone(events->context, space, consumed, endpoint);
}

/* ---- counting ------------------------------------------------------------------------------------------------ */

static uint64_t file_bytes(int fd)
{
	struct stat st;

	return fstat(fd, &st) ? 0 : (uint64_t)st.st_blocks * 512;
}

static void report_blobs(const struct space *space, struct space_report *r)
{
	struct blobs_report b;

	if (!space->blobs)
		return;
	blobs_report(space->blobs, &b);
#define X(name, help) r->stats.name = b.name;
	BLOBS_COUNTERS(X)
#undef X
	r->stats.blob_transfers = b.transfers;
	r->stats.blob_locks = b.locks;
	r->stats.waiting += b.waiting;
	r->blobs = b.blobs;
	r->blobs_limit = b.count_limit;
	r->blob_bytes = b.bytes;
	r->blob_granted_bytes = b.granted_bytes;
	r->blob_limit_bytes = b.limit_bytes;
}

void space_report(struct space *space, struct space_report *ret)
{
	const struct layout *layout = space->layout;
	const struct index_counters *counters;
	struct space_report r = { 0 };
	struct budget_report budget;

	lock_take(&space->lock);
	r.stats = space->stats;
	r.granted_bytes = space->granted_bytes;
	r.grants_short = space->grants_short;
	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++) {
			struct slots_usage usage;

			slots_usage(space->slots, c, s, &usage);
			r.slots += usage.slots;
			r.slots_free += usage.free;
			r.payload_bytes += usage.payload_bytes;
			r.slot_bytes += usage.slot_bytes;
		}
	counters = index_counters(space->index);
	r.records = counters->records;
	r.pages = counters->pages;
	r.hollow_pages = counters->hollow_pages;
	r.orphans = counters->orphans;
	r.victims_selected = counters->victims_selected;
	r.victims_freed = counters->victims_freed;
	r.victims_restored = counters->victims_restored;
	r.victims_obsolete = counters->victims_obsolete;
	r.victims_pending = counters->victims_pending;
	r.index_bytes = index_memory_bytes(space->index);
	r.records_filling = space->fills ? fills_count(space->fills) : 0;
	r.demands = *demands_counters(space->demands);
	r.pinned_bytes = index_held_bytes(space->index);
	r.hidden_records = index_hidden(space->index);
	r.generation = index_generation(space->index);
	remnants_report(space, &r);
	if (space->tiering)
		tiering_report(space->tiering, &r);
	lock_drop(&space->lock);
	report_blobs(space, &r);
	budget_report(&space->host->budget, &budget);
	r.floor_bytes = space->floor_bytes;
	r.pinned_limit_bytes = space_pin_limit(space);
	r.budget_bytes = (r.granted_bytes > r.floor_bytes ? r.granted_bytes : r.floor_bytes) + budget.free;
	r.may_take_bytes = r.budget_bytes - r.granted_bytes;
	r.surplus_bytes = r.granted_bytes > r.floor_bytes ? r.granted_bytes - r.floor_bytes : 0;
	r.resident_bytes = segment_resident_bytes(space->segment);
	r.table_bytes = file_bytes(space->tables_fd);
	r.prewarm_done = atomic_load(&space->prewarm_done);
	r.prewarm_goal = space->prewarm_goal;
	*ret = r;
}

bool space_class(struct space *space, uint32_t number, struct space_class_report *ret)
{
	const struct layout *layout = space->layout;
	struct slots_usage usage;
	uint32_t c = 0;

	for (; c < layout->classes && number >= layout->class[c].shares; c++)
		number -= layout->class[c].shares;
	if (c == layout->classes)
		return false;
	lock_take(&space->lock);
	slots_usage(space->slots, c, number, &usage);
	lock_drop(&space->lock);
	*ret = (struct space_class_report){
		.class_index = c,
		.share = number,
		.slot_bytes = layout->class[c].share[number].slot_bytes,
		.grants = usage.grants,
		.slots = usage.slots,
		.slots_free = usage.free,
	};
	return true;
}

size_t space_stats_text(struct space *space, char *to, size_t capacity)
{
	struct space_class_report class;
	struct space_report r;
	size_t used = 0;

#define LINE(name, value)                                                                                          \
	do {                                                                                                       \
		char line[160];                                                                                     \
		int n = snprintf(line, sizeof(line), "%s %llu\n", name, (unsigned long long)(value));              \
		if (used < capacity)                                                                               \
			memcpy(to + used, line, used + (size_t)n <= capacity ? (size_t)n : capacity - used);       \
		used += (size_t)n;                                                                                 \
	} while (0)
#define X(name, help) LINE(#name, r.stats.name);
#define REPORT(name) LINE(#name, r.name)

	space_report(space, &r);
	STATS_COUNTERS(X)
	STATS_TRANSIENT(X)
	REPORT(budget_bytes);
	REPORT(floor_bytes);
	REPORT(granted_bytes);
	REPORT(may_take_bytes);
	REPORT(surplus_bytes);
	REPORT(resident_bytes);
	REPORT(slots);
	REPORT(slots_free);
	REPORT(payload_bytes);
	REPORT(slot_bytes);
	REPORT(records);
	REPORT(pages);
	REPORT(hollow_pages);
	REPORT(orphans);
	REPORT(generation);
	REPORT(hidden_records);
	REPORT(records_filling);
	REPORT(remnants);
	REPORT(remnant_slots);
	REPORT(pinned_bytes);
	REPORT(pinned_limit_bytes);
	REPORT(victims_selected);
	REPORT(victims_freed);
	REPORT(victims_restored);
	REPORT(victims_obsolete);
	REPORT(victims_pending);
	REPORT(index_bytes);
	REPORT(table_bytes);
	REPORT(prewarm_done);
	REPORT(prewarm_goal);
	REPORT(disk_bytes);
	REPORT(disk_files);
	REPORT(disk_values);
	REPORT(dirty_bytes);
	REPORT(clean_bytes);
	REPORT(spill_floor_bytes);
	REPORT(blobs);
	REPORT(blobs_limit);
	REPORT(blob_bytes);
	REPORT(blob_granted_bytes);
	REPORT(blob_limit_bytes);
	for (uint32_t i = 0; space_class(space, i, &class); i++) {
		char name[3][LAYOUT_MAX_NAME + 32];
		const char *of = space->layout->class[class.class_index].name;

		snprintf(name[0], sizeof(name[0]), "grants.%s.%u", of, class.share);
		snprintf(name[1], sizeof(name[1]), "slots.%s.%u", of, class.share);
		snprintf(name[2], sizeof(name[2]), "slots_free.%s.%u", of, class.share);
		LINE(name[0], class.grants);
		LINE(name[1], class.slots);
		LINE(name[2], class.slots_free);
	}
#undef REPORT
#undef X
#undef LINE
	return used;
}
