/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/passthrough.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "fs/handles.h"
#include "fs/log.h"
#include "store/base/cleanup.h"
#include "store/base/lock.h"

struct backing {
	struct passthrough *owner;
	struct passthrough_of of;
	uint32_t opens; /* 0 = free */
	int id;         /* the kernel's */
	dev_t device;   /* of its file, likewise inode: no other file has them while the kernel has it open */
	ino_t inode;
};

struct passthrough {
	struct fs *fs;
	bool asked;       /* the kernel can, and was asked to; constant after INIT */
	bool began;       /* constant after passthrough_begin */
	struct lock lock; /* guards everything below */
	bool on;          /* a node may begin with a backing; once false it stays so */
	uint32_t used;    /* places that were ever used */
	struct backing at[PASSTHROUGH_OPENS];
};

/* ---- the kernel ---------------------------------------------------------------------------------------------------- */

#if PFS_HAVE_PASSTHROUGH

#define NOT_ASKED "the kernel has no passthrough"
#define BACKINGS_BEFORE (1u << 20) /* numbers of an earlier serving process's that are let go of, at most */

static bool ask_kernel(struct fuse_conn_info *conn)
{
	if (!(conn->capable & FUSE_CAP_PASSTHROUGH))
		return false;
	conn->want |= FUSE_CAP_PASSTHROUGH;
	conn->max_backing_stack_depth = FUSE_BACKING_STACKED_OVER; /* containers' folders lie on an overlay */
	return true;
}

/* The id of a backing, or a negative errno. fuse_passthrough_open does the same, but for an open alone, and a missing privilege is
 * an error in the log to it. */
static int kernel_open(const struct fs *fs, int file)
{
	struct fuse_backing_map map = {.fd = file};
	int id = ioctl(fuse_session_fd(fs->session), FUSE_DEV_IOC_BACKING_OPEN, &map);

	return id > 0 ? id : id ? -errno : -EIO;
}

static void kernel_close(const struct fs *fs, int id)
{
	uint32_t number = (uint32_t)id;

	/* Where the connection has ended there is none any more. */
	if (ioctl(fuse_session_fd(fs->session), FUSE_DEV_IOC_BACKING_CLOSE, &number) != 0 && errno != ENOENT && errno != EPERM)
		log_warning("the kernel does not let go of a record file: %s", strerror(errno));
}

static void set_backing(struct fuse_file_info *fi, int id)
{
	fi->backing_id = id;
}

/* What the kernel was given by an earlier serving process: numbers count up to @next. What is open keeps its file without them. */
static void close_earlier(const struct fs *fs, int next)
{
	for (uint32_t id = next > (int)BACKINGS_BEFORE ? (uint32_t)next - BACKINGS_BEFORE : 1; id < (uint32_t)next; id++)
		ioctl(fuse_session_fd(fs->session), FUSE_DEV_IOC_BACKING_CLOSE, &id);
}

#else

#define NOT_ASKED "it takes a daemon that was built with libfuse 3.17"

static bool ask_kernel(struct fuse_conn_info *conn)
{
	return false;
}

static int kernel_open(const struct fs *fs, int file)
{
	return -EOPNOTSUPP;
}

static void kernel_close(const struct fs *fs, int id)
{
}

static void set_backing(struct fuse_file_info *fi, int id)
{
}

static void close_earlier(const struct fs *fs, int next)
{
}

#endif

/* ---- beginning ----------------------------------------------------------------------------------------------------- */

struct passthrough *passthrough_new(struct fs *fs)
{
	struct passthrough *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->fs = fs;
	lock_init(&p->lock, LOCK_QUEUE);
	return p;
}

void passthrough_free(struct passthrough **pp)
{
	struct passthrough *p = *pp;

	*pp = NULL;
	if (!p)
		return;
	for (uint32_t i = 0; i < p->used; i++)
		assert(!p->at[i].opens);
	lock_destroy(&p->lock);
	free(p);
}

void passthrough_ask(struct passthrough *p, struct fuse_conn_info *conn)
{
	p->asked = ask_kernel(conn);
}

static const char *reason(int error)
{
	if (error == EPERM)
		return "it takes CAP_SYS_ADMIN";
	if (error == ELOOP)
		return "record files lie on file systems that are stacked too high";
	return strerror(error);
}

