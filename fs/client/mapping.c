/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/client/mapping.h"

#include <errno.h>
#include <pthread.h>
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all mappings, as mapping.h says */
static uint64_t counter; /* (lock) */

static struct pfs_segment *find(struct pfs_session *session, const struct stat *st, uint64_t bytes)
{
	struct pfs_segment *m;

	pthread_mutex_lock(&lock);
	for (m = session->mappings; m; m = m->next)
		if (m->device == st->st_dev && m->inode == st->st_ino && m->bytes == bytes)
			break;
	if (m)
		m->connections++;
	pthread_mutex_unlock(&lock);
	return m;
}

static int map(struct pfs_segment *m, int fd)
{
	int prot = m->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	void *p = mmap(NULL, m->bytes, prot, MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (p == MAP_FAILED)
		return say(errno, "mapping %llu bytes of segment: %s", (unsigned long long)m->bytes, strerror(errno));
	m->at = p;
	return 0;
}

int mapping_get(struct pfs_session *session, int fd, uint64_t bytes, struct pfs_segment **ret)
{
	struct pfs_segment *m;
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
	*m = (struct pfs_segment){.session = session, .connections = 1, .device = st.st_dev, .inode = st.st_ino, .bytes = bytes,
		.read_only = session->options.read_only};
	r = map(m, fd);
	if (r) {
		free(m);
		return r;
	}
	pthread_mutex_lock(&lock);
	m->number = ++counter;
	m->next = session->mappings;
	session->mappings = m;
	pthread_mutex_unlock(&lock);
	*ret = m;
	return 0;
}

/* (lock) Of its session's list, where there is one. */
static void take_out(struct pfs_segment *m)
{
	struct pfs_segment **at;

	if (!m->session)
		return;
	for (at = &m->session->mappings; *at != m;)
		at = &(*at)->next;
	*at = m->next;
}

/* One connection less, or one hold. */
static void put(struct pfs_segment *m, unsigned connections, unsigned holds)
{
	bool last;

	pthread_mutex_lock(&lock);
	m->connections -= connections;
	m->holds -= holds;
	last = m->connections + m->holds == 0;
	if (last)
		take_out(m);
	pthread_mutex_unlock(&lock);
	if (!last)
		return;
	munmap(m->at, m->bytes);
	acks_free(&m->acked);
	free(m);
}

void mapping_put(struct pfs_segment **mappingp)
{
	struct pfs_segment *m = *mappingp;

	*mappingp = NULL;
	if (m)
		put(m, 1, 0);
}

void mappings_leave(struct pfs_session *session)
{
	pthread_mutex_lock(&lock);
	for (struct pfs_segment *m = session->mappings; m; m = m->next)
		m->session = NULL;
	session->mappings = NULL;
	pthread_mutex_unlock(&lock);
}

/* ---- holds ------------------------------------------------------------------------------------------------------ */

int pfs_segment_hold(struct pfs_session *session, struct pfs_segment **ret)
{
	struct pfs_segment *m;

	pthread_mutex_lock(&session->lock);
	m = session->current->mapping;
	pthread_mutex_lock(&lock);
	m->holds++;
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&session->lock);
	*ret = m;
	return 0;
}

int pfs_segment_info(const struct pfs_segment *segment, struct pfs_segment_info *ret)
{
	pthread_mutex_lock(&lock);
	*ret = (struct pfs_segment_info){
		.address = segment->at,
		.bytes = segment->bytes,
		.number = segment->number,
		.read_only = segment->read_only,
		.unused = segment->connections == 0,
	};
	pthread_mutex_unlock(&lock);
	return 0;
}

void pfs_segment_let_go(struct pfs_segment **segmentp)
{
	struct pfs_segment *m = *segmentp;

	*segmentp = NULL;
	if (m)
		put(m, 0, 1);
}
