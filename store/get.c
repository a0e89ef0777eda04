/* SPDX-License-Identifier: Apache-2.0
 *
 * GET_START and PROBE: how far a chain of keys can be restored.
 *
 * Keys are worked on in chunks of INDEX_STEP_KEYS: fetched without the lock, then looked up in one short stay under it,
 * in which the leading hits are pinned and marked as used. When all are done the deepest restorable boundary on a group
 * boundary is known, and the pins behind it are given back at once.
 *
 * Which boundaries are restorable the gates of all classes say, key by key, in the one pass (index/gates.h), and a row where states are
 * wanted. The same pass finds what would be restorable if states were dense, and where rows are worth putting.
 */
#include "store/get_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store/base/clock.h"

struct chunk {
	struct get_start *call;
	struct handle *handle;
	struct space *space;
	const struct layout *layout;
	uint64_t most;         /* tokens: the limit */
	uint64_t next_rung;    /* the next multiple of the interval, as long as wanted boundaries are looked for */
	uint32_t column[LAYOUT_MAX_CLASSES]; /* of this session's share, of each class of the look-up's */
	bool demands;          /* there are some that a key may be one of */
	uint32_t count;
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];
	struct index_hit hits[INDEX_STEP_KEYS];
};

/* ---- checks ---------------------------------------------------------------------------------------------------- */

static int check_groups(const struct get_start *call, struct why *why)
{
	uint64_t keys = 0;

	for (uint32_t i = 0; i < call->group_count; i++) {
		if (!call->groups[i])
			return why_set(why, EINVAL, "group %u: it has no key", i);
		keys += call->groups[i];
	}
	if (call->groups && keys != call->key_count)
		return why_set(why, EINVAL, "the groups have %llu keys together, the call has %u", (unsigned long long)keys,
			       call->key_count);
	return 0;
}

static int check_call(const struct get_start *call, const struct layout *layout, struct why *why)
{
	uint64_t end = call->start + (uint64_t)call->key_count * layout->page_tokens;

	if (!call->handle)
		return why_set(why, EINVAL, "handle: the id is 0");
	if (!call->key_count)
		return why_set(why, EINVAL, "an empty batch: 0 keys");
	if (call->class_mask >> layout->classes)
		return why_set(why, EINVAL, "class mask 0x%x: the layout has %u classes", call->class_mask, layout->classes);
	if (call->start % layout->page_tokens)
		return why_set(why, EINVAL, "start: %llu tokens is within a page of %u", (unsigned long long)call->start,
			       layout->page_tokens);
	if (end < call->start)
		return why_set(why, EINVAL, "start: %llu tokens and %u pages pass 2^64", (unsigned long long)call->start,
			       call->key_count);
	if (call->have && call->have < call->start)
		return why_set(why, EINVAL, "have: %llu tokens end before start, %llu", (unsigned long long)call->have,
			       (unsigned long long)call->start);
	return check_groups(call, why);
}

/* ---- the handle ------------------------------------------------------------------------------------------------ */

static bool bits_clear(struct vec32 *bits, uint32_t keys)
{
	uint32_t words = (keys + 63) / 64 * 2;

	bits->count = 0;
	if (!vec32_reserve(bits, words))
		return false;
	memset(bits->at, 0, words * sizeof(uint32_t));
	bits->count = words;
	return true;
}

void found_free(struct found *f)
{
	if (!f)
		return;
	vec32_free(&f->hits);
	vec32_free(&f->restorable);
	vec32_free(&f->grouped);
	vec32_free(&f->would);
	vec32_free(&f->wanted);
	free(f->runs);
	free(f->rows);
	free(f);
}

struct found *found_begin(struct found *f, uint32_t keys)
{
	if (!f)
		f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->keys = keys;
	f->intact = f->columns = f->run_count = f->row_count = f->candidates = 0;
	f->dense_len = f->would_len = f->demand = 0;
	if (bits_clear(&f->hits, keys) && bits_clear(&f->restorable, keys) && bits_clear(&f->grouped, keys))
		return f;
	found_free(f);
	return NULL;
}

