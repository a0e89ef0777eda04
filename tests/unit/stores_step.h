/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory after every single store to it, for tests of what a death may leave.
 *
 * The memory is mapped read-only while an operation runs: each store to it faults, is let through alone (the processor's single
 * step) and is followed by a snapshot. On x86-64 without sanitizers only: CAN_STEP.
 */
#ifndef PREFIXFS_TESTS_STORES_STEP_H
#define PREFIXFS_TESTS_STORES_STEP_H

#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define SNAPSHOTS 4096u

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_STEP 1
#else
#define CAN_STEP 0
#endif

static char *stepped;
static size_t stepped_bytes;
static char *snapshots;
static uint32_t snapshot_count;

static inline void protect(int how)
{
	if (mprotect(stepped, stepped_bytes, how))
		_exit(99);
}

#if CAN_STEP
#define TRAP_FLAG 0x100

static inline void on_fault(int signal, siginfo_t *info, void *context)
{
	ucontext_t *u = context;
	size_t at = (size_t)((char *)info->si_addr - stepped);

	if (at >= stepped_bytes) {
		struct sigaction plain = {.sa_handler = SIG_DFL};

		sigaction(signal, &plain, NULL);
		return;
	}
	protect(PROT_READ | PROT_WRITE);
	u->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static inline void on_step(int signal, siginfo_t *info, void *context)
{
	ucontext_t *u = context;

	(void)signal;
	(void)info;
	u->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	protect(PROT_READ);
	if (snapshot_count == SNAPSHOTS)
		return;
	memcpy(snapshots + snapshot_count++ * stepped_bytes, stepped, stepped_bytes);
}
#endif

/* @memory: whole pages of a private mapping. */
static inline void step_init(void *memory, size_t bytes)
{
	stepped = memory;
	stepped_bytes = bytes;
	snapshots = mmap(NULL, SNAPSHOTS * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert(snapshots != MAP_FAILED);
}

static inline void step_deinit(void)
{
	munmap(snapshots, SNAPSHOTS * stepped_bytes);
}

static inline void step_begin(void)
{
	snapshot_count = 0;
#if CAN_STEP
	struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	struct sigaction step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};

	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGTRAP, &step, NULL);
#endif
	protect(PROT_READ);
}

static inline void step_end(void)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};

	protect(PROT_READ | PROT_WRITE);
	sigaction(SIGSEGV, &plain, NULL);
	sigaction(SIGTRAP, &plain, NULL);
}

#endif
