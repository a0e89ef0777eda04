/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes that a value must have, made from its key: nobody has to remember what was put to check what is got.
 */
#ifndef PREFIXFS_TOOLS_VALUE_BYTES_H
#define PREFIXFS_TOOLS_VALUE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/client/prefixfs.h"

/* @to and @at are 16-aligned, as slots are. */
void value_bytes_fill(const struct pfs_key *key, uint32_t class_index, uint32_t share, void *to, size_t bytes);
/* Are all @bytes bytes at @at those that value_bytes_fill writes? */
bool value_bytes_match(const struct pfs_key *key, uint32_t class_index, uint32_t share, const void *at, size_t bytes);

#endif
