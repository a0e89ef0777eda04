/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that get shorter, and files that go: what is left to do once the names thread has renamed them.
 */
#include "store/disk_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool may_have_aliases(const struct layout *layout)
{
	for (uint32_t c = 0; c < layout->classes; c++)
		if (layout->class[c].shares > 1)
			return true;
	return false;
}

/* Where the file's pages end: by its header, when columns of it may be aliases. */
static int plan_of(const struct disk_trim *trim, struct record_file_plan *ret)
{
	const struct layout *layout = trim->job.dir->layout;
	uint64_t bytes = record_file_header_bytes(layout);
	uint16_t alias[RECORD_FILE_MAX_COLUMNS];
	struct record_file_id id;
	char *header;
	ssize_t n;
	int r;

	record_file_plan(layout, trim->file_pages, false, NULL, ret);
	if (!may_have_aliases(layout))
		return 0;
	header = disk_memory(bytes);
	if (!header)
		return -ENOMEM;
	n = pread(trim->job.fd, header, bytes, 0);
	r = n < 0 ? -errno : record_file_read_header(header, (uint64_t)n, layout, &id, alias, NULL);
	free(header);
	if (r || id.pages < trim->pages)
		return r ? r : -EINVAL;
	record_file_plan(layout, id.pages, false, alias, ret);
	return 0;
}

/* Never makes a file longer: one that a crash left short is as it is. */
static int shorten(struct disk_trim *trim)
{
	struct disk_ops *ops = trim->job.dir->disk->ops;
	struct record_file_plan plan;
	struct stat st;

	if (fstat(trim->job.fd, &st))
		return -errno;
	trim->file_bytes = (uint64_t)st.st_size;
	if (trim->row || trim->file_pages > RECORD_FILE_MAX_PAGES || trim->pages > trim->file_pages)
		return 0;
	int r = plan_of(trim, &plan);

	if (r)
		return r;
	uint64_t bytes = record_file_length(&plan, trim->pages);

	if (bytes >= trim->file_bytes)
		return 0;
	r = ops->table->truncate(ops, trim->job.fd, bytes);

	if (!r)
		trim->file_bytes = bytes;
	return r;
}

void disk_trim_run(struct disk_trim *trim)
{
	struct disk_job *job = &trim->job;
	struct disk *disk = job->dir->disk;

	if (shorten(trim))
		disk_count(&disk->counters.write_errors, 1);
	disk_count(&disk->counters.trims, 1);
	disk->ops->table->close(disk->ops, job->fd);
	job->fd = -1;
}

void disk_unwanted_run(struct disk_job *job)
{
	struct disk *disk = job->dir->disk;
	char path[DISK_PATH_BYTES];

	if (!job->temporary)
		return;
	disk_path_of(path, job->consumed, &job->endpoint, job->temporary);
	if (disk->ops->table->unlink(disk->ops, job->dir->fd, path))
		disk_count(&disk->counters.write_errors, 1);
}
