/* SPDX-License-Identifier: Apache-2.0
 *
 * No mapping of the segment lives longer than one call: population maps a window, fills it and lets it go, so that the
 * daemon's page tables and resident size (which the OOM killer judges by) do not grow with the cache. Inside a window
 * only the kernel touches memory, on our behalf (MADV_POPULATE_WRITE, process_vm_writev): where a page cannot be had it
 * answers with an error, never with SIGBUS.
 */
#include "store/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/cleanup.h"
#include "store/base/lock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

#define SEGMENT_MAGIC 0x5345474du
#define HUGE_PAGE (2ull << 20)
#define PIECE (8ull << 20) /* populated in one call; a signal, a punch, a full host, or who maps something meanwhile, costs no more than it */
#define MAX_THREADS 64u
#define MAX_BYTES (1ull << 46) /* 64 TiB: half the address space of a process */
#define MPOL_PREFERRED_MODE 1  /* linux/mempolicy.h */
#define MAX_NODES 1024u

#define THP_DIR "/sys/kernel/mm/transparent_hugepage/"
#define HUGETLB_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB/"

struct segment {
	uint32_t magic;
	int fd, read_only_fd;
	uint64_t bytes;
	enum segment_backing backing;
	_Atomic uint64_t huge_checked, huge_found; /* THP: bytes looked at after population; of them huge */
};

/* ---- what the host has ----------------------------------------------------------------------------------------- */

static bool read_text(const char *path, char *text, size_t size)
{
	cleanup(fclosep) FILE *file = fopen(path, "re");

	return file && fgets(text, (int)size, file);
}

