/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon's start over a folder that holds many records: with its catalogue, and without one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench_disk.h"
#include "tools/host.h"

#define CHAIN 16u /* records, of prefixfsd --bench-records */
#define PAGES_MOST (CHAIN * 64u)
#define MEMORY (256ull << 20)
#define FILE_BYTES 12288u /* of one without values, as it lies on the disk; about */
#define MIB (1ull << 20)

struct restart {
	const struct bench_disk *bench;
	uint64_t records, file_bytes;
	struct pfs_key keys[PAGES_MOST]; /* of one chain */
};

/* ---- making records -------------------------------------------------------------------------------------------------- */

static int make_namespace(const struct bench_disk *b, uint64_t disk_bytes)
{
	struct bench_daemon daemon;
	int r = bench_disk_start(b, &daemon, MEMORY, disk_bytes);

	if (r)
		return r;
	r = bench_namespace(&daemon, "bench", BENCH_VALUE, 1, MEMORY / 2);
	bench_daemon_stop(&daemon);
	return r;
}

static bool read_key(const char *text, struct pfs_key *ret)
{
	for (unsigned i = 0; i < sizeof(ret->bytes); i++)
		if (!text || sscanf(text + 2 * (size_t)i, "%2hhx", &ret->bytes[i]) != 1)
			return false;
	return true;
}

static int take_last(struct restart *restart, const json_t *said)
{
	const json_t *keys = json_object_get(said, "keys");
	uint64_t count = CHAIN * restart->bench->record_pages;

	restart->file_bytes = (uint64_t)json_integer_value(json_object_get(said, "file_bytes"));
	if (json_array_size(keys) != count || !restart->file_bytes)
		return complain("prefixfsd --bench-records says no keys");
	for (uint64_t i = 0; i < count; i++)
		if (!read_key(json_string_value(json_array_get(keys, i)), &restart->keys[i]))
			return complain("prefixfsd --bench-records says a key that is none");
	return 0;
}

/* Shows how far it is; at the end what it says last goes to @restart. */
static int follow(struct restart *restart, FILE *out)
{
	struct progress progress;
	json_t *said, *last = NULL;
	int r;

	progress_start(&progress, "making records", restart->records);
	while ((said = json_loadf(out, JSON_DISABLE_EOF_CHECK, NULL))) {
		progress_show(&progress, (uint64_t)json_integer_value(json_object_get(said, "made")));
		json_decref(last);
		last = said;
	}
	progress_end(&progress);
	r = json_object_get(last, "files") ? take_last(restart, last) : complain("the records could not be made");
	json_decref(last);
	return r;
}

static int make_records(struct restart *restart)
{
	const struct bench_disk *b = restart->bench;
	char records[24], pages[24];
	const char *words[] = {bench_daemon_program(), "--bench-records", b->disk, records, pages, NULL};
	struct bench_child child;
	int r;

	snprintf(records, sizeof(records), "%llu", (unsigned long long)restart->records);
	snprintf(pages, sizeof(pages), "%llu", (unsigned long long)b->record_pages);
	if (bench_child_start(&child, words, false))
		return 1;
	r = follow(restart, child.out);
	return bench_child_end(&child) || r;
}

/* ---- the start --------------------------------------------------------------------------------------------------------- */

/* The one folder of a namespace, its catalogue's three files away. */
static int remove_catalogue(const struct bench_disk *b)
{
	static const char *const ends[] = {"", "-wal", "-shm"};
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *dir = opendir(b->disk);
	unsigned removed = 0;

	while (dir && (entry = readdir(dir)))
		for (unsigned i = 0; i < 3 && entry->d_name[0] != '.'; i++)
			if (!host_path(path, "%s/%s/catalogue.sqlite%s", b->disk, entry->d_name, ends[i]))
				removed += !unlink(path);
	if (dir)
		closedir(dir);
	return removed ? 0 : complain("%s holds no catalogue", b->disk);
}

static int drop_caches(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, "3\n", 2) == 2;

	if (fd >= 0)
		close(fd);
	return done ? 0 : complain("--cold: /proc/sys/vm/drop_caches: %s", strerror(errno));
}

