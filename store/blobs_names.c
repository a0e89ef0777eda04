/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs by name and by key: what is there, removing, renaming.
 */
#include <errno.h>
#include <string.h>

#include "store/base/digest.h"
#include "store/blobs_private.h"

#define LIST_STEP 64u /* places looked at in one stay */

int blob_name_set(struct blob_name *name, const char *text, uint32_t bytes, struct why *why)
{
	if (bytes == 0 || bytes > BLOBS_MAX_NAME)
		return why_set(why, EINVAL, "name: it has %u bytes; 1 to %u are possible", bytes, BLOBS_MAX_NAME);
	memcpy(name->text, text, bytes);
	memset(name->text + bytes, 0, sizeof(name->text) - bytes);
	if (memchr(name->text, 0, bytes))
		return why_set(why, EINVAL, "name: byte %zu of its %u is a NUL", strlen(name->text), bytes);
	name->bytes = bytes;
	digest_256(name->text, bytes, name->key.bytes);
	return 0;
}

int blobs_find(struct blobs *b, const struct key *key, struct blob_info *ret)
{
	lock_take(&b->lock);
	const struct blob *blob = blob_look(b, key);

	if (blob)
		*ret = blob->info;
	lock_drop(&b->lock);
	return blob ? 0 : -ENOENT;
}

/* At most LIST_STEP places: 1, 0 at the end, -EAGAIN: none among these. */
static int next_of_some(struct blobs *b, uint32_t *cursor, struct blob_info *ret)
{
	int r = -EAGAIN;

	lock_take(&b->lock);
	for (unsigned n = 0; n < LIST_STEP && r == -EAGAIN; n++) {
		if (*cursor >= b->blob_high) {
			r = 0;
			break;
		}
		const struct blob *blob = blob_at(b, (*cursor)++);

		if (blob->state != BLOB_READY || blob->reset_number != b->reset_number)
			continue;
		*ret = blob->info;
		r = 1;
	}
	lock_drop(&b->lock);
	return r;
}

int blobs_next(struct blobs *b, uint32_t *cursor, struct blob_info *ret)
{
	int r;

	while ((r = next_of_some(b, cursor, ret)) == -EAGAIN)
		;
	return r;
}

static int no_such(struct why *why)
{
	return why_set(why, ENOENT, "there is no such blob");
}

int blobs_remove(struct blobs *b, const struct key *key, struct why *why)
{
	lock_take(&b->lock);
	struct blob *blob = blob_look(b, key);

	if (blob) {
		blob_leave(b, blob);
		b->counts.blobs_removed++;
	}
	lock_drop(&b->lock);
	return blob ? 0 : no_such(why);
}

int blobs_rename(struct blobs *b, const struct key *key, const struct blob_name *to, struct why *why)
{
	bool tell = false;

	lock_take(&b->lock);
	struct blob *blob = blob_look(b, key), *old = blob ? blob_look(b, &to->key) : NULL;

	if (old && old != blob) {
		blob_leave(b, old);
		b->counts.blobs_removed++;
	}
	if (blob) {
		blob_name_change(b, blob, to);
		tell = blobs_news(b);
	}
	lock_drop(&b->lock);
	if (tell)
		blobs_tell(b);
	return blob ? 0 : no_such(why);
}
