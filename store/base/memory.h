/* SPDX-License-Identifier: Apache-2.0
 *
 * Private memory reserved at its largest size and touched as it fills: arrays that never move and never grow.
 */
#ifndef PREFIXFS_STORE_BASE_MEMORY_H
#define PREFIXFS_STORE_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-filled, page-aligned address space of @bytes > 0 that costs memory only where it is touched. @huge: ask for huge
 * pages, for memory that is touched all over soon. NULL with errno. */
void *memory_reserve(size_t bytes, bool huge);
/* Gives back what memory_reserve gave. @pointer is the address of the pointer, which is NULL afterwards; NULL is let
 * pass. */
void memory_release(void *pointer, size_t bytes);

/* Makes the pages of [@from, +@bytes), which were reserved or mapped to be written, present before they are needed: a page fault is
 * taken over from whoever would be first. Keeps what is there. Failure is no loss: they come when they are touched. Any thread; blocks. */
void memory_make_present(const void *from, size_t bytes);

/* Bytes of it that are in memory now. Slow (asks the kernel about every page): for statistics and tests. */
size_t memory_resident(const void *memory, size_t bytes);

#endif
