/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "index/catalogue.h"
#include "index/space_json.h"
#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/hash.h"
#include "store/disk.h"
#include "store/record_file.h"

#define EXIT_USAGE 2

static int say(const char *what, const char *sentence)
{
	fprintf(stderr, "prefixfsd: %s: %s\n", what, sentence);
	return 1;
}

static bool read_number(const char *text, uint64_t least, uint64_t most, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *ret >= least && *ret <= most;
}

/* ---- checksums -------------------------------------------------------------------------------------------------- */

#define SUM_VALUE (4608u << 10)
#define SUM_VALUES 57u /* about 256 MiB */
#define SUM_PASSES 9u

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int bench_checksum_main(int argc, char **argv)
{
	uint64_t took[SUM_PASSES], bytes = (uint64_t)SUM_VALUE * SUM_VALUES;
	volatile uint64_t sum = 0;
	char *memory;

	if (argc) {
		fprintf(stderr, "prefixfsd: --bench-checksum takes no argument, and %s is one\n", argv[0]);
		return EXIT_USAGE;
	}
	memory = aligned_alloc(RECORD_FILE_ALIGN, bytes);
	if (!memory)
		return say("--bench-checksum", "no memory");
	for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i++)
		((uint64_t *)memory)[i] = mix_64(i, 1);
	for (unsigned pass = 0; pass < SUM_PASSES; pass++) {
		uint64_t begin = clock_now_ns();

		for (unsigned i = 0; i < SUM_VALUES; i++)
			sum ^= record_file_sum(memory + (uint64_t)i * SUM_VALUE, SUM_VALUE);
		took[pass] = clock_now_ns() - begin;
	}
	free(memory);
	qsort(took, SUM_PASSES, sizeof(took[0]), by_size);
	printf("{\"value_bytes\": %u, \"bytes\": %" PRIu64 ", \"ns\": %" PRIu64 "}\n", SUM_VALUE, bytes,
		took[SUM_PASSES / 2]);
	return 0;
}

/* ---- records ---------------------------------------------------------------------------------------------------- */

#define CHAIN 16u /* records */
#define FLUSH_NS 60000000000ull

struct maker {
	const char *folder;
	uint64_t records, pages;
	struct layout *layout;
	struct disk *disk;
	struct disk_dir *dir;
	struct catalogue *catalogue;
	struct record_file_plan plan;
	uint64_t *sums;
	struct key *keys; /* of a chain: [CHAIN][pages] */
	char *head;       /* header and key segment of one file */
	int64_t now_s;
	struct why why;
};

/* The text of the one namespace.json under the folder. */
static char *read_space(struct maker *m, size_t *bytes)
{
	DIR *dir = opendir(m->folder);
	char path[4096], *text = malloc(SPACE_JSON_MOST);
	struct dirent *entry;
	unsigned found = 0;

	*bytes = 0;
	while (dir && text && (entry = readdir(dir))) {
		int fd;

		snprintf(path, sizeof(path), "%s/%s/namespace.json", m->folder, entry->d_name);
		fd = entry->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		ssize_t n = read(fd, text, SPACE_JSON_MOST);

		*bytes = n > 0 ? (size_t)n : 0;
		found++;
		close(fd);
	}
	if (dir)
		closedir(dir);
	if (found == 1)
		return text;
	free(text);
	why_set(&m->why, EINVAL, "it holds %u namespaces, one is expected", found);
	return NULL;
}

