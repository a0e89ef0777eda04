/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/client/mapping.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fs/client/client.h"

#define MAX_REMEMBERED (1u << 20) /* ids above are acknowledged each time */

/* ---- what was acknowledged -------------------------------------------------------------------------------------- */

bool acks_have(const struct acks *acks, const struct pfs_range *range)
{
	return range->id < acks->capacity && acks->generations[range->id] == range->generation + 1;
}

void acks_add(struct acks *acks, const struct pfs_range *range)
{
	if (range->id >= MAX_REMEMBERED)
		return;
	if (range->id >= acks->capacity) {
		uint32_t capacity = range->id + 64;
		uint32_t *p = realloc(acks->generations, capacity * sizeof(*p));

		if (!p)
			return;
		memset(p + acks->capacity, 0, (capacity - acks->capacity) * sizeof(*p));
		*acks = (struct acks){p, capacity};
	}
	acks->generations[range->id] = range->generation + 1;
}

void acks_free(struct acks *acks)
{
	free(acks->generations);
	*acks = (struct acks){0};
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

static struct mapping *find(struct pfs_session *session, const struct stat *st, uint64_t bytes)
{
	struct mapping *m;

	pthread_mutex_lock(&session->lock);
	for (m = session->mappings; m; m = m->next)
		if (m->device == st->st_dev && m->inode == st->st_ino && m->bytes == bytes)
			break;
	if (m)
		m->refs++;
	pthread_mutex_unlock(&session->lock);
	return m;
}

static int map(struct pfs_session *session, int fd, uint64_t bytes, uint8_t **ret)
{
	int prot = session->options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	void *p = mmap(NULL, bytes, prot, MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (p == MAP_FAILED)
		return say(errno, "mapping %llu bytes of segment: %s", (unsigned long long)bytes, strerror(errno));
	*ret = p;
	return 0;
}

int mapping_get(struct pfs_session *session, int fd, uint64_t bytes, struct mapping **ret)
{
	struct mapping *m;
	struct stat st;
	int r;

	if (fstat(fd, &st))
		return say(errno, "the segment's descriptor: %s", strerror(errno));
	m = find(session, &st, bytes);
	if (m) {
		*ret = m;
		return 0;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return say(ENOMEM, "no memory for a mapping");
	*m = (struct mapping){.refs = 1, .device = st.st_dev, .inode = st.st_ino, .bytes = bytes};
	r = map(session, fd, bytes, &m->at);
	if (r) {
		free(m);
		return r;
	}
	pthread_mutex_lock(&session->lock);
	m->number = ++session->mapping_counter;
	m->next = session->mappings;
	session->mappings = m;
	pthread_mutex_unlock(&session->lock);
	*ret = m;
	return 0;
}

void mapping_put(struct pfs_session *session, struct mapping **mappingp)
{
	struct mapping *m = *mappingp, **at;

	*mappingp = NULL;
	if (!m)
		return;
	pthread_mutex_lock(&session->lock);
	if (--m->refs > 0) {
		pthread_mutex_unlock(&session->lock);
		return;
	}
	for (at = &session->mappings; *at != m; at = &(*at)->next)
		;
	*at = m->next;
	pthread_mutex_unlock(&session->lock);
	munmap(m->at, m->bytes);
	acks_free(&m->acked);
	free(m);
}
