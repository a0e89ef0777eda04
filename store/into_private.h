/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GET_INTO consists of. Private to store/into*.c.
 */
#ifndef PREFIXFS_STORE_INTO_PRIVATE_H
#define PREFIXFS_STORE_INTO_PRIVATE_H

#include "store/get_private.h"
#include "store/into.h"

struct into_value {
	uint32_t key;      /* of its page; of a row's value the range's first, for without the row nothing is */
	uint32_t slot;     /* held; of a value that is read: INDEX_NONE */
	uint64_t offset;   /* of the slot in the segment */
	uint8_t class_index;
	bool row;
};

uint64_t into_payload(const struct get_into *call, uint32_t class_index); /* bytes of one value */
uint64_t into_place(const struct get_into *call, const struct into_value *value); /* where it goes in the import */
/* Is it to go on? 0, or what makes it give up. */
int into_verdict(const struct get_into *call, struct why *why);

/* into_carry.c: writes the values of the range to the import, as far as they are to be had: *end, the key before which all are
 * there. *failed: the next one is gone. EAGAIN, EFAULT, EIO, ENOMEM, what the verdict says. Blocks. */
int into_carry(struct get_into *call, uint32_t *end, bool *failed, struct why *why);

#endif
