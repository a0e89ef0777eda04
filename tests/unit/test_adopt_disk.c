/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace over a disk whose process dies by SIGKILL at an operation of the disk or at a named point, and is adopted by the next one, which
 * dies likewise, and by another one. What was committed and never let go is there with its bytes, whether its slot is clean, dirty or it is
 * on disk alone; files, rows in the tables and rows of the catalogue say the same once all of it was compared; and a start from the disk
 * finds it too.
 *
 *	PREFIXFS_TEST_SEED   the same work again
 */
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "store/adopt.h"
#include "store/reconcile.h"
#include "tests/unit/tiering_world.h"

#define CHAINS 12u
#define PAGES 40u
#define WHOLE_CHAIN 11u /* its pages are put as one WHOLE group */
#define MEMORY (16 * MIB)
#define ROUNDS 400u     /* of the work of one life */
#define ROW_BYTES 10000u

enum fate { UNKNOWN, COMMITTING, COMMITTED, LEAVING }; /* UNKNOWN: it must not be there; COMMITTING, LEAVING: it may */

/* What the process that dies says, in memory that it shares with the test. */
struct journal {
	_Atomic uint32_t fate[CHAINS][PAGES];
	_Atomic uint64_t session; /* of the last life */
	_Atomic bool adopted;     /* it has got so far */
};

static struct journal *journal;
static struct world world;
static struct world *const w = &world;
static int kept_segment, kept_tables; /* the test's */
static char folder[64];
static bool rows; /* the layout has a state class: what has no row then goes with a start from the disk */
static uint64_t seed;

static uint32_t pick(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 16) % below);
}

static void fill(uint8_t *to, size_t bytes, uint64_t chain, uint64_t page, uint32_t class_index)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = chain << 48 | page << 32 | (uint64_t)class_index << 24 | i / 8;

		memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

static struct layout *layout(void)
{
	return fixture_layout(rows ? CLASS_KV "," CLASS_STATE : CLASS_KV, 1, MEMORY);
}

/* ---- a life ------------------------------------------------------------------------------------------------------------------ */

static void open_host(const char *fault, bool uring)
{
	struct host_config config = {
		.memory_bytes = MEMORY, .wish = SEGMENT_WISH_SMALL, .populate_threads = 1, .handle_ttl_ms = 60000, .fill_ttl_ms = 60000,
		.token_ttl_ms = 10000, .disk_path = folder, .disk_bytes = 256 * MIB, .disk_workers = 1, .disk_plain = !uring,
		.disk_fault = fault,
	};
	struct why why = WHY_INIT;

	memset(w, 0, sizeof(*w));
	snprintf(w->path, sizeof(w->path), "%s", folder);
	if (host_new(&config, &w->f.host, &why))
		fail_msg("host: %s", why.text);
	if (!w->f.host->disk)
		fail_msg("disk: %s", w->f.host->disk_text);
}

static void make(void)
{
	struct space_access access = { 0, 0, 0700 };
	struct why why = WHY_INIT;

	if (host_space_create(w->f.host, "test", layout(), &access, &w->f.space, &why))
		fail_msg("space: %s", why.text);
	fixture_await_prewarm(&w->f);
	w->t = w->f.space->tiering;
}

/* @pidfd: of the process before, which has ended; taken over. */
static void adopt(int pidfd, struct adopt_report *report)
{
	struct space_access access = { 0, 0, 0700 };
	struct adopt_session session = { .number = atomic_load(&journal->session), .pidfd = pidfd, .guard_fd = -1 };
	struct adoption adoption = {
		.name = "test", .serial = 1, .layout = layout(), .access = &access,
		.segment_fd = dup(kept_segment), .tables_fd = dup(kept_tables), .sessions = &session, .session_count = 1,
	};
	struct why why = WHY_INIT;

	if (host_space_adopt(w->f.host, &adoption, &w->f.space, report, &why))
		fail_msg("adoption: %s", why.text);
	host_adopted(w->f.host);
	w->t = w->f.space->tiering;
	assert_non_null(w->t);
}

