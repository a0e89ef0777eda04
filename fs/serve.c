/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fs/aside.h"
#include "fs/carriers.h"
#include "fs/calls.h"
#include "fs/connection.h"
#include "fs/doorman.h"
#include "fs/errands.h"
#include "fs/fs.h"
#include "fs/handles.h"
#include "fs/heirlooms.h"
#include "fs/keeper.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "fs/memory_limit.h"
#include "fs/mount.h"
#include "fs/namespaces.h"
#include "fs/notifier.h"
#include "fs/page_nodes.h"
#include "fs/passthrough.h"
#include "fs/requests.h"
#include "fs/watch.h"
#include "fs/will.h"
#include "store/adopt.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/base/killpoint.h"

#define END_MS 500   /* for the disk, after the last answer */
#define GIVE_MS 5000 /* for what the parent holds */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* it has something to say of a fault */
#else
#define SANITIZED false
#endif

#define HANDLES (HOST_MAX_SESSIONS + FS_MAX_TEXTS + 2 * WATCH_READERS + PASSTHROUGH_OPENS)
_Static_assert(HANDLES <= WILL_HANDLES, "each sleeper in poll(2) has its place in the will");

void fs_end(struct fs *fs)
{
	uint64_t one = 1;

	if (write(fs->over, &one, sizeof(one)) < 0)
		log_error("the end cannot be told: %s", strerror(errno));
}

void fs_tell_populating(struct fs *fs)
{
	bool now = host_populating(fs->host);

	if (now != fs->populating && keeper_send(fs->keeper, KEEPER_POPULATING, "", "", now, -1) == 0)
		fs->populating = now;
}

/* ---- what the store tells ------------------------------------------------------------------------------------ */

static void on_changed(void *context, struct space *space, enum host_change what)
{
	struct fs *fs = context;

	calls_changed(fs->calls, space_serial(space));
	notifier_changed(fs->notifier);
}

static void on_record_gone(void *context, struct space *space, uint64_t consumed, const struct key *endpoint)
{
	struct fs *fs = context;

	notifier_record_gone(fs->notifier, space_serial(space), consumed, endpoint);
}

static void on_note(void *context, struct space *space, const struct host_event *events, uint32_t count)
{
	struct fs *fs = context;
	uint32_t serial = space_serial(space);
	struct space_access access;

	if (events[0].kind == HOST_EVENT_SPACE_CREATED) {
		space_access(space, &access);
		watch_space(fs->watch, serial, space_name(space), &access);
	} else if (events[0].kind == HOST_EVENT_SPACE_REMOVED) {
		space_access(space, &access);
		watch_space_gone(fs->watch, serial, &access);
	}
	watch_note(fs->watch, serial, events, count);
}

static void on_populated(void *context)
{
	struct fs *fs = context;
	uint64_t one = 1;

	if (write(fs->populated, &one, sizeof(one)) < 0)
		log_error("that memory is populated cannot be told: %s", strerror(errno));
}

static void on_keep(void *context, const char *what, const char *name, uint64_t number, int fd)
{
	struct fs *fs = context;
	int r = keeper_send(fs->keeper, KEEPER_KEEP, what, name, number, fd);

	if (r)
		log_warning("the parent does not hold the %s of %s: %s", what, name, strerror(-r));
}

/* ---- beginning ----------------------------------------------------------------------------------------------- */

/* What is possible, and seldom meant. */
static void warn_of_disk(const struct host_disk_report *disk)
{
	struct statfs s;

	if (disk->total_bytes && disk->limit_bytes > disk->total_bytes)
		log_warning("disk_bytes: %" PRIu64 " MiB are more than the file system of %s has, %" PRIu64 " MiB: it will be full before",
			disk->limit_bytes >> 20, disk->path, disk->total_bytes >> 20);
	if (!statfs(disk->path, &s) && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC))
		log_warning("%s is in memory (tmpfs): record files take memory besides the daemon's, and go with the host's restart",
			disk->path);
}