static uint64_t read_number(const char *path)
{
	char text[64];

	return read_text(path, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
}

static uint64_t hugetlb_available(void)
{
	uint64_t free_pages = read_number(HUGETLB_DIR "free_hugepages");
	uint64_t promised = read_number(HUGETLB_DIR "resv_hugepages");

	return free_pages > promised ? (free_pages - promised) * HUGE_PAGE : 0;
}

/* Is [@word] what the file has chosen? */
static bool chosen(const char *text, const char *word)
{
	char bracketed[32];

	snprintf(bracketed, sizeof(bracketed), "[%s]", word);
	return strstr(text, bracketed) != NULL;
}

/* May memory files have huge pages on advice? Since 6.11 each size has a switch, which "inherit" hands to the general
 * one; "deny" and "force" of the general one override it. */
static bool thp_allowed(void)
{
	char general[128], sized[128];

	if (!read_text(THP_DIR "shmem_enabled", general, sizeof(general)) || chosen(general, "deny"))
		return false;
	if (chosen(general, "force"))
		return true;
	const char *decides = general;

	if (read_text(THP_DIR "hugepages-2048kB/shmem_enabled", sized, sizeof(sized)) && !chosen(sized, "inherit"))
		decides = sized;
	return chosen(decides, "always") || chosen(decides, "within_size") || chosen(decides, "advise");
}

/* ---- windows --------------------------------------------------------------------------------------------------- */

struct window {
	char *reserved; /* address space; the window lies in it, at a multiple of a huge page */
	size_t reserved_bytes;
	char *memory;
	size_t bytes;
};

static int window_open(int fd, bool advise_huge, uint64_t offset, size_t bytes, struct window *ret)
{
	struct window w = {.reserved_bytes = bytes + HUGE_PAGE, .bytes = bytes};
	void *at = mmap(NULL, w.reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return -errno;
	w.reserved = at;
	w.memory = w.reserved + (HUGE_PAGE - (uintptr_t)w.reserved % HUGE_PAGE) % HUGE_PAGE;
	at = mmap(w.memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset);
	if (at == MAP_FAILED) {
		int error = errno;

		munmap(w.reserved, w.reserved_bytes);
		return -error;
	}
	madvise(w.memory, bytes, MADV_DONTDUMP);
	madvise(w.memory, bytes, MADV_DONTFORK);
	if (advise_huge)
		madvise(w.memory, bytes, MADV_HUGEPAGE);
	*ret = w;
	return 0;
}

static void window_close(struct window *w)
{
	if (w->reserved)
		munmap(w->reserved, w->reserved_bytes);
	w->reserved = NULL;
}

/* Makes every page of the window present, a hole punched meanwhile apart. */
static int window_populate(const struct window *w, int fd, uint64_t offset)
{
	int error;

	do
		error = madvise(w->memory, w->bytes, MADV_POPULATE_WRITE) ? errno : 0;
	while (error == EINTR || error == EAGAIN);
	if (error == EINVAL || error == ENOSYS) /* before Linux 5.14: allocate without mapping; no THP that way */
		do
			error = fallocate(fd, 0, (off_t)offset, (off_t)w->bytes) ? errno : 0;
		while (error == EINTR);
	if (error == EFAULT || error == ENOSPC || error == EOPNOTSUPP) /* how an empty pool of huge pages answers */
		error = ENOMEM;
	return -error;
}

/* Bytes of the window that are mapped by huge pages; -1 when the kernel does not say. */
static int64_t window_huge_bytes(const struct window *w)
{
	cleanup(fclosep) FILE *file = fopen("/proc/self/smaps", "re");
	char line[512];
	bool ours = false;

	while (file && fgets(line, sizeof(line), file)) {
		unsigned long long from, to, kib;

		if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
			ours = from == (uintptr_t)w->memory;
		else if (ours && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
			return (int64_t)(kib << 10);
	}
	return -1;
}

/* Does advice really bring huge pages? The switches say what may be; a full trial says what is. */
static bool thp_works(void)
{
	cleanup(closep) int fd = memfd_create("trial", MFD_CLOEXEC);
	struct window w = {0};
	bool works = false;

	if (fd < 0 || ftruncate(fd, (off_t)HUGE_PAGE) || window_open(fd, true, 0, HUGE_PAGE, &w))
		return false;
	works = window_populate(&w, fd, 0) == 0 && window_huge_bytes(&w) == (int64_t)HUGE_PAGE;
	window_close(&w);
	return works;
}

/* ---- making and freeing ---------------------------------------------------------------------------------------- */

static int choose_backing(const struct segment_config *config, enum segment_backing *ret, struct why *why)
{
	uint64_t want = config->expected_bytes ? config->expected_bytes : config->bytes;

	switch (config->wish) {
	case SEGMENT_WISH_SMALL:
		*ret = SEGMENT_SMALL;
		return 0;
	case SEGMENT_WISH_THP:
		*ret = thp_allowed() && thp_works() ? SEGMENT_THP : SEGMENT_SMALL;
		return 0;
	case SEGMENT_WISH_HUGETLB:
		if (hugetlb_available() < want)
			return why_set(why, ENOMEM, "huge pages: %llu bytes are free and unreserved, %llu are wanted",
				(unsigned long long)hugetlb_available(), (unsigned long long)want);
		*ret = SEGMENT_HUGETLB;
		return 0;
	case SEGMENT_WISH_AUTO:
		break;
	}
	if (hugetlb_available() >= want)
		*ret = SEGMENT_HUGETLB;
	else
		*ret = thp_allowed() && thp_works() ? SEGMENT_THP : SEGMENT_SMALL;
	return 0;
}

/* Without MFD_NOEXEC_SEAL a host with vm.memfd_noexec=2 refuses; kernels before 6.3 do not know it. */
static int create_file(const char *name, bool hugetlb)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
	char shown[201];

	snprintf(shown, sizeof(shown), "%s", name);
	int fd = memfd_create(shown, flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(shown, flags);
	return fd < 0 ? -errno : fd;
}

static int open_read_only(struct segment *s, struct why *why)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->fd);
	s->read_only_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (s->read_only_fd < 0)
		return why_set(
			why, errno, "memory file of the segment: %s read-only: %s", path, strerrordesc_np(errno));
	return 0;
}

static int make_files(struct segment *s, const char *name, struct why *why)
{
	s->fd = create_file(name, s->backing == SEGMENT_HUGETLB);
	if (s->fd < 0)
		return why_set(why, -s->fd, "memory file of the segment: %s", strerrordesc_np(-s->fd));
	/* The mode comes first: a memory file is born 0777, and who reopens it before keeps what he got. */
	if (fchmod(s->fd, 0600))
		return why_set(why, errno, "memory file of the segment: mode 0600: %s", strerrordesc_np(errno));
	if (ftruncate(s->fd, (off_t)s->bytes))
		return why_set(why, errno, "memory file of the segment: length %llu: %s", (unsigned long long)s->bytes,
			strerrordesc_np(errno));
	if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return why_set(why, errno, "memory file of the segment: seals: %s", strerrordesc_np(errno));
	return open_read_only(s, why);
}

static struct segment *segment_empty(void)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->magic = SEGMENT_MAGIC;
	s->fd = s->read_only_fd = -1;
	return s;
}