static void put(uint32_t chain, uint32_t from, uint32_t n, bool row, uint32_t flags)
{
	uint8_t bytes[ROW_BYTES];

	assert_int_equal(put_chain(w->s, ++w->plan, chain, from, n, row && rows ? 3 : 1, flags, &w->r), 0);
	if (!w->r.groups_ok) {
		end_run(w->s, w->plan, false, 0, 1, w->r.status, NULL, &w->r.why);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (w->r.answers[i] < PUT_ANSWER_DUPLICATE) {
			fill(bytes, 4096, chain, from + i, 0);
			assert_int_equal(segment_write(w->f.space->segment, w->r.answers[i], bytes, 4096), 0);
		}
		if (atomic_load(&journal->fate[chain][from + i]) != COMMITTED)
			atomic_store(&journal->fate[chain][from + i], COMMITTING);
	}
	if (row && rows && w->r.answers[n] < PUT_ANSWER_DUPLICATE) {
		fill(bytes, ROW_BYTES, chain, from + n - 1, 1);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[n], bytes, ROW_BYTES), 0);
	}
	commit_all(w->s, w->plan, 1);
	for (uint32_t i = 0; i < n; i++)
		atomic_store(&journal->fate[chain][from + i], COMMITTED);
}

static void put_row(uint32_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	struct put_group group = {
		.parent = page ? fixture_key(chain, page - 1) : key,
		.consumed = (page + 1ull) * FIXTURE_PAGE, .keys = 1, .class_mask = 2, .flags = PUT_ROW_ONLY | (page ? 0 : PUT_ROOT),
	};
	uint8_t bytes[ROW_BYTES];

	assert_int_equal(put_run(w->s, ++w->plan, &group, 1, &key, 1, 2, &w->r), 0);
	if (w->r.groups_ok && w->r.answers[0] < PUT_ANSWER_DUPLICATE) {
		fill(bytes, ROW_BYTES, chain, page, 1);
		assert_int_equal(segment_write(w->f.space->segment, w->r.answers[0], bytes, ROW_BYTES), 0);
	}
	if (w->r.groups_ok)
		commit_all(w->s, w->plan, 1);
	else
		end_run(w->s, w->plan, false, 0, 1, w->r.status, NULL, &w->r.why);
}

static void some_put(void)
{
	uint32_t chain = pick(CHAINS), from = 0, n;

	if (chain == WHOLE_CHAIN) {
		put(chain, 8, 8, false, 0);
		put(chain, 0, 24, true, PUT_WHOLE);
		return;
	}
	while (from < PAGES && atomic_load(&journal->fate[chain][from]) == COMMITTED)
		from++;
	from = pick(4) ? from : pick(from + 1);
	if (from == PAGES)
		return;
	n = 1 + pick(PAGES - from < 12 ? PAGES - from : 12);
	put(chain, from, n, pick(2), 0);
}

static void leaving(uint32_t chain, uint32_t from, uint32_t end)
{
	for (uint32_t page = from; page < end; page++)
		if (atomic_load(&journal->fate[chain][page]) == COMMITTED)
			atomic_store(&journal->fate[chain][page], LEAVING);
}

/* From the end of a record, so that it gets shorter, or out of its midst. */
static void remove_page(uint32_t chain, uint32_t page)
{
	struct index_sink sink = space_sink(w->f.space);
	struct key key = fixture_key(chain, page);
	uint32_t values;
	uint64_t hash;

	if (chain == WHOLE_CHAIN)
		return;
	leaving(chain, page, page + 1);
	world_lock(w);
	index_prefetch(w->f.space->index, &key, 1, &hash);
	if (index_remove(w->f.space->index, &key, hash, rows ? 3 : 1, &sink, &values) == INDEX_REMOVED)
		atomic_store(&journal->fate[chain][page], UNKNOWN);
	if (pick(2))
		while (tiering_flush(w->t))
			;
	world_unlock(w);
}

static void evict(uint32_t chain, uint32_t page)
{
	struct index_sink sink = space_sink(w->f.space);
	uint32_t record;

	world_lock(w);
	record = world_record(w, chain, page);
	if (record != INDEX_NONE && index_record(w->f.space->index, record)->state == RECORD_LIVE) {
		const struct record *r = index_record(w->f.space->index, record);

		leaving(chain, r->flags & RECORD_FLAG_WHOLE ? 0 : page + 1 - r->pages, r->flags & RECORD_FLAG_WHOLE ? PAGES : page + 1);
		index_evict_record(w->f.space->index, record, &sink, NULL);
	}
	world_unlock(w);
}

static void demote(void)
{
	uint64_t values = 0;

	world_lock(w);
	demote_some(w->t, (1 + pick(40)) * 4096ull, &values);
	world_unlock(w);
}

