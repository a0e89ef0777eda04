/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check, repairs: what is damaged goes, what is good gets the length and the name that it was judged to need. A file is
 * never renamed over another one: where that one is to get another name too, the two exchange theirs.
 */
#include "store/disk_check.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/cleanup.h"

static struct disk_ops *ops_of(const struct check_space *s)
{
	return disk_ops(s->check->disk);
}

static void failed(struct check_space *s, const char *path, const char *what, int error)
{
	s->check->report->unrepaired++;
	check_tell(s->check, s, path, "it could not be %s: %s", what, strerrordesc_np(error));
}

static void remove_file(struct check_space *s, struct check_file *f)
{
	char path[CHECK_PATH_BYTES];

	check_path_of(path, f->consumed, &f->endpoint);
	int r = ops_of(s)->table->unlink(ops_of(s), disk_dir_fd(s->dir), path);

	if (r) {
		failed(s, path, "removed", -r);
		return;
	}
	f->state = CHECK_GONE;
	s->check->report->removed++;
}

static int sync_folder(struct check_space *s, const char *path)
{
	char folder[3] = {path[0], path[1], 0};
	cleanup(closep) int fd = openat(disk_dir_fd(s->dir), folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : ops_of(s)->table->sync_dir(ops_of(s), fd);
}

static bool has_name(const struct check_file *f, uint64_t consumed, const struct key *endpoint)
{
	return f->consumed == consumed && !memcmp(&f->endpoint, endpoint, sizeof(*endpoint));
}

/* Who has the name that @f is to have, now: the table knows names as they were found. */
static struct check_file *holder(const struct check_space *s, const struct check_file *f)
{
	struct check_file *other = check_find(s, f->new_consumed, &f->new_endpoint);

	for (uint32_t i = 0; !other && i < s->count; i++)
		if (s->files[i].state != CHECK_GONE && has_name(&s->files[i], f->new_consumed, &f->new_endpoint))
			other = &s->files[i];
	return other;
}

/* The two names change places at once, so a death leaves both files. False: @f went, or it is as it was. */
static bool exchange(struct check_space *s, struct check_file *f, struct check_file *other, const char *from, const char *to)
{
	int dir = disk_dir_fd(s->dir);

	if (renameat2(dir, from, dir, to, RENAME_EXCHANGE)) {
		if (errno != EINVAL && errno != ENOSYS) {
			failed(s, from, "renamed", errno);
			return false;
		}
		check_tell(s->check, s, from, "it and another file have each other's names, which cannot be exchanged here: it goes");
		remove_file(s, f);
		return false;
	}
	other->consumed = f->consumed;
	other->endpoint = f->endpoint;
	f->consumed = f->new_consumed;
	f->endpoint = f->new_endpoint;
	f->row_wrong = other->row_wrong = true;
	sync_folder(s, from);
	return true;
}

/* A file that is good has the name: one that is to have another exchanges it with @f (true: @f has it now). One that is to keep
 * it has all that is good of @f, which goes. What is not known to be good stays, and so does @f. */
static bool take_name(struct check_space *s, struct check_file *f, const char *from, const char *to)
{
	struct check_file *other = holder(s, f);

	if (!other || other->state != CHECK_GOOD) {
		failed(s, from, "renamed", EEXIST);
		return false;
	}
	if (other->changed && !has_name(other, other->new_consumed, &other->new_endpoint))
		return exchange(s, f, other, from, to);
	if (other->changed) {
		failed(s, from, "renamed", EEXIST);
		return false;
	}
	check_tell(s->check, s, from, "another file has the name that it should have, and all that is good of it: it goes");
	remove_file(s, f);
	return false;
}

/* Renamed first, then cut: a death in between leaves it longer than its name says, which is ignored. */
static int rename_and_cut(struct check_space *s, struct check_file *f, int fd, const char *from, const char *to)
{
	struct disk_ops *ops = ops_of(s);
	int dir = disk_dir_fd(s->dir), r = 0;
	char folder[3] = {to[0], to[1], 0};

	if (strcmp(from, to)) {
		if (mkdirat(dir, folder, 0700) && errno != EEXIST)
			return -errno;
		r = ops->table->rename(ops, dir, from, dir, to);
		if (r)
			return r;
		f->consumed = f->new_consumed;
		f->endpoint = f->new_endpoint;
	}
	assert(f->new_bytes <= f->bytes);
	if (f->new_bytes < f->bytes)
		r = ops->table->truncate(ops, fd, f->new_bytes);
	if (r)
		return r;
	f->bytes = f->new_bytes;
	f->changed = false;
	f->row_wrong = true;
	/* What is not synced is found once more after a crash. */
	ops->table->sync(ops, fd);
	sync_folder(s, to);
	return 0;
}

static void change_file(struct check_space *s, struct check_file *f)
{
	struct disk_ops *ops = ops_of(s);
	int dir = disk_dir_fd(s->dir);
	char from[CHECK_PATH_BYTES], to[CHECK_PATH_BYTES];

	check_path_of(from, f->consumed, &f->endpoint);
	check_path_of(to, f->new_consumed, &f->new_endpoint);
	if (strcmp(from, to) && !faccessat(dir, to, F_OK, AT_SYMLINK_NOFOLLOW)) {
		if (!take_name(s, f, from, to))
			return;
		strcpy(from, to);
	}
	int fd = ops->table->open(ops, dir, from, true);
	int r = fd < 0 ? fd : rename_and_cut(s, f, fd, from, to);

	if (fd >= 0)
		ops->table->close(ops, fd);
	if (r)
		failed(s, from, strcmp(from, to) ? "renamed and cut" : "cut", -r);
	else
		s->check->report->repaired++;
}

/* Shorter ones first: a name that is given up is free when a longer one needs it. */
static int shorter(const void *a, const void *b)
{
	const struct check_file *x = *(struct check_file *const *)a, *y = *(struct check_file *const *)b;

	return (x->new_consumed > y->new_consumed) - (x->new_consumed < y->new_consumed);
}

void check_repair(struct check_space *s)
{
	cleanup(freep) struct check_file **changed = calloc((size_t)s->count + 1, sizeof(*changed));
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->count; i++) {
		struct check_file *f = &s->files[i];

		if (f->state == CHECK_DAMAGED)
			remove_file(s, f);
		else if (f->state == CHECK_GOOD && f->changed && changed)
			changed[count++] = f;
		else if (f->state == CHECK_GOOD && f->changed)
			s->check->report->unrepaired++;
	}
	if (changed)
		qsort(changed, count, sizeof(*changed), shorter);
	for (uint32_t i = 0; i < count; i++)
		change_file(s, changed[i]);
}
