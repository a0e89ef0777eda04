/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of the last EVENTS_KEPT events of the host, as fixed-size binary; text is made when one is read (event_text.h).
 *
 * Events are numbered from 1 without holes, in the order in which they were noted. Event n lies in slot n % EVENTS_KEPT.
 *
 * Writers are serialised by a lock, a leaf, which is held for one batch: some nanoseconds an event. Readers take no lock and
 * a writer never waits for one: `begun` is the number of the last event whose slot may be under a writer's hands, `done`
 * that of the last complete one. A writer stores begun, then the words of its slots, then done; a reader loads done, then the
 * words, then begun: what begun - EVENTS_KEPT has passed by then may be torn and counts as lost. The words are atomic,
 * stored with release and loaded with acquire (plain moves on x86): whoever sees a new word sees the begun that was
 * stored before it. done is stored sequentially consistent: fs/watch.c looks after it whether somebody waits.
 *
 * Thread-safe. Nothing here allocates after events_new or blocks.
 */
#ifndef PREFIXFS_FS_EVENTS_H
#define PREFIXFS_FS_EVENTS_H

#include <stdint.h>

#include "store/host.h"

#define EVENTS_KEPT 65536u /* a power of two */

/* What this room notes itself, beside enum host_event_kind. */
enum {
	EVENT_DEGRADED = HOST_EVENT_SESSION_ENDED + 1, /* number: of the text (watch.c) */
	EVENT_RECOVERED,
	EVENT_RESUMED, /* number = restarts, bytes = upgrades: another serving process goes on with what there was */
	EVENT_KINDS,
};

struct event {
	union {
		struct {
			struct key endpoint;
			uint64_t consumed;
		} record;
		struct {
			uint64_t bytes;
			uint32_t class_index, share;
			int32_t pid;
		} other;
	};
	uint64_t number;  /* as in struct host_event */
	uint64_t time_us; /* wall clock, microseconds since 1970: of the batch that it was noted with */
	uint32_t serial;  /* of the namespace; 0: of the host */
	uint16_t pages;
	uint8_t kind, why;
};

struct events;

struct events *events_new(void); /* NULL: no memory. 4 MiB, touched at once */
void events_free(struct events **events);

/* Notes @count events (at most EVENTS_KEPT / 16) of the namespace with @serial, numbered in their order without others in
 * between. Under any lock but a leaf. */
void events_note(struct events *events, uint32_t serial, const struct host_event *noted, uint32_t count);

/* Copies up to @capacity events from number @first (> 0) on, those that are there still. Returns how many; *ret_first is
 * the number of the first one: *ret_first - @first are lost. 0: there is none yet; *ret_first is @first then, or,
 * where all from there on are lost, later. Any thread, any lock. */
uint32_t events_read(const struct events *events, uint64_t first, struct event *to, uint32_t capacity,
		     uint64_t *ret_first);

uint64_t events_last(const struct events *events);   /* number of the last one; 0: there was none */
uint64_t events_oldest(const struct events *events); /* of the oldest that is kept; 1 when there is none */

#endif
