/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tiers.h"

#include <inttypes.h>

#include "fs/namespaces.h"

/* The lines about one namespace, which has its layout. */
static void print_namespace(const struct namespace_info *info, FILE *to)
{
	const struct layout *layout = space_layout(info->space);
	struct space_class_report class;
	struct space_report r;

	space_report(info->space, &r);
	fprintf(to,
		"namespace %s floor=%" PRIu64 " granted=%" PRIu64 " used=%" PRIu64 " surplus=%" PRIu64 " may_take=%" PRIu64
		" sessions=%" PRIu64 "\n",
		info->name, r.floor_bytes, r.granted_bytes, r.slot_bytes, r.surplus_bytes, r.may_take_bytes,
		r.stats.sessions);
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
	while (namespaces_next(fs->namespaces, after, &info) == 0) {
		after = info.number;
		if (info.space && viewer_sees(viewer, &info.access))
			print_namespace(&info, to);
		space_unref(&info.space);
	}
}