static int open_space(struct maker *m)
{
	const struct disk_config config = {.path = m->folder, .workers = 1};
	struct space_json json = {.layout = NULL};
	char path[4096];
	bool fresh, behind;
	size_t bytes;
	char *text = read_space(m, &bytes);
	int r = text ? space_json_read(text, bytes, &json, &m->why) : -EINVAL;

	free(text);
	if (!r)
		r = layout_parse(json.layout, strlen(json.layout), &m->layout, &m->why);
	free(json.layout);
	if (!r && m->layout->row_columns)
		r = why_set(&m->why, EINVAL, "a namespace without states is expected");
	if (!r)
		r = disk_new(&config, &m->disk, &m->why);
	if (!r)
		r = disk_dir_open(m->disk, m->layout, NULL, &m->dir, &m->why);
	if (r)
		return r;
	snprintf(path, sizeof(path), "%s/catalogue.sqlite", disk_dir_path(m->dir));
	return catalogue_open(
		path, m->layout->identity, m->layout->fingerprint, &m->catalogue, &fresh, &behind, &m->why);
}

/* Everything that all files have alike. */
static int prepare(struct maker *m)
{
	const struct layout *layout = m->layout;
	uint64_t most = 0, count;
	char *zeros;

	record_file_plan(layout, (uint32_t)m->pages, false, NULL, &m->plan);
	count = m->pages * m->plan.page_columns;
	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++)
			most = layout->class[c].share[s].slot_bytes > most ? layout->class[c].share[s].slot_bytes
			                                                   : most;
	zeros = calloc(1, most);
	m->sums = calloc(count + 1, sizeof(*m->sums));
	m->keys = calloc(CHAIN * m->pages, sizeof(*m->keys));
	m->head = aligned_alloc(RECORD_FILE_ALIGN, m->plan.page_offset);
	m->now_s = (int64_t)clock_wall_s();
	if (!zeros || !m->sums || !m->keys || !m->head) {
		free(zeros);
		return why_set(&m->why, ENOMEM, "no memory");
	}
	for (uint32_t c = 0; c < layout->classes; c++)
		for (uint32_t s = 0; s < layout->class[c].shares; s++)
			for (uint64_t p = 0; p < m->pages; p++)
				m->sums[p * m->plan.page_columns + layout_column(layout, c, s)] = record_file_sum(
					zeros, layout->class[c].share[s].slot_bytes);
	free(zeros);
	return 0;
}

