/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tiers.h"

#include <inttypes.h>

#include "fs/namespaces.h"
#include "fs/passthrough.h"

const char *tiers_state_name(enum host_disk_state state)
{
	static const char *const names[] = {
		[HOST_DISK_NONE] = "none",
		[HOST_DISK_OK] = "ok",
		[HOST_DISK_FULL] = "full",
		[HOST_DISK_FAILING] = "failing",
		[HOST_DISK_CLOSED] = "closed",
		[HOST_DISK_REFUSED] = "refused",
	};

	return names[state];
}

const char *tiers_of_record(const struct record_info *record)
{
	if (!record->file_bytes)
		return "memory";
	return record->memory_values ? "memory,disk" : "disk";
}

/* Nothing where no disk was asked for. */
static void print_disk(struct fs *fs, FILE *to)
{
	struct host_disk_report d;

	host_disk_report(fs->host, &d);
	if (d.state == HOST_DISK_NONE)
		return;
	fprintf(to,
		"disk bytes=%" PRIu64 " used=%" PRIu64 " state=%s files=%" PRIu64 " dirty=%" PRIu64 " clean=%" PRIu64
		" foreign_files=%" PRIu64 " foreign_bytes=%" PRIu64 " fs_free=%" PRIu64 " fs_bytes=%" PRIu64,
		d.limit_bytes, d.used_bytes, tiers_state_name(d.state), d.files, d.dirty_bytes, d.clean_bytes,
		d.foreign_files, d.foreign_bytes, d.free_bytes, d.total_bytes);
	fprintf(to,
		" read=%" PRIu64 " written=%" PRIu64 " reads=%" PRIu64 " writes=%" PRIu64 " read_errors=%" PRIu64
		" write_errors=%" PRIu64 " checksum_errors=%" PRIu64,
		d.read_bytes, d.written_bytes, d.reads, d.writes, d.read_errors, d.write_errors, d.checksum_errors);
	fprintf(to,
		" jobs=%" PRIu64 " memory=%" PRIu64 " io=%s direct=%s passthrough=%s catalogue_queued=%" PRIu64
		" catalogue_dropped=%" PRIu64 " comparing=%" PRIu64 " compared_removed=%" PRIu64 " compared_missing=%" PRIu64 " path=%s\n",
		d.jobs, d.memory_bytes, d.uring ? "uring" : "plain", d.direct ? "yes" : "no",
		passthrough_in_use(fs->passthrough) ? "yes" : "no", d.catalogue_queued, d.catalogue_dropped,
		d.comparing, d.compared_removed, d.compared_missing, d.path);
}

/* The lines about one namespace, which has its layout. */
static void print_namespace(const struct namespace_info *info, FILE *to)
{
	const struct layout *layout = space_layout(info->space);
	struct space_class_report class;
	struct space_report r;

	space_report(info->space, &r);
	fprintf(to,
		"namespace %s floor=%" PRIu64 " granted=%" PRIu64 " used=%" PRIu64 " surplus=%" PRIu64 " may_take=%" PRIu64
		" sessions=%" PRIu64,
		info->name, r.floor_bytes, r.granted_bytes, r.slot_bytes, r.surplus_bytes, r.may_take_bytes,
		r.stats.sessions);
	if (r.disk)
		fprintf(to, " disk=%" PRIu64 " files=%" PRIu64 " dirty=%" PRIu64 " clean=%" PRIu64, r.disk_bytes, r.disk_files,
			r.dirty_bytes, r.clean_bytes);
	fputc('\n', to);
	for (uint32_t i = 0; space_class(info->space, i, &class); i++)
		fprintf(to,
			"grants %s class=%s share=%u slot_bytes=%" PRIu64 " grants=%" PRIu64 " slots=%" PRIu64 " free=%" PRIu64
			"\n",
			info->name, layout->class[class.class_index].name, class.share, class.slot_bytes, class.grants,
			class.slots, class.slots_free);
}

void tiers_print(struct fs *fs, const struct viewer *viewer, FILE *to)
{
	struct namespace_info info;
	struct host_report host;
	uint64_t after = 0;

	host_report(fs->host, &host);
	fprintf(to,
		"memory bytes=%" PRIu64 " used=%" PRIu64 " state=ok floors=%" PRIu64 " granted=%" PRIu64 " free=%" PRIu64
		" owed=%" PRIu64 "\n",
		host.memory_bytes, host.used_bytes, host.floors_bytes, host.granted_bytes, host.free_bytes,
		host.owed_bytes);
	print_disk(fs, to);
	while (namespaces_next(fs->namespaces, after, &info) == 0) {
		after = info.number;
		if (info.space && viewer_sees(viewer, &info.access))
			print_namespace(&info, to);
		space_unref(&info.space);
	}
}
