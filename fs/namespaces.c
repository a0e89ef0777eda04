/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/namespaces.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/connection.h"
#include "fs/dropped.h"
#include "fs/inheritance.h"
#include "fs/keeper.h"
#include "fs/log.h"
#include "fs/node.h"
#include "fs/notifier.h"
#include "fs/space_file.h"
#include "fs/watch.h"
#include "fs/will.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/base/killpoint.h"
#include "store/disk.h"

#define LOOK_AGAIN_NS 1000000000ull /* a wait for the turn ends after this and looks again */

enum namespace_state {
	NAMESPACE_FREE,
	NAMESPACE_PENDING,
	NAMESPACE_JUDGED,
	NAMESPACE_LIVE
};

struct namespace
{
	enum namespace_state state;
	uint64_t number;
	char name[HOST_MAX_NAME + 1];
	struct space *space;        /* LIVE: referenced */
	struct space_access access; /* until LIVE; then the space has it */
	int64_t created_s;
	char *text; /* PENDING: LAYOUT_MAX_JSON + 1 bytes, or NULL before the first write */
	size_t bytes;
	struct why error; /* the last refusal */
	char anew[200];   /* LIVE: why it was made anew */
	bool saved;       /* LIVE: it was written to the run folder, or read there */
	int unsaved;      /* LIVE: errno of the last attempt to write it to the run folder, 0 = it is there */
};

struct namespaces {
	struct fs *fs;
	struct lock lock; /* LOCK_QUEUE; guards the rest */
	struct lock_cond turn;
	bool writing; /* somebody has the turn to write to the run folder */
	uint64_t before; /* constant: the last number of an earlier serving process */
	unsigned count;  /* not free */
	struct dropped dropped; /* has a lock of its own */
	struct namespace at[NAMESPACES_MAX];
};

struct namespaces *namespaces_new(struct fs *fs)
{
	struct namespaces *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->fs = fs;
	n->before = atomic_load_explicit(&fs->will->namespaces, memory_order_relaxed);
	lock_init(&n->lock, LOCK_QUEUE);
	dropped_init(&n->dropped);
	lock_cond_init(&n->turn);
	return n;
}

static void clear(struct namespace *a)
{
	free(a->text);
	*a = (struct namespace){0};
}

void namespaces_free(struct namespaces **np)
{
	struct namespaces *n = *np;

	*np = NULL;
	if (!n)
		return;
	for (unsigned i = 0; i < NAMESPACES_MAX; i++) {
		space_unref(&n->at[i].space);
		clear(&n->at[i]);
	}
	lock_cond_destroy(&n->turn);
	lock_destroy(&n->lock);
	dropped_deinit(&n->dropped);
	free(n);
}

/* ---- finding ------------------------------------------------------------------------------------------------- */

static struct namespace *by_number(struct namespaces *n, uint64_t number)
{
	lock_assert_held(&n->lock);
	for (unsigned i = 0; i < NAMESPACES_MAX; i++)
		if (n->at[i].state != NAMESPACE_FREE && n->at[i].number == number)
			return &n->at[i];
	return NULL;
}

static struct namespace *by_name(struct namespaces *n, const char *name)
{
	lock_assert_held(&n->lock);
	for (unsigned i = 0; i < NAMESPACES_MAX; i++)
		if (n->at[i].state != NAMESPACE_FREE && !strcmp(n->at[i].name, name))
			return &n->at[i];
	return NULL;
}

/* Drops the lock. */
static int describe_and_drop(struct namespaces *n, const struct namespace *a, struct namespace_info *ret)
{
	if (a) {
		ret->number = a->number;
		memcpy(ret->name, a->name, sizeof(ret->name));
		ret->space = a->space ? space_ref(a->space) : NULL;
		ret->access = a->access;
		ret->created_s = a->created_s;
		ret->text_bytes = a->bytes;
		ret->saved = a->saved;
		ret->unsaved = a->unsaved;
		memcpy(ret->anew, a->anew, sizeof(ret->anew));
	}
	lock_drop(&n->lock);
	if (!a)
		return -ENOENT;
	if (ret->space)
		space_access(ret->space, &ret->access);
	return 0;
}

