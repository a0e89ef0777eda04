/* SPDX-License-Identifier: Apache-2.0
 *
 * Adoption: its steps by name, and how a process leaves behind what the next one adopts.
 */
#include "store/adopt_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/host_private.h"
#include "store/outcomes.h"
#include "store/remnants.h"
#include "store/tiering.h"

void adopt_session_end(const struct adopt_session *s)
{
	if (s->pidfd >= 0)
		close(s->pidfd);
	if (s->guard_fd >= 0)
		close(s->guard_fd);
}

bool adopt_refused(int error)
{
	return error == -EPROTO || error == -ESTALE || error == -EXDEV || error == -EINVAL;
}

/* ---- the steps ------------------------------------------------------------------------------------------------------ */

/* The files become the space's, so that its end is theirs. */
static int take_files(struct attempt *a)
{
	struct space *space = a->space;

	space->tables_fd = a->from->tables_fd;
	return segment_adopt(a->from->segment_fd, space->host->config.wish, &space->segment, a->why);
}

static void entries_seen(void *context, uint64_t entries)
{
	const struct attempt *a = context;

	if (a->from->progress)
		a->from->progress(a->from->context, entries, a->space->tables.header->slots);
}

static int make_parts(struct attempt *a)
{
	struct space *space = a->space;
	int r = space_memory_new(space, a->why);

	r = r ? r : space_index_new(space, &a->ranges, a->why);
	r = r ? r : space_groups_new(space, a->why);
	if (!r && a->ranges.places && space->host->disk)
		r = tiering_new(space, space->host->disk, a->ranges.slots, a->ranges.places, a->why);
	atomic_store(&space->generation, space->tables.header->generation);
	return r;
}

/* Does a predecessor perhaps still read into slots? Whoever has the disk's lock knows that none does. */
static bool reads_may_run(const struct host *host)
{
	return host->config.disk_path && !host->disk;
}

static int rebuild(struct attempt *a)
{
	struct space *space = a->space;
	int r;

	lock_take(&space->lock);
	index_watch_rebuild(space->index, entries_seen, a);
	a->report->torn_grants = slots_judge(space->slots);
	killpoint(KILLPOINT_ADOPT_GRANTS);
	r = index_rebuild(space->index, a->why);
	if (!r) {
		killpoint(KILLPOINT_ADOPT_INDEX);
		slots_rest(space->slots, reads_may_run(space->host));
		r = slots_rebuild(space->slots, a->why);
	}
	index_watch_rebuild(space->index, NULL, NULL);
	lock_drop(&space->lock);
	return r;
}

static int take_remnants(struct attempt *a)
{
	return remnants_adopt(a->space, a->from, a->report, &a->space->remnants, a->why);
}

static int take_outcomes(struct attempt *a)
{
	return outcomes_adopt(a->space, &a->space->outcomes, a->report, a->why);
}

/* Grants as they are, whatever that leaves to others. */
static int take_budget(struct attempt *a)
{
	struct space *space = a->space;
	struct slots_grant grant;

	lock_take(&space->lock);
	space_capacities(space);
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++) {
		if (!slots_grant_get(space->slots, id, &grant))
			continue;
		budget_force(&space->host->budget, space->floor_bytes, space->granted_bytes, grant.length);
		space->granted_bytes += grant.length;
		space->cut_at[id] = index_clock(space->index);
		if (grant.ready)
			continue;
		slots_grant_renew(space->slots, id); /* populated by host_adopted */
		space->cold[id / 64] |= 1ull << id % 64;
	}
	space->adopted = true;
	lock_drop(&space->lock);
	return 0;
}

