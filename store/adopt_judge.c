/* SPDX-License-Identifier: Apache-2.0
 *
 * May these two memory files be a namespace's? Everything that is computed with later is compared here first.
 */
#include "store/adopt_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/host_private.h"

uint32_t adopt_tables_version(int fd)
{
	struct tables_header header;

	if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) || header.magic != TABLES_MAGIC)
		return 0;
	return header.version;
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

static int map_tables(struct space *space, struct why *why)
{
	struct stat st;
	void *memory;
	int r;

	if (fstat(space->tables_fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0)
		return why_set(why, EINVAL, "the tables are no memory file with something in it");
	memory = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, space->tables_fd, 0);
	if (memory == MAP_FAILED)
		return why_set(why, errno == ENOMEM ? ENOMEM : EINVAL, "cannot map %lld bytes of tables", (long long)st.st_size);
	madvise(memory, (size_t)st.st_size, MADV_HUGEPAGE); /* as when they were made */
	r = tables_open(&space->tables, memory, (size_t)st.st_size, why);
	if (r) {
		munmap(memory, (size_t)st.st_size);
		return r;
	}
	space->tables_memory = memory;
	return 0;
}

static const char *hex(const uint8_t fingerprint[16], char to[33])
{
	for (unsigned i = 0; i < 16; i++)
		snprintf(to + 2 * i, 3, "%02x", fingerprint[i]);
	return to;
}

/* The fingerprint covers the identity too; both are compared, since both are there. */
static int judge_layout(const struct attempt *a)
{
	const struct tables_header *h = a->space->tables.header;
	const struct layout *layout = a->space->layout;
	char theirs[33], ours[33];

	if (!memcmp(h->fingerprint, layout->fingerprint, sizeof(h->fingerprint)) &&
	    !memcmp(h->identity, layout->identity, sizeof(h->identity)))
		return 0;
	return why_set(a->why, EXDEV, "the tables are of identity and layout %s, the namespace of %s", hex(h->fingerprint, theirs),
		       hex(layout->fingerprint, ours));
}

/* What the arrays beside the tables are as long as. */
static int judge_geometry(struct attempt *a)
{
	const struct host *host = a->space->host;
	const struct tables_header *h = a->space->tables.header;

	if (h->groups != SPACE_GROUPS || !h->grants || h->grants > SLOTS_MAX_GRANTS)
		return why_set(a->why, EINVAL, "the tables have %u groups and %u grants; this program makes %u and at most %u", h->groups,
			       h->grants, SPACE_GROUPS, SLOTS_MAX_GRANTS);
	if (!h->records || !h->slots || h->slots % TABLES_GRANT_ENTRIES)
		return why_set(a->why, EINVAL, "the tables have %u records and %u slots; slots are a multiple of %u", h->records, h->slots,
			       TABLES_GRANT_ENTRIES);
	if (!h->generation || (uint64_t)h->slots + h->places + h->hollow != h->entries)
		return why_set(a->why, EINVAL, "the tables are of generation %llu, %u of their %u entries are none's",
			       (unsigned long long)h->generation, h->entries - h->slots - h->places - h->hollow, h->entries);
	if (h->places && !host->config.disk_path)
		return why_set(a->why, EINVAL, "the tables have %u places on a disk, and there is no disk any more", h->places);
	a->ranges = (struct ranges){ h->slots, h->places, h->records };
	return 0;
}

/* ---- the segment --------------------------------------------------------------------------------------------------- */

static int judge_pair(const struct attempt *a)
{
	const struct tables_header *h = a->space->tables.header;
	struct stat st;

	if (fstat(segment_fd(a->space->segment), &st) || st.st_ino != h->segment_inode)
		return why_set(a->why, ESTALE, "the segment is not the one that the tables are of");
	if (segment_bytes(a->space->segment) != h->segment_bytes)
		return why_set(a->why, EINVAL, "the segment has %llu bytes, the tables are of one of %llu",
			       (unsigned long long)segment_bytes(a->space->segment), (unsigned long long)h->segment_bytes);
	return 0;
}

int adopt_judge(struct attempt *a)
{
	struct space *space = a->space;
	int r = map_tables(space, a->why);

	r = r ? r : judge_layout(a);
	r = r ? r : judge_geometry(a);
	return r ? r : judge_pair(a);
}
