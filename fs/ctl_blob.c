/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ctl_blob.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "fs/config.h"
#include "fs/ctl.h"
#include "fs/record_name.h"
#include "store/blobs.h"

#define LIST_MOST 32u /* in one answer, which they fit whatever their names are */
#define WORD_SHOWN "%.40s"

static void put_number(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* A name that is text without anything to be escaped; of others the key alone is shown. */
static bool is_plain(const struct blob_name *name)
{
	for (uint32_t i = 0; i < name->bytes; i++)
		if (name->text[i] < ' ' || name->text[i] > '~' || name->text[i] == '"' || name->text[i] == '\\')
			return false;
	return name->bytes;
}

static void put_blob(json_t *to, const struct blob_info *info)
{
	char key[2 * sizeof(info->name.key.bytes) + 1];

	for (size_t i = 0; i < sizeof(info->name.key.bytes); i++)
		snprintf(key + 2 * i, 3, "%02x", info->name.key.bytes[i]);
	json_object_set_new(to, "key", json_string(key));
	if (is_plain(&info->name))
		json_object_set_new(to, "name", json_string(info->name.text));
	put_number(to, "bytes", info->length);
	put_number(to, "kind", info->kind);
	put_number(to, "uses", info->uses);
	put_number(to, "used", (uint64_t)info->used_s);
}

static int list(struct ctl_command_run *run, struct blobs *blobs, const char *from, struct why *why)
{
	json_t *all = json_array();
	struct blob_info info;
	uint64_t first = 0;
	uint32_t cursor;
	int more = 1;

	json_object_set_new(run->answer, "blobs", all);
	if (from && (!config_parse_size(from, &first) || first > UINT32_MAX))
		return why_set(why, EINVAL, "`" WORD_SHOWN "` is no number that an answer gave as `next`", from);
	cursor = (uint32_t)first;
	while (json_array_size(all) < LIST_MOST && (more = blobs_next(blobs, &cursor, &info))) {
		json_t *one = json_object();

		put_blob(one, &info);
		json_array_append_new(all, one);
	}
	if (more)
		put_number(run->answer, "next", cursor);
	return 0;
}

static int which(const char *word, struct blob_name *name, struct why *why)
{
	memset(name, 0, sizeof(*name));
	if (strlen(word) == 2 * sizeof(struct key) && hex_parse(word, sizeof(struct key), name->key.bytes))
		return 0;
	return blob_name_set(name, word, (uint32_t)strnlen(word, BLOBS_MAX_NAME + 1), why);
}

int ctl_blob_begin(struct ctl_command_run *run, char **words, struct why *why)
{
	struct blobs *blobs = space_blobs(ctl_space(run->ctl));
	bool lists = !strcmp(words[0], "list"), shows = !strcmp(words[0], "stat"), removes = !strcmp(words[0], "rm");
	struct blob_name name;
	struct blob_info info;

	if (!blobs)
		return why_set(why, EOPNOTSUPP, "namespace %s has no blobs: its layout has no memory.blobs",
			space_name(ctl_space(run->ctl)));
	if (lists)
		return list(run, blobs, run->count > 1 ? words[1] : NULL, why);
	if ((!shows && !removes) || run->count != 2)
		return why_set(why, EINVAL, "`" WORD_SHOWN "` with %u words: it is list [FROM], stat WHICH or rm WHICH", words[0],
			run->count - 1);
	int r = which(words[1], &name, why);

	if (!r && removes)
		r = blobs_remove(blobs, &name.key, why);
	else if (!r && blobs_find(blobs, &name.key, &info))
		r = why_set(why, ENOENT, "there is no such blob");
	else if (!r)
		put_blob(run->answer, &info);
	return r;
}
