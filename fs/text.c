/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/client/prefixfs_abi.h"
#include "fs/connection.h"
#include "fs/health.h"
#include "fs/notifier.h"
#include "fs/page_nodes.h"
#include "fs/record_name.h"
#include "fs/tiers.h"
#include "fs/version.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/session.h"
#include "index/seats.h"
#include "store/remnants.h"

#define RANGES_AT_ONCE 64u

static const char readme[] =
	"This is prefixfs: the KV-cache tiers of this host, as a mount. Engines use libprefixfs; this is for people.\n"
	"\n"
	"README                  this text\n"
	"version, config         what runs, and every parameter with its value in force\n"
	"health                  `ok` or `degraded: why` in the first line; then backing, processes, restarts\n"
	"tiers                   a tier's bytes, used, state; what each namespace that you may read was promised, has, may take\n"
	"metrics                 all counters for Prometheus, of the namespaces that you may read\n"
	"events                  what happens, one JSON object a line; reading waits for more: cat events | jq .\n"
	"sessions/<id>           who has a ctl open, what it holds and for how long, and its last error in words\n"
	"ns/<name>/              a namespace: one model and one byte layout; chmod and chown say who may use it\n"
	"  layout                its layout as JSON\n"
	"  ctl                   what engines open; see docs/abi.md. Takes commands as text, too\n"
	"  segment               the shared memory: length, pages, granted ranges\n"
	"  stats                 counters, one `name value` a line\n"
	"  funnel                what prompts had in common, what was lost of it, and the states that would have saved it\n"
	"  records/<tokens>-<key>/   a run of pages: tokens at its end in 16 hex digits, key of its end in 64\n"
	"    header              everything about it, one `name: value` a line\n"
	"    pages, row          the bytes: each page's values, the state at its end; an absent value is ENODATA\n"
	"    raw                 its record file, if it has one\n"
	"    parent              link to the record that it follows\n"
	"  checkpoints/          links to those records that one can resume from now\n"
	"  pages/<key>           one page by its key; not listed\n"
	"\n"
	"To make a namespace:    mkdir ns/x && cat layout.json > ns/x/layout\n"
	"                        a layout that is refused leaves its reason in ns/x/layout.error\n"
	"To remove it:           rmdir ns/x        all records go with it; refused while a session is open\n"
	"To evict a record:      rm -r ns/x/records/<name>      refused while it is in use or has children\n"
	"To pin a record:        setfattr -n user.prefixfs.pin -v 1 ns/x/records/<name>      `getfattr -d` shows the others\n"
	"To give a command:      cd ns/x && exec 3<>ctl; echo help >&3; cat <&3      answers are JSON; evict, pin, probe, reset\n"
	"To see what is used:    df .; cat tiers; cat ns/*/stats\n"
	"Of namespaces that you may not read nothing is shown here but their share of the sums.\n"
	"Small files show one moment, that of their opening, and have size 0 in ls, as in /proc.\n";

/* Whom slots are kept for. */
static void print_remnants(const struct namespace_info *info, FILE *lines)
{
	struct remnant_info remnant[SEATS];
	uint32_t n = remnants_list(info->space, remnant, SEATS);

	for (uint32_t i = 0; i < n; i++) {
		fprintf(lines, "namespace %s: %u slots are kept for ", info->name, remnant[i].slots);
		if (remnant[i].crowd)
			fprintf(lines, "sessions of before that shared a seat");
		else
			fprintf(lines, "session %" PRIu64 " of before", remnant[i].session);
		fprintf(lines, ", for %" PRIu64 " s, until %s\n", remnant[i].age_ns / 1000000000,
			remnant[i].crowd ? "the processes of all of them have ended" : remnant[i].watched ? "its process ends or its client says that it is done" : "its client says that it is done");
	}
}

