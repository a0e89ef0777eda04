/* SPDX-License-Identifier: Apache-2.0
 *
 * What sessions hold: the table of plans and handles by id, the memory of ended ones, spares, expiry, and the listing
 * under sessions/.
 */
#include "store/session_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/host_private.h"
#include "store/ticket.h"

#define MILLISECOND 1000000ull

static const char *const kind_names[HOLDING_KINDS] = { "put plan", "get plan", "handle" };

static uint32_t bucket_of(uint64_t id)
{
	return (uint32_t)((id * 0x9e3779b97f4a7c15ull) >> 32) % SESSION_BUCKETS;
}

/* Plans share one space of ids, handles have their own. */
static bool same_ids(enum holding_kind a, enum holding_kind b)
{
	return (a == HOLDING_HANDLE) == (b == HOLDING_HANDLE);
}

static struct holding **find(struct session *s, enum holding_kind kind, uint64_t id)
{
	struct holding **at = &s->bucket[bucket_of(id)];

	lock_assert_held(&s->lock);
	while (*at && !((*at)->id == id && same_ids((*at)->kind, kind)))
		at = &(*at)->next;
	return at;
}

static const struct ended *find_ended(const struct session *s, enum holding_kind kind, uint64_t id)
{
	for (uint16_t at = s->ended_bucket[bucket_of(id)]; at; at = s->ended_ring[at - 1].next) {
		const struct ended *e = &s->ended_ring[at - 1];

		if (e->id == id && same_ids(e->kind, kind))
			return e;
	}
	return NULL;
}

/* Remembers an end in the oldest place, whose former content is forgotten. */
static void remember_ended(struct session *s, const struct holding *h, uint8_t outcome)
{
	struct ended *e = &s->ended_ring[s->ended_next];
	uint16_t place = (uint16_t)(s->ended_next + 1), *bucket;

	if (e->id) {
		uint16_t *at = &s->ended_bucket[bucket_of(e->id)];

		while (*at != place)
			at = &s->ended_ring[*at - 1].next;
		*at = e->next;
	}
	bucket = &s->ended_bucket[bucket_of(h->id)];
	*e = (struct ended){ h->id, *bucket, (uint8_t)h->kind, outcome };
	*bucket = place;
	s->ended_next = (s->ended_next + 1) % SESSION_ENDED;
}

int session_hold(struct session *s, struct holding *h, struct why *why)
{
	struct holding **at;
	int r = 0;

	lock_take(&s->lock);
	at = find(s, h->kind, h->id);
	if (*at)
		r = why_set(why, EEXIST, "%s %llu is in use", kind_names[(*at)->kind], (unsigned long long)h->id);
	else if (find_ended(s, h->kind, h->id))
		r = why_set(why, EALREADY, "%s %llu has ended; its id cannot be used again so soon", kind_names[h->kind],
			    (unsigned long long)h->id);
	else if (s->count[0] + s->count[1] + s->count[2] >= SESSION_MAX_HOLDINGS)
		r = why_set(why, EDQUOT, "the session holds %u plans and handles, the most that it may", SESSION_MAX_HOLDINGS);
	if (!r) {
		h->busy = true;
		h->born_ns = h->used_ns = clock_now_ns();
		h->next = NULL;
		*at = h;
		s->count[h->kind]++;
	}
	lock_drop(&s->lock);
	return r;
}

int session_claim(struct session *s, enum holding_kind kind, uint64_t id, struct holding **ret, uint8_t *outcome,
		  struct why *why)
{
	const struct ended *ended;
	struct holding *h;
	int r = 0;

	lock_take(&s->lock);
	h = *find(s, kind, id);
	if (h && h->kind != kind) {
		r = why_set(why, EINVAL, "%llu is a %s, not a %s", (unsigned long long)id, kind_names[h->kind], kind_names[kind]);
	} else if (h && h->busy) {
		r = why_set(why, EBUSY, "another request works on %s %llu", kind_names[kind], (unsigned long long)id);
	} else if (h) {
		h->busy = true;
		*ret = h;
	} else if (id && (ended = find_ended(s, kind, id))) {
		if (outcome)
			*outcome = ended->outcome;
		if (ended->kind != kind)
			r = why_set(why, EINVAL, "%llu was a %s, not a %s", (unsigned long long)id, kind_names[ended->kind],
				    kind_names[kind]);
		else
			r = why_set(why, EALREADY, "%s %llu has ended", kind_names[kind], (unsigned long long)id);
	} else {
		r = why_set(why, ENOENT, "this session has no %s %llu", kind_names[kind], (unsigned long long)id);
	}
	lock_drop(&s->lock);
	return r;
}

void session_unclaim(struct session *s, struct holding *h)
{
	uint64_t now_ns = clock_now_ns();

	lock_take(&s->lock);
	h->used_ns = now_ns;
	h->busy = false;
	lock_drop(&s->lock);
}