int namespaces_get(struct namespaces *n, uint64_t number, struct namespace_info *ret)
{
	lock_take(&n->lock);
	int r = describe_and_drop(n, by_number(n, number), ret);

	return r && number <= n->before ? -ESTALE : r;
}

int namespaces_find(struct namespaces *n, const char *name, struct namespace_info *ret)
{
	lock_take(&n->lock);
	return describe_and_drop(n, by_name(n, name), ret);
}

int namespaces_next(struct namespaces *n, uint64_t after, struct namespace_info *ret)
{
	struct namespace *best = NULL;

	lock_take(&n->lock);
	for (unsigned i = 0; i < NAMESPACES_MAX; i++) {
		struct namespace *a = &n->at[i];

		if (a->state != NAMESPACE_FREE && a->number > after && (!best || a->number < best->number))
			best = a;
	}
	return describe_and_drop(n, best, ret);
}

bool namespaces_of_low_bits(struct namespaces *n, uint32_t bits, uint64_t *number)
{
	bool found = false;

	lock_take(&n->lock);
	for (unsigned i = 0; i < NAMESPACES_MAX && !found; i++) {
		found = n->at[i].state == NAMESPACE_LIVE && (n->at[i].number & NODE_NAMESPACE_MASK) == bits;
		*number = n->at[i].number;
	}
	lock_drop(&n->lock);
	return found;
}

bool namespaces_of_serial(struct namespaces *n, uint32_t serial, uint64_t *number)
{
	bool found = false;

	lock_take(&n->lock);
	for (unsigned i = 0; i < NAMESPACES_MAX && !found; i++) {
		found = n->at[i].state == NAMESPACE_LIVE && space_serial(n->at[i].space) == serial;
		*number = n->at[i].number;
	}
	lock_drop(&n->lock);
	return found;
}

/* ---- the run folder ------------------------------------------------------------------------------------------ */

/* A turn to write to the run folder: no lock is held while that takes its time. */
static void begin_writing(struct namespaces *n)
{
	lock_assert_none_held();
	lock_take(&n->lock);
	while (n->writing)
		lock_cond_wait(&n->turn, &n->lock, clock_now_ns() + LOOK_AGAIN_NS);
	n->writing = true;
	lock_drop(&n->lock);
}

static void end_writing(struct namespaces *n)
{
	lock_take(&n->lock);
	n->writing = false;
	lock_cond_wake_all(&n->turn);
	lock_drop(&n->lock);
}

/* What became of writing it, an errno or 0. It is removed in a turn of its own. */
static void note_written(struct namespaces *n, const struct namespace_info *info, int error)
{
	lock_take(&n->lock);
	struct namespace *a = by_number(n, info->number);
	a->saved = a->saved || !error;
	a->unsaved = error;
	lock_drop(&n->lock);
	if (info->unsaved && !error)
		log_info("namespace %s is saved", info->name);
}

static void write_anew(struct namespaces *n, const struct namespace_info *info)
{
	char path[RUNDIR_PATH_BYTES];

	space_file_path(&n->fs->dir, info->name, path);
	if (info->saved && !info->unsaved)
		log_warning("%s was missing or changed; it is written anew", path);
	int error = -space_file_write(&n->fs->dir, info->name, info->space, &info->access, info->number);
	note_written(n, info, error);
	if (error && error != info->unsaved)
		log_warning("namespace %s would be lost with this process: %s: %s", info->name, path, strerror(error));
}

/* Writes it where what lies there is not what it is now; where that fails health says so until it succeeds. */
static void remember(struct namespaces *n, uint64_t number)
{
	struct namespace_info info = {0};

	begin_writing(n);
	if (namespaces_get(n, number, &info) == 0 && info.space &&
		(!info.saved || info.unsaved || !space_file_is_there(&n->fs->dir, info.name, info.space, &info.access, number)))
		write_anew(n, &info);
	space_unref(&info.space);
	end_writing(n);
}

void namespaces_save_again(struct namespaces *n)
{
	uint64_t numbers[NAMESPACES_MAX];
	unsigned count = 0;

	lock_take(&n->lock);
	for (unsigned i = 0; i < NAMESPACES_MAX; i++)
		if (n->at[i].state == NAMESPACE_LIVE && (n->at[i].saved || n->at[i].unsaved)) /* else it is just being written */
			numbers[count++] = n->at[i].number;
	lock_drop(&n->lock);
	for (unsigned i = 0; i < count; i++)
		remember(n, numbers[i]);
}

