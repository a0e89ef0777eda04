/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of records: "<consumed>-<key>", 16 and 64 lower-case hex digits.
 */
#ifndef PREFIXFS_FS_RECORD_NAME_H
#define PREFIXFS_FS_RECORD_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index/tables.h"

#define RECORD_NAME_BYTES 81u

/* NUL-terminated. */
void record_name(uint64_t consumed, const struct key *endpoint, char to[RECORD_NAME_BYTES + 1]);
/* False: no such name can exist. */
bool record_name_parse(const char *name, uint64_t *consumed, struct key *endpoint);
/* 2 x @bytes digits and a NUL. */
void hex_print(const uint8_t *from, size_t bytes, char *to);
/* From 2 x @bytes lower-case digits, which must be there; false: other characters. */
bool hex_parse(const char *from, size_t bytes, uint8_t *to);

#endif
