/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check, record files: each is looked at, its values are read if that is asked for, and it is said what is to become
 * of it. Nothing is changed here.
 */
#include "store/disk_check.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "index/mix.h"
#include "store/base/cleanup.h"
#include "store/base/hash.h"

/* ---- which there are ------------------------------------------------------------------------------------------------------ */

void check_path_of(char to[CHECK_PATH_BYTES], uint64_t consumed, const struct key *endpoint)
{
	char name[RECORD_FILE_NAME_BYTES];

	record_file_name(name, consumed, endpoint);
	snprintf(to, CHECK_PATH_BYTES, "%02x/%s", record_file_folder(endpoint), name);
}

static bool list_one(void *context, uint64_t consumed, const struct key *endpoint, uint64_t bytes, int64_t mtime_s)
{
	struct check_space *s = context;

	if (s->count == s->capacity) {
		uint32_t capacity = s->capacity ? 2 * s->capacity : 1024;
		struct check_file *files = realloc(s->files, capacity * sizeof(*files));

		if (!files) {
			s->no_memory = true;
			return false;
		}
		s->files = files;
		s->capacity = capacity;
	}
	s->files[s->count++] = (struct check_file){.consumed = consumed, .endpoint = *endpoint, .bytes = bytes, .mtime_s = mtime_s};
	return true;
}

static uint32_t bucket_of(const struct check_space *s, uint64_t consumed, const struct key *endpoint)
{
	return (uint32_t)mix_64(endpoint->words[0] ^ consumed, endpoint->words[1] ^ 0x9e3779b97f4a7c15ull) & s->mask;
}

static bool has_name(const struct check_file *f, uint64_t consumed, const struct key *endpoint)
{
	return f->consumed == consumed && !memcmp(&f->endpoint, endpoint, sizeof(*endpoint));
}

struct check_file *check_find(const struct check_space *s, uint64_t consumed, const struct key *endpoint)
{
	for (uint32_t at = bucket_of(s, consumed, endpoint); s->table[at]; at = (at + 1) & s->mask)
		if (has_name(&s->files[s->table[at] - 1], consumed, endpoint))
			return &s->files[s->table[at] - 1];
	return NULL;
}

/* Oldest first: rows are made in this order. */
static int older(const void *a, const void *b)
{
	const struct check_file *x = a, *y = b;

	return x->mtime_s != y->mtime_s ? (x->mtime_s > y->mtime_s) - (x->mtime_s < y->mtime_s)
	                                : memcmp(&x->endpoint, &y->endpoint, sizeof(x->endpoint));
}

/* A name that stands twice is that of a file and of another one that lies in a wrong folder. */
static int make_table(struct check_space *s)
{
	uint32_t size = 1024;

	while (size < 2 * (uint64_t)s->count && size < 1u << 31)
		size *= 2;
	s->table = calloc(size, sizeof(*s->table));
	if (!s->table)
		return -ENOMEM;
	s->mask = size - 1;
	for (uint32_t i = 0; i < s->count; i++) {
		struct check_file *f = &s->files[i];
		uint32_t at = bucket_of(s, f->consumed, &f->endpoint);

		if (check_find(s, f->consumed, &f->endpoint)) {
			f->state = CHECK_GONE;
			continue;
		}
		while (s->table[at])
			at = (at + 1) & s->mask;
		s->table[at] = i + 1;
	}
	return 0;
}

static int list(struct check_space *s, struct why *why)
{
	const struct disk_listing all = {.parts = 1, .sizes = true};
	int r = disk_dir_list(s->dir, &all, list_one, s, why);

	if (r)
		return r;
	if (s->count)
		qsort(s->files, s->count, sizeof(*s->files), older);
	return s->no_memory || make_table(s) ? why_set(why, ENOMEM, "no memory to check the %u files of %s", s->count, s->folder) : 0;
}

/* ---- header and keys, whatever the name --------------------------------------------------------------------------------- */