/* Also makes the folder that it lies in. */
static int create(struct maker *m, const char *name, uint8_t folder)
{
	char path[RECORD_FILE_NAME_BYTES + 8];
	int dir = disk_dir_fd(m->dir), fd;

	snprintf(path, sizeof(path), "%02x/%s", folder, name);
	fd = openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	path[2] = '\0';
	if (mkdirat(dir, path, 0700) && errno != EEXIST)
		return -1;
	path[2] = '/';
	return openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

static int write_file(struct maker *m, const struct record_file_id *id, uint64_t consumed)
{
	char name[RECORD_FILE_NAME_BYTES];
	int fd, r = 0;

	record_file_name(name, consumed, &id->endpoint);
	fd = create(m, name, record_file_folder(&id->endpoint));
	if (fd < 0)
		return why_set(&m->why, errno, "%s cannot be made: %s", name, strerror(errno));
	errno = 0;
	if (pwrite(fd, m->head, m->plan.page_offset, 0) != (ssize_t)m->plan.page_offset ||
		ftruncate(fd, (off_t)m->plan.file_bytes))
		r = why_set(
			&m->why, errno ? errno : EIO, "%s cannot be written: %s", name, strerror(errno ? errno : EIO));
	close(fd);
	return r;
}

static int make_record(struct maker *m, uint64_t number)
{
	uint64_t at = number % CHAIN, tokens = m->pages * m->layout->page_tokens;
	const struct key *keys = &m->keys[at * m->pages];
	struct record_file_id id = {
		.endpoint = keys[m->pages - 1],
		.start = at * tokens,
		.generation = 1,
		.nonce = number + 1,
		.created_s = m->now_s,
		.pages = (uint32_t)m->pages,
		.flags = at ? 0 : RECORD_FILE_ROOT,
	};
	struct catalogue_row row = {
		.id = catalogue_next_id(m->catalogue),
		.nonce = id.nonce,
		.start = id.start,
		.consumed = id.start + tokens,
		.generation = id.generation,
		.file_bytes = m->plan.file_bytes,
		.created_s = m->now_s,
		.written_s = m->now_s,
		.endpoint = id.endpoint,
		.keys = keys,
		.pages = id.pages,
		.file_pages = id.pages,
		.flags = at ? 0 : CATALOGUE_ROOT,
	};
	int r;

	if (at)
		id.parent = row.parent = keys[-1];
	record_file_make_header(m->head, m->layout, &m->plan, &id, NULL);
	record_file_make_keys(m->head + m->plan.header_bytes, &m->plan, keys, m->sums);
	r = write_file(m, &id, row.consumed);
	if (!r && !catalogue_add(m->catalogue, &row))
		r = why_set(&m->why, EIO, "the catalogue takes no more");
	return r;
}

static void make_keys(struct maker *m)
{
	for (uint64_t i = 0; i < CHAIN * m->pages; i++)
		digest_random(&m->keys[i], sizeof(m->keys[i]));
}

static int make_all(struct maker *m)
{
	uint64_t told_ns = 0;

	for (uint64_t i = 0; i < m->records; i++) {
		int r;

		if (i % CHAIN == 0)
			make_keys(m);
		r = make_record(m, i);
		if (!r && i % (CATALOGUE_QUEUE / 2) == CATALOGUE_QUEUE / 2 - 1 &&
			!catalogue_flush(m->catalogue, FLUSH_NS))
			r = why_set(&m->why, EIO, "the catalogue cannot be written");
		if (r)
			return r;
		if (clock_now_ns() - told_ns > 100000000) {
			told_ns = clock_now_ns();
			printf("{\"made\": %" PRIu64 "}\n", i);
			if (fflush(stdout))
				return why_set(&m->why, errno, "standard output: %s", strerror(errno));
		}
	}
	if (!catalogue_flush(m->catalogue, FLUSH_NS))
		return why_set(&m->why, EIO, "the catalogue cannot be written");
	return 0;
}

static void tell(const struct maker *m, uint64_t ns)
{
	printf("{\"files\": %" PRIu64 ", \"file_bytes\": %" PRIu64 ", \"ns\": %" PRIu64 ", \"keys\": [", m->records,
		m->plan.file_bytes, ns);
	for (uint64_t i = 0; i < CHAIN * m->pages; i++) {
		const struct key *key = &m->keys[i];

		printf("%s\"", i ? ", " : "");
		for (unsigned b = 0; b < sizeof(key->bytes); b++)
			printf("%02x", key->bytes[b]);
		putchar('"');
	}
	printf("]}\n");
}

static void end(struct maker *m)
{
	catalogue_close(&m->catalogue, FLUSH_NS);
	if (m->dir)
		disk_dir_close(&m->dir, false);
	if (m->disk)
		disk_free(&m->disk, 0);
	if (m->layout)
		layout_free(&m->layout);
	free(m->sums);
	free(m->keys);
	free(m->head);
}

int bench_records_main(int argc, char **argv)
{
	struct maker m = {.folder = argc ? argv[0] : NULL, .why = WHY_INIT};
	uint64_t began_ns = clock_now_ns();
	int r;

	if (argc != 3 || !read_number(argv[1], CHAIN, UINT32_MAX, &m.records) || m.records % CHAIN ||
		!read_number(argv[2], 1, RECORD_FILE_MAX_PAGES / CHAIN, &m.pages)) {
		fprintf(stderr,
			"usage: prefixfsd --bench-records FOLDER RECORDS PAGES; RECORDS is a multiple of %u, PAGES 1..%u\n",
			CHAIN, RECORD_FILE_MAX_PAGES / CHAIN);
		return EXIT_USAGE;
	}
	r = open_space(&m);
	if (!r)
		r = prepare(&m);
	if (!r)
		r = make_all(&m);
	if (!r)
		tell(&m, clock_now_ns() - began_ns);
	end(&m);
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = why_set(&m.why, errno, "standard output: %s", strerror(errno));
	return r ? say(m.folder, m.why.text) : 0;
}
