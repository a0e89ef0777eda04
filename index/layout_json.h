/* SPDX-License-Identifier: Apache-2.0
 *
 * Between layout.c and its JSON.
 */
#ifndef PREFIXFS_INDEX_LAYOUT_JSON_H
#define PREFIXFS_INDEX_LAYOUT_JSON_H

#include "index/layout.h"

#define LAYOUT_IDENTITY_MEMBERS 9u
#define LAYOUT_MAX_TEXT 1024u /* bytes of an identity member */

extern const char *const layout_identity_names[LAYOUT_IDENTITY_MEMBERS]; /* sorted; "" stands for one not given */

/* Reads and checks single members; what follows from them is layout.c's. @layout is zero-filled and freed by the caller,
 * on failure too. */
int layout_json_read(
	const char *text, size_t size, struct layout *layout, char *identity[LAYOUT_IDENTITY_MEMBERS], struct why *why);

bool layout_shares_alike(const struct value_class *class); /* planes of all shares are the same */

/* Canonical texts, the caller's to free: members sorted, defaults written out, no spaces. NULL: ENOMEM.
 * @what: identity alone; all but `memory`, `context` and `ladder`, which makes the fingerprint; everything. */
enum layout_text {
	LAYOUT_TEXT_IDENTITY,
	LAYOUT_TEXT_FINGERPRINT,
	LAYOUT_TEXT_ALL
};
char *layout_json_text(
	const struct layout *layout, char *const identity[LAYOUT_IDENTITY_MEMBERS], enum layout_text what);

#endif