/* What is told about one namespace: to who does not see it, that it is not well. */
static void print_namespace_health(
	const struct fs *fs, const struct namespace_info *info, bool seen, FILE *lines, FILE *reasons)
{
	char wrong[EVENT_TEXT_BYTES];
	struct space_report report;

	if (!info->space) {
		if (seen)
			fprintf(lines, "namespace %s: pending, it has no layout yet\n", info->name);
		return;
	}
	space_report(info->space, &report);
	if (seen)
		fprintf(lines, "namespace %s: backing %s, %" PRIu64 " of %" PRIu64 " granted bytes resident\n",
			info->name, segment_backing_name(segment_backing(space_segment(info->space))),
			report.resident_bytes, report.granted_bytes);
	if (seen && report.remnants)
		print_remnants(info, lines);
	if (health_is_degraded(fs, info, &report, wrong))
		fprintf(reasons, "%s; ", seen ? wrong : "a namespace that is not yours to see is not well");
}

static void print_namespaces(struct fs *fs, const struct viewer *viewer, FILE *lines, FILE *reasons)
{
	uint64_t after = 0;
	struct namespace_info info;

	while (namespaces_next(fs->namespaces, after, &info) == 0) {
		after = info.number;
		print_namespace_health(fs, &info, viewer_sees(viewer, &info.access), lines, reasons);
		space_unref(&info.space);
	}
}

/* Lines about namespaces are those that the viewer sees; whether the host is well is told to all, without a name. */
static void print_health(struct fs *fs, const struct viewer *viewer, FILE *to)
{
	struct host_disk_report disk;
	struct notifier_count count;
	char wrong[EVENT_TEXT_BYTES];
	cleanup(freep) char *spaces = NULL, *why = NULL;
	size_t size = 0, why_size = 0;
	FILE *lines = open_memstream(&spaces, &size), *reasons = open_memstream(&why, &why_size);

	host_disk_report(fs->host, &disk);
	if (reasons && health_disk_is_degraded(&disk, wrong))
		fprintf(reasons, "%s; ", wrong);
	if (reasons && health_dropped_is_degraded(fs, viewer->uid == 0 || viewer->uid == geteuid(), wrong))
		fprintf(reasons, "%s; ", wrong);
	if (lines && reasons)
		print_namespaces(fs, viewer, lines, reasons);
	if (lines)
		fclose(lines);
	if (reasons)
		fclose(reasons);
	if (why_size >= 2)
		fprintf(to, "degraded: %.*s\n", (int)why_size - 2, why);
	else
		fprintf(to, "ok\n");
	fprintf(to, "version: %s, control ABI %u\n", version_text, PFS_ABI_VERSION);
	fprintf(to, "parent: %d\nserving: %d\nuptime_s: %" PRIu64 "\n", (int)getppid(), (int)getpid(),
		(clock_now_ns() - fs->started_ns) / 1000000000u);
	fprintf(to, "socket: %s/sock\nrestarts: %u\nupgrades: %u\n", fs->dir.path, fs->restarts, fs->upgrades);
	fprintf(to, "after a death: %s\n", connection_survives(fs->will) && fs->config->resend ? "the mount stays" : "it is mounted anew");
	if (fs->last_exit[0])
		fprintf(to, "last exit: %s\n", fs->last_exit);
	if (fs->budget.error)
		fprintf(to, "warning: %s\n", fs->budget.text);
	if (disk.state != HOST_DISK_NONE)
		fprintf(to, "disk: %s\ndisk folder: %s\ndisk used: %" PRIu64 " of %" PRIu64 "\ndisk dirty: %" PRIu64
			    "\ndisk foreign files: %" PRIu64 "\n",
			tiers_state_name(disk.state), disk.path, disk.used_bytes, disk.limit_bytes, disk.dirty_bytes,
			disk.foreign_files);
	notifier_count(fs->notifier, &count);
	fprintf(to, "notices told: %" PRIu64 "\nnotices pending: %" PRIu64 "\nnotices dropped: %" PRIu64 "\n", count.told,
		count.pending, count.dropped);
	fprintf(to, "pages known by key: %u of %u\n%s", page_nodes_count(fs->page_nodes), PAGE_NODES_MAX,
		spaces ? spaces : "");
}

