/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that show records share. Private to store/records.c, checkpoints.c and pages.c.
 */
#ifndef PREFIXFS_STORE_RECORDS_PRIVATE_H
#define PREFIXFS_STORE_RECORDS_PRIVATE_H

#include "store/host.h"
#include "store/space.h"

/* Under the lock: is it visible, and still the one that both numbers name? */
bool record_current(struct space *space, uint32_t number, uint32_t generation);
/* Under the lock: everything but the counts of values. */
void record_describe(struct space *space, uint32_t number, struct record_info *ret);
/* The value at @offset of `pages` or `row`; false: none can be there. */
struct records_value {
	const struct share *share;
	uint64_t within; /* bytes from its begin */
	uint32_t column;
	uint16_t page;   /* or INDEX_PAGE_ROW */
};
bool records_value_at(const struct layout *layout, bool row, uint64_t offset, struct records_value *ret);
/* Bytes of one page as `pages` shows it: every column's slot. */
uint64_t records_page_bytes(const struct layout *layout);

#endif
