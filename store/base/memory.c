/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/memory.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void *memory_reserve(size_t bytes, bool huge)
{
	assert(bytes > 0);
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	/* Without huge pages said in so many words, "always" hosts would back a sparse array with 2 MiB a touch. */
	int saved = errno;
	madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	errno = saved;
	return memory;
}

void memory_release(void *pointer, size_t bytes)
{
	void **memory = pointer;

	if (*memory)
		munmap(*memory, bytes);
	*memory = NULL;
}

void memory_make_present(const void *from, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)from & ~(page - 1);
	uintptr_t end = ((uintptr_t)from + bytes + page - 1) & ~(page - 1);
	int saved = errno;

	madvise((void *)first, end - first, MADV_POPULATE_WRITE);
	errno = saved;
}

size_t memory_resident(const void *memory, size_t bytes)
{
	enum {
		STEP = 4096
	};
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t pages = (bytes + page - 1) / page;
	size_t resident = 0;
	unsigned char state[STEP];

	for (size_t first = 0; first < pages; first += STEP) {
		size_t n = pages - first < STEP ? pages - first : STEP;

		if (mincore((char *)(uintptr_t)memory + first * page, n * page, state))
			return 0;
		for (size_t i = 0; i < n; i++)
			resident += state[i] & 1 ? page : 0;
	}
	return resident;
}
