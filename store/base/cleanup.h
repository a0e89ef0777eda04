/* SPDX-License-Identifier: Apache-2.0
 *
 * What a function owns goes when it returns, unless it was stolen:
 *
 *	cleanup(freep) char *text = NULL;
 *	cleanup(closep) int fd = open(...);
 *	...
 *	*ret_text = STEAL(text);
 *	*ret_fd = STEAL_FD(fd);
 */
#ifndef PREFIXFS_STORE_BASE_CLEANUP_H
#define PREFIXFS_STORE_BASE_CLEANUP_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define cleanup(function) __attribute__((cleanup(function)))

/* The value, leaving NULL behind. */
#define STEAL(pointer)                              \
	({                                          \
		__typeof__(pointer) taken_ = (pointer); \
		(pointer) = NULL;                   \
		taken_;                             \
	})

/* The descriptor, leaving -1 behind. */
#define STEAL_FD(fd)               \
	({                         \
		int taken_ = (fd); \
		(fd) = -1;         \
		taken_;            \
	})

/* @pointer is the address of any object pointer. */
static inline void freep(void *pointer)
{
	void **p = pointer;

	free(*p);
	*p = NULL;
}

static inline void closep(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

static inline void fclosep(FILE **file)
{
	int saved = errno;

	if (*file)
		fclose(*file);
	*file = NULL;
	errno = saved;
}

#endif
