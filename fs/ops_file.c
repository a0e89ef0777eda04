/* SPDX-License-Identifier: Apache-2.0
 *
 * Contents: opening, reading, writing; and the table of all operations.
 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "fs/aside.h"
#include "fs/ctl.h"
#include "fs/ctl_text.h"
#include "fs/handles.h"
#include "fs/ioctl.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "fs/metrics.h"
#include "fs/passthrough.h"
#include "fs/text.h"
#include "fs/tree.h"
#include "fs/watch.h"
#include "store/base/cleanup.h"
#include "store/remnants.h"

/* ---- opening ------------------------------------------------------------------------------------------------- */

static int keep_text(struct fs *fs, struct text *text, struct fuse_file_info *fi)
{
	if (handles_open(fs->handles, HANDLE_TEXT, FS_MAX_TEXTS, text, text_free, &fi->fh))
		return 0;
	text_free(text);
	return -ENFILE;
}

static int open_text(fuse_req_t req, const struct look *look, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct viewer viewer;
	struct text *text;

	viewer_of(req, &viewer);
	if (!look_visible(look, &viewer))
		return -ENOENT;
	int r = text_new(fs, look, &viewer, &text);

	return r ? r : keep_text(fs, text, fi);
}

static int open_metrics(fuse_req_t req, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct viewer viewer;
	struct text *text;

	viewer_of(req, &viewer);
	int r = metrics_text(fs, &viewer, &text);
	return r ? r : keep_text(fs, text, fi);
}

static int open_ctl(fuse_req_t req, const struct look *look, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct why why = WHY_INIT;
	bool read_only = (fi->flags & O_ACCMODE) == O_RDONLY;

	if (!look->namespace.space)
		return -ENOENT;
	fi->fh = ctl_open(fs, look->namespace.space, fuse_req_ctx(req), read_only, &why);
	if (!fi->fh)
		log_warning("ns/%s/ctl: %s", look->namespace.name, why.text);
	return fi->fh ? 0 : -why.error;
}

/* Shells truncate inside open: `> layout`. */
static int open_pending_layout(struct fs *fs, const struct look *look, struct fuse_file_info *fi)
{
	fi->fh = 0;
	return fi->flags & O_TRUNC ? namespaces_truncate_layout(fs->namespaces, look->namespace.number) : 0;
}

/* A stream: it has no position that one could choose. */
static int open_events(fuse_req_t req, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct viewer viewer;

	viewer_of(req, &viewer);
	return watch_open(fs->watch, &viewer, fi->flags & O_APPEND, &fi->fh);
}

static int open_node(fuse_req_t req, const struct look *look, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;

	if (S_ISDIR(look->st.st_mode))
		return -EISDIR;
	if (look->node.kind == NODE_CTL)
		return open_ctl(req, look, fi);
	if (look->node.kind == NODE_LAYOUT && writes && !look->namespace.space)
		return open_pending_layout(fs, look, fi);
	if (writes || fi->flags & O_TRUNC)
		return -EPERM; /* root passes the kernel's check of the mode */
	if (look->node.kind == NODE_PAGES || look->node.kind == NODE_ROW || look->node.kind == NODE_PAGE ||
		look->node.kind == NODE_RAW) {
		fi->fh = 0;
		return 0;
	}
	if (look->node.kind == NODE_EVENTS)
		return open_events(req, fi);
	if (look->node.kind == NODE_METRICS)
		return open_metrics(req, fi);
	return open_text(req, look, fi);
}

static void reply_open(fuse_req_t req, struct fs *fs, const struct fuse_file_info *fi)
{
	if (fuse_reply_open(req, fi) == -ENOENT && fi->fh)
		handles_close(fs->handles, fi->fh); /* the open was interrupted: no release will come */
}

void ops_open_raw(fuse_req_t req, struct fs *fs, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct look look;
	int r = look_at(fs, ino, &look);
	cleanup(closep) int file = r ? -1 : space_record_open_raw(look.namespace.space, look.record.number, look.record.generation);

	look_end(&look);
	if (!r && file < 0)
		r = file;
	if (!r) {
		const struct passthrough_of of = {
			.node = ino, .namespace = look.namespace.number, .generation = look.record.generation};

		r = passthrough_open(fs->passthrough, &of, file, fi);
	}
	if (r)
		fuse_reply_err(req, -r);
	else
		reply_open(req, fs, fi);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct look look;
	int r = look_at(fs, ino, &look);

	if (!r)
		r = open_node(req, &look, fi);
	look_end(&look);
	if (r) {
		fuse_reply_err(req, -r);
		return;
	}
	fi->direct_io = 1; /* nothing of it may lie in the page cache */
	fi->keep_cache = 0;
	fi->noflush = 1;
	/* Shells read these byte by byte then, and nobody skips an answer. */
	fi->nonseekable = look.node.kind == NODE_CTL || look.node.kind == NODE_EVENTS;
	if (look.node.kind == NODE_RAW && passthrough_began(fs->passthrough))
		aside_open(fs->aside, req, ino, fi);
	else
		reply_open(req, fs, fi);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);

	if (fi->fh && handles_known(fs->handles, fi->fh))
		handles_close(fs->handles, fi->fh);
	else if (fi->fh)
		remnants_handle_released(fs->host, fi->fh); /* of an earlier serving process */
	fuse_reply_err(req, 0);
}