static void set_draining(bool on)
{
	world_lock(w);
	w->t->draining = on;
	world_unlock(w);
	mover_ask(w->f.host);
}

static void reset(void)
{
	struct reset call = { .session = w->s };
	struct why why = WHY_INIT;

	for (uint32_t chain = 0; chain < CHAINS; chain++)
		leaving(chain, 0, PAGES);
	assert_int_equal(reset_begin(&call, &why), STEP_MORE);
	while (reset_step(&call, &why) == STEP_MORE)
		;
}

static void work(bool resets)
{
	for (uint32_t i = 0; i < ROUNDS; i++)
		switch (pick(16)) {
		case 0: case 1: case 2: case 3: case 4:
			some_put();
			break;
		case 5:
			if (rows)
				put_row(pick(CHAINS - 1), pick(PAGES));
			break;
		case 6: case 7:
			remove_page(pick(CHAINS), pick(PAGES));
			break;
		case 8:
			evict(pick(CHAINS), pick(PAGES));
			break;
		case 9: case 10:
			demote();
			break;
		case 11: case 12:
			set_draining(true);
			break;
		case 13:
			set_draining(false);
			break;
		case 14:
			if (resets && !pick(8))
				reset();
			break;
		default:
			mover_ask(w->f.host);
			world_idle(w); /* what was asked for is done: the next ones meet files */
		}
}

/* Tells the test its files. */
static void send_files(int channel)
{
	int fds[2] = { segment_fd(w->f.space->segment), w->f.space->tables_fd };
	char control[CMSG_SPACE(sizeof(fds))] = { 0 }, byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	assert_int_equal(sendmsg(channel, &m, 0), 1);
}

static bool receive_files(int channel)
{
	int fds[2];
	char control[CMSG_SPACE(sizeof(fds))], byte;
	struct iovec part = { &byte, 1 };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };

	if (recvmsg(channel, &m, MSG_CMSG_CLOEXEC) != 1)
		return false;
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fds));
	kept_segment = fds[0];
	kept_tables = fds[1];
	return true;
}

struct life {
	const char *fault; /* of its disk, once it has a namespace */
	bool uring, resets;
	uint64_t seed;
};