/* A folder that cannot be used leaves memory alone; another daemon's has ended the start already. */
static int judge_disk(struct fs *fs, struct why *why)
{
	struct host_disk_report disk;

	host_disk_report(fs->host, &disk);
	fs->disk = disk.state != HOST_DISK_NONE && disk.state != HOST_DISK_REFUSED;
	if (disk.state == HOST_DISK_REFUSED)
		log_warning("there is no disk tier, memory runs alone: %s", disk.text);
	if (disk.state == HOST_DISK_OK && fs->config->disk_io == CONFIG_DISK_URING && !disk.uring)
		return why_set(why, ENOTSUP, "disk_io: there is no io_uring here; auto and plain do without");
	if (disk.state == HOST_DISK_OK)
		log_info("the disk tier is %s, %" PRIu64 " MiB, with %s", disk.path, disk.limit_bytes >> 20,
			disk.uring ? "io_uring" : "plain calls");
	if (disk.state == HOST_DISK_OK)
		warn_of_disk(&disk);
	return 0;
}

static int open_host(struct fs *fs, struct why *why)
{
	static const enum segment_wish wishes[] = {
		[CONFIG_HUGE_AUTO] = SEGMENT_WISH_AUTO,
		[CONFIG_HUGE_NEVER] = SEGMENT_WISH_SMALL,
		[CONFIG_HUGE_THP] = SEGMENT_WISH_THP,
		[CONFIG_HUGE_REQUIRE] = SEGMENT_WISH_HUGETLB,
	};
	const struct config *c = fs->config;
	struct host_config host = {
		.memory_bytes = c->memory,
		.wish = wishes[c->hugepages],
		.populate = c->populate,
		.populate_threads = (unsigned)c->populate_threads,
		.handle_ttl_ms = (uint32_t)c->handle_ttl_ms,
		.fill_ttl_ms = (uint32_t)c->fill_ttl_ms,
		.token_ttl_ms = (uint32_t)c->token_ttl_ms,
		.memory_fault = c->memory_fault[0] ? c->memory_fault : NULL,
		.disk_path = c->disk[0] ? c->disk : NULL,
		.disk_bytes = c->disk_bytes,
		.disk_workers = (unsigned)c->disk_workers,
		.disk_sync = c->durability == CONFIG_DURABILITY_DATA,
		.disk_only = c->disk_only,
		.disk_plain = c->disk_io == CONFIG_DISK_PLAIN,
		.disk_late = fs->restarts > 0,
		.disk_fault = c->disk_fault[0] ? c->disk_fault : NULL,
		.expire_s = c->expire,
		.last_session = &fs->will->sessions,
		.last_serial = &fs->will->serials,
		.events = {.context = fs,
			.note = on_note,
			.changed = on_changed,
			.record_gone = on_record_gone,
			.keep = on_keep,
			.populated = on_populated},
	};

	int r = host_new(&host, &fs->host, why);

	return r ? r : judge_disk(fs, why);
}

/* The parent refuses to begin where memory is populated, unless a limit came later. */
static void check_budget(struct fs *fs)
{
	bool fatal;

	if (memory_limit_check("", fs->config, &fatal, &fs->budget))
		log_warning("%s", fs->budget.text);
}

/* libfuse's own words go where ours go. */
__attribute__((format(printf, 2, 0))) static void log_fuse(enum fuse_log_level level, const char *format, va_list args)
{
	char line[512];

	vsnprintf(line, sizeof(line), format, args);
	line[strcspn(line, "\n")] = 0;
	if (line[0])
		log_line(level <= FUSE_LOG_ERR    ? LOG_LEVEL_ERROR
			 : level <= FUSE_LOG_INFO ? LOG_LEVEL_INFO
						  : LOG_LEVEL_DEBUG,
			"fuse: %s", line);
}

/* The parts that hold no memory of clients, and know nothing of a predecessor, which may serve meanwhile. */
static int open_parts(struct fs *fs, int listener, struct why *why)
{
	fs->populated = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fs->over = eventfd(0, EFD_CLOEXEC);
	fs->leave = eventfd(0, EFD_CLOEXEC);
	buffers_init(&fs->buffers);
	fs->calls = calls_new(fs);
	fs->notifier = notifier_new(fs);
	fs->watch = watch_new(fs);
	fs->requests = requests_new((unsigned)fs->config->loop_threads);
	fs->namespaces = namespaces_new(fs);
	fs->errands = errands_new(fs);
	fs->aside = aside_new(fs);
	fs->passthrough = passthrough_new(fs);
	fs->carriers = carriers_new(fs);
	fs->doorman = doorman_new(fs, listener);
	if (fs->populated < 0 || fs->over < 0 || fs->leave < 0 || !fs->calls || !fs->notifier || !fs->watch ||
		!fs->requests || !fs->namespaces || !fs->errands || !fs->aside || !fs->passthrough ||
		!fs->carriers || !fs->doorman)
		return why_set(why, ENOMEM, "no memory or descriptors for the serving process");
	return 0;
}