/* What is asked for, into an empty @f. False: no memory. */
static bool found_question(struct found *f, const struct get_start *call, const struct layout *layout)
{
	uint64_t have = call->have > call->start ? (call->have - call->start) / layout->page_tokens : 0;

	f->start = call->start;
	f->first = have > call->key_count ? call->key_count : (uint32_t)have;
	f->class_mask = call->class_mask ? call->class_mask : (1u << layout->classes) - 1;
	for (uint32_t c = 0; c < layout->classes; c++)
		if (f->class_mask >> c & 1 && !layout_is_row(layout, c))
			f->class_of[f->columns++] = (uint8_t)c;
	gates_begin(&f->gates, layout, f->class_mask, call->start, call->have);
	f->plain = !f->gates.windows && !f->gates.sparse;
	return !f->gates.states || (bits_clear(&f->would, f->keys) && bits_clear(&f->wanted, f->keys));
}

void handle_begin(struct handle *h, const struct found *found)
{
	h->found = found;
	h->boundary = INDEX_NONE;
	h->candidate = 0;
	h->next = found->first;
	h->run_at = 0;
	h->entries.count = h->row_slots.count = h->kept.count = 0;
	h->ahead_at = h->ahead_count = 0;
	h->row_held = false;
}

bool get_start_own(struct get_start *call)
{
	struct handle *h = call->h;

	h->own = found_begin(h->own, call->key_count);
	if (!h->own || !found_question(h->own, call, call->session->space->layout))
		return false;
	handle_begin(h, h->own);
	return true;
}

static struct handle *handle_new(struct get_start *call)
{
	struct holding *spare = session_spare(call->session, HOLDING_HANDLE);
	struct handle *h = spare ? (struct handle *)spare : calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->holding = (struct holding){ .id = call->handle, .kind = HOLDING_HANDLE };
	h->found = NULL;
	h->seat.ticket = NULL;
	call->h = h;
	if (get_has_ticket(call) || get_start_own(call))
		return h;
	handle_destroy(&h->holding);
	return NULL;
}

static bool asks_states(const struct get_start *call)
{
	return (call->class_mask ? call->class_mask : ~0u) & call->session->space->layout->state_mask;
}

int get_start_begin(struct get_start *call, struct why *why)
{
	struct space *space = call->session->space;
	struct handle *h;
	int r = check_call(call, call->session->space->layout, why);

	if (r)
		return r;
	h = handle_new(call);
	if (!h)
		return why_set(why, ENOMEM, "no memory for a handle over %u keys", call->key_count);
	r = session_hold(call->session, &h->holding, why);
	if (r) {
		if (!session_reuse(call->session, &h->holding))
			handle_destroy(&h->holding);
		return r;
	}
	call->key = 0;
	call->missed = call->waiting = call->leads = call->over = false;
	call->wants = space->layout->interval && asks_states(call) && (call->wanted_capacity || get_has_ticket(call));
	call->all_hits = call->hits || get_has_ticket(call);
	call->all = call->all_hits || call->wants;
	call->waited_since_ns = 0;
	call->hit_count = 0;
	memset(call->keys_sum, 0, sizeof(call->keys_sum));
	lock_take(&call->session->space->lock);
	call->session->space->stats.get_calls++;
	call->session->space->stats.handles++;
	call->tick = index_tick(call->session->space->index);
	call->generation = space_generation(call->session->space);
	lock_drop(&call->session->space->lock);
	return 0;
}

/* ---- one chunk -------------------------------------------------------------------------------------------------- */

static bool chunk_fetch(struct chunk *k)
{
	struct get_start *call = k->call;
	struct handle *h = k->handle;
	struct found *f = h->own;

	k->count = call->key_count - call->key;
	if (k->count > INDEX_STEP_KEYS)
		k->count = INDEX_STEP_KEYS;
	memcpy(k->keys, &call->keys[call->key], k->count * sizeof(k->keys[0]));
	__asm__ __volatile__("" : : "r"(k->keys) : "memory"); /* the copy is what is used from here on */
	index_prefetch(k->space->index, k->keys, k->count, k->hashes);
	if (f->gates.states)
		index_prefetch_rows(k->space->index, k->hashes, k->count);
	if (f->run_count + INDEX_STEP_KEYS > f->run_capacity) {
		uint32_t capacity = 2 * f->run_capacity + 2 * INDEX_STEP_KEYS;
		struct run *runs = realloc(f->runs, capacity * sizeof(*runs));

		if (!runs)
			return false;
		f->runs = runs;
		f->run_capacity = capacity;
	}
	if (f->gates.states && f->row_count + INDEX_STEP_KEYS > f->row_capacity) {
		uint32_t capacity = 2 * f->row_capacity + 2 * INDEX_STEP_KEYS;
		struct row_pin *rows = realloc(f->rows, capacity * sizeof(*rows));

		if (!rows)
			return false;
		f->rows = rows;
		f->row_capacity = capacity;
	}
	return vec32_reserve(&h->entries, INDEX_STEP_KEYS * (f->columns + 1));
}

