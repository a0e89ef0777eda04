/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks of blobs: who prepares one while the others wait for it.
 *
 *   nobody -> held    blob_lock_step of whoever comes first
 *   held -> held      the same session asks again: its time begins anew
 *   held -> nobody    it stores the blob, or releases the lock; it ends; its time is over; the namespace is reset
 *
 * A lock keeps nobody from storing the blob. Who waits finds the blob, or is the next to hold the lock.
 */
#include <errno.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/hash.h"
#include "store/blobs_private.h"
#include "store/put.h"

static uint32_t *lock_bucket(struct blobs *b, const struct key *key)
{
	return &b->lock_bucket[hash_64(key, sizeof(*key), b->seed) % BLOBS_LOCK_BUCKETS];
}

struct flight *flight_find(struct blobs *b, const struct key *key)
{
	uint32_t at = *lock_bucket(b, key);

	lock_assert_held(&b->lock);
	while (at && memcmp(&b->flight[at - 1].key, key, sizeof(*key)) != 0)
		at = b->flight[at - 1].chain;
	return at ? &b->flight[at - 1] : NULL;
}

void flight_end(struct blobs *b, struct flight *flight)
{
	uint32_t *at = lock_bucket(b, &flight->key), number = (uint32_t)(flight - b->flight) + 1;

	lock_assert_held(&b->lock);
	while (*at != number)
		at = &b->flight[*at - 1].chain;
	*at = flight->chain;
	flight->session = 0;
	b->locks--;
}

void flights_end(struct blobs *b, uint64_t session)
{
	for (uint32_t i = 0; i < BLOBS_LOCKS && b->locks; i++)
		if (b->flight[i].session && (b->flight[i].session == session || session == UINT64_MAX)) {
			flight_end(b, &b->flight[i]);
			b->counts.blob_locks_lost += session != UINT64_MAX;
		}
}

void flights_expire(struct blobs *b, uint64_t now_ns)
{
	for (uint32_t i = 0; i < BLOBS_LOCKS && b->locks; i++)
		if (b->flight[i].session && now_ns >= b->flight[i].until_ns) {
			flight_end(b, &b->flight[i]);
			b->counts.blob_locks_lost++;
		}
}

static uint32_t held_by(const struct blobs *b, uint64_t session)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < BLOBS_LOCKS; i++)
		n += b->flight[i].session == session;
	return n;
}

static int flight_new(struct blobs *b, const struct blob_lock *c, struct flight **ret, struct why *why)
{
	uint32_t *bucket = lock_bucket(b, &c->key), i = 0;

	if (b->locks >= BLOBS_SESSION_LOCKS && held_by(b, c->session) >= BLOBS_SESSION_LOCKS)
		return why_set(why, EDQUOT, "the session holds %u locks of blobs, its limit", BLOBS_SESSION_LOCKS);
	if (b->locks == BLOBS_LOCKS)
		return why_set(why, EDQUOT, "%u locks of blobs are held, the most that a namespace has", BLOBS_LOCKS);
	while (b->flight[i].session)
		i++;
	b->flight[i] = (struct flight){.key = c->key, .session = c->session, .chain = *bucket};
	*bucket = i + 1;
	b->locks++;
	*ret = &b->flight[i];
	return 0;
}

int blob_lock_begin(struct blob_lock *c, bool release, struct why *why)
{
	struct blobs *b = c->blobs;
	bool tell = false;

	c->answer = 0;
	c->look_ns = 0;
	c->waiting = false;
	memset(&c->info, 0, sizeof(c->info));
	if (!release)
		return STEP_MORE;
	lock_take(&b->lock);
	struct flight *flight = flight_find(b, &c->key);
	bool own = flight && flight->session == c->session;

	if (own) {
		flight_end(b, flight);
		tell = blobs_news(b);
		c->answer = BLOB_LOCK_RELEASED;
	}
	lock_drop(&b->lock);
	if (tell)
		blobs_tell(b);
	return own ? 0 : why_set(why, ENOENT, "the session does not hold this lock: it was released, or its time was over");
}

/* The lock is ours, if nobody else has it. */
static int take(struct blob_lock *c, struct flight *flight, uint64_t now_ns, struct why *why)
{
	struct blobs *b = c->blobs;

	if (flight && flight->session != c->session && now_ns >= flight->until_ns) {
		flight_end(b, flight);
		b->counts.blob_locks_lost++;
		flight = NULL;
	}
	if (!flight) {
		int r = flight_new(b, c, &flight, why);

		if (r)
			return r;
		b->counts.blob_locks_given++;
	}
	flight->until_ns = now_ns + c->hold_ns;
	c->answer = BLOB_LOCK_HELD;
	return 0;
}

static int look(struct blob_lock *c, struct why *why)
{
	struct blobs *b = c->blobs;
	const struct blob *blob = blob_look(b, &c->key);
	struct flight *flight = flight_find(b, &c->key);
	uint64_t now_ns = clock_now_ns();

	if (blob) {
		c->info = blob->info;
		c->answer = BLOB_LOCK_FOUND;
		if (flight && flight->session == c->session)
			flight_end(b, flight); /* of no use any more */
		b->counts.blob_locks_found++;
		return 0;
	}
	if (!flight || flight->session == c->session || now_ns >= flight->until_ns)
		return take(c, flight, now_ns, why);
	c->look_ns = flight->until_ns;
	if (now_ns >= c->deadline_ns)
		return why_set(why, ETIMEDOUT, "session %llu holds the lock, for %llu ms more if it does not renew it",
			(unsigned long long)flight->session, (unsigned long long)(flight->until_ns - now_ns) / 1000000);
	return STEP_WAIT;
}

int blob_lock_step(struct blob_lock *c, struct why *why)
{
	struct blobs *b = c->blobs;
	int r;

	lock_take(&b->lock);
	r = look(c, why);
	if (r == STEP_WAIT && !c->waiting) {
		c->waiting = true;
		b->waiting++;
	}
	lock_drop(&b->lock);
	return r;
}

void blob_lock_end(struct blob_lock *c)
{
	struct blobs *b = c->blobs;

	if (!c->waiting)
		return;
	c->waiting = false;
	lock_take(&b->lock);
	b->waiting--;
	b->asked |= !c->answer; /* it gave up */
	lock_drop(&b->lock);
}
