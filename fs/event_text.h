/* SPDX-License-Identifier: Apache-2.0
 *
 * Events as lines of JSON (docs/view.md). Pure: text from what it is handed. Thread-safe.
 */
#ifndef PREFIXFS_FS_EVENT_TEXT_H
#define PREFIXFS_FS_EVENT_TEXT_H

#include <stddef.h>

#include "fs/events.h"

#define EVENT_TEXT_BYTES 256u  /* of a sentence, with its NUL */
#define EVENT_LINE_BYTES 2048u /* no line is longer: a sentence of which every byte is escaped has 1,536 */

/* Writes the line of event @number, its newline included, without a NUL; returns its length. @name: of its namespace, NULL:
 * not known, or the host's; @text: of EVENT_DEGRADED and EVENT_RECOVERED, else unused. */
size_t event_line(const struct event *event, uint64_t number, const char *name, const char *text,
		  char to[EVENT_LINE_BYTES]);
/* The marker for @lost events from number @first on. */
size_t event_gap_line(uint64_t first, uint64_t lost, uint64_t time_us, char to[EVENT_LINE_BYTES]);

#endif
