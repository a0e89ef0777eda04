/* SPDX-License-Identifier: Apache-2.0
 *
 * The host: its budget, the list of namespaces, the table of sessions.
 */
#include "store/host_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/session_private.h"
#include "store/tiering.h"

#define HOST_GOING_NS 5000000000ull /* a creation waits so long for a removal */

int host_new(const struct host_config *config, struct host **ret, struct why *why)
{
	struct host *host;
	int r;

	if (config->memory_bytes < HOST_MIN_MEMORY)
		return why_set(why, EINVAL, "memory: %llu bytes are under the least budget of %llu",
			       (unsigned long long)config->memory_bytes, (unsigned long long)HOST_MIN_MEMORY);
	if (config->populate_threads < 1 || config->populate_threads > 64)
		return why_set(why, EINVAL, "populate_threads: %u is not within 1..64", config->populate_threads);
	host = calloc(1, sizeof(*host));
	if (!host)
		return why_set(why, ENOMEM, "no memory for the host's tables");
	host->config = *config;
	host->last_serial = config->last_serial ? config->last_serial : &host->own_serial;
	host->last_session = config->last_session ? config->last_session : &host->own_session;
	lock_init(&host->lock, LOCK_HOST);
	lock_cond_init(&host->gone);
	budget_init(&host->budget, config->memory_bytes);
	r = host_disk_open(host, why);
	if (!r) {
		r = grower_new(host, config->populate_threads, &host->grower, why);
		if (r)
			host_disk_close(host);
	}
	if (r) {
		budget_destroy(&host->budget);
		lock_cond_destroy(&host->gone);
		lock_destroy(&host->lock);
		free(host);
		return r;
	}
	*ret = host;
	return 0;
}

static void host_end_sessions(struct host *host)
{
	for (uint32_t i = 0; i < HOST_MAX_SESSIONS; i++) {
		struct session *s = NULL;

		lock_take(&host->lock);
		if (host->sessions[i])
			s = session_ref(host->sessions[i]);
		lock_drop(&host->lock);
		if (s) {
			session_release(s);
			session_unref(&s);
		}
	}
}

/* The mover may be looking through them. */
static void host_let_spaces_go(struct host *host)
{
	bool more = true;

	while (more) {
		struct space *space = NULL;

		lock_take(&host->lock);
		more = host->space_count > 0;
		if (more)
			space = host->spaces[--host->space_count];
		lock_drop(&host->lock);
		space_unref(&space);
	}
}

void host_free(struct host **hp)
{
	struct host *host = *hp;

	*hp = NULL;
	if (!host)
		return;
	atomic_store(&host->closing, true);
	host_end_sessions(host);
	quarantine_free_all(host);
	grower_free(&host->grower);
	host_let_spaces_go(host);
	host_disk_close(host);
	budget_destroy(&host->budget);
	lock_cond_destroy(&host->gone);
	lock_destroy(&host->lock);
	free(host);
}

const struct host_config *host_config(const struct host *host)
{
	return &host->config;
}

int host_check_name(const char *name, size_t bytes, struct why *why)
{
	if (!bytes)
		return why_set(why, EINVAL, "a namespace's name is empty");
	if (bytes > HOST_MAX_NAME)
		return why_set(why, ENAMETOOLONG, "a namespace's name has %zu bytes; the limit is %u", bytes, HOST_MAX_NAME);
	if (name[0] == '.')
		return why_set(why, EINVAL, "a namespace's name may not begin with a dot");
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)name[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '.' && c != '_' &&
		    c != '-')
			return why_set(why, EINVAL, "a namespace's name has byte 0x%02x at %zu; A-Z, a-z, 0-9, '.', '_' and "
				       "'-' are allowed", c, i);
	}
	return 0;
}

uint32_t host_all_spaces(struct host *host, struct space *ret[HOST_MAX_SPACES])
{
	uint32_t n;

	lock_take(&host->lock);
	for (n = 0; n < host->space_count; n++)
		ret[n] = space_ref(host->spaces[n]);
	lock_drop(&host->lock);
	return n;
}

/* ---- namespaces ---------------------------------------------------------------------------------------------- */