/* The namespace goes, and with it what would make it again. */
static void forget(struct namespaces *n, uint64_t number, const char *name)
{
	char path[RUNDIR_PATH_BYTES];
	struct space *space = NULL;

	begin_writing(n);
	lock_take(&n->lock);
	struct namespace *a = by_number(n, number);
	if (a) {
		space = a->space;
		clear(a);
		n->count--;
	}
	lock_drop(&n->lock);
	space_unref(&space);
	space_file_path(&n->fs->dir, name, path);
	int r = space_file_remove(&n->fs->dir, name);
	if (r)
		log_warning("namespace %s would come back, empty, after the death of this process: %s: %s", name, path,
			strerror(-r));
	end_writing(n);
}

/* ---- making -------------------------------------------------------------------------------------------------- */

/* With *number, or where that is 0 the next one. */
static int add(struct namespaces *n, const char *name, const struct space_access *access, struct space *space,
	uint64_t *number, struct why *why)
{
	struct namespace *a = NULL;
	int r = 0;

	lock_take(&n->lock);
	if (by_name(n, name))
		r = why_set(why, EEXIST, "namespace %s exists", name);
	else if (n->count >= n->fs->config->max_namespaces)
		r = why_set(
			why, ENOSPC, "namespace %s: there are %u, the most that max_namespaces allows", name, n->count);
	for (unsigned i = 0; i < NAMESPACES_MAX && !a && !r; i++)
		if (n->at[i].state == NAMESPACE_FREE)
			a = &n->at[i];
	if (!r && !a)
		r = why_set(why, ENOSPC, "namespace %s: there are %u, the most that one host has", name, n->count);
	if (!r) {
		n->count++;
		a->state = space ? NAMESPACE_LIVE : NAMESPACE_PENDING;
		a->number = *number ? *number : will_number(&n->fs->will->namespaces);
		snprintf(a->name, sizeof(a->name), "%s", name);
		a->space = space;
		a->access = *access;
		a->created_s = space ? (int64_t)space_created_s(space) : (int64_t)clock_wall_s();
		*number = a->number;
	}
	lock_drop(&n->lock);
	return r;
}

int namespaces_make(
	struct namespaces *n, const char *name, const struct space_access *access, uint64_t *number, struct why *why)
{
	int r = host_check_name(name, strlen(name), why);

	*number = 0;
	if (!r)
		r = add(n, name, access, NULL, number, why);
	if (!r)
		dropped_forget(&n->dropped, name);
	return r;
}

static int parse_with_floor(const char *text, size_t bytes, uint64_t floor, struct layout **ret, struct why *why)
{
	int r = layout_parse(text, bytes, ret, why);

	if (!r)
		(*ret)->floor_bytes = floor;
	return r;
}

/* What was held of a namespace and could not be used: said where people look. */
static void note_anew(struct namespaces *n, uint64_t number, const struct why *refusal)
{
	lock_take(&n->lock);
	struct namespace *a = by_number(n, number);
	if (a)
		snprintf(a->anew, sizeof(a->anew), "%s", refusal->text);
	lock_drop(&n->lock);
}

static void note_saved(struct namespaces *n, uint64_t number)
{
	lock_take(&n->lock);
	by_number(n, number)->saved = true;
	lock_drop(&n->lock);
}

/* *adopted: it is as it was. */
static int restore_as(struct namespaces *n, struct heirlooms *heirlooms, const char *name, const struct space_file *file, bool *adopted,
	struct why *why)
{
	enum inheritance_answer answer = INHERITANCE_NONE;
	struct why refusal = WHY_INIT;
	struct layout *layout;
	struct space *space;
	uint64_t number = file->number;
	int r = parse_with_floor(file->layout, file->layout_bytes, file->floor, &layout, why);

