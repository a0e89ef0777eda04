/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/health.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fs/dropped.h"
#include "fs/log.h"
#include "fs/watch.h"
#include "store/base/clock.h"

#define CALM_NS 10000000000ull /* without a failure, before the disk is said to be written again */

struct wrong {
	uint32_t serial; /* 0 = free */
	bool seen;       /* in the look under way */
	char text[EVENT_TEXT_BYTES];
};

struct health {
	struct wrong disk, dropped; /* their serial, the host's, is 0; text empty = it is well */
	uint64_t write_errors, failed_ns; /* of the disk: seen so far, when they last became more */
	bool failing, closed;             /* of the disk: that is in the log, the end is not */
	struct wrong wrong[HOST_MAX_SPACES + 1];
};

__attribute__((format(printf, 2, 3))) static void add_reason(char text[EVENT_TEXT_BYTES], const char *format, ...)
{
	size_t at = strlen(text);
	va_list args;

	if (at)
		at += (size_t)snprintf(text + at, EVENT_TEXT_BYTES - at, "; ");
	if (at >= EVENT_TEXT_BYTES)
		return;
	va_start(args, format);
	vsnprintf(text + at, EVENT_TEXT_BYTES - at, format, args);
	va_end(args);
}

bool health_is_degraded(const struct fs *fs, const struct namespace_info *info, const struct space_report *report,
	char text[EVENT_TEXT_BYTES])
{
	text[0] = 0;
	if (report->stats.read_errors)
		add_reason(text, "%" PRIu64 " reads of namespace %s failed", report->stats.read_errors, info->name);
	if (report->grants_short)
		add_reason(text, "%" PRIu64 " grants of namespace %s found no memory", report->grants_short, info->name);
	if (info->anew[0])
		add_reason(text, "namespace %s was made anew and lost what was in memory: %s", info->name, info->anew);
	if (info->unsaved)
		add_reason(text, "namespace %s would be lost with the serving process, %s/spaces/%s cannot be written: %s",
			info->name, fs->dir.path, info->name, strerror(info->unsaved));
	return text[0];
}

bool health_disk_is_degraded(const struct host_disk_report *disk, char text[EVENT_TEXT_BYTES])
{
	text[0] = 0;
	if (disk->state == HOST_DISK_FULL)
		add_reason(text, "the disk tier is full: %s", disk->text);
	if (disk->state == HOST_DISK_FAILING)
		add_reason(text, "the disk tier fails: %s", disk->text);
	if (disk->state == HOST_DISK_CLOSED)
		add_reason(text, "the disk tier is closed: %s", disk->text);
	if (disk->state == HOST_DISK_REFUSED)
		add_reason(text, "there is no disk tier: %s", disk->text);
	if (disk->unused_folders)
		add_reason(text, "%" PRIu64 " folders of the disk have no namespace, %s", disk->unused_folders, disk->unused_text);
	if (disk->read_errors)
		add_reason(text, "%" PRIu64 " reads of the disk tier failed", disk->read_errors);
	if (disk->checksum_errors)
		add_reason(text, "%" PRIu64 " values on the disk were damaged", disk->checksum_errors);
	return text[0];
}

bool health_dropped_is_degraded(const struct fs *fs, bool named, char text[EVENT_TEXT_BYTES])
{
	char sentence[EVENT_TEXT_BYTES];
	unsigned n = 0;

	text[0] = 0;
	for (; dropped_get(namespaces_dropped(fs->namespaces), n, sentence); n++)
		if (named)
			add_reason(text, "%s", sentence);
	if (n && !named)
		add_reason(text, "the memory of %u namespaces was dropped, the log says why", n);
	return n;
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
	if (!row || !health_is_degraded(fs, info, &report, text))
		return;
	row->seen = true;
	if (row->serial && !strcmp(row->text, text))
		return;
	row->serial = space_serial(info->space);
	memcpy(row->text, text, sizeof(text));
	watch_note_health(fs->watch, row->serial, true, text);
}

/* The first failure and the end of failures, one line each, however many there are between. */
static void log_disk(struct health *h, const struct host_disk_report *disk)
{
	uint64_t now = clock_now_ns();
	bool failed = disk->state == HOST_DISK_FULL || disk->write_errors > h->write_errors;

	h->write_errors = disk->write_errors;
	if (disk->state == HOST_DISK_CLOSED) {
		if (!h->closed)
			log_warning("%s: %s", disk->path, disk->text);
		h->closed = true;
	} else if (failed) {
		if (!h->failing)
			log_warning("%s: a write of the disk tier failed, it is tried again%s%s", disk->path, disk->text[0] ? ": " : "",
				disk->text);
		h->failing = true;
		h->failed_ns = now;
	} else if (h->failing && disk->state == HOST_DISK_OK && now - h->failed_ns >= CALM_NS) {
		log_info("%s: the disk tier is written again, after %" PRIu64 " failures since the start", disk->path,
			disk->write_errors);
		h->failing = false;
	}
}

/* Of the host as a whole: @row is what was said of it last. */
static void note_host(struct fs *fs, struct wrong *row, bool degraded, const char text[EVENT_TEXT_BYTES])
{
	if (!strcmp(row->text, text))
		return;
	watch_note_health(fs->watch, 0, degraded, degraded ? text : row->text);
	memcpy(row->text, text, sizeof(row->text));
}

static void look_at_disk(struct health *h, struct fs *fs)
{
	struct host_disk_report disk;
	char text[EVENT_TEXT_BYTES];

	host_disk_report(fs->host, &disk);
	log_disk(h, &disk);
	bool degraded = health_disk_is_degraded(&disk, text);
	note_host(fs, &h->disk, degraded, text);
}

static void look_at_dropped(struct health *h, struct fs *fs)
{
	char text[EVENT_TEXT_BYTES];
	bool degraded = health_dropped_is_degraded(fs, false, text);

	note_host(fs, &h->dropped, degraded, text);
}

void health_look(struct health *h, struct fs *fs)
{
	struct namespace_info info;
	uint64_t after = 0;

	look_at_disk(h, fs);
	look_at_dropped(h, fs);
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