static struct space *host_find_locked(struct host *host, const char *name)
{
	lock_assert_held(&host->lock);
	for (uint32_t i = 0; i < host->space_count; i++)
		if (!strcmp(host->spaces[i]->name, name))
			return host->spaces[i];
	return NULL;
}

/* Would they have one folder on the disk? */
static bool same_folder(const struct space *space, const struct layout *layout)
{
	char one[DISK_DIR_NAME_BYTES], other[DISK_DIR_NAME_BYTES];

	if (!space->host->disk)
		return false;
	disk_dir_name(one, space->layout);
	disk_dir_name(other, layout);
	return !strcmp(one, other);
}

static int host_may_create(struct host *host, const char *name, const struct layout *layout, struct why *why)
{
	lock_assert_held(&host->lock);
	if (host_find_locked(host, name))
		return why_set(why, EEXIST, "namespace %s exists", name);
	for (uint32_t i = 0; i < host->space_count; i++)
		if (same_folder(host->spaces[i], layout))
			return why_set(why, EEXIST, "namespace %s: namespace %s has the same identity and layout, and one record folder "
				       "serves one namespace", name, host->spaces[i]->name);
	if (host->space_count == HOST_MAX_SPACES)
		return why_set(why, ENOSPC, "namespace %s: there are %u, the most that one host has", name, HOST_MAX_SPACES);
	return 0;
}

/* Out of view; the list's reference is the caller's now. */
static void unlist_locked(struct host *host, struct space *space)
{
	lock_assert_held(&host->lock);
	space->listed = false;
	for (uint32_t i = 0; i < host->space_count; i++)
		if (host->spaces[i] == space) {
			memmove(&host->spaces[i], &host->spaces[i + 1],
				(host->space_count - i - 1) * sizeof(host->spaces[0]));
			host->space_count--;
			break;
		}
}

/* The same of a space that could not be finished, if it was in view. */
static void unlist(struct host *host, struct space *space)
{
	struct space *listed = NULL;

	lock_take(&host->lock);
	if (space->listed) {
		unlist_locked(host, space);
		listed = space;
	}
	lock_drop(&host->lock);
	space_unref(&listed);
}

/* A removed one of that folder: its name, or NULL. */
static const char *find_going(const struct host *host, const struct layout *layout)
{
	lock_assert_held(&host->lock);
	for (const struct space *space = host->going; space; space = space->next_going)
		if (space->tiering && same_folder(space, layout))
			return space->name;
	return NULL;
}

/* Does the floor that @layout wants lack what removed ones still have? One that nobody chose wants as much as it could have. */
static bool lacks_going(struct host *host, const struct layout *layout)
{
	struct budget_report budget;
	uint64_t going = 0, left, wants;

	lock_assert_held(&host->lock);
	for (const struct space *space = host->going; space; space = space->next_going)
		going += space->floor_bytes + space->layout->blobs_bytes;
	if (!going)
		return false;
	budget_report(&host->budget, &budget);
	left = budget.bytes - budget.floors;
	if (!layout->floor_bytes)
		return budget_default(budget.bytes, budget.floors) < budget_default(budget.bytes, 0);
	wants = layout->floor_bytes + layout->blobs_bytes;
	return wants > left && wants - left <= going;
}

/* Only memory and the folder's name are waited for: the files go behind that. A floor that lacks after all is refused as any other. */
static int await_going(struct host *host, const char *name, const struct layout *layout, struct why *why)
{
	const uint64_t deadline_ns = clock_now_ns() + HOST_GOING_NS;
	const char *going;
	bool in_time = true;

	lock_assert_held(&host->lock);
	host->await_going++;
	while (((going = find_going(host, layout)) || lacks_going(host, layout)) && in_time)
		in_time = lock_cond_wait(&host->gone, &host->lock, deadline_ns);
	host->await_going--;
	return going ? why_set(why, EBUSY, "namespace %s: the files of namespace %s, which was removed, are still being removed; try again",
			       name, going) : 0;
}

static void note_going_locked(struct host *host, struct space *space)
{
	lock_assert_held(&host->lock);
	space->going = true;
	space->next_going = host->going;
	host->going = space;
}

void host_space_gone(struct space *space)
{
	struct host *host = space->host;
	struct space **at = &host->going;

	lock_take(&host->lock);
	while (space->going && *at != space)
		at = &(*at)->next_going;
	if (space->going)
		*at = space->next_going;
	space->going = false;
	lock_cond_wake_all(&host->gone);
	lock_drop(&host->lock);
}