/* Are all pages of the chain known? */
static int first_answer(const struct restart *restart, const struct bench_daemon *daemon)
{
	uint32_t pages = (uint32_t)(CHAIN * restart->bench->record_pages);
	struct pfs_get_request q = {.keys = restart->keys, .key_count = pages, .flags = PFS_GET_NO_BITS};
	struct pfs_get_result found;
	struct pfs_session *session;
	struct pfs_options options;
	char path[PATH_MAX];
	int r = 0;

	pfs_options_init(&options);
	options.rank = 0;
	if (host_path(path, "%s/ns/bench", daemon->mount))
		return 1;
	if (pfs_open(path, &options, &session))
		return complain_client(path);
	if (pfs_get_start(session, &q, &found))
		r = complain_client("get_start");
	else if (found.prefix_hit_groups != pages)
		r = complain("%u of %u pages are known after the restart", found.prefix_hit_groups, pages);
	else
		pfs_get_cancel(session, found.handle);
	pfs_close(&session);
	return r;
}

/* Seconds from the start of the program to the first answer that finds what is on disk. */
static int start_again(const struct restart *restart, uint64_t disk_bytes, double *seconds)
{
	const struct bench_disk *b = restart->bench;
	struct bench_daemon daemon;
	uint64_t begin_ns;
	int64_t files;
	int r;

	bench_disk_settle(b);
	if (b->cold && drop_caches())
		return 1;
	begin_ns = clock_ns();
	r = bench_disk_start(b, &daemon, MEMORY, disk_bytes);
	if (r)
		return r;
	r = first_answer(restart, &daemon);
	*seconds = (double)(clock_ns() - begin_ns) / 1e9;
	files = bench_disk_word(&daemon, "files");
	if (!r && files != (int64_t)restart->records)
		r = complain("%lld of %llu files are known after the restart", (long long)files,
			(unsigned long long)restart->records);
	bench_daemon_stop(&daemon);
	return r;
}

/* ---- figures ----------------------------------------------------------------------------------------------------------- */

static int run(const struct bench_disk *b, uint64_t records, bool rebuild, double *seconds)
{
	/* Lengths are what counts against the limit, holes included. */
	static struct restart restart;
	uint64_t disk_bytes = (records + CHAIN) * (b->record_pages * BENCH_VALUE + (64u << 10)) + (1ull << 30);
	int r;

	restart = (struct restart){.bench = b, .records = (records + CHAIN - 1) / CHAIN * CHAIN};
	r = bench_disk_room(
		b, restart.records * (FILE_BYTES + b->record_pages * (BENCH_VALUE + 40)), restart.records + 300);
	if (!r)
		r = bench_disk_empty(b) || make_namespace(b, disk_bytes) || make_records(&restart);
	if (!r && rebuild)
		r = remove_catalogue(b);
	if (!r)
		r = start_again(&restart, disk_bytes, seconds);
	return bench_disk_empty(b) || r;
}

int bench_disk_restart(const struct bench_disk *b)
{
	double seconds;

	if (bench_wants(&b->base, "restart_1m_records_s")) {
		if (run(b, b->records, false, &seconds))
			return 1;
		bench_print(&b->base, "restart_1m_records_s", seconds, "s", 5.0 * (double)b->records / 1e6,
			json_pack("{s:I, s:I, s:b}", "records", (json_int_t)b->records, "record_pages",
				(json_int_t)b->record_pages, "cold", b->cold));
	}
	if (bench_wants(&b->base, "rebuild_files_per_s")) {
		if (run(b, b->rebuild_records, true, &seconds))
			return 1;
		bench_print(&b->base, "rebuild_files_per_s", (double)b->rebuild_records / seconds, "/s", 0,
			json_pack("{s:I, s:I, s:f, s:b}", "records", (json_int_t)b->rebuild_records, "record_pages",
				(json_int_t)b->record_pages, "seconds", seconds, "cold", b->cold));
	}
	return 0;
}