	if (!r && heirlooms)
		answer = inheritance_take(n->fs, heirlooms, name, layout, &file->access, &space, &refusal);
	if (answer == INHERITANCE_REFUSED) {
		log_warning("namespace %s is made anew, what was in memory is lost: %s", name, refusal.text);
		r = parse_with_floor(file->layout, file->layout_bytes, file->floor, &layout, why);
	}
	if (!r && answer != INHERITANCE_TAKEN)
		r = host_space_create(n->fs->host, name, layout, &file->access, &space, why);
	if (r)
		return r;
	*adopted = answer == INHERITANCE_TAKEN;
	r = add(n, name, &file->access, space, &number, why);
	if (r) {
		space_unref(&space);
		return r;
	}
	note_saved(n, number);
	if (answer == INHERITANCE_REFUSED)
		note_anew(n, number, &refusal);
	return 0;
}

static int restore_one(struct namespaces *n, struct heirlooms *heirlooms, const char *name, bool *adopted, struct why *why)
{
	struct space_file file = {0};
	int r = host_check_name(name, strlen(name), why);

	if (!r)
		r = space_file_read(&n->fs->dir, name, &file, why);
	if (!r)
		r = restore_as(n, heirlooms, name, &file, adopted, why);
	free(file.text);
	return r;
}

/* The disk knows another namespace of a name that is there: the one of the run folder, which was there last, has it. */
static void judge_clash(struct namespaces *n, const char *name, const struct layout *layout)
{
	struct namespace_info info;

	if (namespaces_find(n, name, &info))
		return;
	if (info.space && memcmp(space_layout(info.space)->fingerprint, layout->fingerprint, sizeof(layout->fingerprint)))
		log_warning("the disk holds another namespace %s, of another layout: its files stay unused; remove the one that "
			"is there and start again to have them",
			name);
	space_unref(&info.space);
}

static bool is_there(struct namespaces *n, const char *name)
{
	lock_take(&n->lock);
	bool there = by_name(n, name);
	lock_drop(&n->lock);
	return there;
}

/* What is held and no file of the run folder led to. Those whose file did not say enough were told of. */
static void note_unclaimed(struct namespaces *n, const struct heirlooms *heirlooms)
{
	char path[RUNDIR_PATH_BYTES], text[RUNDIR_PATH_BYTES + 16];

	for (uint32_t i = 0; i < heirlooms->space_count; i++) {
		const struct heirloom_space *s = &heirlooms->spaces[i];

		if (s->taken || dropped_is_noted(&n->dropped, s->name))
			continue;
		space_file_path(&n->fs->dir, s->name, path);
		snprintf(text, sizeof(text), "%s is missing", path);
		dropped_note(&n->dropped, s->name, text);
	}
}

/* What the disk holds, until all of it is known. */
struct found {
	struct host *host;
	unsigned count;
	struct found_one {
		char name[HOST_MAX_NAME + 1];
		struct layout *layout;
		uint64_t floor; /* that it had; 0 = that is not known */
		struct space_access access;
	} *at;
};

static void note_found(void *context, const char *name, const char *text, size_t bytes, uint64_t floor,
	const struct space_access *access)
{
	struct found *found = context;
	struct why why = WHY_INIT;
	struct layout *layout = NULL;
	struct found_one *more = realloc(found->at, (found->count + 1) * sizeof(*more));
	int r = more ? host_check_name(name, strlen(name), &why) : why_set(&why, ENOMEM, "no memory");

	found->at = more ? more : found->at;
	if (!r)
		r = layout_parse(text, bytes, &layout, &why);
	if (r) {
		log_error("namespace %.64s is not made again from the disk: %s", name, why.text);
		return;
	}
	struct found_one *one = &found->at[found->count++];
	*one = (struct found_one){.layout = layout, .floor = floor, .access = *access};
	snprintf(one->name, sizeof(one->name), "%s", name);
}

/* It is counted, and told by health until it is mended. */
static void note_damaged(void *context, const char *folder, const char *text)
{
	struct found *found = context;

	log_warning("the folder %s of the disk has no namespace, its files stay unused: %s", folder, text);
	host_disk_unused(found->host, folder, text);
}

