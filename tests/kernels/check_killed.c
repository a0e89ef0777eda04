/* SPDX-License-Identifier: Apache-2.0
 *
 * check_killed kernel|copies: does a GPU go on writing to shared memory when the process that started that is gone? On it rests when slots
 * of a killed engine may be given to others. A child registers the memory, starts what writes, and is killed; its parent looks at
 * the memory from when the child's pidfd is readable. Where the context is the child's own nothing may be written any more; where it is that of a
 * server of CUDA MPS the answer is told. Exits with 77 where there is no GPU, and says why.
 *
 *   kernel   one kernel that writes for ten seconds
 *   copies   copies to the host for more than a second, all submitted
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/lab.h"
#include "kernels/prefixfs_gpu.h"
#include "kernels/work.h"
#include "tests/kernels/must.h"

#define SKIPPED 77
#define HANGS_S 60u
#define BYTES (64ull << 20)
#define STEP 4096ull      /* a word of each page is looked at */
#define WRITES_MS 10000u
#define COPIES 1000u      /* of BYTES */
#define LOOKS_NS 4000000000ull

/* ---- the child ------------------------------------------------------------------------------------------------------- */

struct word {
	int error; /* of opening */
	uint32_t mps;
	char why[256];
};

static void say(int pipe, const struct word *word)
{
	MUST(write(pipe, word, sizeof(*word)) == sizeof(*word));
}

static void start_copies(struct lab *lab, uint8_t *memory)
{
	uint64_t device;

	MUST(!lab_take(lab, BYTES, &device));
	MUST(!lab_set(lab, device, 0xff, BYTES));
	for (unsigned i = 0; i < COPIES; i++) {
		const struct gpu_entry entry = {.device = device, .host = (uintptr_t)memory, .bytes = BYTES};

		MUST(!lab_copy(lab, false, &entry, 1, false));
	}
}

static void child(uint8_t *memory, bool copies, int pipe)
{
	struct word word = {0};
	struct pfs_gpu_info info;
	struct pfs_gpu *gpu;
	struct lab *lab;

	word.error = lab_open("cuda", 0, &lab);
	if (!word.error)
		word.error = pfs_gpu_open(NULL, &gpu);
	if (word.error) {
		pfs_gpu_last_error(word.why, sizeof(word.why));
		say(pipe, &word);
		exit(0);
	}
	MUST(!pfs_gpu_register(gpu, memory, BYTES, 1));
	MUST(!pfs_gpu_info(gpu, &info));
	word.mps = info.mps;
	if (copies)
		start_copies(lab, memory);
	else
		MUST(!lab_scribble(lab, (uintptr_t)memory, WRITES_MS));
	while (!*(volatile uint64_t *)memory) { /* it has begun */
	}
	say(pipe, &word);
	for (;;)
		pause();
}

/* ---- the parent ------------------------------------------------------------------------------------------------------ */

/* Takes what was written away; true: something was. */
static bool clear(uint8_t *memory)
{
	bool written = false;

	for (uint64_t at = 0; at < BYTES; at += STEP) {
		volatile uint64_t *place = (volatile uint64_t *)(memory + at);

		written |= *place != 0;
		*place = 0;
	}
	return written;
}

/* Nanoseconds from now until the last time that something was written; 0: nothing was. */
static uint64_t last_written(uint8_t *memory)
{
	uint64_t begin = work_now(), last = 0, now;

	clear(memory);
	do {
		now = work_now();
		if (clear(memory))
			last = now - begin;
	} while (now - begin < LOOKS_NS);
	return last;
}

static void kill_child(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd gone = {.fd = pidfd, .events = POLLIN};

	MUST(pidfd >= 0);
	MUST(!kill(pid, SIGKILL));
	MUST(poll(&gone, 1, (int)HANGS_S * 1000) == 1);
}

int main(int argc, char **argv)
{
	int file = memfd_create("check_killed", MFD_CLOEXEC), pipes[2];
	uint64_t begun, killed, last;
	struct word word;
	uint8_t *memory;
	pid_t pid;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc == 2 && (!strcmp(argv[1], "kernel") || !strcmp(argv[1], "copies")));
	MUST(file >= 0 && !ftruncate(file, (off_t)BYTES) && !pipe(pipes));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	MUST(memory != MAP_FAILED);
	alarm(HANGS_S);
	pid = fork();
	MUST(pid >= 0);
	if (pid == 0)
		child(memory, !strcmp(argv[1], "copies"), pipes[1]);
	close(pipes[1]);
	MUST(read(pipes[0], &word, sizeof(word)) == sizeof(word));
	if (word.error) {
		waitpid(pid, NULL, 0);
		printf("%s: %s\n", word.error == -ENODEV || word.error == -ENOTSUP ? "skipped" : "FAILED", word.why);
		return word.error == -ENODEV || word.error == -ENOTSUP ? SKIPPED : 1;
	}
	begun = work_now();
	kill_child(pid);
	killed = work_now();
	last = last_written(memory);
	waitpid(pid, NULL, 0);
	printf("%s%s: gone %llu ms after SIGKILL; ", argv[1], word.mps ? ", under MPS" : "",
		(unsigned long long)(killed - begun) / 1000000);
	if (last)
		printf("memory was written until %llu ms after that\n", (unsigned long long)last / 1000000);
	else
		printf("nothing was written after that\n");
	if (last && !word.mps) {
		printf("FAILED: the device writes for a process that is gone\n");
		return 1;
	}
	printf("%s: ok\n", argv[1]);
	return 0;
}