/* Under the lock: entries of this session's share of key @i's page. There is room for them. */
static inline __attribute__((always_inline)) void note_entries(struct chunk *k, uint32_t i)
{
	struct vec32 *entries = &k->handle->entries;
	uint32_t columns = k->handle->own->columns;
	const struct index_hit *hit = &k->hits[i];

	if (columns == 1 && hit->entry != INDEX_NONE)
		entries->at[entries->count] = hit->entry;
	else
		index_page_values(k->space->index, hit->record, hit->page, k->column, columns, &entries->at[entries->count]);
	entries->count += columns;
}

/* Under the lock: key @i hit; its record is held and its page was used. */
static inline __attribute__((always_inline)) void note_hit(struct chunk *k, uint32_t i, uint32_t key)
{
	struct found *f = k->handle->own;
	const struct index_hit *hit = &k->hits[i];
	struct run *last = f->run_count ? &f->runs[f->run_count - 1] : NULL;

	if (last && last->record == hit->record && last->end == key && last->page + (key - last->first) == hit->page) {
		last->end++;
	} else {
		session_pin(k->call->session, hit->record);
		index_count_hit(k->space->index, hit->record);
		f->runs[f->run_count++] = (struct run){ hit->record, key, key + 1, hit->page };
	}
	/* one touch for a stretch of a record: that of its last page reaches all before it */
	if (i + 1 == k->count || k->hits[i + 1].record != hit->record || !k->hits[i + 1].present)
		index_touch(k->space->index, hit->record, hit->page, k->call->tick);
	note_entries(k, i);
}

/* Under the lock: the row at the end of @key's page, which is complete. */
static void note_row(struct chunk *k, uint32_t i, uint32_t key)
{
	struct found *f = k->handle->own;
	uint32_t row = k->hits[i].row;

	session_pin(k->call->session, row);
	index_touch(k->space->index, row, INDEX_PAGE_ROW, k->call->tick);
	if (!index_record(k->space->index, row)->pages) /* else its pages were counted */
		index_count_hit(k->space->index, row);
	f->rows[f->row_count++] = (struct row_pin){ key, row };
}

/* Classes that the page which ends at @end is a hit by. */
static inline uint32_t page_classes(const struct found *f, uint64_t end)
{
	uint32_t needs = f->plain ? f->gates.dense : gates_needs(&f->gates, end);

	return needs || f->plain ? needs : gates_due(&f->gates, end);
}

/* gates_page, and in short where there are dense classes alone, each with a value on each page. */
static inline bool page_gate(struct found *f, uint64_t end, uint32_t complete)
{
	if (!f->plain)
		return gates_page(&f->gates, end, complete);
	if (end <= f->gates.have)
		return false;
	f->gates.intact &= !(f->gates.dense & ~complete);
	return f->gates.intact;
}

/* Under the lock: is the page at @hit only lacking values, of these classes, that somebody is writing? */
static bool in_flight(const struct chunk *k, const struct index_hit *hit, uint32_t classes)
{
	if (hit->record == INDEX_NONE)
		return false;
	for (uint32_t mask = classes; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		for (uint32_t s = 0; s < k->layout->class[c].shares; s++)
			if (index_value(k->space->index, hit->record, hit->page, layout_column(k->layout, c, s), &(bool){ false }) ==
			    INDEX_NONE)
				return false;
	}
	return true;
}

/* Under the lock: is a row worth putting at the end of @key's page, which has none? */
static void note_wanted(struct chunk *k, uint32_t i, uint32_t key, uint64_t end)
{
	bool rung = end == k->next_rung;

	if (rung)
		k->next_rung += k->layout->interval;
	if (k->hits[i].row != INDEX_NONE)
		return;
	if (rung || (k->demands && demands_has(k->space->demands, &k->keys[i], k->hashes[i])))
		bit_set(&k->handle->own->wanted, key);
}

