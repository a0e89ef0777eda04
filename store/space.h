/* SPDX-License-Identifier: Apache-2.0
 *
 * What a namespace is made of. Private to store/.
 *
 * The space lock guards what decides: index, slots, group numbers, statistics, granted bytes. Everything else of a space
 * is immutable after host_space_create but for the fields that name another guard.
 */
#ifndef PREFIXFS_STORE_SPACE_H
#define PREFIXFS_STORE_SPACE_H

#include <stdatomic.h>

#include "index/demands.h"
#include "index/index.h"
#include "index/seats.h"
#include "store/base/lock.h"
#include "store/blobs.h"
#include "store/fills.h"
#include "store/host.h"
#include "store/slots.h"
#include "store/tier.h"

#define SPACE_GROUPS (1u << 18)      /* put groups open or unacknowledged at once */
#define SPACE_NOTES 64u              /* events handed on together */
#define SPACE_PARENTS 1024u

struct outcomes;
struct remnants;
struct session;
struct tickets;
struct put_tickets;

/* A (class, share) as recut.c sees it; ticks and batches. */
struct recut_side {
	uint32_t until;   /* when it lacks slots it looks for a grant of another size, but not before */
	uint32_t pause;   /* the last one, after a look that found nothing */
	uint32_t won_at;  /* it got its last grant by recut */
	uint32_t hold;    /* after which nothing is taken from it for so long */
	bool won;         /* and has not lost one since */
};

/* A namespace below its floor could not grow by a grant of this, since others hold more than theirs. */
struct hunger {
	bool is;
	uint32_t class_index, share, node;
};

/* A record, until its number is another one's. */
struct space_record {
	uint32_t record, generation;
};

struct space {
	struct host *host;
	char name[HOST_MAX_NAME + 1];
	uint32_t serial;
	_Atomic uint32_t refs;
	struct layout *layout;
	struct segment *segment;
	struct tier *memory;     /* over the segment */
	struct tiering *tiering; /* the disk tier, or NULL; set at creation */
	struct blobs *blobs;     /* NULL: the layout gives it no share; set at creation */
	struct tables tables;
	void *tables_memory;
	int tables_fd;
	_Atomic uint64_t generation; /* of the index; changes under the lock */
	_Atomic bool hidden;         /* a reset left records that are not gone yet; changes under the lock */
	uint64_t floor_bytes;        /* set at creation */
	bool promised;               /* by the budget; set at creation */
	bool adopted;                /* and what is left of its floor is not cut yet; for the first thread alone */
	uint64_t capacity[LAYOUT_MAX_CLASSES][LAYOUT_MAX_SHARES]; /* values that one plan could ever hold */
	struct space_access access; /* (host lock) */
	uint32_t sessions;          /* (host lock) open ones */
	bool listed;                /* (host lock) still in view */

	struct lock lock;           /* LOCK_SPACE */
	struct index *index;        /* (lock) */
	struct slots *slots;        /* (lock) */
	struct demands *demands;    /* (lock) */
	struct fills *fills;        /* (lock) NULL: no class has two shares */
	bool fills_sweep;           /* what is half there has yet to be looked for: set before others know it, then the maintainer's */
	struct stats stats;         /* (lock) */
	uint64_t grants_short;      /* (lock) grants in a row that found no memory */
	uint64_t granted_bytes;     /* (lock) of grants, populating ones included */
	uint32_t *holds;            /* (lock) [slots] uses of each: seating.h */
	uint32_t seat_rests[SEATS]; /* (lock) slots that rest, by the seat they were told to */
	uint64_t seats_over;        /* (lock) bit s: the session of seat s has ended, and some of its slots rest */
	uint64_t seats_leaving;     /* (lock) bit s: its bits are being taken out of the words, the lowest seat's first, */
	uint32_t sweep_at;          /* (lock) from this slot on */
	uint32_t *group_free;       /* (lock) stack of free group numbers */
	uint32_t group_free_count;  /* (lock) */
	uint32_t group_next;        /* (lock) numbers from here on were never used */
	uint32_t *group_owner;      /* (lock) [SPACE_GROUPS] serial of the put plan that has the number */
	uint32_t plan_serial;       /* (lock) last one given */
	struct space_record parents[SPACE_PARENTS]; /* (lock) rows.c: records that have a row, whose parents' may go: ring */
	uint32_t parents_first, parents_count; /* (lock) */
	uint64_t refused;           /* (lock) session that was told NOROOM since the last room event; UINT64_MAX: several */
	bool undone;                /* (lock) what a NOROOM had taken itself was given back, and somebody is told so within a second */
	_Atomic uint32_t waiters;   /* requests that wait for a commit */
	_Atomic bool asked;         /* one gave up waiting for a commit since the last one: it may be polling for it */
	struct host_event notes[SPACE_NOTES]; /* (lock) of space_notes_begin .. space_notes_end */
	uint32_t note_count;        /* (lock) */
	bool noting;                /* (lock) */
	enum host_event_why news_why; /* (lock) of what goes now, where it is not for lack of memory; else HOST_WHY_ROOM */
	struct index_mark ahead;    /* (lock) memory of the index is present, or coming, up to here */
	struct session *attached;   /* (lock) list through session.next_attached */
	_Atomic uint64_t idle_since_ns; /* when the last session went, else when it was made */
	struct recut_side recut_side[LAYOUT_MAX_CLASSES][LAYOUT_MAX_SHARES]; /* (lock) */
	bool recut_queued;          /* (lock) or under way */
	uint32_t *cut_at;           /* (lock) [SLOTS_MAX_GRANTS] tick at which the grant was cut */
	uint64_t cold[SLOTS_MAX_GRANTS / 64]; /* (lock) grants of the floor, and such as a predecessor left, that space_prewarm is to populate */
	uint32_t leaving;           /* (lock) grant whose pages are being given back, SLOTS_NONE = none */
	struct hunger hunger;       /* (lock) */
	struct remnants *remnants;  /* NULL: there were none when it was adopted; set then, its content (lock) */
	struct tickets *tickets;    /* set at creation, its content (lock) */
	struct put_tickets *put_tickets; /* likewise */
	struct outcomes *outcomes;  /* (lock) NULL: nobody can ask about a put plan of before */
	_Atomic uint64_t prewarm_done;
	_Atomic uint64_t prewarm_goal; /* set at creation, before others know it */
	bool going;                 /* (host's lock) in host.going */
	struct space *next_going;   /* (host's lock) */
	struct space *next_buried;  /* (mover's lock) of those that it tears down */
};

