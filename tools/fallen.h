/* SPDX-License-Identifier: Apache-2.0
 *
 * A fallen mount: its serving process was given up, and its parent answers nothing but health, which says why.
 */
#ifndef PREFIXFS_TOOLS_FALLEN_H
#define PREFIXFS_TOOLS_FALLEN_H

#include <jansson.h>
#include <stdbool.h>

/* Is the prefixfs at @mount fallen? False where nothing is mounted or nobody answers; some seconds at most. */
bool fallen_is(const char *mount);
/* Says that it is, and what helps; returns 1. */
int fallen_complain(const char *mount);
/* What a fallen mount's health @text says, by name, without the log's lines; NULL: it is another's. */
json_t *fallen_lines(const char *text);

#endif