/* Under the lock: key @i, behind `have`, as long as everything before it has what it needs. */
static void note_key(struct chunk *k, uint32_t i, uint32_t key, uint64_t end, bool allowed)
{
	struct found *f = k->handle->own;

	f->dense_len = end;
	if (k->hits[i].present)
		note_hit(k, i, key);
	else
		for (uint32_t c = 0; c < f->columns; c++)
			vec32_push(&k->handle->entries, INDEX_NONE);
	if (!allowed)
		return;
	if (f->gates.states)
		bit_set(&f->would, key);
	if (f->gates.states && k->hits[i].row == INDEX_NONE)
		return;
	if (f->gates.states)
		note_row(k, i, key);
	bit_set(&f->restorable, key);
}

/* Under the lock: judges the keys that were looked up as chunk_work does, in short, where there are dense classes alone, each with a value on
 * each page, and nobody waits. */
static void judge_plain(struct chunk *k)
{
	struct get_start *call = k->call;
	struct found *f = k->handle->own;
	uint32_t dense = f->gates.dense, key = call->key, page = k->layout->page_tokens;
	bool missed = call->missed;

	for (uint32_t i = 0; i < k->count; i++, key++) {
		uint64_t end = f->start + (key + 1ull) * page;
		bool lacks = dense & ~(uint32_t)k->hits[i].classes;

		if (!lacks) {
			bit_set(&f->hits, key);
			call->hit_count += call->all_hits || !missed;
		}
		missed |= lacks && key >= f->first;
		if (missed)
			continue;
		f->intact = key + 1;
		if (key < f->first || end > k->most)
			continue;
		f->dense_len = end;
		note_hit(k, i, key);
		bit_set(&f->restorable, key);
	}
	call->missed = missed;
	f->gates.intact &= !missed;
}

