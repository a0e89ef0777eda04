/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inheritance.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/doorman.h"
#include "fs/keeper.h"
#include "fs/log.h"
#include "fs/will.h"
#include "store/adopt.h"
#include "store/base/cleanup.h"
#include "store/remnants.h"

#define FAULTS 2u /* serving processes in a row that died of adopting one namespace: it is made anew then */

/* ---- what is said while it goes on ------------------------------------------------------------------------------------- */

static void going_on(void *context, uint64_t done, uint64_t goal)
{
	struct fs *fs = context;

	atomic_store_explicit(&fs->will->done, done, memory_order_relaxed);
	atomic_store_explicit(&fs->will->goal, goal, memory_order_relaxed);
	atomic_fetch_add_explicit(&fs->will->beats, 1, memory_order_relaxed);
}

/* Two predecessors have died of this very namespace, by faults of their own. */
static bool is_deadly(const struct fs *fs, const char *name)
{
	return fs->will->adoption_faults >= FAULTS && !strcmp(fs->will->adoption_fault, name);
}

static void enter(struct fs *fs, const char *name)
{
	snprintf(fs->will->space, sizeof(fs->will->space), "%s", name);
	will_enters(fs->will, WILL_ADOPTING);
}

static void leave(struct fs *fs)
{
	will_enters(fs->will, WILL_STARTING);
	memset(fs->will->space, 0, sizeof(fs->will->space));
}

static void say(const char *name, const struct adopt_report *r)
{
	uint64_t torn = r->torn_entries + r->torn_records + r->torn_groups + r->torn_grants + r->torn_rows + r->torn_seats;

	log_info("namespace %s is as it was: %" PRIu64 " values of %" PRIu64 " pages in memory, %" PRIu64 " on disk, in %" PRIu64
		 " ms; %" PRIu64 " slots are kept for clients of before, %" PRIu64 " put groups were lost, %" PRIu64 " committed",
		name, r->values, r->pages, r->places, (r->tables_us + r->disk_us + 999) / 1000, r->kept_slots, r->groups_lost,
		r->groups_committed);
	if (torn)
		log_info("namespace %s: dropped as torn: %" PRIu64 " values, %" PRIu64 " records, %" PRIu64 " put groups, %" PRIu64
			 " grants, %" PRIu64 " rows of files, %" PRIu64 " seats",
			name, r->torn_entries, r->torn_records, r->torn_groups, r->torn_grants, r->torn_rows, r->torn_seats);
}

/* ---- processes of before ------------------------------------------------------------------------------------------------ */

/* What the parent holds stays as it is. */
static void give_up(const char *name, const char *why)
{
	log_error("namespace %s cannot be adopted now: %s", name, why);
	_exit(EXIT_FAILURE);
}

/* Those of sessions of @name; the descriptors are the caller's. Returns how many; *ret is to be freed. */
static uint32_t take_sessions(struct heirlooms *h, const char *name, struct adopt_session **ret)
{
	uint32_t n = 0;

	*ret = calloc(h->session_count + 1, sizeof(**ret));
	if (!*ret)
		give_up(name, "no memory for the sessions of before");
	for (uint32_t i = 0; i < h->session_count; i++) {
		if (strcmp(h->sessions[i].space, name) != 0)
			continue;
		struct adopt_session s = {.number = h->sessions[i].number};

		s.pidfd = heirlooms_take_session(h, s.number, &s.guard_fd);
		if (s.pidfd >= 0)
			(*ret)[n++] = s;
	}
	return n;
}

static bool is_among(uint64_t number, const struct adopt_session *sessions, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (sessions[i].number == number)
			return true;
	return false;
}

/* The doorman watches those that something waits for; the parent lets go of the others. */
static void watch_sessions(struct fs *fs, struct space *space, const char *name, const struct adopt_session *given, uint32_t count)
{
	cleanup(freep) struct adopt_session *watched = calloc(count + 1, sizeof(*watched));
	uint32_t n = space && watched ? remnants_watch(space, watched, count) : 0;

	for (uint32_t i = 0; i < count; i++)
		if (!is_among(given[i].number, watched, n))
			doorman_forget(fs->doorman, name, given[i].number);
	for (uint32_t i = 0; i < n; i++)
		if (doorman_watch(fs->doorman, name, watched[i].number, watched[i].pidfd, watched[i].guard_fd))
			log_warning("the process of session %" PRIu64 " of namespace %s cannot be watched: what is kept for it waits for its client",
				watched[i].number, name);
}

/* ---- one namespace -------------------------------------------------------------------------------------------------------- */

static void let_go(struct fs *fs, const char *name, uint64_t serial)
{
	keeper_send(fs->keeper, KEEPER_DROP, "segment", name, serial, -1);
	keeper_send(fs->keeper, KEEPER_DROP, "tables", name, serial, -1);
}

static int judge_past(const struct fs *fs, const char *name, struct adoption *a, struct why *why)
{
	if (!is_deadly(fs, name))
		return 0;
	layout_free(&a->layout);
	close(a->segment_fd);
	close(a->tables_fd);
	for (uint32_t i = 0; i < a->session_count; i++)
		adopt_session_end(&a->sessions[i]);
	return why_set(why, EINVAL, "%u serving processes in a row died of adopting it", FAULTS);
}

enum inheritance_answer inheritance_take(struct fs *fs, struct heirlooms *heirlooms, const char *name, struct layout *layout,
	const struct space_access *access, struct space **ret, struct why *why)
{
	struct adoption a = {.name = name, .layout = layout, .access = access, .progress = going_on, .context = fs};
	cleanup(freep) struct adopt_session *sessions = NULL;
	struct adopt_report report;
	uint64_t serial;

	if (!heirlooms_take_space(heirlooms, name, &a.segment_fd, &a.tables_fd, &serial))
		return INHERITANCE_NONE;
	a.serial = (uint32_t)serial;
	a.session_count = take_sessions(heirlooms, name, &sessions);
	a.sessions = sessions;
	enter(fs, name);
	int r = judge_past(fs, name, &a, why);
	r = r ? r : host_space_adopt(fs->host, &a, ret, &report, why);
	leave(fs);
	if (r && !adopt_refused(r) && r != -ENOSPC)
		give_up(name, why->text);
	watch_sessions(fs, r ? NULL : *ret, name, sessions, a.session_count);
	if (r) {
		let_go(fs, name, serial);
		return INHERITANCE_REFUSED;
	}
	say(name, &report);
	return INHERITANCE_TAKEN;
}