/* In a process of its own. @pidfd: -1: the first one. */
static _Noreturn void live(const struct life *life, int channel, int pidfd)
{
	struct adopt_report report;
	struct why why = WHY_INIT;

	setenv("CMOCKA_TEST_ABORT", "1", 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	seed = life->seed;
	open_host(pidfd < 0 ? "" : life->fault, life->uring);
	if (pidfd < 0) {
		make();
		send_files(channel);
		if (disk_ops_fault_set(disk_ops(w->f.host->disk), life->fault, &why))
			fail_msg("%s", why.text);
	} else {
		adopt(pidfd, &report);
		atomic_store(&journal->adopted, true);
	}
	w->s = fixture_session(&w->f, 0);
	atomic_store(&journal->session, w->s->number);
	work(life->resets);
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

/* Returns a pidfd of it. */
static int run_life(const struct life *life, int before)
{
	int channel[2], status, pidfd;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(channel[0]);
		live(life, channel[1], before);
	}
	close(channel[1]);
	pidfd = pidfd_open(pid, 0);
	assert_true(pidfd >= 0);
	if (before < 0)
		assert_true(receive_files(channel[0]));
	else
		close(before);
	close(channel[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail_msg("it ended with status %#x, seed %llu, fault %s", status, (unsigned long long)life->seed, life->fault);
	return pidfd;
}

/* ---- what must be there ---------------------------------------------------------------------------------------------------------- */

struct waiting_read {
	struct disk_read read; /* first */
	_Atomic bool done;
};

static void read_done(struct disk_job *job)
{
	atomic_store(&((struct waiting_read *)job)->done, true);
}

/* One value of the file of @record. */
static void check_in_file(uint32_t record, uint16_t page, const struct key *key, const uint8_t *want)
{
	struct waiting_read r = { 0 };
	struct disk_read_value value = { .page = page };
	uint8_t *memory = aligned_alloc(4096, 4096);

	value.to = (uintptr_t)memory;
	world_lock(w);
	const struct record_file *f = &w->t->files[record];

	r.read = (struct disk_read){
		.job = { .kind = DISK_JOB_READ, .dir = w->t->dir, .endpoint = f->endpoint, .done = read_done,
			 .consumed = tiering_file_consumed(w->t, record) },
		.memory = true, .pages = f->pages, .file_pages = f->file_pages, .keys = key, .values = &value, .count = 1,
	};
	disk_give(w->f.host->disk, &r.read.job);
	world_unlock(w);
	world_await(w, atomic_load(&r.done));
	assert_int_equal(r.read.job.result, 0);
	assert_int_equal(value.result, 0);
	assert_memory_equal(memory, want, 4096);
	free(memory);
}

static uint32_t checked[3]; /* dirty, clean, on disk */

static void check_page(uint32_t chain, uint32_t page)
{
	struct key key = fixture_key(chain, page);
	enum fate fate = atomic_load(&journal->fate[chain][page]);
	uint8_t got[4096], want[4096];
	struct index_hit hit;
	uint32_t entry = INDEX_NONE;
	bool place = false, clean = false;
	uint64_t offset = 0;

	fill(want, sizeof(want), chain, page, 0);
	world_lock(w);
	index_lookup(w->f.space->index, &key, 1, 1, &hit);
	if (hit.record != INDEX_NONE && hit.complete) {
		entry = index_value(w->f.space->index, hit.record, hit.page, 0, NULL);
		place = tiering_is_place(w->t, entry);
		clean = !place && tiering_is_clean(w->t, entry);
	}
	if (entry != INDEX_NONE && !place) {
		tiering_hold(w->t, entry);
		offset = slots_offset(w->f.space->slots, entry);
	}
	world_unlock(w);
	if (entry != INDEX_NONE && !place) {
		assert_int_equal(segment_read(w->f.space->segment, offset, got, sizeof(got)), 0);
		assert_memory_equal(got, want, sizeof(want));
		world_lock(w);
		tiering_unhold(w->t, entry);
		world_unlock(w);
	}
	if (fate == COMMITTED && entry == INDEX_NONE)
		fail_msg("chain %u, page %u was committed and is not there", chain, page);
	if (fate == UNKNOWN && entry != INDEX_NONE)
		fail_msg("chain %u, page %u was never put", chain, page);
	if (place || clean)
		check_in_file(hit.record, hit.page, &key, want);
	if (entry != INDEX_NONE)
		checked[place ? 2 : clean]++;
	if (entry != INDEX_NONE)
		atomic_store(&journal->fate[chain][page], COMMITTED);
	else if (fate == COMMITTING)
		atomic_store(&journal->fate[chain][page], UNKNOWN);
}

static void check_pages(void)
{
	for (uint32_t chain = 0; chain < CHAINS; chain++)
		for (uint32_t page = 0; page < PAGES; page++)
			check_page(chain, page);
	for (uint32_t page = 1; page < 8; page++) /* a WHOLE group */
		assert_int_equal(journal->fate[WHOLE_CHAIN][page] == COMMITTED, journal->fate[WHOLE_CHAIN][0] == COMMITTED);
}

static uint32_t rows_seen;

/* A row of the catalogue is of a record, and says what the tier knows. Nothing is under way. */
static bool check_row(void *context, const struct catalogue_row *row)
{
	world_lock(w);
	uint32_t record = index_find_endpoint(w->f.space->index, &row->endpoint);
	const struct record_file *f = &w->t->files[record];

	(void)context;
	if (record == INDEX_NONE)
		fail_msg("row %llu of chain %llu to page %llu is of no record", (unsigned long long)row->id,
			 (unsigned long long)row->endpoint.words[1], (unsigned long long)row->endpoint.words[2]);
	assert_int_equal(row->id, f->id);
	assert_int_equal(row->pages, f->pages);
	assert_int_equal(row->consumed, tiering_file_consumed(w->t, record));
	assert_int_equal(row->file_pages, f->file_pages);
	assert_int_equal(!!(row->flags & CATALOGUE_ROW), !!(f->flags & TIERING_FILE_ROW));
	assert_int_equal(row->file_bytes, f->bytes);
	world_unlock(w);
	rows_seen++;
	return true;
}

static void await_reconciled(void)
{
	struct reconcile_report report = { 0 };

	assert_non_null(w->t->reconcile);
	for (uint64_t until_ns = clock_now_ns() + WORLD_WAIT_NS; !report.done; sched_yield()) {
		reconcile_report(w->t->reconcile, &report);
		assert_true(clock_now_ns() < until_ns);
		mover_ask(w->f.host);
	}
}

/* Files, rows in the tables and rows of the catalogue are the same, and nothing is behind. All of it is written: a file that was, when its
 * row was not yet, is longer than that says until it is written again. */
static void check_reconciled(void)
{
	const struct layout *of = w->f.space->layout;
	struct catalogue_report catalogue;
	struct why why = WHY_INIT;
	char path[256];

	world_check_idle(w);
	assert_true(catalogue_flush(w->t->catalogue, WORLD_WAIT_NS));
	catalogue_report(w->t->catalogue, &catalogue);
	assert_false(catalogue.behind);
	snprintf(path, sizeof(path), "%s/catalogue.sqlite", disk_dir_path(w->t->dir));
	rows_seen = 0;
	int r = catalogue_look(path, of->identity, of->fingerprint, UINT64_MAX, check_row, NULL, &why);

	if (r)
		fail_msg("catalogue: %s", why.text);
	assert_int_equal(rows_seen, w->t->disk_files);
}

static void close_host(void)
{
	if (w->s) {
		session_release(w->s);
		session_unref(&w->s);
	}
	fixture_close(&w->f);
}

/* What the disk has, found from it alone. */
static void check_start(void)
{
	open_host(NULL, false);
	make();
	for (uint32_t i = 0; rows && i < CHAINS * PAGES; i++)
		if (atomic_load(&journal->fate[i / PAGES][i % PAGES]) == COMMITTED)
			atomic_store(&journal->fate[i / PAGES][i % PAGES], LEAVING);
	check_pages();
	world_check_idle(w);
	close_host();
}

/* Under the lock: does a file lack something, or have too much? Told by the records: one whose write is being made is in no order. */
static bool anything_to_write(void)
{
	struct tiering *t = w->t;

	for (uint32_t n = 0; n < index_record_limit(w->f.space->index); n++)
		if (t->files[n].flags & TIERING_KNOWN && index_record_current(w->f.space->index, n) &&
		    (t->files[n].dirty || t->files[n].flags & TIERING_STALE))
			return true;
	return t->writes;
}

static void look(int pidfd, bool uring)
{
	struct adopt_report report;

	open_host(NULL, uring);
	adopt(pidfd, &report);
	world_lock(w);
	world_check_accounts(w);
	world_unlock(w);
	check_pages();
	await_reconciled();
	check_pages();
	set_draining(true);
	world_await(w, !anything_to_write());
	set_draining(false);
	check_reconciled();
	close_host();
	close(kept_segment);
	close(kept_tables);
	check_start();
}

/* ---- deaths -------------------------------------------------------------------------------------------------------------------------- */

static void remove_folder(void)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	assert_int_equal(system(command), 0);
}

static void begin(void)
{
	memset(journal, 0, sizeof(*journal));
	snprintf(folder, sizeof(folder), "/tmp/prefixfs-adopt-XXXXXX");
	assert_non_null(mkdtemp(folder));
}

/* Two lives that end at @first and @second, then a look. */
static void one(const char *first, const char *second, bool uring, bool resets)
{
	struct life life = { .fault = first, .uring = uring, .resets = resets, .seed = seed };
	int pidfd;

	print_message("PREFIXFS_TEST_SEED=%llu: %s, then %s%s\n", (unsigned long long)seed, first, second ? second : "a look",
		      uring ? ", uring" : "");
	rows = pick(2);
	begin();
	pidfd = run_life(&life, -1);
	if (second) {
		life.seed = seed + 0x9e3779b97f4a7c15ull;
		life.fault = second;
		pidfd = run_life(&life, pidfd);
	}
	look(pidfd, uring);
	remove_folder();
}

static void test_operations(void **state)
{
	char first[64], second[64];

	(void)state;
	for (uint32_t n = 1; n < 400; n += 1 + n / 3) {
		snprintf(first, sizeof(first), "any:%s:%u", pick(2) ? "kill" : "kill_after", n);
		snprintf(second, sizeof(second), "any:%s:%u", pick(2) ? "kill" : "kill_after", 1 + pick(n));
		one(first, pick(2) ? second : NULL, false, false);
	}
}

static void test_names(void **state)
{
	static const char *const operations[] = { "rename", "truncate", "unlink", "create" };
	char first[64], second[64];

	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		snprintf(first, sizeof(first), "%s:%s:%u", operations[i % 4], pick(2) ? "kill" : "kill_after", 1 + pick(20));
		snprintf(second, sizeof(second), "%s:%s:%u", operations[pick(4)], pick(2) ? "kill" : "kill_after", 1 + pick(6));
		one(first, pick(2) ? second : NULL, false, i % 4 == 3);
	}
}

static void test_points(void **state)
{
	static const char *const points[] = { "catalogue_begin", "catalogue_commit", "catalogue_done", "write_named", "write_known", "demote" };
	char first[64], second[64];

	(void)state;
	for (uint32_t i = 0; i < 2 * sizeof(points) / sizeof(points[0]); i++) {
		snprintf(first, sizeof(first), "%s:kill:%u", points[i / 2], 1 + pick(5));
		snprintf(second, sizeof(second), "%s:kill:%u", points[pick(6)], 1 + pick(3));
		one(first, pick(2) ? second : NULL, false, false);
	}
}

static void test_resets(void **state)
{
	(void)state;
	one("reset_begin:kill:1", NULL, false, true);
	one("reset_noted:kill:1", NULL, false, true);
	one("reset_noted:kill:1", "reset_clear:kill:40", false, true);
	one("reset_clear:kill:1", NULL, false, true);
	one("reset_clear:kill:200", "rename:kill:30", false, true);
}

static void test_uring(void **state)
{
	char first[64];

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		snprintf(first, sizeof(first), "any:kill:%u", 20 + pick(200));
		one(first, NULL, true, false);
	}
}