static void print_segment(struct fs *fs, struct space *space, FILE *to)
{
	const struct segment *segment = space_segment(space);
	struct space_range ranges[RANGES_AT_ONCE];
	uint32_t total = 0, n;
	uint64_t version = 0;

	fprintf(to,
		"bytes: %" PRIu64 "\npage_bytes: %" PRIu64 "\nbacking: %s\nresident_bytes: %" PRIu64
		"\ngeneration: %" PRIu64 "\n",
		segment_bytes(segment), segment_page_bytes(segment), segment_backing_name(segment_backing(segment)),
		segment_resident_bytes(segment), space_generation(space));
	space_ranges(space, 0, NULL, 0, &total, &version);
	fprintf(to, "ranges: %u\nranges_version: %" PRIu64 "\n", total, version);
	fprintf(to, "descriptor: ATTACH through ctl, then show the token at %s/sock\n", fs->dir.path);
	for (uint32_t first = 0; (n = space_ranges(space, first, ranges, RANGES_AT_ONCE, &total, &version)); first += n)
		for (uint32_t i = 0; i < n; i++)
			fprintf(to,
				"range %u: offset=%" PRIu64 " length=%" PRIu64 " slot_bytes=%" PRIu64
				" class=%u share=%u node=%d generation=%u\n",
				ranges[i].id, ranges[i].offset, ranges[i].length, ranges[i].slot_bytes,
				ranges[i].class_index, ranges[i].share, (int)ranges[i].node, ranges[i].generation);
}

static void print_key(FILE *to, const char *name, const struct key *key)
{
	char text[2 * sizeof(key->bytes) + 1];

	hex_print(key->bytes, sizeof(key->bytes), text);
	fprintf(to, "%s: %s\n", name, text);
}

static const char *yes(bool value)
{
	return value ? "yes" : "no";
}

static void print_header(const struct record_info *r, bool disk, FILE *to)
{
	char name[RECORD_NAME_BYTES + 1];
	int64_t now = (int64_t)clock_wall_s();

	print_key(to, "key", &r->endpoint);
	fprintf(to, "consumed: %" PRIu64 "\npages: %u\nroot: %s\norphan: %s\n", r->consumed, r->pages, yes(r->root),
		yes(r->orphan));
	if (!r->root)
		print_key(to, "parent_key", &r->parent);
	if (r->parent_visible) {
		record_name(r->parent_consumed, &r->parent_endpoint, name);
		fprintf(to, "parent: %s\n", name);
	}
	fprintf(to,
		"whole: %s\npinned: %s\npins: %u\nchildren: %u\npage_bytes: %" PRIu64 "\nvalues: %" PRIu64
		"\nabsent: %" PRIu64 "\nrow_values: %u\nrow_bytes: %" PRIu64 "\n",
		yes(r->whole), yes(r->pinned), r->pins, r->children, r->page_bytes, r->values, r->absent, r->row_values,
		r->row_bytes);
	fprintf(to, "tiers: %s\n", tiers_of_record(r));
	if (disk)
		fprintf(to, "memory_values: %" PRIu64 "\ndirty_values: %" PRIu64 "\nfile_bytes: %" PRIu64 "\n",
			r->memory_values, r->dirty_values, r->file_bytes);
	fprintf(to, "created: %" PRId64 "\nlast_use: %" PRId64 "\nage_s: %" PRId64 "\nidle_s: %" PRId64 "\nhits: %" PRIu64
		"\n",
		r->created_s, r->last_use_s, now - r->created_s, now - r->last_use_s, r->hits);
	fprintf(to, "number: %u\ngeneration: %u\n", r->number, r->generation);
}