int segment_new(const struct segment_config *config, struct segment **ret, struct why *why)
{
	if (config->bytes == 0 || config->bytes % HUGE_PAGE || config->bytes > MAX_BYTES)
		return why_set(why, EINVAL, "segment length %llu is no multiple of %llu from there to %llu",
			(unsigned long long)config->bytes, HUGE_PAGE, MAX_BYTES);
	if (config->expected_bytes > config->bytes)
		return why_set(why, EINVAL, "expected bytes %llu are over the segment's length %llu",
			(unsigned long long)config->expected_bytes, (unsigned long long)config->bytes);
	struct segment *s = segment_empty();

	if (!s)
		return why_set(why, ENOMEM, "no memory for a segment");
	s->bytes = config->bytes;
	int r = choose_backing(config, &s->backing, why);

	if (!r)
		r = make_files(s, config->name, why);
	if (r) {
		segment_free(&s);
		return r;
	}
	*ret = s;
	return 0;
}

/* What kind of file it is, is asked of it; whether huge pages are to be had for it on advice, of the host. */
static int adopt_file(struct segment *s, enum segment_wish wish, struct why *why)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(s->fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || fstat(s->fd, &st) || fstatfs(s->fd, &fs))
		return why_set(why, EINVAL, "the segment is no memory file: %s", strerrordesc_np(errno));
	if ((seals & wanted) != wanted)
		return why_set(why, EINVAL, "the segment has seals 0x%x; one that cannot shrink or grow has 0x%x", seals, wanted);
	if (st.st_size <= 0 || (uint64_t)st.st_size % HUGE_PAGE || (uint64_t)st.st_size > MAX_BYTES)
		return why_set(why, EINVAL, "the segment's length %lld is no multiple of %llu from there to %llu", (long long)st.st_size,
			HUGE_PAGE, MAX_BYTES);
	s->bytes = (uint64_t)st.st_size;
	if (fs.f_type == HUGETLBFS_MAGIC)
		s->backing = SEGMENT_HUGETLB;
	else
		s->backing = wish != SEGMENT_WISH_SMALL && thp_allowed() && thp_works() ? SEGMENT_THP : SEGMENT_SMALL;
	return open_read_only(s, why);
}

int segment_adopt(int fd, enum segment_wish wish, struct segment **ret, struct why *why)
{
	struct segment *s = segment_empty();

	if (!s) {
		close(fd);
		return why_set(why, ENOMEM, "no memory for a segment");
	}
	s->fd = fd;
	int r = adopt_file(s, wish, why);

	if (r) {
		segment_free(&s);
		return r;
	}
	*ret = s;
	return 0;
}

void segment_free(struct segment **segment)
{
	struct segment *s = *segment;

	*segment = NULL;
	if (!s)
		return;
	assert(s->magic == SEGMENT_MAGIC);
	s->magic = 0;
	if (s->read_only_fd >= 0)
		close(s->read_only_fd);
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}

int segment_fd(const struct segment *segment)
{
	return segment->fd;
}

int segment_read_only_fd(const struct segment *segment)
{
	return segment->read_only_fd;
}

uint64_t segment_bytes(const struct segment *segment)
{
	return segment->bytes;
}

uint64_t segment_page_bytes(const struct segment *segment)
{
	return segment->backing == SEGMENT_HUGETLB ? HUGE_PAGE : (uint64_t)sysconf(_SC_PAGESIZE);
}