/* The lock does not come: memory alone, and what was on disk only goes; the one after that has the disk again. */
static void test_no_lock(void **state)
{
	struct life life = { .fault = "any:kill:120", .seed = seed };
	struct space_access access = { 0, 0, 0700 };
	struct host_config config = {
		.memory_bytes = MEMORY, .wish = SEGMENT_WISH_SMALL, .populate_threads = 1, .handle_ttl_ms = 60000, .fill_ttl_ms = 60000,
		.token_ttl_ms = 10000, .disk_path = folder, .disk_bytes = 256 * MIB, .disk_workers = 1, .disk_plain = true, .disk_late = true,
	};
	struct adopt_report report;
	struct why why = WHY_INIT;
	char path[96];

	(void)state;
	begin();
	int pidfd = run_life(&life, -1);

	snprintf(path, sizeof(path), "%s/lock", folder);
	int lock = open(path, O_RDWR | O_CLOEXEC);

	assert_int_equal(flock(lock, LOCK_EX), 0);
	memset(w, 0, sizeof(*w));
	if (host_new(&config, &w->f.host, &why))
		fail_msg("host: %s", why.text);
	assert_null(w->f.host->disk);
	assert_non_null(strstr(w->f.host->disk_text, "has not ended in 2 s"));
	struct adopt_session session = { .number = atomic_load(&journal->session), .pidfd = dup(pidfd), .guard_fd = -1 };
	struct adoption adoption = {
		.name = "test", .serial = 1, .layout = layout(), .access = &access,
		.segment_fd = dup(kept_segment), .tables_fd = dup(kept_tables), .sessions = &session, .session_count = 1,
	};

	if (host_space_adopt(w->f.host, &adoption, &w->f.space, &report, &why))
		fail_msg("adoption: %s", why.text);
	assert_null(w->f.space->tiering);
	world_lock(w);
	index_check(w->f.space->index);
	for (uint32_t n = 0; n < index_record_limit(w->f.space->index); n++)
		assert_null(files_get(&w->f.space->tables, n));
	for (uint32_t chain = 0; chain < CHAINS; chain++)
		for (uint32_t page = 0; page < PAGES; page++) {
			struct key key = fixture_key(chain, page);
			struct index_hit hit;

			index_lookup(w->f.space->index, &key, 1, 1, &hit);
			atomic_store(&journal->fate[chain][page], hit.record != INDEX_NONE && hit.complete ? COMMITTED : UNKNOWN);
		}
	world_unlock(w);
	close_host();
	close(lock);
	look(pidfd, false);
	remove_folder();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_operations),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_points),
		cmocka_unit_test(test_resets),
		cmocka_unit_test(test_uring),
		cmocka_unit_test(test_no_lock),
	};
	const char *text = getenv("PREFIXFS_TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : clock_now_ns() | 1;
	journal = mmap(NULL, sizeof(*journal), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (journal == MAP_FAILED)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
