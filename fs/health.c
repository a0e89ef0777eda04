/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/health.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fs/namespaces.h"
#include "fs/watch.h"

struct wrong {
	uint32_t serial; /* 0 = free */
	bool seen;       /* in the look under way */
	char text[EVENT_TEXT_BYTES];
};

struct health {
	struct wrong wrong[HOST_MAX_SPACES + 1];
};

bool health_is_degraded(const char *name, const struct space_report *report, char text[EVENT_TEXT_BYTES])
{
	const struct stats *s = &report->stats;

	text[0] = 0;
	if (s->corrupt)
		snprintf(text, EVENT_TEXT_BYTES, "%" PRIu64 " values of namespace %s failed their check", s->corrupt,
			name);
	else if (s->read_errors)
		snprintf(text, EVENT_TEXT_BYTES, "%" PRIu64 " reads of namespace %s failed", s->read_errors, name);
	else if (s->grants_failed)
		snprintf(text, EVENT_TEXT_BYTES, "%" PRIu64 " grants of namespace %s found no memory",
			s->grants_failed, name);
	return text[0];
}

struct health *health_new(void)
{
	return calloc(1, sizeof(struct health));
}

void health_free(struct health **health)
{
	free(*health);
	*health = NULL;
}

/* The row of @serial, or a free one; NULL: all are in use. */
static struct wrong *row_of(struct health *h, uint32_t serial)
{
	struct wrong *free_row = NULL;

	for (unsigned i = 0; i <= HOST_MAX_SPACES; i++)
		if (h->wrong[i].serial == serial)
			return &h->wrong[i];
		else if (!h->wrong[i].serial)
			free_row = &h->wrong[i];
	return free_row;
}

static void look_at_one(struct health *h, struct fs *fs, const struct namespace_info *info)
{
	struct wrong *row = row_of(h, space_serial(info->space));
	char text[EVENT_TEXT_BYTES];
	struct space_report report;

	space_report(info->space, &report);
	if (!row || !health_is_degraded(info->name, &report, text))
		return;
	row->seen = true;
	if (row->serial && !strcmp(row->text, text))
		return;
	row->serial = space_serial(info->space);
	memcpy(row->text, text, sizeof(text));
	watch_note_health(fs->watch, row->serial, true, text);
}

void health_look(struct health *h, struct fs *fs)
{
	struct namespace_info info;
	uint64_t after = 0;

	for (unsigned i = 0; i <= HOST_MAX_SPACES; i++)
		h->wrong[i].seen = false;
	while (namespaces_next(fs->namespaces, after, &info) == 0) {
		after = info.number;
		if (info.space)
			look_at_one(h, fs, &info);
		space_unref(&info.space);
	}
	for (unsigned i = 0; i <= HOST_MAX_SPACES; i++)
		if (h->wrong[i].serial && !h->wrong[i].seen) {
			watch_note_health(fs->watch, h->wrong[i].serial, false, h->wrong[i].text);
			h->wrong[i].serial = 0;
		}
}