/* All of [0, +bytes) at @offset; -ENODATA: the file is shorter. */
static int read_part(int fd, void *to, uint64_t bytes, uint64_t offset)
{
	uint64_t at = 0;

	while (at < bytes) {
		ssize_t n = pread(fd, (char *)to + at, bytes - at, (off_t)(offset + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -ENODATA;
		at += (uint64_t)n;
	}
	return 0;
}

static void *aligned(uint64_t bytes)
{
	return aligned_alloc(RECORD_FILE_ALIGN, bytes);
}

static enum check_head read_header(const struct check_space *s, int fd, struct disk_file_info *info, struct why *why)
{
	uint64_t bytes = record_file_header_bytes(s->layout);
	cleanup(freep) void *header = aligned(bytes);

	/* A shorter one may still say that it is another's. */
	if (info->file_bytes < bytes)
		bytes = info->file_bytes & ~(uint64_t)(RECORD_FILE_ALIGN - 1);
	int r = header ? read_part(fd, header, bytes, 0) : -ENOMEM;

	if (r)
		return why_set(why, -r, "its header cannot be read: %s", strerrordesc_np(-r)), CHECK_HEAD_UNREADABLE;
	r = record_file_read_header(header, bytes, s->layout, &info->id, info->alias, why);
	if (r == -ENOTSUP || r == -EXDEV)
		return CHECK_HEAD_FOREIGN;
	return r ? CHECK_HEAD_BAD : CHECK_HEAD_GOOD;
}

static enum check_head read_keys(const struct check_space *s, int fd, struct disk_file_info *info, struct why *why)
{
	struct record_file_plan *plan = &info->plan;
	const struct key *keys;
	const uint64_t *sums;

	record_file_plan(s->layout, info->id.pages, info->id.flags & RECORD_FILE_ROW, info->alias, plan);
	if (info->file_bytes < plan->page_offset)
		return why_set(why, EINVAL, "it has %llu bytes; its header and keys alone take %llu",
			(unsigned long long)info->file_bytes, (unsigned long long)plan->page_offset), CHECK_HEAD_KEYS_BAD;
	info->segment = aligned(plan->keys_bytes);
	int r = info->segment ? read_part(fd, info->segment, plan->keys_bytes, plan->header_bytes) : -ENOMEM;

	if (r)
		return why_set(why, -r, "its keys cannot be read: %s", strerrordesc_np(-r)), CHECK_HEAD_UNREADABLE;
	if (record_file_read_keys(info->segment, plan, &keys, &sums, why))
		return CHECK_HEAD_KEYS_BAD;
	if (plan->pages && memcmp(&info->id.endpoint, &keys[plan->pages - 1], sizeof(struct key)))
		return why_set(why, EINVAL, "the endpoint in its header is not the last of its %u keys", plan->pages), CHECK_HEAD_KEYS_BAD;
	info->pages = plan->pages;
	if (plan->page_stride && (info->file_bytes - plan->page_offset) / plan->page_stride < plan->pages)
		info->pages = (uint32_t)((info->file_bytes - plan->page_offset) / plan->page_stride);
	info->row = plan->row_bytes && info->file_bytes >= plan->file_bytes;
	return CHECK_HEAD_GOOD;
}

enum check_head check_read_head(const struct check_space *s, int fd, const char *path, struct disk_file_info *info, struct why *why)
{
	struct disk_ops *ops = disk_ops(s->check->disk);
	int file = ops->table->open(ops, fd, path, false);
	enum check_head head = CHECK_HEAD_UNREADABLE;
	struct stat st;

	memset(info, 0, sizeof(*info));
	if (file < 0 || fstat(file, &st)) {
		int error = file < 0 ? -file : errno;

		why_set(why, error, "it cannot be opened: %s", strerrordesc_np(error));
	} else {
		info->file_bytes = (uint64_t)st.st_size;
		info->mtime_s = st.st_mtim.tv_sec;
		head = read_header(s, file, info, why);
		if (head == CHECK_HEAD_GOOD)
			head = read_keys(s, file, info, why);
	}
	if (file >= 0)
		ops->table->close(ops, file);
	if (head != CHECK_HEAD_GOOD) {
		free(info->segment);
		info->segment = NULL;
	}
	return head;
}

/* ---- what is to become of it ---------------------------------------------------------------------------------------------- */

uint64_t check_keys_hash(const struct key *keys, uint32_t pages)
{
	return hash_64(keys, pages * sizeof(*keys), 0);
}

uint64_t check_absent_hash(uint64_t hash, uint32_t page, uint32_t column)
{
	return mix_64(hash ^ 0x9e3779b97f4a7c15ull, ((uint64_t)page << 32 | column) ^ 0xc2b2ae3d27d4eb4full);
}

static uint64_t absent_in(const struct check_work *w, const struct record_file_plan *plan, uint32_t pages, bool row)
{
	uint64_t hash = 0;

	for (uint32_t page = 0; page < pages; page++)
		for (uint32_t c = 0; c < plan->page_columns; c++)
			if (!w->sums[(uint64_t)page * plan->page_columns + c])
				hash = check_absent_hash(hash, page, c);
	for (uint32_t c = 0; row && c < plan->row_columns; c++)
		if (!w->sums[(uint64_t)plan->pages * plan->page_columns + c])
			hash = check_absent_hash(hash, TABLES_PAGE_ROW, c);
	return hash;
}

static void describe(struct check_work *w, uint32_t named)
{
	struct check_file *f = w->file;
	const struct disk_file_info *info = &w->info;

	f->whole_head = true;
	f->start = info->id.start;
	f->nonce = info->id.nonce;
	f->whole_id = info->id.flags & RECORD_FILE_WHOLE ? info->id.whole_id : 0;
	f->whole_count = info->id.whole_count; /* 0: it is in no group */
	f->file_pages = info->plan.pages;
	f->pages = named;
	f->row = info->row;
	f->keys_hash = check_keys_hash(w->keys, named);
	f->absent_hash = absent_in(w, &info->plan, named, info->row);
}

/* It has @pages and perhaps its row in the end: what it is called and how long it is then. */
static void decide(struct check_work *w, uint32_t pages, bool row)
{
	struct check_file *f = w->file;
	const struct record_file_plan *plan = &w->info.plan;

	f->lost = pages < f->pages || (f->row && !row);
	if (!pages && !row) {
		f->state = CHECK_DAMAGED;
		return;
	}
	f->new_consumed = f->start + (uint64_t)pages * plan->page_tokens;
	f->new_endpoint = pages ? w->keys[pages - 1] : w->info.id.endpoint;
	f->new_bytes = row ? plan->file_bytes : record_file_length(plan, pages);
	f->changed = !has_name(f, f->new_consumed, &f->new_endpoint) || f->new_bytes != f->bytes;
}

static void tell_file(const struct check_space *s, const struct check_file *f, const char *what)
{
	char path[CHECK_PATH_BYTES];

	check_path_of(path, f->consumed, &f->endpoint);
	check_tell(s->check, s, path, "%s", what);
}

static void tell_values(const struct check_space *s, const struct check_work *w, uint32_t pages)
{
	char path[CHECK_PATH_BYTES];

	check_path_of(path, w->file->consumed, &w->file->endpoint);
	if (w->bad_page < pages)
		check_tell(s->check, s, path, "the checksums of %llu of its values are wrong, first on page %u of %u",
			(unsigned long long)w->bad, w->bad_page, pages);
	else
		check_tell(s->check, s, path, "the checksums of %llu values of its row are wrong", (unsigned long long)w->bad);
}

/* All of it was read that is read. */
static void ended(struct check_space *s, struct check_work *w)
{
	struct check *check = s->check;
	uint32_t pages = w->info.pages;
	bool row = w->info.row;

	if (!check->options->values)
		check->done += 1;
	else if (w->file->bytes > w->told)
		check->done += w->file->bytes - w->told;
	check->report->bad_values += w->bad;
	if (w->bad)
		tell_values(s, w, pages);
	if (w->unreadable) {
		check->report->unreadable++;
		w->file->state = CHECK_UNREADABLE;
		tell_file(s, w->file, "some of its values cannot be read: it is left alone");
	} else if (w->bad_page < pages) {
		decide(w, w->bad_page, false);
	} else {
		decide(w, pages, row && !w->bad_row);
	}
	check_work_free(w);
}

/* ---- looking --------------------------------------------------------------------------------------------------------------- */

static void unreadable(struct check_space *s, struct check_file *f, const char *what)
{
	f->state = CHECK_UNREADABLE;
	s->blind = true;
	s->check->report->unreadable++;
	tell_file(s, f, what);
}

/* The engine says that it is damaged: is it, and what? GOOD: the name alone is wrong, @w->info has what the length says. */
static bool diagnose(struct check_space *s, struct check_work *w)
{
	struct check_file *f = w->file;
	char path[CHECK_PATH_BYTES];
	struct why why = WHY_INIT;

	check_path_of(path, f->consumed, &f->endpoint);
	switch (check_read_head(s, disk_dir_fd(s->dir), path, &w->info, &why)) {
	case CHECK_HEAD_GOOD:
		return true;
	case CHECK_HEAD_BAD:
		s->check->report->bad_headers++;
		break;
	case CHECK_HEAD_KEYS_BAD:
		s->check->report->bad_keys++;
		break;
	case CHECK_HEAD_FOREIGN:
		f->state = CHECK_FOREIGN;
		s->check->report->foreign++;
		check_tell(s->check, s, path, "%s: it is left alone, and may be deleted by hand", why.text);
		return false;
	case CHECK_HEAD_UNREADABLE:
		unreadable(s, f, why.text);
		return false;
	}
	f->state = CHECK_DAMAGED;
	tell_file(s, f, why.text);
	return false;
}

/* Header and keys are right. Compares them with the name and the length. */
static void compare(struct check_space *s, struct check_work *w)
{
	struct check_file *f = w->file;
	const struct record_file_plan *plan = &w->info.plan;
	struct record_file_found found = {.consumed = f->consumed, .endpoint = f->endpoint, .file_bytes = w->info.file_bytes};
	uint32_t pages = w->info.pages, named = w->info.pages;
	bool row = w->info.row, named_right;
	struct why why = WHY_INIT;
	uint64_t bytes;

	named_right = !record_file_there(&w->info.id, plan, w->keys, &found, &pages, &row, &why);
	if (named_right) {
		w->info.pages = pages;
		w->info.row = row;
		named = (uint32_t)((f->consumed - w->info.id.start) / plan->page_tokens);
	} else {
		s->check->report->wrong_names++;
		tell_file(s, f, why.text);
	}
	describe(w, named);
	bytes = w->info.row ? plan->file_bytes : record_file_length(plan, named);
	if (named_right && bytes != f->bytes) {
		char path[CHECK_PATH_BYTES];

		s->check->report->wrong_lengths++;
		check_path_of(path, f->consumed, &f->endpoint);
		check_tell(s->check, s, path, "it has %llu bytes; the %u pages%s of its name take %llu", (unsigned long long)f->bytes,
			named, w->info.row ? " and the row" : "", (unsigned long long)bytes);
	}
}

/* What is wrong with the file's head, if anything; true: @w->info has it. */
static bool look(struct check_space *s, struct check_work *w)
{
	struct check_file *f = w->file;
	struct why why = WHY_INIT;
	int r = disk_file_look(s->dir, f->consumed, &f->endpoint, &w->info, &why);

	if (r && r != -EINVAL && r != -ENOTSUP && r != -EXDEV && r != -ENOENT)
		r = disk_file_look(s->dir, f->consumed, &f->endpoint, &w->info, &why); /* once more: it may have been this time's */
	if (r == -ENOENT) {
		f->state = CHECK_GONE; /* lies in another folder than its key's */
		return false;
	}
	s->check->report->files++;
	s->check->report->bytes += f->bytes;
	if (!r)
		return true;
	if (r == -EINVAL || r == -ENOTSUP || r == -EXDEV)
		return diagnose(s, w);
	unreadable(s, f, "it cannot be read: it is left alone");
	return false;
}

static void look_at(struct check_space *s, struct check_values *values, struct check_work *w)
{
	struct why why = WHY_INIT;

	if (!look(s, w) || record_file_read_keys(w->info.segment, &w->info.plan, &w->keys, &w->sums, &why)) {
		s->check->done += s->check->options->values ? w->file->bytes : 1;
		check_work_free(w);
		return;
	}
	compare(s, w);
	if (values) {
		check_values_read(values, w);
		return;
	}
	ended(s, w);
}

/* ---- groups ---------------------------------------------------------------------------------------------------------------- */

static int by_group(const void *a, const void *b)
{
	const struct check_file *x = *(struct check_file *const *)a, *y = *(struct check_file *const *)b;

	return (x->whole_id > y->whole_id) - (x->whole_id < y->whole_id);
}

/* Whole when each file of it is there, as it was written. */
static void judge_group(struct check_space *s, struct check_file **group, uint32_t count)
{
	uint32_t there = 0;
	bool unknown = s->blind;

	for (uint32_t i = 0; i < count; i++) {
		there += group[i]->state == CHECK_GOOD && !group[i]->lost;
		unknown |= group[i]->state == CHECK_UNREADABLE;
	}
	if (there == group[0]->whole_count || (unknown && there < group[0]->whole_count))
		return;
	s->check->report->broken_groups++;
	for (uint32_t i = 0; i < count; i++) {
		char path[CHECK_PATH_BYTES];

		check_path_of(path, group[i]->consumed, &group[i]->endpoint);
		check_tell(s->check, s, path, "it is one of a group of %u files that is all or nothing, and %u of them are whole",
			group[i]->whole_count, there);
		group[i]->state = CHECK_DAMAGED;
	}
}

static int judge_groups(struct check_space *s, struct why *why)
{
	cleanup(freep) struct check_file **whole = calloc((size_t)s->count + 1, sizeof(*whole));
	uint32_t count = 0, end;

	if (!whole)
		return why_set(why, ENOMEM, "no memory for the groups of %s", s->folder);
	for (uint32_t i = 0; i < s->count; i++)
		if (s->files[i].whole_head && s->files[i].whole_count)
			whole[count++] = &s->files[i];
	qsort(whole, count, sizeof(*whole), by_group);
	for (uint32_t i = 0; i < count; i = end) {
		for (end = i + 1; end < count && whole[end]->whole_id == whole[i]->whole_id; end++)
			;
		judge_group(s, &whole[i], end - i);
	}
	return 0;
}

/* ---- all of them ------------------------------------------------------------------------------------------------------------- */

static int look_at_all(struct check_space *s, struct check_values *values, struct why *why)
{
	for (uint32_t i = 0; i < s->count && check_go_on(s->check); i++) {
		struct check_work *w = s->files[i].state == CHECK_GONE ? NULL : calloc(1, sizeof(*w));

		if (!w && s->files[i].state == CHECK_GONE)
			continue;
		if (!w)
			return why_set(why, ENOMEM, "no memory to check %s", s->folder);
		w->file = &s->files[i];
		w->bad_page = UINT32_MAX;
		look_at(s, values, w);
	}
	if (values)
		check_values_finish(values);
	return s->check->stopped ? why_set(why, EINTR, "the check was stopped") : 0;
}

int check_files(struct check_space *s, struct why *why)
{
	struct check_values *values = NULL;
	int r = list(s, why);

	if (!r && s->check->options->values)
		r = check_values_new(s, ended, &values, why);
	r = r ? r : look_at_all(s, values, why);
	check_values_free(&values);
	return r ? r : judge_groups(s, why);
}