enum segment_backing segment_backing(const struct segment *segment)
{
	return segment->backing;
}

const char *segment_backing_name(enum segment_backing backing)
{
	switch (backing) {
	case SEGMENT_SMALL:
		return "small";
	case SEGMENT_THP:
		return "thp";
	case SEGMENT_HUGETLB:
		return "hugetlb";
	}
	return "unknown";
}

void segment_huge_seen(const struct segment *segment, uint64_t *ret_checked, uint64_t *ret_huge)
{
	*ret_checked = segment->huge_checked;
	*ret_huge = segment->huge_found;
}

uint64_t segment_resident_bytes(const struct segment *segment)
{
	struct stat st;

	return fstat(segment->fd, &st) ? 0 : (uint64_t)st.st_blocks * 512;
}

/* ---- population ------------------------------------------------------------------------------------------------ */

/* What the threads of one call share. */
struct population {
	struct segment *segment;
	uint64_t offset, length;
	uint32_t node;
	_Atomic uint64_t next; /* bytes handed out to threads */
	_Atomic int error;     /* first negative errno */
	_Atomic uint64_t *progress;
};

/* New pages of this thread come from @node where it has some; a wish, so an answer of no is let pass. */
static void prefer_node(uint32_t node)
{
	unsigned long mask[MAX_NODES / (8 * sizeof(unsigned long))] = {0};
	const unsigned bits = 8 * sizeof(mask[0]);

	if (node >= MAX_NODES)
		return;
	mask[node / bits] = 1ul << node % bits;
	syscall(SYS_set_mempolicy, MPOL_PREFERRED_MODE, mask, (unsigned long)MAX_NODES);
}

static int populate_piece(struct segment *s, uint64_t offset, size_t bytes, bool look)
{
	struct window w = {0};
	int r = window_open(s->fd, s->backing == SEGMENT_THP, offset, bytes, &w);

	if (r)
		return r;
	r = window_populate(&w, s->fd, offset);
	int64_t huge = !r && look ? window_huge_bytes(&w) : -1;

	if (huge >= 0) {
		s->huge_found += (uint64_t)huge;
		s->huge_checked += bytes;
	}
	window_close(&w);
	return r;
}

static void *populate_thread(void *argument)
{
	struct population *p = argument;

	prefer_node(p->node);
	while (p->error == 0) {
		uint64_t at = atomic_fetch_add_explicit(&p->next, PIECE, memory_order_relaxed);

		if (at >= p->length)
			break;
		uint64_t bytes = p->length - at < PIECE ? p->length - at : PIECE;
		bool look = at == 0 && p->segment->backing == SEGMENT_THP;
		int r = populate_piece(p->segment, p->offset + at, bytes, look), none = 0;

		if (r)
			atomic_compare_exchange_strong(&p->error, &none, r);
		else if (p->progress)
			atomic_fetch_add_explicit(p->progress, bytes, memory_order_relaxed);
	}
	return NULL;
}