static int count(struct attempt *a)
{
	struct space *space = a->space;
	struct adopt_report *ret = a->report;
	struct index_rebuilt rebuilt;

	lock_take(&space->lock);
	index_rebuilt(space->index, &rebuilt);
	ret->entries = rebuilt.entries;
	ret->torn_entries = rebuilt.torn_entries;
	ret->torn_records = rebuilt.torn_records;
	ret->torn_groups = rebuilt.torn_groups;
	ret->records = index_counters(space->index)->records;
	ret->pages = index_counters(space->index)->pages;
	for (uint32_t id = 0; id < slots_grant_limit(space->slots); id++) {
		struct slots_grant g;

		if (slots_grant_get(space->slots, id, &g) && g.ready)
			ret->values += g.slots - g.free;
	}
	ret->values -= space->stats.slots_owed;
	ret->places = space->tiering ? space->tiering->places_used : 0;
	lock_drop(&space->lock);
	return 0;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

/* As host_space_create. The files become the attempt's as soon as it has a space. */
static int begin(struct host *host, const struct adoption *from, struct attempt *a)
{
	int r = host_check_name(from->name, strlen(from->name), a->why);
	struct layout *layout = from->layout;

	a->space = r ? NULL : space_empty(host, from->name, from->serial, layout, from->access);
	if (r)
		layout_free(&layout);
	else if (!a->space)
		r = why_set(a->why, ENOMEM, "no memory for namespace %s", from->name);
	if (r)
		close(from->segment_fd), close(from->tables_fd);
	else if ((r = take_files(a)) == 0)
		r = space_promise(a->space, a->why);
	return r;
}

static void end_sessions(const struct adoption *from)
{
	for (uint32_t i = 0; i < from->session_count; i++)
		adopt_session_end(&from->sessions[i]);
}

int host_space_adopt(struct host *host, struct adoption *adoption, struct space **ret, struct adopt_report *report,
		     struct why *why)
{
	static const struct {
		int (*take)(struct attempt *);
		enum killpoint done;
	} steps[] = {
		{ adopt_judge, KILLPOINT_ADOPT_HEADER },
		{ make_parts, KILLPOINTS },
		{ rebuild, KILLPOINT_ADOPT_SLOTS },
		{ take_remnants, KILLPOINT_ADOPT_SEATS },
		{ take_outcomes, KILLPOINT_ADOPT_OUTCOMES },
		{ adopt_disk, KILLPOINT_ADOPT_DISK },
		{ take_budget, KILLPOINT_ADOPT_BUDGET },
		{ count, KILLPOINTS },
	};
	struct attempt a = { .from = adoption, .report = report, .why = why };
	uint64_t began_ns = clock_now_ns();

	*report = (struct adopt_report){ 0 };
	int r = begin(host, adoption, &a);

	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]) && !r; i++) {
		r = steps[i].take(&a);
		if (!r && steps[i].done != KILLPOINTS)
			killpoint(steps[i].done);
	}
	if (!r)
		a.space->fills_sweep = a.space->fills != NULL;
	r = r ? r : host_list(host, a.space, why);
	if (r) {
		if (!a.space || !a.space->remnants)
			end_sessions(adoption);
		space_unref(&a.space);
		return r;
	}
	report->tables_us = (clock_now_ns() - began_ns) / 1000 - report->disk_us;
	space_note(a.space, &(struct host_event){ .kind = HOST_EVENT_SPACE_CREATED });
	*ret = a.space;
	return 0;
}

void host_adopted(struct host *host)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = host_all_spaces(host, spaces);

	for (uint32_t i = 0; i < n; i++) {
		struct space *space = spaces[i];

		lock_take(&space->lock);
		if (space->adopted) {
			space_cut_floor(space, NULL); /* what finds no memory now is granted when it is asked for */
			space_prewarm(space);
			space->adopted = false;
		}
		lock_drop(&space->lock);
		space_unref(&spaces[i]);
	}
	killpoint(KILLPOINT_ADOPT_ALL);
}

/* ---- leaving ----------------------------------------------------------------------------------------------------------- */

static uint64_t left_ns(uint64_t deadline_ns)
{
	uint64_t now_ns = clock_now_ns();

	return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

/* Jobs first: the catalogues hear of what they have done. */
static void leave_disk(struct host *host, uint64_t deadline_ns)
{
	struct space *spaces[HOST_MAX_SPACES];
	uint32_t n = host_all_spaces(host, spaces);

	mover_stop(host); /* and is there until the process ends: jobs ask it */
	if (host->disk)
		disk_stop(host->disk, left_ns(deadline_ns));
	for (uint32_t i = 0; i < n; i++) {
		if (spaces[i]->tiering)
			catalogue_close(&spaces[i]->tiering->catalogue, left_ns(deadline_ns));
		space_unref(&spaces[i]);
	}
}

void host_leave(struct host *host, uint64_t deadline_ns)
{
	lock_assert_none_held();
	atomic_store(&host->closing, true);
	leave_disk(host, deadline_ns);
}
