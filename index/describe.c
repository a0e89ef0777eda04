/* SPDX-License-Identifier: Apache-2.0
 *
 * What is committed, in words that depend on content only, not on record numbers. (The lines that begin with `pinned` and
 * `whole` depend on whether twins have met yet: the survivor is both when one of them was.)
 */
#include "index/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#include "store/base/cleanup.h"

struct lines {
	char **line;
	size_t n, room;
	int error;
};

static void lines_free(struct lines *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->line[i]);
	free(l->line);
}

__attribute__((format(printf, 2, 3))) static void say(struct lines *l, const char *format, ...)
{
	va_list args;

	if (l->n == l->room) {
		size_t room = l->room ? l->room * 2 : 256;
		char **line = realloc(l->line, room * sizeof(*line));

		if (!line) {
			l->error = -ENOMEM;
			return;
		}
		l->line = line;
		l->room = room;
	}
	va_start(args, format);
	if (vasprintf(&l->line[l->n], format, args) < 0)
		l->error = -ENOMEM;
	else
		l->n++;
	va_end(args);
}

static const char *hex(const struct key *key, char text[65])
{
	for (unsigned i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
	return text;
}

static void say_values(const struct index *index, struct lines *l, uint32_t record, uint32_t page)
{
	const struct record *r = &index->records[record];
	uint32_t n;
	const uint32_t *words = place_words(index, r, page, &n);
	char key[65];

	for (uint32_t i = 0; i < n; i++) {
		if (!word_committed(index, words[i]))
			continue;
		const struct entry *e = &index->tables->entries[words[i] & WORD_ENTRY];

		say(l, "value %s at %llu class %u share %u%s entry %u", hex(&e->key, key),
			(unsigned long long)index_consumed(index, record, (uint16_t)page), e->class_index, e->share,
			page == INDEX_PAGE_ROW ? " row" : "", words[i] & WORD_ENTRY);
	}
}

static bool place_committed(const struct index *index, const struct record *r, uint32_t page, struct key *ret)
{
	uint32_t n;
	const uint32_t *words = place_words(index, r, page, &n);

	for (uint32_t i = 0; i < n; i++)
		if (word_committed(index, words[i])) {
			*ret = index->tables->entries[words[i] & WORD_ENTRY].key;
			return true;
		}
	return false;
}

static void say_record(const struct index *index, struct lines *l, uint32_t record)
{
	const struct record *r = &index->records[record];
	const struct record_entry *t = record_table(index, record);
	struct key end;
	char key[65], parent[65];
	uint32_t pages = r->pages;

	for (uint32_t page = 0; page < pages; page++)
		say_values(index, l, record, page);
	say_values(index, l, record, INDEX_PAGE_ROW);
	/* Without the pages at the end that only a row or an uncommitted value keeps there. */
	while (pages && !place_committed(index, r, pages - 1u, &end))
		pages--;
	if (pages)
		say(l, "record %llu-%llu %s after %s%s", (unsigned long long)t->start,
			(unsigned long long)(t->start + pages * index->layout->page_tokens), hex(&end, key),
			hex(&t->parent_key, parent), t->flags & RECORD_ROOT ? " root" : "");
	else if (!place_committed(index, r, INDEX_PAGE_ROW, &end))
		return;
	if (t->flags & RECORD_PINNED)
		say(l, "pinned %s", hex(&end, key));
	if (t->flags & RECORD_WHOLE && tables_committed(index->tables, t->group))
		say(l, "whole %s", hex(&end, key));
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int index_describe(struct index *index, FILE *to)
{
	cleanup(lines_free) struct lines l = {NULL, 0, 0, 0};

	lock_assert_held(index->guard);
	for (uint32_t n = 0; n < index->record_top; n++)
		if (index->records[n].state != RECORD_FREE && !record_hidden(index, &index->records[n]))
			say_record(index, &l, n);
	if (l.error)
		return l.error;
	if (l.n)
		qsort(l.line, l.n, sizeof(*l.line), compare);
	for (size_t i = 0; i < l.n; i++)
		if (!i || strcmp(l.line[i - 1], l.line[i]))
			fprintf(to, "%s\n", l.line[i]);
	return ferror(to) ? -EIO : 0;
}
