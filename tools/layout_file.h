/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts as files: those that come with prefixfs, and what may be changed in one before a namespace is made of it.
 */
#ifndef PREFIXFS_TOOLS_LAYOUT_FILE_H
#define PREFIXFS_TOOLS_LAYOUT_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/cli.h"

struct layout_wish {
	const char *file;       /* a file, or */
	const char *model;      /* the name of one that comes along, with */
	uint64_t tp;            /* its tensor parallel size; 0 = any */
	uint64_t plane_divisor; /* every plane's bytes divided by it; 0 or 1 = as they are */
	uint64_t floor_bytes;   /* 0 = as it is */
	uint64_t blobs_bytes;   /* likewise */
	bool one_rank;          /* one rank's values as a world of their own */
};

/* Do the options fit together? 0, or EXIT_USAGE after a sentence. */
int layout_wish_check(const struct command *command, const struct layout_wish *wish);

/* The layout, to be dropped with json_decref; NULL after a sentence. */
json_t *layout_load(const struct layout_wish *wish);

#define LAYOUT_MODE_DEFAULT UINT32_MAX /* 0755 less the umask */

/* Makes the namespace @name of it, its folder of exactly that @mode. 0, or 1 after a sentence. */
int layout_create(const char *mount, const char *name, const struct layout_wish *wish, unsigned mode);

#define LAYOUT_CLASSES 16u

/* What a client needs to know of a namespace's layout. */
struct layout_class {
	char name[65];
	char kind[8];
	uint64_t every;         /* tokens */
	uint64_t payload_bytes; /* of one value of share 0 */
	uint64_t *plane_bytes;  /* [planes], of share 0 */
	uint32_t planes;
};
struct layout_view {
	uint64_t world, page_tokens;
	uint32_t classes;
	struct layout_class class[LAYOUT_CLASSES];
};
/* Reads <mount>/ns/<name>/layout. 0, or 1 after a sentence. */
int layout_view_read(const char *mount, const char *name, struct layout_view *ret);
void layout_view_free(struct layout_view *view);
/* The same from JSON. */
int layout_view_of(const json_t *layout, struct layout_view *ret);

#endif
