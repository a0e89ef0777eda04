/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's disk tier as a whole.
 */
#include <errno.h>
#include <string.h>

#include "store/host_private.h"

void host_disk_report(struct host *host, struct host_disk_report *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->path = host->config.disk_path;
	ret->state = HOST_DISK_NONE;
}

void host_disk_spaces(struct host *host,
		      void (*found)(void *context, const char *name, const char *text, size_t bytes, const struct space_access *access),
		      void *context)
{
	(void)host;
	(void)found;
	(void)context;
}

int host_drain(struct host *host, struct space *space, enum host_drain how, uint64_t deadline_ns,
	       bool (*progress)(void *context, uint64_t done, uint64_t goal), void *context, uint64_t *left, struct why *why)
{
	(void)host;
	(void)space;
	(void)how;
	(void)deadline_ns;
	(void)progress;
	(void)context;
	*left = 0;
	return why_set(why, ENODEV, "there is no disk tier");
}

int space_check_step(struct space *space, struct space_check *check, struct why *why)
{
	(void)check;
	return why_set(why, ENODEV, "namespace %s has no disk tier", space->name);
}

ssize_t space_record_read_raw(struct space *space, uint32_t number, uint32_t generation, uint64_t offset, void *to,
			      size_t bytes)
{
	(void)space;
	(void)number;
	(void)generation;
	(void)offset;
	(void)to;
	(void)bytes;
	return -ENOENT;
}

int disk_check(const char *path, const struct disk_check_options *options, bool (*progress)(void *context, uint64_t done, uint64_t goal),
	       void (*finding)(void *context, const char *file, const char *what), void *context, struct disk_check_report *ret,
	       struct why *why)
{
	(void)path;
	(void)options;
	(void)progress;
	(void)finding;
	(void)context;
	(void)ret;
	return why_set(why, ENODEV, "there is no disk tier");
}