/* The parent counts serving processes when no other one lives. */
static int open_numbers(struct fs *fs, struct why *why)
{
	uint32_t epoch = atomic_load_explicit(&fs->will->epoch, memory_order_acquire);

	fs->handles = handles_new(HANDLES, epoch);
	fs->page_nodes = page_nodes_new(epoch);
	fs->listings = (uint64_t)epoch << 48;
	return fs->handles && fs->page_nodes ? 0 : why_set(why, ENOMEM, "no memory for the serving process");
}

/* Checked by the parent. Behind the disk's faults, whose rules name the same points. */
static void arm_points(const struct fs *fs)
{
	uint32_t process = atomic_load_explicit(&fs->will->epoch, memory_order_acquire);

	killpoint_rules(fs->config->crash_at, process, false, NULL);
	killpoint_rules(fs->config->stop_at, process, true, NULL);
}

/* What the parent holds, the store, the namespaces: what is handed on and taken by none of them is let go of. */
static int open_memory(struct fs *fs, struct why *why)
{
	struct heirlooms heirlooms;

	keeper_send(fs->keeper, KEEPER_WAITS, "", "", 0, -1);
	int r = heirlooms_receive(fs->keeper, GIVE_MS, &heirlooms, why);

	if (r == -ECONNRESET) { /* nobody else takes the mount away */
		atomic_store(&fs->orphaned, true);
		log_by_itself();
		mount_remove(fs->config, fs->device, true);
	}
	if (r)
		return r;
	check_budget(fs);
	fs->populating = fs->restarts + fs->upgrades > 0; /* as the parent takes it */
	if (fs->populating)
		watch_note_resumed(fs->watch, fs->restarts, fs->upgrades);
	r = open_numbers(fs, why);
	if (!r)
		r = open_host(fs, why);
	arm_points(fs);
	if (!r)
		namespaces_restore(fs->namespaces, &heirlooms);
	if (!r)
		heirlooms_end(&heirlooms, fs->keeper);
	return r;
}

/* The kernel's connection: a new one, whose INIT is still to come (loop.c), or the predecessor's. -EPROTO: the mount is to be made anew. */
static int open_connection(struct fs *fs, int fuse, struct why *why)
{
	enum connection_state state = connection_judge(fs->will, fs->device, why);

	fuse_set_log_func(log_fuse);
	if (state == CONNECTION_DIFFERENT)
		return -EPROTO;
	int r = connection_open(fs, &fs_ops, fuse, why);
	if (r || state == CONNECTION_NEW)
		return r;
	r = connection_replay(fs, why);
	if (r)
		return -EPROTO;
	fs->resumed = true;
	r = connection_resend(fuse, why);
	killpoint(KILLPOINT_RESENT);
	connection_wake_polls(fuse, fs->will);
	return r;
}

/* In this order, since what is there is not to change under a request. */
static int open_all(struct fs *fs, int fuse, int listener, bool *remount, struct why *why)
{
	int r = rundir_init(&fs->dir, fs->config->run_dir, fs->config->mountpoint, why);

	if (!r)
		r = open_parts(fs, listener, why);
	if (!r)
		r = open_memory(fs, why);
	if (r)
		return r;
	r = open_connection(fs, fuse, why);
	*remount = r == -EPROTO;
	return r;
}

/* ---- writing down -------------------------------------------------------------------------------------------- */