int host_list(struct host *host, struct space *space, struct why *why)
{
	lock_take(&host->lock);
	int r = host_may_create(host, space->name, space->layout, why);

	if (!r) {
		host->spaces[host->space_count++] = space_ref(space);
		space->listed = true;
	}
	lock_drop(&host->lock);
	return r;
}

int host_space_create(struct host *host, const char *name, struct layout *layout, const struct space_access *access,
		      struct space **ret, struct why *why)
{
	struct space *space;
	uint32_t serial = 0;
	int r;

	r = host_check_name(name, strlen(name), why);
	if (!r) {
		lock_take(&host->lock);
		r = host_may_create(host, name, layout, why);
		if (!r) {
			r = await_going(host, name, layout, why);
			r = r ? r : host_may_create(host, name, layout, why); /* the lock was not held meanwhile */
		}
		serial = r ? 0 : (uint32_t)(atomic_fetch_add(host->last_serial, 1) + 1);
		lock_drop(&host->lock);
	}
	if (r) {
		layout_free(&layout);
		return r;
	}
	r = space_new(host, name, serial, layout, access, &space, why);
	if (r)
		return r;
	r = host_list(host, space, why); /* somebody may have been faster */
	if (!r && space->tiering)
		r = tiering_save_space(space, why);
	if (r) {
		unlist(host, space);
		space_unref(&space);
		return r;
	}
	killpoint(KILLPOINT_SPACE_MADE);
	if (host->config.events.keep) {
		host->config.events.keep(host->config.events.context, "segment", name, serial, segment_fd(space->segment));
		killpoint(KILLPOINT_SPACE_SEGMENT);
		host->config.events.keep(host->config.events.context, "tables", name, serial, space->tables_fd);
		killpoint(KILLPOINT_SPACE_TABLES);
	}
	space_note(space, &(struct host_event){.kind = HOST_EVENT_SPACE_CREATED});
	*ret = space;
	return 0;
}

int host_space_remove(struct host *host, const char *name, struct why *why)
{
	struct space *space;

	lock_take(&host->lock);
	space = host_find_locked(host, name);
	if (!space || space->sessions) {
		int r = space ? why_set(why, EBUSY, "namespace %s has %u open sessions", name, space->sessions) :
				why_set(why, ENOENT, "there is no namespace %s", name);

		lock_drop(&host->lock);
		return r;
	}
	unlist_locked(host, space);
	note_going_locked(host, space);
	lock_drop(&host->lock);
	if (space->tiering) {
		disk_dir_rename_away(space->tiering->dir); /* or a death from here on would bring it back */
		atomic_store(&space->tiering->remove, true);
	}
	space_note(space, &(struct host_event){.kind = HOST_EVENT_SPACE_REMOVED});
	space_unref(&space);
	return 0;
}

void host_report(struct host *host, struct host_report *ret)
{
	struct space *spaces[HOST_MAX_SPACES];
	struct budget_report budget;
	uint32_t n;

	budget_report(&host->budget, &budget);
	*ret = (struct host_report){
		.memory_bytes = budget.bytes,
		.floors_bytes = budget.floors,
		.granted_bytes = budget.granted,
		.free_bytes = budget.free,
		.owed_bytes = budget.owed,
	};
	lock_take(&host->lock);
	n = host->space_count;
	for (uint32_t i = 0; i < n; i++)
		spaces[i] = space_ref(host->spaces[i]);
	ret->sessions = host->session_count;
	lock_drop(&host->lock);
	ret->spaces = n;
	for (uint32_t i = 0; i < n; i++) {
		struct space_report report;

		space_report(spaces[i], &report);
		ret->used_bytes += report.slot_bytes + report.blob_bytes;
		space_unref(&spaces[i]);
	}
}

bool host_populating(struct host *host)
{
	bool populating = false;

	if (!host->config.populate)
		return false;
	lock_take(&host->lock);
	for (uint32_t i = 0; i < host->space_count && !populating; i++)
		populating = atomic_load(&host->spaces[i]->prewarm_done) < host->spaces[i]->prewarm_goal;
	lock_drop(&host->lock);
	return populating;
}
