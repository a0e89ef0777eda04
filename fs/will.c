/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/will.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "store/base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define EPOCH_LAST 65535u

/* ---- the pages ------------------------------------------------------------------------------------------------------- */

/* Without MFD_NOEXEC_SEAL a host with vm.memfd_noexec=2 refuses; kernels before 6.3 do not know it. */
static int create_file(void)
{
	int fd = memfd_create("prefixfs-will", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("prefixfs-will", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd;
}

static int map(int fd, struct will **ret, struct why *why)
{
	void *at = mmap(NULL, sizeof(struct will), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

	if (at == MAP_FAILED)
		return why_set(why, errno, "the will of %zu bytes cannot be mapped: %s", sizeof(struct will), strerror(errno));
	*ret = at;
	return 0;
}

int will_make(struct will **ret, int *ret_fd, struct why *why)
{
	cleanup(closep) int fd = create_file();
	struct will *will;

	if (fd < 0)
		return why_set(why, errno, "memory file of the will: %s", strerror(errno));
	if (fchmod(fd, 0600) || ftruncate(fd, sizeof(*will)) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return why_set(why, errno, "memory file of the will: mode, length and seals: %s", strerror(errno));
	int r = map(fd, &will, why);
	if (r)
		return r;
	will->magic = WILL_MAGIC;
	will->version = WILL_VERSION;
	will->bytes = sizeof(*will);
	*ret = will;
	*ret_fd = STEAL_FD(fd);
	return 0;
}

int will_map(int fd, struct will **ret, struct why *why)
{
	struct {
		uint64_t magic;
		uint32_t version, bytes;
	} head;
	struct stat st;

	if (pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != WILL_MAGIC || fstat(fd, &st) != 0)
		return why_set(why, EINVAL, "what the parent handed on is no will");
	if (head.version != WILL_VERSION)
		return why_set(why, EPROTO, "the parent speaks version %u to its serving process, this program %u", head.version,
			WILL_VERSION);
	if (head.bytes != sizeof(struct will) || st.st_size != sizeof(struct will))
		return why_set(why, EPROTO, "the parent's will has %u bytes in %lld, and not %zu, as this program's of version %u has",
			head.bytes, (long long)st.st_size, sizeof(struct will), WILL_VERSION);
	return map(fd, ret, why);
}

void will_unmap(struct will **will)
{
	if (*will)
		munmap(*will, sizeof(**will));
	*will = NULL;
}

static void forget_last_words(struct will *will)
{
	will->code = 0;
	will->address = will->instruction = will->thread = 0;
	atomic_store_explicit(&will->signal, 0, memory_order_relaxed);
}

/* SIGKILL is no fault of its own: it leaves no words. */
static void count_adoption_faults(struct will *will)
{
	will->space[sizeof(will->space) - 1] = 0;
	if (atomic_load(&will->phase) != WILL_ADOPTING || !atomic_load(&will->signal)) {
		will->adoption_faults = 0;
		return;
	}
	if (strcmp(will->adoption_fault, will->space) != 0)
		will->adoption_faults = 0;
	memcpy(will->adoption_fault, will->space, sizeof(will->adoption_fault));
	will->adoption_faults++;
}

void will_next(struct will *will, bool remounted)
{
	uint32_t epoch = atomic_load_explicit(&will->epoch, memory_order_relaxed);

	count_adoption_faults(will);
	forget_last_words(will);
	for (unsigned i = 0; i < WILL_LOOPS; i++)
		will_ends(will, i);
	memset(will->space, 0, sizeof(will->space));
	atomic_store_explicit(&will->done, 0, memory_order_relaxed);
	atomic_store_explicit(&will->goal, 0, memory_order_relaxed);
	if (remounted) {
		memset(&will->init, 0, sizeof(will->init));
		for (unsigned i = 0; i < WILL_HANDLES; i++)
			atomic_store_explicit(&will->polls[i], 0, memory_order_relaxed);
	}
	will_enters(will, WILL_STARTING);
	atomic_store_explicit(&will->epoch, epoch < EPOCH_LAST ? epoch + 1 : 1, memory_order_release);
}

/* ---- last words ------------------------------------------------------------------------------------------------------ */

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define FATAL (sizeof(fatal) / sizeof(fatal[0]))

/* Constant once will_catch has returned. */
static struct will *caught_by;
static bool with_core;
static struct sigaction before[FATAL];

extern const char __executable_start, etext; /* the linker's: where the program's code begins and ends */

/* As an offset in the program's file; 0: a library's, or nobody knows. */
static uint64_t place_of(const ucontext_t *machine)
{
#if defined(__x86_64__)
	uintptr_t at = (uintptr_t)machine->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	uintptr_t at = (uintptr_t)machine->uc_mcontext.pc;
#else
	uintptr_t at = 0;
#endif
	return at >= (uintptr_t)&__executable_start && at < (uintptr_t)&etext ? at - (uintptr_t)&__executable_start : 0;
}

/* The signal is whose it was before: the default's, or a sanitizer's. A fault comes again when its instruction does; what was sent
 * is sent again. Done first, so that a fault in here goes the same way. */
static void give_back(int signal, const siginfo_t *info)
{
	for (unsigned i = 0; i < FATAL; i++)
		if (fatal[i] == signal)
			sigaction(signal, &before[i], NULL);
	if (with_core && info->si_code <= 0)
		raise(signal);
}

static void write_last_words(int signal, siginfo_t *info, void *machine)
{
	struct will *will = caught_by;
	int saved = errno;

	give_back(signal, info);
	will->code = info->si_code;
	will->address = info->si_code > 0 ? (uintptr_t)info->si_addr : 0;
	will->instruction = place_of(machine);
	will->thread = (uint64_t)syscall(SYS_gettid);
	atomic_store_explicit(&will->signal, signal, memory_order_release);
	if (!with_core)
		kill(getpid(), SIGKILL);
	errno = saved;
}

int will_catch(struct will *will, bool core, struct why *why)
{
	struct sigaction ours = {.sa_sigaction = write_last_words, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	sigemptyset(&ours.sa_mask);
	caught_by = will;
	with_core = core;
	for (unsigned i = 0; i < FATAL; i++)
		if (sigaction(fatal[i], NULL, &before[i]) || sigaction(fatal[i], &ours, NULL))
			return why_set(why, errno, "signal %d (%s) cannot be caught: %s", fatal[i], strsignal(fatal[i]), strerror(errno));
	return 0;
}