/* False: the parent is in a hurry, or gone. */
static bool may_go_on(void *context, uint64_t done, uint64_t goal)
{
	struct fs *fs = context;
	struct keeper_message m;
	int fd, r;

	atomic_store_explicit(&fs->will->done, done, memory_order_relaxed);
	atomic_store_explicit(&fs->will->goal, goal, memory_order_relaxed);
	while ((r = keeper_receive(fs->keeper, &m, &fd)) == 1) {
		closep(&fd);
		if (m.kind == KEEPER_STOP && m.number)
			atomic_store(&fs->hurry, true);
	}
	if (!r)
		log_by_itself();
	return r == -EAGAIN && !atomic_load(&fs->hurry);
}

/* Meanwhile, by a parent that wanted another one to follow. The doorman, who has been stopped, may have heard it. */
static bool told_to_stop(struct fs *fs)
{
	bool told = atomic_load(&fs->stop);
	struct keeper_message m;
	int fd;

	while (keeper_receive(fs->keeper, &m, &fd) == 1) {
		closep(&fd);
		told = told || m.kind == KEEPER_STOP;
	}
	return told;
}

/* Nothing is served any more, and nobody else reads what the parent says, which waits as long (fs/parent.c). */
static void write_down(struct fs *fs)
{
	bool newest;
	uint64_t seconds = config_drain_s(fs->config, &newest), left = 0, began = clock_now_ns();
	struct host_disk_report disk;
	struct why why = WHY_INIT;

	if (!seconds || atomic_load(&fs->orphaned))
		return;
	host_disk_report(fs->host, &disk);
	atomic_store_explicit(&fs->will->done, 0, memory_order_relaxed);
	atomic_store_explicit(&fs->will->goal, disk.dirty_bytes, memory_order_relaxed);
	will_enters(fs->will, WILL_WRITING_DOWN);
	log_info("writing %" PRIu64 " MiB down, for at most %" PRIu64 " s", (disk.dirty_bytes + (1u << 20) - 1) >> 20, seconds);
	int r = host_drain(fs->host, NULL, newest ? HOST_DRAIN_NEWEST : HOST_DRAIN_FULL, began + seconds * 1000000000ull,
		may_go_on, fs, &left, &why);
	uint64_t took_ms = (clock_now_ns() - began) / 1000000;

	if (r)
		log_warning("%" PRIu64 " MiB were not written down, after %" PRIu64 " ms: %s", left >> 20, took_ms, why.text);
	else
		log_info("everything is written down, in %" PRIu64 " ms", took_ms);
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

static void leave_loops(struct fs *fs, struct loops *loops)
{
	uint64_t one = 1;

	atomic_store(&fs->leaving, true);
	if (write(fs->leave, &one, sizeof(one)) < 0)
		log_error("the loops cannot be told to leave: %s", strerror(errno));
	loops_join(&loops);
}

/* The notifier first, while requests are still served: it may wait in the kernel for one of them. Then every request
 * that waits is answered, and the loops leave. */
static void close_traffic(struct fs *fs, struct loops *loops)
{
	struct call *call;

	notifier_stop(fs->notifier);
	watch_stop(fs->watch);
	calls_close(fs->calls);
	carriers_stop(fs->carriers);
	leave_loops(fs, loops);
	while ((call = calls_next(fs->calls)))
		call->run(fs, call);
	aside_stop(fs->aside);
	errands_stop(fs->errands);
	doorman_stop(fs->doorman);
}

/* For an upgrade. What runs is answered; what waits, in whatever part, is the next one's, whom the kernel asks again. */
static void hand_over(struct fs *fs, struct loops *loops)
{
	struct call *call;

	will_enters(fs->will, WILL_DRAINING);
	leave_loops(fs, loops);
	while ((call = calls_next(fs->calls)))
		call->run(fs, call);
	calls_close(fs->calls); /* those that are carried give up; nobody answers them any more */
	carriers_stop(fs->carriers);
	aside_leave(fs->aside);
	errands_stop(fs->errands);
	doorman_stop(fs->doorman);
}

static void wait_for_the_end(struct fs *fs)
{
	struct pollfd over = {.fd = fs->over, .events = POLLIN};

	while (poll(&over, 1, -1) < 1)
		;
}

/* After all threads are there: their stacks would wait for the pages. The doorman tells the parent. */
static void begin_populating(struct fs *fs)
{
	host_adopted(fs->host);
	on_populated(fs);
}

/* 0, or a negative errno with the sentence: nothing was served. */
static int serve(struct fs *fs, struct why *why)
{
	struct loops *loops = NULL;
	int r = doorman_start(fs->doorman);

	if (!r)
		r = notifier_start(fs->notifier);
	if (!r)
		r = watch_start(fs->watch);
	if (!r)
		r = aside_start(fs->aside);
	if (!r)
		r = carriers_start(fs->carriers);
	if (!r)
		r = loops_start(fs, &loops);
	if (!r)
		begin_populating(fs);
	if (!r) {
		will_enters(fs->will, WILL_SERVING);
		keeper_send(fs->keeper, KEEPER_READY, "", "", 0, -1);
		wait_for_the_end(fs);
	} else if (r == -ENODEV) { /* unmounted, or told to stop, before it began */
		r = 0;
	} else {
		why_set(why, -r, "the threads of the mount cannot be started: %s", strerror(-r));
	}
	if (!r && atomic_load(&fs->handover) && !atomic_load(&fs->stop)) {
		hand_over(fs, loops);
		if (!told_to_stop(fs))
			return 0;
	} else {
		close_traffic(fs, loops);
	}
	if (!r)
		write_down(fs);
	return r;
}

/* Everything was answered; a disk that hangs must not keep anybody waiting. */
static void *limit_main(void *status)
{
	usleep(END_MS * 1000);
	_exit((int)(intptr_t)status);
}

/* The process does not take itself apart: what sessions have is their clients', who live on. The channel ends with it: the next one starts
 * then. */
__attribute__((noreturn)) static void leave(struct fs *fs, int status)
{
	pthread_t limit;

	will_enters(fs->will, WILL_ENDING);
	if (fs->host && pthread_create(&limit, NULL, limit_main, (void *)(intptr_t)status))
		log_debug("the end has no limit of its own");
	if (fs->host)
		host_leave(fs->host, clock_now_ns() + END_MS * 1000000ull);
	_exit(status);
}

/* What the parent handed on, of which nothing reaches a program that this one runs. */
static int inherit(struct fs *fs, const char *serve, int *fuse, int *listener, struct why *why)
{
	int will, rest = 0;

	if (sscanf(serve, "%d,%d,%d,%d,%u,%u,%u,%n", fuse, &fs->keeper, listener, &will, &fs->device, &fs->restarts, &fs->upgrades, &rest) != 7 ||
		!rest)
		return why_set(why, EINVAL, "--serve is what the parent says to itself, not an option for users");
	fs->last_exit = serve + rest;
	fcntl(*fuse, F_SETFD, FD_CLOEXEC);
	fcntl(fs->keeper, F_SETFD, FD_CLOEXEC);
	fcntl(*listener, F_SETFD, FD_CLOEXEC);
	int r = will_map(will, &fs->will, why);
	closep(&will);
	return r ? r : will_catch(fs->will, fs->config->core || SANITIZED, why);
}

/* A terminal, a service manager and timeout(1) send these to the whole group: the parent decides what they mean. */
static void ignore_signals(void)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
}

void serve_run(const struct config *config)
{
	struct fs *fs = calloc(1, sizeof(*fs));
	struct why why = WHY_INIT;
	bool remount = false;
	int fuse, listener, r = -ENOMEM, status = 0;

	prctl(PR_SET_NAME, "prefixfsd"); /* it was called by a descriptor, and would be "exe" or a number for ps and pgrep */
	if (fs) {
		fs->config = config;
		r = inherit(fs, config->serve, &fuse, &listener, &why);
	}
	if (r) {
		log_error("%s", fs ? why.text : "no memory for the serving process");
		_exit(SERVE_EXIT_REFUSED);
	}
	ignore_signals();
	fs->started_ns = clock_now_ns();
	r = open_all(fs, fuse, listener, &remount, &why);
	if (!r)
		r = serve(fs, &why);
	if (atomic_load(&fs->orphaned))
		status = 1;
	if (r) {
		log_line(remount ? LOG_LEVEL_WARNING : LOG_LEVEL_ERROR, "%s", why.text);
		status = remount ? SERVE_EXIT_REMOUNT : SERVE_EXIT_REFUSED;
	}
	if (atomic_load(&fs->orphaned))
		rundir_remove(&fs->dir, true);
	leave(fs, status);
}
