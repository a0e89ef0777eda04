/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines are put together by hand: with 64 namespaces there are thousands, and a scraper may come ten times a second.
 */
#include "fs/metrics.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/prefixfs_abi.h"
#include "fs/notifier.h"
#include "fs/passthrough.h"
#include "fs/requests.h"
#include "fs/tiers.h"
#include "fs/version.h"
#include "fs/watch.h"
#include "store/base/clock.h"

#define NUMBER_BYTES 20u
#define FIRST_BYTES 65536u
#define HEAD_BYTES 96u /* of `prefixfs_name_total` */

struct seen {
	char label[HOST_MAX_NAME + 8]; /* `{ns="name"` */
	size_t label_bytes;
	struct space *space; /* referenced */
	struct space_report report;
};

struct page {
	char *at;
	size_t used, capacity;
	bool failed; /* no memory: nothing is added any more */
	struct seen *seen;
	uint32_t count;
};

/* ---- text ------------------------------------------------------------------------------------------------------ */

static inline bool room(struct page *p, size_t bytes)
{
	if (p->failed || p->capacity - p->used >= bytes)
		return !p->failed;
	size_t capacity = 2 * p->capacity + bytes;
	char *more = realloc(p->at, capacity);

	p->failed = !more;
	if (more) {
		p->at = more;
		p->capacity = capacity;
	}
	return !p->failed;
}

static inline void add_bytes(struct page *p, const char *bytes, size_t n)
{
	if (!room(p, n))
		return;
	memcpy(p->at + p->used, bytes, n);
	p->used += n;
}

static void add(struct page *p, const char *text)
{
	add_bytes(p, text, strlen(text));
}

