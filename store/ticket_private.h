/* SPDX-License-Identifier: Apache-2.0
 *
 * What a get ticket is made of. Private to store/ticket.c, where it changes, and ticket_tell.c, where it is told.
 */
#ifndef PREFIXFS_STORE_TICKET_PRIVATE_H
#define PREFIXFS_STORE_TICKET_PRIVATE_H

#include "store/ticket.h"

#define TICKET_BUCKETS 16384u

enum { DECIDING, DECIDED, RESTORED, FAILED };

struct place { /* of a rank */
	uint64_t session; /* number; 0: it has not come */
	uint64_t could;   /* of the range that it has come to */
	uint32_t range;   /* its next one */
	bool came;        /* to that range's gate */
	bool reported;
};

struct gate {
	struct ticket_range range; /* as the first one that came said */
	uint32_t came;
	uint64_t outcome;
};

struct live {
	struct live *next; /* of the spares */
	struct ticket *ticket;
	struct ticket_question question;
	struct found *found;
	uint32_t number;      /* its place in tickets.live */
	uint32_t users;       /* requests that look at `found` */
	uint64_t wait_ns;     /* until then a GET_CONFIRM waits */
	uint32_t ranks;       /* that have come */
	uint32_t reports;
	uint32_t others;
	uint64_t other[TICKET_OTHERS]; /* numbers of sessions without a rank */
	uint32_t range;       /* the one that is being collected */
	struct gate gate[2];  /* its, and that of the one before */
	uint64_t delivered;   /* end of the last range, for all; 0: none was */
	bool whole;           /* that is the boundary */
	bool lacks;           /* a range was asked for without a class of which the boundary needs a value there */
	bool draining;        /* in the list */
	struct live *next_draining;
	struct place rank[];  /* [world] */
};

struct ticket {
	struct ticket *next;  /* in its bucket, of the spares */
	struct ticket *later; /* that ended next */
	uint8_t id[16];
	uint8_t state;
	bool listed;          /* can be found */
	uint32_t seats;       /* of handles, which have the address */
	uint64_t used_ns;     /* the last step of it; once it has an outcome: that one */
	uint64_t restored;
	uint64_t sum[2];      /* of what is asked */
	struct live *live;    /* NULL: it has an outcome and no pin */
};

struct tickets {
	struct space *space;
	struct ticket *bucket[TICKET_BUCKETS];
	struct live *live[TICKETS_MAX];
	uint32_t live_free[TICKETS_MAX]; /* stack of free places */
	uint32_t live_free_count;
	struct live *draining;
	struct ticket *oldest, *newest; /* of those that have an outcome */
	uint32_t remembered;
	struct ticket *spare_tickets;
	struct live *spare_lives;
	struct found *spare_found;
	uint32_t spares;
};

#endif