/* A fresh space with its floor's grants cut; not yet in view. Takes @layout. */
int space_new(struct host *host, const char *name, uint32_t serial, struct layout *layout,
	      const struct space_access *access, struct space **ret, struct why *why);

void space_free(struct space *space); /* nobody has a reference; blocks where there is a disk tier */

enum grow_answer {
	GROW_COMING, /* a grant is on its way now */
	GROW_SHORT,  /* it is within the floor, but others hold more than theirs */
	GROW_NONE,   /* it would be beyond the floor, and the budget has nothing free */
	GROW_FULL,   /* no place for it in the segment or the tables, or no memory */
};
/* Under the lock. Cuts a grant for (class, share), if none is on its way. */
enum grow_answer space_grow(struct space *space, uint32_t class_index, uint32_t share, uint32_t node);
/* Under the lock, after names were added: has memory made present that the next ones will need. */
void space_look_ahead(struct space *space);
/* Under the lock: the grant becomes ready in the background; false: the queue is full. */
bool space_push_grant(struct space *space, const struct slots_grant *grant, bool prewarm);
/* The grower has populated @grant (@error 0), or could not. Takes the lock. */
void space_grant_done(struct space *space, uint32_t grant, int error, uint64_t prewarmed);

/* Under the lock: gives the entries that the index frees back as slots. */
struct index_sink space_sink(struct space *space);

/* Under the lock: a group number (as in entries: 1 + number), its table entry filled and PREPARED; 0 = all in use. */
uint32_t space_group_new(struct space *space, const struct session *session, uint64_t plan, uint32_t number, uint32_t owner);
void space_group_free(struct space *space, uint32_t group);

/* Under the lock: pins and unpins with their count. */
void space_pin(struct space *space, uint32_t record);
void space_unpin(struct space *space, uint32_t record);

/* Under the lock: holds @record, which is visible, or lets it go, for an operator. ENOSPC over the limit. */
int space_hold(struct space *space, uint32_t record, bool hold, bool *ret_changed, struct why *why);
uint64_t space_pin_limit(const struct space *space); /* bytes that may be pinned */
/* Without the lock, after something was unpinned: lets go what a reset left and nobody holds, a bounded part of it. Costs
 * nothing when there is none. */
void space_retire(struct space *space);
void space_maintain(struct space *space); /* the same, a larger part; about once a second */

/* rows.c: under the lock, of a record that was published or got a value of its row: its parent's row may have become needless. */
void rows_note_child(struct space *space, uint32_t record);
/* Rows that were noted so go. In bounded stays; without the lock: from the tier's thread where there is a disk, else about once a second. */
void rows_drop(struct space *space);
/* A value of a row is committed: if all of it is, that may be what was demanded. */
void space_row_settled(struct space *space, uint32_t entry);

/* With the lock held or without: hands a copy of @event to whoever watches. */
void space_note(struct space *space, const struct host_event *event);
/* Under the lock, for a stay in which many events may come: from begin on those of this thread are gathered, at most
 * SPACE_NOTES, and handed on together; end hands on the rest, before the lock is dropped. Never nested. */
void space_notes_begin(struct space *space);
void space_notes_end(struct space *space);
/* For index_config.news. */
void space_news(void *context, enum index_news_kind kind, enum index_why why, uint64_t consumed,
		const struct key *endpoint, uint32_t pages, uint32_t row_values);
/* After a change under the lock: tells who waits. Call with the lock held. */
void space_committed(struct space *space);
/* There may be room that there was not: slots, group numbers, or victims that nobody holds any more. */
void space_room(struct space *space);
/* The same, of what was taken for a group that then got no room: it is told by space_maintain. Told at once, those that are refused would
 * wake each other for good. */
void space_undone(struct space *space);
/* @session is told NOROOM: the next room is told. */
void space_refused(struct space *space, uint64_t session);
void space_ranges_changed(struct space *space);
void space_record_gone(void *context, uint64_t consumed, const struct key *endpoint); /* for index_config.gone */

#endif