/* Own threads even for one: their memory policy and signal mask are nobody else's. */
static int run_threads(struct population *p, unsigned threads)
{
	pthread_t thread[MAX_THREADS];
	sigset_t all, before;
	unsigned started = 0;
	int error = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (started < threads) {
		error = pthread_create(&thread[started], NULL, populate_thread, p);
		if (error)
			break;
		started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	for (unsigned i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
	return started ? 0 : -error;
}

int segment_populate_on_node(struct segment *segment, uint64_t offset, uint64_t length, unsigned threads, uint32_t node,
	_Atomic uint64_t *progress, struct why *why)
{
	assert(segment->magic == SEGMENT_MAGIC);
	lock_assert_none_held();
	if (offset % HUGE_PAGE || length % HUGE_PAGE || length > segment->bytes || offset > segment->bytes - length)
		return why_set(why, EINVAL, "bytes %llu+%llu are not whole units of %llu in a segment of %llu",
			(unsigned long long)offset, (unsigned long long)length, HUGE_PAGE,
			(unsigned long long)segment->bytes);
	if (threads == 0 || threads > MAX_THREADS)
		return why_set(why, EINVAL, "%u threads are not 1 to %u", threads, MAX_THREADS);
	struct population p = {
		.segment = segment,
		.offset = offset,
		.length = length,
		.node = node,
		.progress = progress,
	};
	uint64_t pieces = (length + PIECE - 1) / PIECE;
	int r = pieces ? run_threads(&p, threads < pieces ? threads : (unsigned)pieces) : 0;

	if (r)
		return why_set(why, -r, "no thread for populating the segment: %s", strerrordesc_np(-r));
	if (p.error)
		return why_set(why, -p.error, "populating bytes %llu+%llu of the segment (%s pages): %s",
			(unsigned long long)offset, (unsigned long long)length, segment_backing_name(segment->backing),
			strerrordesc_np(-p.error));
	return 0;
}

int segment_populate(struct segment *segment, uint64_t offset, uint64_t length, unsigned threads,
	_Atomic uint64_t *progress, struct why *why)
{
	return segment_populate_on_node(segment, offset, length, threads, SEGMENT_ANY_NODE, progress, why);
}

int segment_punch(struct segment *segment, uint64_t offset, uint64_t length, struct why *why)
{
	int r;

	assert(segment->magic == SEGMENT_MAGIC);
	lock_assert_none_held();
	if (offset % HUGE_PAGE || length % HUGE_PAGE || length > segment->bytes || offset > segment->bytes - length)
		return why_set(why, EINVAL, "bytes %llu+%llu are not whole units of %llu in a segment of %llu",
			(unsigned long long)offset, (unsigned long long)length, HUGE_PAGE,
			(unsigned long long)segment->bytes);
	do
		r = fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length);
	while (r && errno == EINTR);
	if (r)
		return why_set(why, errno, "giving bytes %llu+%llu of the segment back: %s", (unsigned long long)offset,
			(unsigned long long)length, strerrordesc_np(errno));
	return 0;
}

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

static bool inside(const struct segment *segment, uint64_t offset, size_t bytes)
{
	return bytes <= segment->bytes && offset <= segment->bytes - bytes;
}

int segment_read(const struct segment *segment, uint64_t offset, void *to, size_t bytes)
{
	char *at = to;

	lock_assert_none_held();
	if (!inside(segment, offset, bytes))
		return -EINVAL;
	while (bytes) {
		ssize_t got = pread(segment->fd, at, bytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		at += got;
		offset += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return 0;
}

/* Files of huge pages cannot be written to, only mapped: the kernel writes into a window on our behalf, which is an error
 * where a store of our own would be SIGBUS. */
static int write_through_window(const struct segment *segment, uint64_t offset, const char *from, size_t bytes)
{
	while (bytes) {
		uint64_t start = offset / HUGE_PAGE * HUGE_PAGE;
		size_t skip = (size_t)(offset - start);
		size_t part = PIECE - skip < bytes ? PIECE - skip : bytes;
		size_t mapped = (skip + part + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
		struct window w = {0};
		int r = window_open(segment->fd, false, start, mapped, &w);

		if (r)
			return r;
		struct iovec local = {.iov_base = (void *)(uintptr_t)from, .iov_len = part};
		struct iovec remote = {.iov_base = w.memory + skip, .iov_len = part};
		ssize_t put = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);

		r = put < 0 ? -errno : 0;
		window_close(&w);
		if (r == -EFAULT) /* no huge page is left for a hole that somebody punched */
			r = -ENOMEM;
		if (r || put == 0)
			return r ? r : -EIO;
		from += put;
		offset += (uint64_t)put;
		bytes -= (size_t)put;
	}
	return 0;
}

int segment_write(struct segment *segment, uint64_t offset, const void *from, size_t bytes)
{
	const char *at = from;

	lock_assert_none_held();
	if (!inside(segment, offset, bytes))
		return -EINVAL;
	if (segment->backing == SEGMENT_HUGETLB)
		return write_through_window(segment, offset, at, bytes);
	while (bytes) {
		ssize_t put = pwrite(segment->fd, at, bytes, (off_t)offset);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? -errno : -EIO;
		at += put;
		offset += (uint64_t)put;
		bytes -= (size_t)put;
	}
	return 0;
}