/* Takes its layout over. */
static void restore_found(struct namespaces *n, struct found_one *one)
{
	struct layout *layout = one->layout;
	struct why why = WHY_INIT;
	struct space *space = NULL;
	char folder[DISK_DIR_NAME_BYTES];
	uint64_t number = 0;

	one->layout = NULL;
	disk_dir_name(folder, layout);
	if (is_there(n, one->name)) {
		judge_clash(n, one->name, layout);
		layout_free(&layout);
		return;
	}
	int r = host_space_create(n->fs->host, one->name, layout, &one->access, &space, &why);
	if (!r)
		r = add(n, one->name, &one->access, space, &number, &why);
	if (r) {
		space_unref(&space);
		log_error("namespace %s is not made again from the disk: %s", one->name, why.text);
		host_disk_unused(n->fs->host, folder, why.text);
		return;
	}
	remember(n, number);
	log_info("namespace %s is made again from the disk", one->name);
}

/* Do the floors that all of them had fit beside those that are promised already? */
static bool floors_fit(struct namespaces *n, const struct found *found)
{
	struct host_report host;

	host_report(n->fs->host, &host);
	uint64_t left = host.memory_bytes - host.floors_bytes;
	for (unsigned i = 0; i < found->count; i++) {
		if (is_there(n, found->at[i].name))
			continue;
		if (found->at[i].floor > left)
			return false;
		left -= found->at[i].floor;
	}
	return true;
}

/* Each with the floor that it had, so that all have theirs again whatever order they come in. With less memory than there was
 * those that asked for one have it, as far as they fit, and the others share what is left as new ones would. */
static void restore_from_disk(struct namespaces *n)
{
	struct found found = {.host = n->fs->host};

	host_disk_spaces(n->fs->host, note_found, note_damaged, &found);
	bool fit = floors_fit(n, &found);
	for (int own = 1; own >= 0; own--)
		for (unsigned i = 0; i < found.count; i++) {
			struct found_one *one = &found.at[i];

			if (!one->layout || (one->layout->floor_bytes > 0) != own)
				continue;
			if (fit && one->floor)
				one->layout->floor_bytes = one->floor;
			restore_found(n, one);
		}
	free(found.at);
}

void namespaces_restore(struct namespaces *n, struct heirlooms *heirlooms)
{
	struct host_disk_report disk;
	char path[RUNDIR_PATH_BYTES];
	struct dirent *e;

	host_disk_report(n->fs->host, &disk);
	rundir_path(&n->fs->dir, "spaces", path);
	DIR *d = opendir(path);
	while (d && (e = readdir(d))) {
		struct why why = WHY_INIT;
		size_t length = strlen(e->d_name);

		if (e->d_name[0] == '.' || e->d_name[length - 1] == '~')
			continue;
		bool adopted = false;
		if (restore_one(n, heirlooms, e->d_name, &adopted, &why))
			dropped_note(&n->dropped, e->d_name, why.text);
		else if (!adopted)
			log_info("namespace %s is made again%s", e->d_name,
				disk.state == HOST_DISK_OK || disk.state == HOST_DISK_FULL || disk.state == HOST_DISK_FAILING ? "" : ", empty");
	}
	if (d)
		closedir(d);
	restore_from_disk(n);
	if (heirlooms)
		note_unclaimed(n, heirlooms);
}

/* Does a client of before the last death still hold something of it, as one that has it open does? What was asked of the predecessor, and is
 * sent again, may be half done: that ends. */
static int check_remnants(struct space *space, const char *name, struct why *why)
{
	struct space_report report;

	space_report(space, &report);
	if (!report.remnant_slots || connection_resent())
		return 0;
	return why_set(why, EBUSY, "%" PRIu64 " slots of namespace %s are kept for clients of before the last death of the serving process",
		report.remnant_slots, name);
}

struct dropped *namespaces_dropped(struct namespaces *n)
{
	return &n->dropped;
}

