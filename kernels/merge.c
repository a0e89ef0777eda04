/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries are cut at the ends of registrations and of batches, and at nothing else.
 */
#include "kernels/merge.h"

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void merge_begin(struct merger *m, const struct spans *spans, merge_batch batch, void *context)
{
	m->spans = spans;
	m->batch = batch;
	m->context = context;
	m->at = 0;
	m->count = 0;
	m->bytes = 0;
	m->wall = 0;
}

int merge_end(struct merger *m)
{
	int r = m->count ? m->batch(m->context, m->entries, m->count) : 0;

	m->count = 0;
	m->bytes = 0;
	return r;
}

int merge_add(struct merger *m, uint64_t device, uint64_t host, uint64_t bytes)
{
	while (bytes > 0) {
		struct gpu_entry *last = m->count ? &m->entries[m->count - 1] : NULL;
		uint64_t piece;
		int r;

		if (m->bytes == MERGE_MAX_BYTES) {
			r = merge_end(m);
			if (r)
				return r;
			last = NULL;
		}
		piece = least(bytes, MERGE_MAX_BYTES - m->bytes);
		if (last && last->device + last->bytes == device && last->host + last->bytes == host && host < m->wall) {
			piece = least(piece, m->wall - host);
			last->bytes += piece;
		} else {
			if (m->count == MERGE_MAX_ENTRIES) {
				r = merge_end(m);
				if (r)
					return r;
				piece = least(bytes, MERGE_MAX_BYTES);
			}
			m->wall = spans_end(m->spans, host, &m->at);
			piece = least(piece, m->wall - host);
			m->entries[m->count++] = (struct gpu_entry){device, host, piece};
		}
		m->bytes += piece;
		device += piece;
		host += piece;
		bytes -= piece;
	}
	return 0;
}

static int merge_rows(struct merger *m, const struct gpu_column *c, uint64_t device, uint64_t host)
{
	int r = 0;

	for (uint64_t at = 0; at < c->bytes && !r; at += c->row_bytes) {
		r = merge_add(m, device, host + at, c->row_bytes);
		device += c->row_stride;
	}
	return r;
}

int merge_rect(struct merger *m, const struct gpu_rect *rect)
{
	int r = 0;

	for (uint32_t i = 0; i < rect->row_count && !r; i++) {
		const uint32_t *pages = rect->pages + (uint64_t)i * rect->pages_per_value;

		for (uint32_t k = 0; k < rect->column_count && !r; k++) {
			const struct gpu_column *c = &rect->columns[k];

			r = merge_rows(m, c, c->base + pages[c->page] * c->stride, rect->values[i] + c->offset);
		}
	}
	return r;
}
