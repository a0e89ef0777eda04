/* SPDX-License-Identifier: Apache-2.0
 *
 * drive_ranks: what its files share. One thread.
 */
#ifndef PREFIXFS_TESTS_MODEL_DRIVE_H
#define PREFIXFS_TESTS_MODEL_DRIVE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/get_private.h"
#include "store/session_private.h"
#include "store/space.h"

#define WORLD_MAX 8u
#define PATH_MAX_PAGES 512u
#define GROUPS_MAX 512u
#define FILL_TTL_S 5u
#define HANDLE_TTL_S 60u
#define PUT_TICKET_S 30u
#define GRANT (2ull << 20)

enum { SKIP_WINDOWS, SKIP_WORLDS, SKIP_TICKETS, SKIP_LADDER, SKIP_CANDIDATES, SKIP_NOPAGES, SKIP_FILLS, SKIP_GAPS, SKIP_WORDS };

struct drive_run {
	bool skip[SKIP_WORDS], check;
	unsigned long most, differences;
	unsigned long line, done, late;
};
extern struct drive_run run;

/* A world of the model, and its plans that are open. */
struct drive_world {
	struct host *host;
	struct space *space;
	struct session *session[WORLD_MAX + 1]; /* of each rank; the last one has none */
	uint32_t world, page, classes, states;
	bool uneven; /* some class has longer values */
	bool gaps; /* there are pages without a value of any class */
	bool doubt; /* was_late held of a life before */
	bool over; /* a difference was found, or it is one to be passed over */
	uint64_t begin_ns, seconds, handle;
	struct open_plan {
		uint64_t id;
		uint32_t rank, groups;
	} *plans;
	size_t plan_count, plan_room;
	uint64_t tickets; /* counted up: they are their own names */
};
extern struct drive_world w;

#define CANDIDATES 16u

/* A GET_START of the model's question. */
struct question {
	struct key keys[PATH_MAX_PAGES];
	uint64_t hits[PATH_MAX_PAGES / 64], restorable[PATH_MAX_PAGES / 64], wanted[PATH_MAX_PAGES];
	struct get_candidate candidates[CANDIDATES];
	struct get_start call;
};

bool was_late(void); /* has the store given something more time than the model? Then what differs says nothing */
struct host *host_make(void);
struct session *attach(uint32_t rank); /* of w.space */
_Noreturn void fail(const struct why *why);
void differs(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *need(void *p); /* ends the program where @p is NULL */
char *text_of(const json_t *value); /* to be freed */
uint64_t number(const json_t *object, const char *name);
uint64_t at(const json_t *array, size_t i);

/* Steps a GET_START to its end. @ticket may be NULL. */
int ask(struct question *q, const json_t *given, const uint8_t *ticket, struct session *session, struct why *why);

/* ---- drive_deaths.c ---- */

void do_death(void); /* of the serving process: w goes on with the one that adopts */

/* ---- drive_tickets.c ---- */

void do_ticket(const json_t *arguments, const json_t *expected);
void joint_ends(void); /* nobody is left of the ticket under way, if there is one */

#endif