int namespaces_remove(struct namespaces *n, const char *name, struct why *why)
{
	struct space *space = NULL;
	uint64_t number = 0;
	int r = 0;

	lock_take(&n->lock);
	struct namespace *a = by_name(n, name);
	if (!a) {
		r = why_set(why, ENOENT, "there is no namespace %s", name);
	} else if (a->state == NAMESPACE_JUDGED) {
		r = why_set(why, EBUSY, "the layout of namespace %s is being judged", name);
	} else if (a->state == NAMESPACE_PENDING) {
		clear(a);
		n->count--;
	} else {
		space = space_ref(a->space);
		number = a->number;
	}
	lock_drop(&n->lock);
	if (!space)
		return r;
	r = check_remnants(space, name, why);
	if (!r)
		r = host_space_remove(n->fs->host, name, why);
	if (!r) {
		uint32_t serial = space_serial(space);

		killpoint(KILLPOINT_RMDIR_GONE);
		forget(n, number, name);
		killpoint(KILLPOINT_RMDIR_FORGOTTEN);
		keeper_send(n->fs->keeper, KEEPER_DROP, "segment", name, serial, -1);
		killpoint(KILLPOINT_RMDIR_DROPPED);
		keeper_send(n->fs->keeper, KEEPER_DROP, "tables", name, serial, -1);
		notifier_namespace(n->fs->notifier, number, name, true);
		log_info("namespace %s is removed", name);
	}
	space_unref(&space);
	return r;
}

/* Of a live one, with the turn: written first, for after a death what lies there counts. */
static int set_live_access(struct namespaces *n, const struct namespace_info *info, const struct space_access *access)
{
	int r = space_file_write(&n->fs->dir, info->name, info->space, access, info->number);

	if (r) {
		log_warning("namespace %s keeps its access, for %s/spaces/%s cannot be written: %s", info->name, n->fs->dir.path,
			info->name, strerror(-r));
		return r;
	}
	note_written(n, info, 0);
	space_set_access(info->space, access);
	watch_space_access(n->fs->watch, space_serial(info->space), access);
	return 0;
}

int namespaces_set_access(struct namespaces *n, uint64_t number, const struct space_access *access)
{
	struct namespace_info info = {0};

	begin_writing(n);
	int r = namespaces_get(n, number, &info);
	if (!r && info.space)
		r = set_live_access(n, &info, access);
	if (!r) {
		lock_take(&n->lock);
		struct namespace *a = by_number(n, number);
		if (a)
			a->access = *access;
		else
			r = -ENOENT; /* a pending one, which is removed without the turn */
		lock_drop(&n->lock);
	}
	end_writing(n);
	if (!r)
		notifier_namespace(n->fs->notifier, number, info.name, false);
	space_unref(&info.space);
	return r;
}

/* ---- the layout ---------------------------------------------------------------------------------------------- */

/* Could more text make it whole? Everything else that is wrong with it, layout_parse says. */
static bool incomplete(const char *text, size_t bytes)
{
	json_error_t error;
	json_t *json = json_loadb(text, bytes, 0, &error);
	bool more = !json && json_error_code(&error) == json_error_premature_end_of_input;

	json_decref(json);
	return more;
}

static bool blank(const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (!strchr(" \t\r\n", text[i]) || !text[i])
			return false;
	return true;
}

/* What was said of the text before is over with it. */
static void begin_text(struct namespace *a)
{
	a->bytes = 0;
	a->error = (struct why)WHY_INIT;
}

/* Under the lock: the text joins what is there. 1: it is complete, *copy is to be judged. */
static int gather(struct namespace *a, uint64_t offset, const char *text, size_t bytes, char **copy, struct why *why)
{
	if (a->state == NAMESPACE_JUDGED)
		return why_set(why, EBUSY, "the layout of namespace %s is being judged", a->name);
	if (a->state == NAMESPACE_LIVE) {
		if (offset && blank(text, bytes))
			return 0;
		return why_set(why, EEXIST, "namespace %s has its layout; a layout never changes", a->name);
	}
	if (offset == 0)
		begin_text(a);
	if (offset != a->bytes)
		return why_set(why, EINVAL, "layout: %zu bytes at %" PRIu64 " do not follow the %zu that are there",
			bytes, offset, a->bytes);
	if (bytes > LAYOUT_MAX_JSON - a->bytes)
		return why_set(why, EFBIG, "layout: the text passes the limit of %u bytes", LAYOUT_MAX_JSON);
	if (!a->text)
		a->text = malloc(LAYOUT_MAX_JSON + 1);
	if (!a->text)
		return why_set(why, ENOMEM, "layout: no memory");
	memcpy(a->text + a->bytes, text, bytes);
	a->bytes += bytes;
	a->text[a->bytes] = 0;
	if (blank(a->text, a->bytes) || incomplete(a->text, a->bytes)) {
		why_set(&a->error, EINVAL, "layout: the text is incomplete: %zu byte%s so far", a->bytes,
			a->bytes == 1 ? "" : "s");
		return 0;
	}
	a->error = (struct why)WHY_INIT;
	*copy = malloc(a->bytes + 1);
	if (!*copy)
		return why_set(why, ENOMEM, "layout: no memory");
	memcpy(*copy, a->text, a->bytes + 1);
	a->state = NAMESPACE_JUDGED;
	return 1;
}