static void print_stats(struct space *space, FILE *to)
{
	size_t size = space_stats_text(space, NULL, 0) + 4096; /* numbers may grow meanwhile */
	char *text = malloc(size);

	if (!text)
		return;
	size_t n = space_stats_text(space, text, size);
	fwrite(text, 1, n < size ? n : size, to);
	free(text);
}

/* From what prompts had in common to what was restored of it, and what became of each boundary at which a state was missing. */
static void print_funnel(struct space *space, FILE *to)
{
	struct space_report r;

	space_report(space, &r);
	fprintf(to, "interval %" PRIu64 "\nrequests %" PRIu64 "\ndense_hit_tokens %" PRIu64 "\nhit_tokens %" PRIu64
		    "\nlost_to_checkpoint_tokens %" PRIu64 "\nlost_unrecoverable_tokens %" PRIu64 "\n",
		space_layout(space)->interval, r.stats.requests, r.stats.dense_hit_tokens, r.stats.hit_tokens,
		r.stats.lost_to_checkpoint_tokens, r.stats.lost_unrecoverable_tokens);
#define X(name, help) fprintf(to, #name " %" PRIu64 "\n", r.demands.name);
	DEMANDS_COUNTERS(X)
#undef X
	fprintf(to, "demands_open %" PRIu64 "\nrows_wanted %" PRIu64 "\nrows_put %" PRIu64 "\nrows_superseded %" PRIu64 "\n",
		r.demands.open, r.stats.rows_wanted, r.stats.rows_put, r.stats.rows_superseded);
}

static void print_pending(struct fs *fs, uint64_t number, bool error, FILE *to)
{
	size_t bytes = 0;
	char *text = namespaces_text(fs->namespaces, number, error, &bytes);

	if (text)
		fwrite(text, 1, bytes, to);
	free(text);
}

static void print_node(struct fs *fs, const struct look *look, const struct viewer *viewer, FILE *to)
{
	struct space *space = look->namespace.space;

	switch (look->node.kind) {
	case NODE_README:
		fputs(readme, to);
		break;
	case NODE_VERSION:
		fprintf(to, "prefixfs %s\nabi %u\n", version_text, PFS_ABI_VERSION);
		break;
	case NODE_CONFIG:
		config_print(fs->config, to);
		break;
	case NODE_HEALTH:
		print_health(fs, viewer, to);
		break;
	case NODE_TIERS:
		tiers_print(fs, viewer, to);
		break;
	case NODE_LAYOUT:
		if (space)
			fprintf(to, "%s\n", space_layout(space)->json);
		else
			print_pending(fs, look->namespace.number, false, to);
		break;
	case NODE_LAYOUT_ERROR:
		print_pending(fs, look->namespace.number, true, to);
		break;
	case NODE_SEGMENT:
		if (space)
			print_segment(fs, space, to);
		break;
	case NODE_STATS:
		if (space)
			print_stats(space, to);
		break;
	case NODE_FUNNEL:
		if (space)
			print_funnel(space, to);
		break;
	default:
		break;
	}
}

int text_new(struct fs *fs, const struct look *look, const struct viewer *viewer, struct text **ret)
{
	struct record_info record;
	bool header = look->node.kind == NODE_HEADER;
	/* Counts the values, too, which looking at a record does not. */
	int r = header ? space_record_get(look->namespace.space, look->record.number, look->record.generation, &record)
	               : 0;

	if (r)
		return r;
	struct text *text = calloc(1, sizeof(*text));
	FILE *to = text ? open_memstream(&text->at, &text->bytes) : NULL;
	if (!to) {
		free(text);
		return -ENOMEM;
	}
	if (header)
		print_header(&record, fs->disk, to);
	else if (look->node.kind == NODE_SESSION)
		r = text_print_session(fs, look->node.number, to);
	else
		print_node(fs, look, viewer, to);
	if (fclose(to) != 0 && !r)
		r = -ENOMEM;
	if (r) {
		text_free(text);
		return r;
	}
	*ret = text;
	return 0;
}

void text_free(void *object)
{
	struct text *text = object;

	free(text->at);
	free(text);
}