/* Where the text ends. */
static char *number_to(char *to, uint64_t number)
{
	char digits[NUMBER_BYTES];
	size_t n = sizeof(digits);

	do {
		digits[--n] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	memcpy(to, digits + n, sizeof(digits) - n);
	return to + sizeof(digits) - n;
}

static void add_number(struct page *p, uint64_t number)
{
	char digits[NUMBER_BYTES];

	add_bytes(p, digits, (size_t)(number_to(digits, number) - digits));
}

/* @number x 10^-@digits, exactly. */
static void add_fraction(struct page *p, uint64_t number, unsigned digits)
{
	uint64_t unit = 1;

	for (unsigned i = 0; i < digits; i++)
		unit *= 10;
	add_number(p, number / unit);
	add(p, ".");
	for (number %= unit; unit > 1; number %= unit) {
		unit /= 10;
		add_number(p, number / unit);
	}
}

/* @quote: in a label's value; else in a HELP line. */
static void add_escaped(struct page *p, const char *text, bool quote)
{
	for (; *text; text++)
		if (*text == '\\')
			add(p, "\\\\");
		else if (*text == '\n')
			add(p, "\\n");
		else if (*text == '"' && quote)
			add(p, "\\\"");
		else
			add_bytes(p, text, 1);
}

/* ---- families -------------------------------------------------------------------------------------------------- */

static void family(struct page *p, const char *name, const char *suffix, const char *type, const char *help)
{
	add(p, "# HELP prefixfs_");
	add(p, name);
	add(p, suffix);
	add(p, " ");
	add_escaped(p, help, false);
	add(p, "\n# TYPE prefixfs_");
	add(p, name);
	add(p, suffix);
	add(p, " ");
	add(p, type);
	add(p, "\n");
}

/* `prefixfs_name_total{` */
static void sample(struct page *p, const char *name, const char *suffix)
{
	add(p, "prefixfs_");
	add(p, name);
	add(p, suffix);
}

static void label(struct page *p, const char *before, const char *name, const char *value)
{
	add(p, before);
	add(p, name);
	add(p, "=\"");
	add_escaped(p, value, true);
	add(p, "\"");
}

static void value(struct page *p, uint64_t number)
{
	add(p, " ");
	add_number(p, number);
	add(p, "\n");
}

static void of_host(struct page *p, const char *name, const char *suffix, const char *help, uint64_t number)
{
	family(p, name, suffix, suffix[0] ? "counter" : "gauge", help);
	sample(p, name, suffix);
	value(p, number);
}

/* One number of every namespace, at @offset of its report. */
static void of_spaces(struct page *p, const char *name, const char *suffix, const char *help, size_t offset)
{
	char head[HEAD_BYTES];

	if (!p->count)
		return;
	family(p, name, suffix, suffix[0] ? "counter" : "gauge", help);
	size_t head_bytes = (size_t)snprintf(head, sizeof(head), "prefixfs_%s%s", name, suffix);
	assert(head_bytes < sizeof(head));
	for (uint32_t i = 0; i < p->count; i++) {
		const struct seen *s = &p->seen[i];
		uint64_t number;

		memcpy(&number, (const char *)&s->report + offset, sizeof(number));
		if (!room(p, head_bytes + s->label_bytes + NUMBER_BYTES + 3))
			return;
		char *to = p->at + p->used;
		memcpy(to, head, head_bytes);
		memcpy(to + head_bytes, s->label, s->label_bytes);
		to += head_bytes + s->label_bytes;
		*to++ = '}';
		*to++ = ' ';
		to = number_to(to, number);
		*to++ = '\n';
		p->used = (size_t)(to - p->at);
	}
}

static void counters(struct page *p)
{
#define COUNTER(name, help) of_spaces(p, #name, "_total", help, offsetof(struct space_report, stats.name));
#define GAUGE(name, help) of_spaces(p, #name, "", help, offsetof(struct space_report, stats.name));
#define REPORT(name, suffix, help) of_spaces(p, #name, suffix, help, offsetof(struct space_report, name))
	STATS_COUNTERS(COUNTER)
	STATS_TRANSIENT(GAUGE)
	REPORT(budget_bytes, "", "the most that it may have now: its floor or grants, and what is free");
	REPORT(floor_bytes, "", "memory that it was promised");
	REPORT(granted_bytes, "", "memory cut into slots");
	REPORT(may_take_bytes, "", "memory that it may still be granted");
	REPORT(surplus_bytes, "", "granted above its floor");
	REPORT(resident_bytes, "", "memory of the segment that is present");
	REPORT(payload_bytes, "", "values without their padding");
	REPORT(slot_bytes, "", "slots that are taken");
	REPORT(records, "", "records published and present");
	REPORT(pages, "", "pages with a committed value");
	REPORT(hollow_pages, "", "pages without a value whose descendants need them");
	REPORT(orphans, "", "records whose parent is not known");
	REPORT(generation, "", "how often it was reset, plus one");
	REPORT(hidden_records, "", "records of older generations that have yet to go");
	REPORT(records_filling, "", "records in which values may lack shares");
	REPORT(remnants, "", "sessions of before the last adoption that something is kept for");
	REPORT(remnant_slots, "", "slots that are kept for them");
	REPORT(pinned_bytes, "", "memory of records that operators pinned");
	REPORT(pinned_limit_bytes, "", "the most that may be pinned");
	REPORT(victims_selected, "_total", "values chosen for eviction");
	REPORT(victims_freed, "_total", "of them, freed");
	REPORT(victims_restored, "_total", "of them, used again while they were busy");
	REPORT(victims_obsolete, "_total", "of them, gone for another reason");
	REPORT(victims_pending, "", "of them, still busy: values owed");
	REPORT(index_bytes, "", "memory of the index");
	REPORT(table_bytes, "", "memory of the tables");
	REPORT(prewarm_done, "", "bytes of the floor that are populated");
	REPORT(prewarm_goal, "", "bytes of the floor that are to be populated");
	REPORT(disk_bytes, "", "of its record files");
	REPORT(disk_files, "", "record files");
	REPORT(disk_values, "", "values that are on disk only");
	REPORT(dirty_bytes, "", "slots whose bytes are in memory alone, where there is a disk tier");
	REPORT(clean_bytes, "", "slots whose bytes are on disk too");
	REPORT(blobs, "", "blobs that are found");
	REPORT(blobs_limit, "", "blobs that there may be");
	REPORT(blob_bytes, "", "memory of blobs, those being written or read out included");
	REPORT(blob_granted_bytes, "", "memory that blobs have been granted");
	REPORT(blob_limit_bytes, "", "memory that blobs were promised");
	REPORT(spill_floor_bytes, "", "slots that are to be free or clean: with fewer it writes");
#undef REPORT
#undef GAUGE
#undef COUNTER
}

static void slot_sample(struct page *p, const struct seen *s, const struct space_class_report *slots, const char *state,
	uint64_t number)
{
	char share[12];

	snprintf(share, sizeof(share), "%u", slots->share);
	sample(p, "slots", "");
	add_bytes(p, s->label, s->label_bytes);
	label(p, ",", "class", space_layout(s->space)->class[slots->class_index].name);
	label(p, ",", "share", share);
	label(p, ",", "state", state);
	add(p, "}");
	value(p, number);
}

static void slots(struct page *p)
{
	struct space_class_report class;

	if (p->count)
		family(p, "slots", "", "gauge", "slots of ready grants by class, share and state");
	for (uint32_t i = 0; i < p->count; i++)
		for (uint32_t n = 0; space_class(p->seen[i].space, n, &class); n++) {
			slot_sample(p, &p->seen[i], &class, "free", class.slots_free);
			slot_sample(p, &p->seen[i], &class, "used", class.slots - class.slots_free);
		}
}

static void bucket(struct page *p, const char *op, unsigned b, uint64_t count)
{
	sample(p, "request_seconds", "_bucket");
	label(p, "{", "op", op);
	add(p, ",le=\"");
	if (b < REQUESTS_BUCKETS - 1)
		add_fraction(p, requests_bucket_us(b), 6);
	else
		add(p, "+Inf");
	add(p, "\"}");
	value(p, count);
}

static void requests(struct page *p, const struct requests *requests)
{
	family(p, "request_seconds", "", "histogram",
		"requests by operation, by the time that the daemon worked for one");
	for (unsigned kind = 0; kind < REQUESTS_KINDS; kind++) {
		struct requests_sum sum;
		const char *op = requests_read(requests, kind, &sum);
		uint64_t count = 0;

		for (unsigned b = 0; op && b < REQUESTS_BUCKETS; b++)
			bucket(p, op, b, count += sum.bucket[b]);
		if (!op)
			continue;
		sample(p, "request_seconds", "_sum");
		label(p, "{", "op", op);
		add(p, "} ");
		add_fraction(p, sum.ns, 9);
		add(p, "\n");
		sample(p, "request_seconds", "_count");
		label(p, "{", "op", op);
		add(p, "}");
		value(p, count);
	}
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

struct sums { /* over all namespaces, seen or not: df(1) shows as much */
	uint64_t floors, granted, used, sessions, spaces;
};

static void gather(struct page *p, struct fs *fs, const struct viewer *viewer, struct sums *sums)
{
	struct namespace_info info;
	uint64_t after = 0;

	while (namespaces_next(fs->namespaces, after, &info) == 0) {
		struct seen *s = &p->seen[p->count];

		after = info.number;
		if (!info.space)
			continue;
		space_report(info.space, &s->report);
		sums->floors += s->report.floor_bytes + s->report.blob_limit_bytes;
		sums->granted += s->report.granted_bytes + s->report.blob_granted_bytes;
		sums->used += s->report.slot_bytes + s->report.blob_bytes;
		sums->sessions += s->report.stats.sessions;
		sums->spaces++;
		if (p->count < HOST_MAX_SPACES && viewer_sees(viewer, &info.access)) {
			/* names hold nothing that is escaped (host_check_name) */
			s->label_bytes = (size_t)snprintf(s->label, sizeof(s->label), "{ns=\"%s\"", info.name);
			s->space = info.space;
			p->count++;
		} else {
			space_unref(&info.space);
		}
	}
}

static void host(struct page *p, struct fs *fs, const struct sums *sums)
{
	struct notifier_count count;

	notifier_count(fs->notifier, &count);
	family(p, "build_info", "", "gauge", "1, with the version of the daemon and of its control ABI");
	sample(p, "build_info", "");
	label(p, "{", "version", version_text);
	add(p, ",abi=\"");
	add_number(p, PFS_ABI_VERSION);
	add(p, "\"}");
	value(p, 1);
	of_host(p, "up", "", "1 while the daemon serves", 1);
	of_host(p, "uptime_seconds", "", "age of the serving process", (clock_now_ns() - fs->started_ns) / 1000000000u);
	of_host(p, "restarts", "_total", "serving processes that died before this one", fs->restarts);
	of_host(p, "upgrades", "_total", "serving processes that gave way to another program", fs->upgrades);
	of_host(p, "namespaces", "", "namespaces with a layout, of all users", sums->spaces);
	of_host(p, "host_sessions", "", "sessions attached, of all namespaces", sums->sessions);
	of_host(p, "host_memory_bytes", "", "the host's budget", host_config(fs->host)->memory_bytes);
	of_host(p, "host_floors_bytes", "", "of it, promised to namespaces", sums->floors);
	of_host(p, "host_granted_bytes", "", "of it, cut into slots or taken for blobs", sums->granted);
	of_host(p, "host_used_bytes", "", "of it, taken slots, and blobs", sums->used);
	of_host(p, "events", "_total", "events noted", watch_count(fs->watch));
	of_host(p, "events_lost", "_total", "events that readers of the file were too slow for", watch_lost(fs->watch));
	of_host(p, "events_readers", "", "opens of the file events", watch_readers(fs->watch));
	of_host(p, "names_told", "_total", "names that the kernel was told to forget", count.told);
	of_host(p, "names_pending", "", "names that the kernel has yet to be told to forget", count.pending);
	of_host(p, "names_dropped", "_total", "names that the kernel was not told to forget", count.dropped);
}

/* Nothing where no disk was asked for. */
static void disk(struct page *p, struct fs *fs)
{
	struct host_disk_report d;

	host_disk_report(fs->host, &d);
	if (d.state == HOST_DISK_NONE)
		return;
	family(p, "disk_state", "", "gauge", "1 for the state that the disk tier is in");
	for (enum host_disk_state s = HOST_DISK_OK; s <= HOST_DISK_REFUSED; s++) {
		sample(p, "disk_state", "");
		label(p, "{", "state", tiers_state_name(s));
		add(p, "}");
		value(p, s == d.state);
	}
	of_host(p, "host_disk_bytes", "", "budget of the disk tier", d.limit_bytes);
	of_host(p, "host_disk_used_bytes", "", "of it, record files", d.used_bytes);
	of_host(p, "host_disk_files", "", "record files", d.files);
	of_host(p, "host_disk_foreign_files", "", "files of another writer or a newer version, which are left alone",
		d.foreign_files);
	of_host(p, "host_dirty_bytes", "", "slots whose bytes are in memory alone", d.dirty_bytes);
	of_host(p, "host_clean_bytes", "", "slots whose bytes are on disk too", d.clean_bytes);
	of_host(p, "disk_fs_free_bytes", "", "free on the file system of the record files", d.free_bytes);
	of_host(p, "disk_fs_bytes", "", "size of the file system of the record files", d.total_bytes);
	of_host(p, "disk_read_bytes", "_total", "read from record files", d.read_bytes);
	of_host(p, "disk_written_bytes", "_total", "written to record files", d.written_bytes);
	of_host(p, "disk_reads", "_total", "reads of record files", d.reads);
	of_host(p, "disk_writes", "_total", "record files written", d.writes);
	of_host(p, "disk_read_errors", "_total", "reads that failed", d.read_errors);
	of_host(p, "disk_write_errors", "_total", "writes that failed", d.write_errors);
	of_host(p, "disk_checksum_errors", "_total", "values whose bytes were not those that were written", d.checksum_errors);
	of_host(p, "disk_jobs", "", "writes, reads, trims and removals under way", d.jobs);
	of_host(p, "disk_memory_bytes", "", "memory of the daemon for the disk tier", d.memory_bytes);
	of_host(p, "disk_uring", "", "1 with io_uring, 0 with plain calls", d.uring);
	of_host(p, "disk_direct", "", "1 past the page cache, 0 through it", d.direct);
	of_host(p, "disk_passthrough", "", "1 where `raw` is read past the daemon, 0 through it", passthrough_in_use(fs->passthrough));
	of_host(p, "catalogue_queued", "", "changes that wait to be written to catalogues", d.catalogue_queued);
	of_host(p, "catalogue_dropped", "_total", "changes that a catalogue was too slow for: it is made anew at a restart",
		d.catalogue_dropped);
}

int metrics_text(struct fs *fs, const struct viewer *viewer, struct text **ret)
{
	struct text *text = calloc(1, sizeof(*text));
	/* One more, into which those are looked at that are not seen. */
	struct page p = {.seen = calloc(HOST_MAX_SPACES + 1, sizeof(struct seen)), .at = malloc(FIRST_BYTES)};
	struct sums sums = {0};

	p.capacity = p.at ? FIRST_BYTES : 0;
	if (text && p.seen) {
		gather(&p, fs, viewer, &sums);
		host(&p, fs, &sums);
		disk(&p, fs);
		requests(&p, fs->requests);
		counters(&p);
		slots(&p);
	}
	for (uint32_t i = 0; i < p.count; i++)
		space_unref(&p.seen[i].space);
	if (!text || !p.seen || p.failed) {
		free(p.at);
		free(p.seen);
		free(text);
		return -ENOMEM;
	}
	free(p.seen);
	text->at = p.at;
	text->bytes = p.used;
	*ret = text;
	return 0;
}