/* close(2) of one of several copies of a descriptor: it means nothing here. */
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

/* ---- reading and writing ------------------------------------------------------------------------------------- */

static void read_text(fuse_req_t req, struct fs *fs, uint64_t handle, size_t size, uint64_t offset)
{
	struct text *text = handles_take(fs->handles, handle, HANDLE_TEXT);

	if (!text) { /* a handle of an earlier serving process */
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (offset >= text->bytes)
		fuse_reply_buf(req, NULL, 0);
	else
		fuse_reply_buf(req, text->at + offset, text->bytes - offset < size ? text->bytes - offset : size);
	handles_put(fs->handles, handle);
}

/* True: it was a ctl, and the request is answered. */
static bool read_ctl(fuse_req_t req, struct fs *fs, uint64_t handle, size_t size)
{
	struct ctl *ctl = handles_take(fs->handles, handle, HANDLE_CTL);

	if (!ctl)
		return false;
	ctl_text_read(req, ctl, size);
	handles_put(fs->handles, handle);
	return true;
}

void ops_read_values(fuse_req_t req, struct fs *fs, fuse_ino_t ino, size_t size, uint64_t offset, char *buffer)
{
	struct look look;
	ssize_t n = look_at(fs, ino, &look);

	if (size > LOOP_SCRATCH_BYTES)
		size = LOOP_SCRATCH_BYTES;
	if (n == 0 && look.node.kind == NODE_PAGE)
		n = space_page_read(look.namespace.space, &look.key, offset, buffer, size);
	else if (n == 0 && (look.node.kind == NODE_PAGES || look.node.kind == NODE_ROW))
		n = space_record_read(look.namespace.space, look.record.number, look.record.generation,
			look.node.kind == NODE_ROW, offset, buffer, size);
	else if (n == 0 && look.node.kind == NODE_RAW)
		n = space_record_read_raw(look.namespace.space, look.record.number, look.record.generation, offset, buffer, size);
	else if (n == 0)
		n = -EINVAL;
	look_end(&look);
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		fuse_reply_buf(req, buffer, (size_t)n);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct node node;
	bool known = node_unpack(ino, &node);
	uint64_t handle = known && node.kind == NODE_RAW ? 0 : fi->fh; /* what `raw` has is for its release */

	if (known && node.kind == NODE_EVENTS)
		watch_read(fs->watch, req, handle, size, fi->flags & O_NONBLOCK);
	else if (handle && read_ctl(req, fs, handle, size))
		return;
	else if (handle)
		read_text(req, fs, handle, size, (uint64_t)offset);
	else if (fs->disk)
		aside_read(fs->aside, req, ino, size, (uint64_t)offset);
	else
		ops_read_values(req, fs, ino, size, (uint64_t)offset, loop_scratch());
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *text, size_t size, off_t offset, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	struct why why = WHY_INIT;
	struct node node;
	int r = -EOPNOTSUPP;
	struct ctl *ctl = fi->fh ? handles_take(fs->handles, fi->fh, HANDLE_CTL) : NULL;

	if (ctl) {
		ctl_text_write(req, ctl, text, size);
		return;
	}
	if (fi->fh) /* a handle of an earlier serving process: what else is open for writing has none */
		r = -ESTALE;
	else if (node_unpack(ino, &node) && node.kind == NODE_LAYOUT)
		r = namespaces_write_layout(fs->namespaces, node.number, (uint64_t)offset, text, size, &why);
	if (r)
		fuse_reply_err(req, -r);
	else
		fuse_reply_write(req, size);
}

void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *handle)
{
	struct fs *fs = fuse_req_userdata(req);
	struct ctl *ctl = handles_take(fs->handles, fi->fh, HANDLE_CTL);
	struct reader *reader;
	unsigned events = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM; /* as files are */

	if (ctl) {
		events = ctl_poll(ctl, handle, fi->poll_events);
		handles_put(fs->handles, fi->fh);
	} else if ((reader = handles_take(fs->handles, fi->fh, HANDLE_EVENTS))) {
		events = watch_poll(reader, handle) ? POLLIN | POLLRDNORM : 0;
		handles_put(fs->handles, fi->fh);
	} else {
		if (handle)
			fuse_pollhandle_destroy(handle);
		if (fi->fh && !handles_known(fs->handles, fi->fh)) { /* an earlier serving process's: an error for who sleeps there */
			fuse_reply_err(req, ESTALE);
			return;
		}
	}
	fuse_reply_poll(req, events);
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static void op_init(void *context, struct fuse_conn_info *conn)
{
	struct fs *fs = context;
	unsigned unwanted = FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
	                    FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_IOCTL_DIR | FUSE_CAP_POSIX_LOCKS |
	                    FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_WRITEBACK_CACHE;
	unsigned wanted = FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
	                  FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO | FUSE_CAP_ASYNC_READ;

	conn->want &= ~unwanted;
	conn->want |= wanted & conn->capable;
	conn->max_readahead = 0;
	if (fs->disk)
		passthrough_ask(fs->passthrough, conn);
	atomic_store(&fs->ready, true);
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.statfs = op_statfs,
	.ioctl = ioctl_receive,
	.poll = op_poll,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.setxattr = op_setxattr,
	.removexattr = op_removexattr,
};