/* 0, or a negative errno. Where no nameless file can be made, what the kernel says to none at all is what can be known. */
static int try_it(const struct fs *fs)
{
	cleanup(closep) int file = open(fs->config->disk, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int id = kernel_open(fs, file);

	if (id > 0 && fs->resumed)
		close_earlier(fs, id);
	if (id > 0)
		kernel_close(fs, id);
	return id > 0 || (file < 0 && id == -EBADF) ? 0 : id;
}

void passthrough_begin(struct passthrough *p)
{
	int r = p->asked ? try_it(p->fs) : 0;

	if (!p->fs->disk)
		return;
	p->began = p->on = p->asked && !r && !p->fs->resumed;
	if (p->began)
		log_info("`raw` of records is read by the kernel, past the daemon");
	else if (p->asked && !r)
		log_info("`raw` of records is read through the daemon: some may be open since before the serving process died");
	else
		log_info("`raw` of records is read through the daemon: %s", p->asked ? reason(-r) : NOT_ASKED);
}

bool passthrough_began(const struct passthrough *p)
{
	return p->began;
}

bool passthrough_in_use(struct passthrough *p)
{
	lock_take(&p->lock);
	bool on = p->on;
	lock_drop(&p->lock);
	return on;
}

/* ---- opens --------------------------------------------------------------------------------------------------------- */

static bool same(const struct passthrough_of *a, const struct passthrough_of *b)
{
	return a->node == b->node && a->namespace == b->namespace && a->generation == b->generation;
}

/* Under the lock: the backing of the node, with one open more; *ret NULL: it has none. -EBUSY: it is another record's, from when
 * the node was that one's. */
static int share(struct passthrough *p, const struct passthrough_of *of, struct backing **ret)
{
	uint32_t i = 0;

	lock_assert_held(&p->lock);
	*ret = NULL;
	while (i < p->used && !(p->at[i].opens && p->at[i].of.node == of->node))
		i++;
	if (i == p->used)
		return 0;
	if (!same(&p->at[i].of, of))
		return -EBUSY;
	*ret = &p->at[i];
	p->at[i].opens++;
	return 0;
}

/* Under the lock: a new one. -ENFILE: there is no place. */
static int begin(struct passthrough *p, const struct passthrough_of *of, int id, const struct stat *st, struct backing **ret)
{
	uint32_t i = 0;

	lock_assert_held(&p->lock);
	while (i < p->used && p->at[i].opens)
		i++;
	if (i == PASSTHROUGH_OPENS)
		return -ENFILE;
	if (i == p->used)
		p->used++;
	*ret = &p->at[i];
	p->at[i] = (struct backing){.owner = p, .of = *of, .opens = 1, .id = id, .device = st->st_dev, .inode = st->st_ino};
	return 0;
}

/* One open less, when its handle ends. */
static void let_go(void *object)
{
	struct backing *b = object;
	struct passthrough *p = b->owner;

	lock_take(&p->lock);
	int id = b->id;
	bool last = --b->opens == 0;
	lock_drop(&p->lock);
	if (last)
		kernel_close(p->fs, id);
}

/* Gives the kernel the file, unless another open was quicker. As join. */
static int join_new(
	struct passthrough *p, const struct passthrough_of *of, int file, const struct stat *st, struct backing **ret)
{
	int id = kernel_open(p->fs, file);
	bool failed = false;

	lock_take(&p->lock);
	int r = share(p, of, ret);
	bool first = !r && !*ret;
	if (first && id > 0 && p->on)
		r = begin(p, of, id, st, ret);
	else if (first && id < 0)
		failed = p->on;
	if (failed)
		p->on = false;
	bool used = first && *ret;
	lock_drop(&p->lock);
	if (failed)
		log_info("`raw` of records is read through the daemon from now on: %s", reason(-id));
	if (id > 0 && !used)
		kernel_close(p->fs, id);
	return r;
}

/* The backing of the node, counted; *ret NULL: reads are to come to the daemon. No open of the node reads so while another one
 * has a backing: it is decided under the lock, and from the first such open on no node begins with one. */
static int join(
	struct passthrough *p, const struct passthrough_of *of, int file, const struct stat *st, struct backing **ret)
{
	lock_take(&p->lock);
	int r = share(p, of, ret);
	bool on = p->on;
	lock_drop(&p->lock);
	return r || *ret || !on ? r : join_new(p, of, file, st, ret);
}

int passthrough_open(struct passthrough *p, const struct passthrough_of *of, int file, struct fuse_file_info *fi)
{
	struct backing *b;
	struct stat st;

	lock_assert_none_held();
	if (fstat(file, &st) != 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	int r = join(p, of, file, &st, &b);

	fi->fh = 0;
	if (r || !b)
		return r;
	/* Direct: its reads come to the daemon, though it has the backing. Looked at before there is a handle, which keeps it. */
	bool direct = b->device != st.st_dev || b->inode != st.st_ino;
	int id = b->id;

	/* The kernel opens the file once more with the caller's flags, and has but EIO for what does not work then. */
	if (fi->flags & O_DIRECT && fcntl(file, F_SETFL, O_DIRECT) != 0)
		r = -errno;
	else if (!handles_open(p->fs->handles, HANDLE_RAW, PASSTHROUGH_OPENS, b, let_go, &fi->fh))
		r = -ENFILE;
	if (r) {
		let_go(b);
		return r;
	}
	fi->direct_io = direct;
	set_backing(fi, id);
	return 0;
}
