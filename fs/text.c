/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/client/prefixfs_abi.h"
#include "fs/notifier.h"
#include "fs/record_name.h"
#include "fs/tiers.h"
#include "fs/version.h"
#include "store/base/clock.h"
#include "store/session.h"

#define RANGES_AT_ONCE 64u

static const char readme[] =
	"This is prefixfs: the KV-cache tiers of this host, as a mount. Engines use libprefixfs; this is for people.\n"
	"\n"
	"README                  this text\n"
	"version, config         what runs, and every parameter with its value in force\n"
	"health                  `ok` or `degraded: why` in the first line; then backing, processes, restarts\n"
	"tiers                   a tier's bytes, bytes used, state; who was promised, has and may take how much\n"
	"sessions/<id>           who has a ctl open, what it holds and for how long, and its last error in words\n"
	"ns/<name>/              a namespace: one model and one byte layout; chmod and chown say who may use it\n"
	"  layout                its layout as JSON\n"
	"  ctl                   what engines open; see docs/abi.md\n"
	"  segment               the shared memory: length, pages, granted ranges\n"
	"  stats                 counters, one `name value` a line\n"
	"  records/<tokens>-<key>/   a run of pages: tokens at its end in 16 hex digits, key of its end in 64\n"
	"    header              everything about it, one `name: value` a line\n"
	"    pages, row          the bytes: each page's values, the state at its end; an absent value is ENODATA\n"
	"    parent              link to the record that it follows\n"
	"\n"
	"To make a namespace:    mkdir ns/x && cat layout.json > ns/x/layout\n"
	"                        a layout that is refused leaves its reason in ns/x/layout.error\n"
	"To remove it:           rmdir ns/x        all records go with it; refused while a session is open\n"
	"To evict a record:      rm -r ns/x/records/<name>      refused while it is in use or has children\n"
	"To see what is used:    df .; cat tiers; cat ns/*/stats\n"
	"Small files show one moment, that of their opening, and have size 0 in ls, as in /proc.\n";

static void print_health(struct fs *fs, FILE *to)
{
	uint64_t after = 0;
	struct namespace_info info;
	char reason[512], why[256] = "";
	char *spaces = NULL;
	size_t size = 0;
	FILE *lines = open_memstream(&spaces, &size);

	while (lines && namespaces_next(fs->namespaces, after, &info) == 0) {
		struct space_report report;

		after = info.number;
		if (!info.space) {
			fprintf(lines, "namespace %s: pending, it has no layout yet\n", info.name);
			continue;
		}
		space_report(info.space, &report);
		fprintf(lines, "namespace %s: backing %s, %" PRIu64 " of %" PRIu64 " granted bytes resident\n",
			info.name, segment_backing_name(segment_backing(space_segment(info.space))),
			report.resident_bytes, report.granted_bytes);
		if (report.stats.corrupt)
			snprintf(why, sizeof(why), "%" PRIu64 " values of namespace %s failed their check",
				report.stats.corrupt, info.name);
		else if (report.stats.read_errors)
			snprintf(why, sizeof(why), "%" PRIu64 " reads of namespace %s failed", report.stats.read_errors,
				info.name);
		else if (report.stats.grants_failed)
			snprintf(why, sizeof(why), "%" PRIu64 " grants of namespace %s found no memory",
				report.stats.grants_failed, info.name);
		space_unref(&info.space);
	}
	if (lines)
		fclose(lines);
	fprintf(to, why[0] ? "degraded: %s\n" : "ok\n", why);
	fprintf(to, "version: %s, control ABI %u\n", version_text, PFS_ABI_VERSION);
	fprintf(to, "parent: %d\nserving: %d\nuptime_s: %" PRIu64 "\n", (int)getppid(), (int)getpid(),
		(clock_now_ns() - fs->started_ns) / 1000000000u);
	fprintf(to, "socket: %s/sock\nrestarts: %u\n", fs->dir.path, fs->restarts);
	if (rundir_read(&fs->dir, "last_exit", reason, sizeof(reason)) > 0) {
		reason[strcspn(reason, "\n")] = 0;
		fprintf(to, "last exit: %s; more in %s/last_exit\n",
			strncmp(reason, "reason: ", 8) ? reason : reason + 8, fs->dir.path);
	}
	fprintf(to, "notices dropped: %" PRIu64 "\n%s", notifier_dropped(fs->notifier), spaces ? spaces : "");
	free(spaces);
}

static void print_session(const struct session_info *s, FILE *to)
{
	fprintf(to,
		"namespace: %s\npid: %d\nuid: %u\nattached: %s\nread_only: %s\nage_s: %" PRId64 "\nput_plans: %u\n"
		"get_plans: %u\nhandles: %u\nprepared_bytes: %" PRIu64 "\npins: %u\noldest_ms: %" PRIu64 "\n",
		s->space, (int)s->pid, s->uid, s->attached ? "yes" : "no", s->read_only ? "yes" : "no",
		(int64_t)clock_wall_s() - s->opened_s, s->put_plans, s->get_plans, s->handles, s->prepared_bytes,
		s->pins, s->oldest_ms);
	if (s->rank == SESSION_RANK_NONE)
		fprintf(to, "rank: none\n");
	else
		fprintf(to, "rank: %u\n", s->rank);
	fprintf(to, "last error: %s\n", s->error[0] ? s->error : "none");
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

static void print_header(const struct record_info *r, FILE *to)
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
		"\nabsent: %" PRIu64 "\nrow_values: %u\nrow_bytes: %" PRIu64 "\ntiers: memory\n",
		yes(r->whole), yes(r->pinned), r->pins, r->children, r->page_bytes, r->values, r->absent, r->row_values,
		r->row_bytes);
	fprintf(to, "created: %" PRId64 "\nlast_use: %" PRId64 "\nage_s: %" PRId64 "\nidle_s: %" PRId64 "\n",
		r->created_s, r->last_use_s, now - r->created_s, now - r->last_use_s);
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

static void print_pending(struct fs *fs, uint64_t number, bool error, FILE *to)
{
	size_t bytes = 0;
	char *text = namespaces_text(fs->namespaces, number, error, &bytes);

	if (text)
		fwrite(text, 1, bytes, to);
	free(text);
}

static void print_node(struct fs *fs, const struct look *look, FILE *to)
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
		print_health(fs, to);
		break;
	case NODE_TIERS:
		tiers_print(fs, to);
		break;
	case NODE_SESSION:
		print_session(look->session, to);
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
	default:
		break;
	}
}

int text_new(struct fs *fs, const struct look *look, struct text **ret)
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
		print_header(&record, to);
	else
		print_node(fs, look, to);
	if (fclose(to) != 0) {
		text_free(text);
		return -ENOMEM;
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