void session_drop(struct session *s, struct holding *h, uint8_t outcome)
{
	struct holding **at;

	lock_take(&s->lock);
	at = find(s, h->kind, h->id);
	*at = h->next;
	h->next = NULL;
	s->count[h->kind]--;
	remember_ended(s, h, outcome);
	lock_drop(&s->lock);
}

void session_forget(struct session *s, struct holding *h)
{
	lock_take(&s->lock);
	*find(s, h->kind, h->id) = h->next;
	h->next = NULL;
	s->count[h->kind]--;
	lock_drop(&s->lock);
}

struct holding *session_spare(struct session *s, enum holding_kind kind)
{
	struct holding *h;

	lock_take(&s->lock);
	h = s->spare[kind];
	if (h) {
		s->spare[kind] = h->next;
		s->spares[kind]--;
	}
	lock_drop(&s->lock);
	return h;
}

bool session_reuse(struct session *s, struct holding *h)
{
	bool kept;

	lock_take(&s->lock);
	kept = s->spares[h->kind] < SESSION_SPARES;
	if (kept) {
		h->next = s->spare[h->kind];
		s->spare[h->kind] = h;
		s->spares[h->kind]++;
	}
	lock_drop(&s->lock);
	return kept;
}

/* ---- expiry -------------------------------------------------------------------------------------------------- */

static bool handle_old(const struct session *s, const struct holding *h, uint64_t now_ns)
{
	return now_ns > h->used_ns && now_ns - h->used_ns > s->host->config.handle_ttl_ms * MILLISECOND;
}

/* One idle holding that is over its time, or has something that is, marked busy; NULL: none. */
static struct holding *claim_expired(struct session *s, uint64_t now_ns)
{
	const struct host_config *config = &s->host->config;
	struct holding *found = NULL;

	lock_take(&s->lock);
	for (uint32_t b = 0; b < SESSION_BUCKETS && !found; b++)
		for (struct holding *h = s->bucket[b]; h && !found; h = h->next) {
			if (h->busy)
				continue;
			if ((h->kind == HOLDING_HANDLE && (handle_old(s, h, now_ns) || handle_kept_over(h, now_ns))) ||
			    (h->kind == HOLDING_PUT &&
			     put_plan_pending(h, now_ns, config->fill_ttl_ms * MILLISECOND))) {
				h->busy = true;
				found = h;
			}
		}
	lock_drop(&s->lock);
	return found;
}

static void session_expire(struct session *s, uint64_t now_ns)
{
	struct why why = WHY_INIT;
	struct holding *h;

	if (session_enter(s, 0, &why))
		return;
	while ((h = claim_expired(s, now_ns))) {
		if (h->kind == HOLDING_PUT) {
			put_plan_expire(s, h);
			continue;
		}
		if (!handle_old(s, h, now_ns)) {
			handle_kept_end(s, h);
			session_unclaim(s, h);
			continue;
		}
		session_drop(s, h, 0);
		lock_take(&s->space->lock);
		s->space->stats.handles_expired++;
		lock_drop(&s->space->lock);
		handle_end(s, h);
	}
	session_leave(s);
}

/* What becomes due in a namespace. */
static void space_tend(struct space *space, uint64_t now_ns)
{
	space_maintain(space);
	if (space->fills) {
		while (space->fills_sweep)
			space->fills_sweep = fills_sweep(space->fills);
		fills_run(space->fills, now_ns);
	}
	if (!space->tiering)
		rows_drop(space);
}

void host_maintain(struct host *host)
{
	uint64_t now_ns = clock_now_ns();

	for (uint32_t i = 0; i < HOST_MAX_SPACES; i++) {
		struct space *space = NULL;

		lock_take(&host->lock);
		if (i < host->space_count)
			space = space_ref(host->spaces[i]);
		lock_drop(&host->lock);
		if (!space)
			break;
		space_tend(space, now_ns);
		space_unref(&space);
	}
	for (uint32_t i = 0; i < HOST_MAX_SESSIONS; i++) {
		struct session *s = NULL;

		lock_take(&host->lock);
		if (host->sessions[i])
			s = session_ref(host->sessions[i]);
		lock_drop(&host->lock);
		if (!s)
			continue;
		session_expire(s, now_ns);
		session_unref(&s);
	}
}

/* ---- listing ------------------------------------------------------------------------------------------------- */

uint32_t host_session_list(struct host *host, uint64_t *numbers, uint32_t capacity)
{
	uint32_t n = 0;

	lock_take(&host->lock);
	for (uint32_t i = 0; i < HOST_MAX_SESSIONS && n < capacity; i++)
		if (host->sessions[i])
			numbers[n++] = host->sessions[i]->number;
	lock_drop(&host->lock);
	return n;
}

