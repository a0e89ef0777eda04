/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's NUMA nodes that have memory. Thread-safe; read anew each time: memory can be plugged in.
 */
#ifndef PREFIXFS_STORE_NODES_H
#define PREFIXFS_STORE_NODES_H

#include <stdbool.h>
#include <stdint.h>

#define NODES_TEXT 128u /* bytes of a list as the kernel prints it, cut where longer */

/* Is @node in @list, such as "0-1,4"? */
bool nodes_in_list(const char *list, uint32_t node);
/* Has the host memory on @node? Copies the list that was looked into to @list. A kernel that knows no nodes has node 0. Reads
 * a small file of /sys. */
bool nodes_has_memory(uint32_t node, char list[NODES_TEXT]);

#endif
