/* SPDX-License-Identifier: Apache-2.0
 *
 * scribbler FD OFFSET LENGTH HOSTILE: maps the inherited memory file FD and rewrites words of [OFFSET, OFFSET + LENGTH) for
 * ever, as fast as it can. HOSTILE 1: half of what it writes is what stood there when it began, the rest are numbers that
 * hurt a reader who looks twice. HOSTILE 0: everything becomes 0xEE. Prints a line once it has been round.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void overwrite(volatile uint64_t *words, size_t count)
{
	for (size_t i = 0; i < count; i++)
		words[i] = 0xeeeeeeeeeeeeeeeeull;
}

static void tick(volatile uint64_t *words, const uint64_t *before, size_t count, uint64_t *state)
{
	static const uint64_t hurting[] = {0, 1, 0xffffffffull, 0xffffffff00000000ull, UINT64_MAX, UINT64_MAX - 7, 1ull << 63,
		64, 0x1000000010000ull, 0x0000000100000000ull};

	for (size_t n = 0; n < count; n++) {
		uint64_t r = next(state);
		size_t i = (size_t)(r >> 32) % count;

		words[i] = r & 1 ? before[i] : r & 2 ? hurting[(r >> 2) % (sizeof(hurting) / sizeof(hurting[0]))] : r;
	}
}

int main(int argc, char **argv)
{
	uint64_t state = 0x9e3779b97f4a7c15ull, *before;
	size_t offset, length;
	struct stat st;
	char *map;

	if (argc != 5 || prctl(PR_SET_PDEATHSIG, SIGKILL))
		return 2;
	offset = strtoull(argv[2], NULL, 0);
	length = strtoull(argv[3], NULL, 0);
	if (fstat(atoi(argv[1]), &st))
		return 3;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
	before = malloc(length);
	if (map == MAP_FAILED || !before || offset + length > (size_t)st.st_size)
		return 4;
	memcpy(before, map + offset, length);
	for (unsigned long round = 0;; round++) {
		if (argv[4][0] == '1')
			tick((volatile uint64_t *)(map + offset), before, length / 8, &state);
		else
			overwrite((volatile uint64_t *)(map + offset), length / 8);
		if (round == 0) {
			puts("there");
			fflush(stdout);
		}
	}
}