int session_access(struct host *host, uint64_t number, struct space_access *ret)
{
	struct session *s = session_get(host, number);

	if (!s)
		return -ENOENT;
	space_access(s->space, ret);
	session_unref(&s);
	return 0;
}

/* One more holding to show: among the oldest, oldest first. */
static void show_holding(struct session_info *info, const struct holding *h, uint64_t now_ns)
{
	static const char *const kinds[HOLDING_KINDS] = { "put", "get", "handle" };
	uint64_t age_ns = now_ns > h->born_ns ? now_ns - h->born_ns : 0;
	uint32_t at = info->shown;

	if (at == SESSION_SHOWN && info->holding[at - 1].age_ns >= age_ns)
		return;
	if (at == SESSION_SHOWN)
		at--;
	else
		info->shown++;
	for (; at && info->holding[at - 1].age_ns < age_ns; at--)
		info->holding[at] = info->holding[at - 1];
	info->holding[at] = (struct session_holding){ kinds[h->kind], h->id, age_ns, h->busy, 0, 0 };
	if (!h->busy) { /* else its request may be writing there */
		info->holding[at].values = h->values;
		info->holding[at].bytes = h->sized ? (uint64_t)((double)h->bytes * h->values / h->sized) : 0;
	}
}

/* A piece of the table in each stay: what moves meanwhile is seen or not. */
static void show_holdings(struct session *s, struct session_info *info, uint64_t now_ns)
{
	for (uint32_t b = 0; b < SESSION_BUCKETS;) {
		uint32_t end = b + SESSION_BUCKETS / 64; /* of 4,096 holdings some 64 */

		lock_take(&s->lock);
		for (; b < end; b++)
			for (const struct holding *h = s->bucket[b]; h; h = h->next)
				show_holding(info, h, now_ns);
		lock_drop(&s->lock);
	}
	info->oldest_ms = info->shown ? info->holding[0].age_ns / MILLISECOND : 0;
}

static void show_imports(struct session *s, struct session_info *info)
{
	lock_take(&s->lock);
	for (uint32_t i = 0; i < SESSION_MAX_IMPORTS; i++) {
		const struct import *m = &s->imports[i];

		if (m->id)
			info->import[info->imports++] =
				(struct session_import){ m->id, m->bytes, m->written, m->fd >= 0, m->users };
	}
	lock_drop(&s->lock);
}

static void show_ranges(struct session *s, struct session_info *info)
{
	struct space *space = s->space;
	uint32_t id = 0, limit;

	do {
		uint32_t end = id + INDEX_STEP_KEYS;

		lock_take(&space->lock);
		limit = slots_grant_limit(space->slots);
		for (; id < end && id < limit; id++) {
			struct slots_grant grant;

			if (!slots_grant_get(space->slots, id, &grant) || !grant.ready)
				continue;
			info->ranges++;
			info->acknowledged += s->acknowledged[id / 64] >> (id % 64) & 1;
		}
		info->pins = s->pins;
		info->prepared_bytes = s->prepared_bytes;
		lock_drop(&space->lock);
	} while (id < limit);
}

int session_info(struct host *host, uint64_t number, struct session_info *ret)
{
	struct session *s = session_get(host, number);
	uint64_t now_ns = clock_now_ns();

	if (!s)
		return -ENOENT;
	memset(ret, 0, sizeof(*ret));
	ret->number = number;
	ret->read_only = s->read_only;
	ret->opened_s = s->opened_s;
	ret->gid = s->gid;
	memcpy(ret->space, s->space->name, sizeof(ret->space));
	space_access(s->space, &ret->access);
	ret->quarantined = quarantine_of_session(host, number);
	lock_take(&s->lock);
	ret->pid = s->pid; /* these change when the session is attached */
	ret->uid = s->uid;
	ret->guard = s->guard;
	ret->rank = s->rank;
	ret->node = s->buffer ? s->node : UINT32_MAX;
	memcpy(ret->client_id, s->client_id, sizeof(ret->client_id));
	ret->buffer_bytes = s->buffer_bytes;
	ret->attached = s->state == SESSION_ATTACHED;
	ret->put_plans = s->count[HOLDING_PUT];
	ret->get_plans = s->count[HOLDING_GET];
	ret->handles = s->count[HOLDING_HANDLE];
	ret->error_op = s->error_op;
	ret->error_seq = s->error_seq;
	ret->error_ms = now_ns > s->error_ns ? (now_ns - s->error_ns) / MILLISECOND : 0;
	memcpy(ret->error, s->error.text, sizeof(ret->error));
	lock_drop(&s->lock);
	show_holdings(s, ret, now_ns);
	show_imports(s, ret);
	show_ranges(s, ret);
	ret->tickets = tickets_of_session(s->space->tickets, s, ret->ticket, SESSION_TICKETS);
	session_unref(&s);
	return 0;
}