static int judge(struct namespaces *n, const struct namespace_info *info, const char *text, size_t bytes,
	struct space **space, struct why *why)
{
	struct layout *layout;
	int r = layout_parse(text, bytes, &layout, why);

	return r ? r : host_space_create(n->fs->host, info->name, layout, &info->access, space, why);
}

/* Is it the text that has made the namespace? Its writer died before the answer, and it is sent again. */
static bool has_made_it(struct namespaces *n, uint64_t number, const char *text, size_t bytes)
{
	struct namespace_info info;
	struct layout *layout = NULL;
	struct why why = WHY_INIT;

	if (namespaces_get(n, number, &info))
		return false;
	bool same = info.space && layout_parse(text, bytes, &layout, &why) == 0 && !strcmp(layout->json, space_layout(info.space)->json);
	layout_free(&layout);
	space_unref(&info.space);
	return same;
}

int namespaces_write_layout(
	struct namespaces *n, uint64_t number, uint64_t offset, const char *text, size_t bytes, struct why *why)
{
	cleanup(freep) char *copy = NULL;
	struct namespace_info info;
	struct space *space = NULL;

	if (!offset && connection_resent() && has_made_it(n, number, text, bytes))
		return 0;
	lock_take(&n->lock);
	struct namespace *a = by_number(n, number);
	int r = a ? gather(a, offset, text, bytes, &copy, why) : why_set(why, number <= n->before ? ESTALE : ENOENT, "the namespace is gone");
	if (a && r < 0 && r != -EBUSY && a->state == NAMESPACE_PENDING) {
		a->error = *why;
		a->bytes = 0;
	}
	if (r <= 0) {
		lock_drop(&n->lock);
		return r;
	}
	describe_and_drop(n, a, &info);
	r = judge(n, &info, copy, info.text_bytes, &space, why);
	lock_take(&n->lock);
	a = by_number(n, number); /* a judged one is not removed */
	a->bytes = 0;
	if (r) {
		a->state = NAMESPACE_PENDING;
		a->error = *why;
	} else {
		a->state = NAMESPACE_LIVE;
		a->space = space_ref(space);
		free(a->text);
		a->text = NULL;
	}
	lock_drop(&n->lock);
	if (!r) {
		remember(n, number);
		space_unref(&space);
	}
	if (r)
		log_info("namespace %s: layout refused: %s", info.name, why->text);
	else
		log_info("namespace %s is made", info.name);
	return r;
}

int namespaces_truncate_layout(struct namespaces *n, uint64_t number)
{
	int r = -ENOENT;

	lock_take(&n->lock);
	struct namespace *a = by_number(n, number);
	if (a && a->state == NAMESPACE_PENDING) {
		begin_text(a);
		r = 0;
	} else if (a) {
		r = a->state == NAMESPACE_LIVE ? -EEXIST : -EBUSY;
	}
	lock_drop(&n->lock);
	return r;
}

char *namespaces_text(struct namespaces *n, uint64_t number, bool error, size_t *bytes)
{
	char *copy = NULL;

	lock_take(&n->lock);
	struct namespace *a = by_number(n, number);
	if (a) {
		const char *from = error ? a->error.text : a->text ? a->text : "";

		*bytes = error ? strlen(from) : a->bytes;
		copy = malloc(*bytes + 2);
		if (copy) {
			memcpy(copy, from, *bytes);
			if (error && *bytes)
				copy[(*bytes)++] = '\n';
			copy[*bytes] = 0;
		}
	}
	lock_drop(&n->lock);
	return copy;
}