/* Under the lock: looks the chunk up. Returns the keys done; *wait: the next one is in flight and worth waiting for. */
static uint32_t chunk_work(struct chunk *k, bool *wait)
{
	struct get_start *call = k->call;
	struct found *f = k->handle->own;

	if (call->generation != space_generation(k->space)) { /* what was found before a reset is not joined to what came since */
		call->generation = space_generation(k->space);
		call->missed |= call->key > 0;
		f->gates.intact &= call->key == 0;
	}
	index_lookup_hashed(k->space->index, k->keys, k->hashes, k->count, f->class_mask, f->gates.states, k->hits);
	index_prefetch_uses(k->space->index, k->hits, k->count);
	k->demands = call->wants && demands_any(k->space->demands);
	*wait = false;
	if (f->plain && !f->gates.states && !call->wait_inflight) {
		judge_plain(k);
		return k->count;
	}
	for (uint32_t i = 0; i < k->count; i++) {
		const struct index_hit *hit = &k->hits[i];
		uint32_t key = call->key + i;
		uint64_t end = f->start + (uint64_t)(key + 1) * k->layout->page_tokens;
		uint32_t lacks = page_classes(f, end) & ~(uint32_t)hit->classes;
		bool allowed;

		if (lacks && !call->missed && key >= f->first && call->wait_inflight && in_flight(k, hit, lacks) &&
		    clock_now_ns() < call->deadline_ns) {
			*wait = true;
			return i;
		}
		if (!lacks) {
			bit_set(&f->hits, key);
			call->hit_count += call->all_hits || !call->missed;
		}
		call->missed |= lacks && key >= f->first;
		if (!call->missed)
			f->intact = key + 1;
		allowed = page_gate(f, end, hit->classes);
		if (call->wants)
			note_wanted(k, i, key, end);
		if (key >= f->first && f->gates.intact && end <= k->most)
			note_key(k, i, key, end, allowed);
	}
	return k->count;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

/* Tokens of a prompt up to which a row may be wanted. */
static uint64_t wanted_most(const struct get_start *call)
{
	uint64_t prompt = call->prompt_len ? call->prompt_len :
					     call->start + (uint64_t)call->key_count * call->session->space->layout->page_tokens;

	return prompt > call->room ? prompt - call->room : 0;
}

/* Walks the groups: which hit as a whole, which of their ends are restorable, and which of those is the deepest. The deepest one that
 * would be if states were dense: its key, or INDEX_NONE. */
static uint32_t settle_groups(const struct get_start *call, struct found *f)
{
	uint32_t groups = call->groups ? call->group_count : call->key_count, page = call->session->space->layout->page_tokens;
	uint64_t most = f->gates.states ? wanted_most(call) : 0;
	uint32_t end = 0, would = INDEX_NONE;

	f->deepest = INDEX_NONE;
	f->prefix_hit_groups = groups;
	f->first_miss_group_index = INDEX_NONE;
	for (uint32_t g = 0; g < groups; g++) {
		end += call->groups ? call->groups[g] : 1;
		if (end > f->intact && f->prefix_hit_groups == groups) {
			f->prefix_hit_groups = g;
			f->first_miss_group_index = g;
			if (!f->gates.windows)
				break;
		}
		if (bit_get(&f->restorable, end - 1)) {
			bit_set(&f->grouped, end - 1);
			f->deepest = end - 1;
		}
		if (f->gates.states && bit_get(&f->would, end - 1) && f->start + (uint64_t)end * page <= most)
			would = end - 1;
	}
	return would;
}

/* The three depths: what was found, what would have been if states were dense, how far the dense classes reach; and the demand. */
static void settle_depths(struct get_start *call, struct found *f, uint32_t would)
{
	struct space *space = call->session->space;
	uint32_t page = space->layout->page_tokens;
	uint64_t hit = f->deepest == INDEX_NONE ? f->gates.have : f->start + (uint64_t)(f->deepest + 1) * page;
	struct key key;
	uint64_t hash;

	get_candidates(call, hit);
	f->would_len = would == INDEX_NONE ? hit : f->start + (uint64_t)(would + 1) * page;
	if (f->would_len < hit)
		f->would_len = hit;
	if (!f->gates.dense || f->dense_len < f->would_len)
		f->dense_len = f->would_len;
	assert(f->gates.have <= hit && hit <= f->would_len && f->would_len <= f->dense_len);
	f->demand = f->would_len > hit && space->layout->interval ? f->would_len : 0;
	if (f->demand) {
		key = call->keys[would];
		__asm__ __volatile__("" : : "r"(&key) : "memory");
		index_prefetch(space->index, &key, 1, &hash);
		bit_set(&f->wanted, would);
	}
	lock_take(&space->lock);
	if (f->demand)
		demands_record(space->demands, &key, hash, f->demand);
	space->stats.requests++;
	space->stats.dense_hit_tokens += f->dense_len - f->gates.have;
	space->stats.hit_tokens += hit - f->gates.have;
	space->stats.lost_to_checkpoint_tokens += f->would_len - hit;
	space->stats.lost_unrecoverable_tokens += f->dense_len - f->would_len;
	lock_drop(&space->lock);
}

/* Boundaries behind what was found at which a row is worth putting: those of the keys, then the grid. */
static void list_wanted(struct get_start *call, const struct found *f)
{
	const struct layout *layout = call->session->space->layout;
	uint64_t most = wanted_most(call), end = f->start + (uint64_t)f->keys * layout->page_tokens, rung;
	uint64_t hit = f->deepest == INDEX_NONE ? f->gates.have : f->start + (uint64_t)(f->deepest + 1) * layout->page_tokens;
	uint32_t n = 0;

	call->wanted_count = 0;
	if (!call->wants)
		return;
	for (uint32_t i = 0; i < f->wanted.count; i++)
		for (uint32_t word = f->wanted.at[i]; word; word &= word - 1) {
			uint64_t at = f->start + ((uint64_t)i * 32 + (uint32_t)__builtin_ctz(word) + 1) * layout->page_tokens;

			if (at <= hit || at > most)
				continue;
			if (n < call->wanted_capacity)
				call->wanted[n] = at;
			n++;
		}
	for (rung = (end / layout->interval + 1) * layout->interval; rung <= most && n < UINT32_MAX; rung += layout->interval, n++)
		if (n < call->wanted_capacity)
			call->wanted[n] = rung;
	call->wanted_count = n;
}

static uint64_t handle_bytes(const struct get_start *call, const struct layout *layout, uint32_t deepest)
{
	const struct found *f = call->h->found;
	const struct session *s = call->session;
	uint64_t boundary = f->start + (uint64_t)(deepest + 1) * layout->page_tokens, bytes = 0;

	for (uint32_t mask = f->class_mask; mask; mask &= mask - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(mask);

		bytes += gates_count(&f->gates, c, f->gates.have, boundary, boundary) *
			 layout->class[c].share[s->share[c]].payload_bytes;
	}
	return bytes;
}

/* Under the lock: notes the range of @entry unless the session has acknowledged it or it was noted before. */
static void note_missing(struct get_start *call, uint32_t entry, uint64_t *noted)
{
	struct session *s = call->session;
	uint32_t grant;

	if (entry == INDEX_NONE || (s->space->tiering && tiering_is_place(s->space->tiering, entry)))
		return;
	grant = slots_grant_of(s->space->slots, entry);
	if ((s->acknowledged[grant / 64] | noted[grant / 64]) >> (grant % 64) & 1)
		return;
	noted[grant / 64] |= 1ull << (grant % 64);
	if (call->missing_count < call->missing_capacity)
		call->missing[call->missing_count] = grant;
	call->missing_count++;
}

/* Under the lock: the ranges of the rows that may be transferred. */
static void note_missing_rows(struct get_start *call, uint64_t *noted)
{
	const struct session *s = call->session;
	const struct layout *layout = s->space->layout;
	const struct handle *h = call->h;
	const struct found *f = h->found;

	for (uint32_t i = 0; i < f->row_count + f->candidates; i++)
		for (uint32_t c = 0; c < layout->classes; c++)
			if (f->class_mask >> c & 1 && layout_is_row(layout, c))
				note_missing(call, index_value(s->space->index,
							       i < f->row_count ? f->rows[i].record : f->candidate[i - f->row_count].row.record,
							       INDEX_PAGE_ROW, layout_column(layout, c, s->share[c]), NULL), noted);
}

/* Under the lock: where number @i of the handle's entries is now; with a disk tier it may have moved since it was looked up, and its
 * grant may be another's. *run goes on as @i does. */
static uint32_t entry_now(const struct get_start *call, size_t i, uint32_t *run)
{
	const struct session *s = call->session;
	const struct handle *h = call->h;
	const struct found *f = h->found;
	uint32_t key = f->first + (uint32_t)(i / f->columns), class_index = f->class_of[i % f->columns];
	const struct run *at;

	at = handle_run(h, key, run);
	if (!at)
		return INDEX_NONE;
	return index_value(s->space->index, at->record, (uint16_t)(at->page + key - at->first),
			   layout_column(s->space->layout, class_index, s->share[class_index]), NULL);
}

/* Ranges that hold what may be transferred and that the session has not acknowledged. */
static void list_missing(struct get_start *call, uint32_t deepest)
{
	struct space *space = call->session->space;
	const struct handle *h = call->h;
	const struct found *f = h->found;
	size_t count = (size_t)(deepest + 1 - f->first) * f->columns, i = 0;
	uint32_t run = h->run_at;
	uint64_t noted[SLOTS_MAX_GRANTS / 64];
	bool all;

	call->missing_count = 0;
	lock_take(&space->lock);
	all = session_has_all(call->session);
	lock_drop(&space->lock);
	if (all)
		return;
	memset(noted, 0, sizeof(noted));
	while (i < count) {
		size_t end = count - i > INDEX_STEP_KEYS ? i + INDEX_STEP_KEYS : count;

		lock_take(&space->lock);
		for (; i < end; i++)
			note_missing(call, space->tiering ? entry_now(call, i, &run) : h->entries.at[i], noted);
		lock_drop(&space->lock);
	}
	lock_take(&space->lock);
	note_missing_rows(call, noted);
	lock_drop(&space->lock);
}

void get_start_stop_waiting(struct get_start *call)
{
	struct space *space = call->session->space;

	if (!call->waiting)
		return;
	call->waiting = false;
	atomic_fetch_sub(&space->waiters, 1);
	lock_take(&space->lock);
	space->stats.waiting--;
	space->stats.join_wait_us += (clock_now_ns() - call->waited_since_ns) / 1000;
	lock_drop(&space->lock);
}

static void count_call(const struct get_start *call, uint32_t released)
{
	const struct found *f = call->h->found;
	struct space *space = call->session->space;
	uint32_t hit = f->intact > f->first ? f->intact - f->first : 0;

	lock_take(&space->lock);
	space->stats.keys_asked += f->keys - f->first;
	space->stats.keys_local += hit;
	space->stats.suffix_released += released;
	lock_drop(&space->lock);
}

/* What all ranks of a request are answered alike. */
static void tell_found(struct get_start *call, const struct found *f)
{
	uint32_t page = call->session->space->layout->page_tokens;

	if (call->hits)
		memcpy(call->hits, f->hits.at, f->hits.count * sizeof(uint32_t));
	if (call->restorable)
		memcpy(call->restorable, f->restorable.at, f->restorable.count * sizeof(uint32_t));
	call->raw_prefix_hit_len = (uint64_t)f->intact * page;
	call->prefix_hit_groups = f->prefix_hit_groups;
	call->first_miss_group_index = f->first_miss_group_index;
	call->first_miss_index = f->intact < f->keys ? f->intact : INDEX_NONE;
	call->all_hit = f->intact == f->keys;
	call->hit_count = f->hit_count;
	call->handle_live = f->reach != INDEX_NONE;
	call->transferable_len = f->deepest == INDEX_NONE ? call->have > call->start ? call->have : call->start :
							    f->start + (uint64_t)(f->deepest + 1) * page;
	call->dense_len = f->dense_len;
	call->would_len = f->would_len;
	call->demand = f->demand;
}

/* What there is to be moved up to the deepest boundary. */
static void tell_cost(struct get_start *call, uint32_t deepest)
{
	struct handle *h = call->h;

	call->bytes = call->disk_bytes = call->disk_us = 0;
	if (deepest == INDEX_NONE)
		return;
	if (call->session->space->tiering)
		get_estimate(call, deepest);
	else
		call->bytes = handle_bytes(call, call->session->space->layout, deepest);
	h->holding.values = h->holding.sized = deepest + 1 - h->found->first;
	h->holding.bytes = call->bytes + call->disk_bytes;
}

void get_start_answer(struct get_start *call)
{
	struct session *s = call->session;
	struct handle *h = call->h;
	uint32_t deepest = h->found->deepest;

	get_start_stop_waiting(call);
	tell_found(call, h->found);
	call->missing_count = 0;
	list_wanted(call, h->found);
	get_tell_candidates(call);
	tell_cost(call, deepest);
	if (!call->handle_live) {
		session_drop(s, &h->holding, 0);
		handle_idle(s, h);
		handle_leave(s, h, true);
		handle_retire(s, h);
		return;
	}
	list_missing(call, h->found->reach);
	if (s->space->tiering && !call->no_ahead && deepest != INDEX_NONE)
		get_look_ahead(call, deepest);
	handle_idle(s, h);
	session_unclaim(s, &h->holding);
}

/* The look-up of the handle's own is complete. */
static void get_start_finish(struct get_start *call)
{
	struct handle *h = call->h;
	struct found *f = h->own;

	settle_depths(call, f, settle_groups(call, f));
	f->hit_count = call->hit_count;
	f->reach = f->candidates && f->candidate[0].row.key + 1 > f->deepest + 1 ? f->candidate[0].row.key : f->deepest;
	count_call(call, handle_release_behind(call->session, h, f->reach + 1));
	if (h->seat.ticket)
		get_ticket_decide(call);
	get_start_answer(call);
	if (!call->wanted_count)
		return;
	lock_take(&call->session->space->lock);
	call->session->space->stats.rows_wanted += call->wanted_count;
	lock_drop(&call->session->space->lock);
}

void get_start_undo(struct get_start *call)
{
	if (call->waiting)
		atomic_store(&call->session->space->asked, true); /* the next commit is told: it may poll for that */
	get_start_stop_waiting(call);
	handle_release_all(call->session, call->h);
	get_ticket_undo(call);
	session_forget(call->session, &call->h->holding);
	handle_retire(call->session, call->h);
}

/* The first time one waits is announced, then looked again: what was committed in between is not missed. */
bool get_start_wait(struct get_start *call)
{
	struct space *space = call->session->space;

	if (call->waiting)
		return false;
	call->waiting = true;
	call->waited_since_ns = clock_now_ns();
	atomic_fetch_add(&space->waiters, 1);
	lock_take(&space->lock);
	space->stats.waiting++;
	lock_drop(&space->lock);
	return true;
}

/* What is looked up: as far as it is of use. */
static bool more_keys(const struct get_start *call)
{
	return call->key < call->key_count && (call->h->own->gates.intact || call->all);
}

/* The first multiple of the interval that ends a page from the next key on. */
static uint64_t first_rung(const struct get_start *call, const struct layout *layout)
{
	uint64_t at = call->start + (uint64_t)call->key * layout->page_tokens;

	return (at / layout->interval + 1) * layout->interval;
}

int get_start_step(struct get_start *call, struct why *why)
{
	struct session *s = call->session;
	struct space *space = s->space;
	struct chunk k = { .call = call, .handle = call->h, .space = space, .layout = space->layout };
	const struct found *found;
	uint32_t stop;

	if (!call->h->found || !handle_has_own(call->h)) {
		int r = get_ticket_step(call, why);

		if (r != GET_LEADS)
			return r;
	}
	found = call->h->found;
	stop = call->key + PUT_STEP_KEYS;
	k.most = call->limit ? call->limit : UINT64_MAX;
	k.next_rung = call->wants ? first_rung(call, space->layout) : 0;
	for (uint32_t c = 0; c < found->columns; c++)
		k.column[c] = layout_column(k.layout, found->class_of[c], s->share[found->class_of[c]]);
	while (more_keys(call) && call->key < stop) {
		bool wait, over, full;

		if (atomic_load(&s->ended)) {
			get_start_undo(call);
			return why_set(why, ESHUTDOWN, "the session has ended");
		}
		if (!chunk_fetch(&k)) {
			get_start_undo(call);
			return why_set(why, ENOMEM, "no memory for a handle over %u keys", call->key_count);
		}
		lock_take(&space->lock);
		over = s->pins > SESSION_MAX_PINS - 2 * INDEX_STEP_KEYS;
		full = call->leads && !ticket_room(space->tickets, found_pins(found) + 2 * INDEX_STEP_KEYS);
		wait = false;
		if (!over && !full)
			call->key += chunk_work(&k, &wait);
		lock_drop(&space->lock);
		if (over) {
			get_start_undo(call);
			return why_set(why, EDQUOT, "the session holds %u pins, the most that it may", SESSION_MAX_PINS);
		}
		if (full) {
			get_start_undo(call);
			return why_set(why, EDQUOT, "the tickets of the namespace hold %u pins, the most that they may", TICKET_PINS);
		}
		if (wait && !get_start_wait(call))
			return STEP_WAIT;
	}
	if (more_keys(call))
		return STEP_MORE;
	get_start_finish(call);
	return 0;
}

/* ---- PROBE -------------------------------------------------------------------------------------------------------- */

int probe_step(struct probe *call, struct why *why)
{
	struct space *space = call->session->space;
	uint32_t stop = call->key + PUT_STEP_KEYS;
	struct index_hit hits[INDEX_STEP_KEYS];
	struct key keys[INDEX_STEP_KEYS];
	uint64_t hashes[INDEX_STEP_KEYS];

	if (!call->key_count)
		return why_set(why, EINVAL, "an empty batch: 0 keys");
	if (!call->key) {
		call->hit_count = call->prefix = 0;
		call->missed = false;
	}
	while (call->key < call->key_count && call->key < stop) {
		uint32_t n = call->key_count - call->key;
		uint64_t word = 0;

		n = n > INDEX_STEP_KEYS ? INDEX_STEP_KEYS : n;
		memcpy(keys, &call->keys[call->key], n * sizeof(keys[0]));
		__asm__ __volatile__("" : : "r"(keys) : "memory");
		index_prefetch(space->index, keys, n, hashes);
		lock_take(&space->lock);
		index_lookup_hashed(space->index, keys, hashes, n, ~0u, false, hits);
		lock_drop(&space->lock);
		for (uint32_t i = 0; i < n; i++) {
			word |= (uint64_t)hits[i].complete << i;
			call->hit_count += hits[i].complete;
			call->missed |= !hits[i].complete;
			call->prefix += !call->missed;
		}
		if (call->hits)
			call->hits[call->key / 64] = word;
		call->key += n;
	}
	return call->key < call->key_count ? STEP_MORE : 0;
}
