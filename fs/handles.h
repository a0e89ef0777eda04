/* SPDX-License-Identifier: Apache-2.0
 *
 * Open files: what the kernel calls fi->fh is an id of this table, checked at every use, never a pointer: a handle
 * of an earlier serving process or a forged one is just unknown.
 *
 *   id    epoch of the serving process 16 | generation of the place 32 | place 16      never 0, as no epoch is
 *
 *   free -> open (handles_open) -> closed (handles_close) -> free, when the last taker has put it back
 *
 * Thread-safe. Its lock is a leaf (LOCK_QUEUE); `end` of an object is called without it.
 */
#ifndef PREFIXFS_FS_HANDLES_H
#define PREFIXFS_FS_HANDLES_H

#include <stdbool.h>
#include <stdint.h>

enum handle_kind { HANDLE_CTL = 1, HANDLE_TEXT, HANDLE_EVENTS, HANDLE_RAW };

#define HANDLES_MAX 65536u

struct handles;

/* At most HANDLES_MAX at once, with the serving process's @epoch (fs/will.h) in their ids. NULL: ENOMEM */
struct handles *handles_new(uint32_t capacity, uint32_t epoch);
/* Closes what is open, then frees. Nobody may have taken one. */
void handles_free(struct handles **handles);

/* A new handle on @object, which belongs to the table from here on: @end is called once. Its id is written to *id
 * before anybody can take it. False: the table is full, or @limit of this kind are open; @object is still the
 * caller's then. */
bool handles_open(struct handles *handles, enum handle_kind kind, uint32_t limit, void *object,
		  void (*end)(void *object), uint64_t *id);
/* Is it open, of whatever kind? */
bool handles_known(struct handles *handles, uint64_t id);
/* The object, which stays until handles_put; NULL: no such handle of this kind. */
void *handles_take(struct handles *handles, uint64_t id, enum handle_kind kind);
void handles_put(struct handles *handles, uint64_t id);
void handles_close(struct handles *handles, uint64_t id);

#endif
