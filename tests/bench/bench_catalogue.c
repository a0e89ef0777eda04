/* SPDX-License-Identifier: Apache-2.0
 *
 * What the catalogue costs: rows a second, seconds to load, bytes a row, memory.
 *
 *	bench_catalogue [rows [keys [folder]]]     default 200,000 rows of 8 keys in /tmp
 *
 * Loaded twice: with the database thrown out of the page cache before, and again. The disk's own share of the first: its bytes
 * alone, read in order.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "index/catalogue.h"
#include "index/mix.h"
#include "store/base/clock.h"

#define SECOND 1000000000ull

struct bench {
	char path[256];
	struct catalogue *catalogue;
	uint64_t rows, loaded, keys_loaded;
	uint32_t keys;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_catalogue: %s\n", what);
	exit(1);
}

static double seconds(uint64_t since_ns)
{
	return (double)(clock_now_ns() - since_ns) / 1e9;
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void open_it(struct bench *b)
{
	static const uint8_t identity[32], fingerprint[16];
	struct why why = WHY_INIT;
	bool fresh, behind;

	if (catalogue_open(b->path, identity, fingerprint, &b->catalogue, &fresh, &behind, &why))
		die(why.text);
}

static uint64_t file_bytes(const struct bench *b)
{
	struct stat st;

	return stat(b->path, &st) ? 0 : (uint64_t)st.st_size;
}

static uint64_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	uint64_t size = 0, pages = 0;

	if (!f || fscanf(f, "%" SCNu64 " %" SCNu64, &size, &pages) != 2)
		die("/proc/self/statm says nothing");
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void print_report(const struct bench *b)
{
	struct catalogue_report r;

	catalogue_report(b->catalogue, &r);
	printf("  memory of catalogue   %12" PRIu64 " bytes; the process has %" PRIu64 " MiB\n", r.memory_bytes, resident() >> 20);
	printf("  journal               %12" PRIu64 " bytes\n", r.wal_bytes);
	if (r.dropped || r.behind || r.failed)
		die("changes were dropped");
}

/* As fast as it takes them: a full queue is waited for. @change(id) queues one. */
static void all(struct bench *b, const char *name, bool (*change)(struct bench *b, uint64_t id), uint64_t step)
{
	uint64_t begin = clock_now_ns(), calls_ns = 0, count = 0, waiting = 0;

	for (uint64_t id = 1; id <= b->rows; id += step) {
		uint64_t call = clock_now_ns();

		if (!change(b, id))
			die("a change was dropped");
		calls_ns += clock_now_ns() - call;
		count++;
		if (++waiting == CATALOGUE_QUEUE / 2) {
			catalogue_flush(b->catalogue, 60 * SECOND);
			waiting = 0;
		}
	}
	if (!catalogue_flush(b->catalogue, 60 * SECOND))
		die("not written");
	double s = seconds(begin);

	printf("%-22s %12.0f a second, %" PRIu64 " in %.2f s; %.0f ns a call\n", name, (double)count / s, count, s,
	       (double)calls_ns / (double)count);
}

static bool add(struct bench *b, uint64_t id)
{
	static struct key keys[4096];
	struct catalogue_row row = {
		.id = id,
		.nonce = mix_64(id, 0x9e3779b97f4a7c15ull),
		.consumed = b->keys * 64,
		.file_bytes = b->keys * 65536,
		.created_s = 1700000000,
		.written_s = 1700000000,
		.keys = keys,
		.pages = b->keys,
	};

	for (uint32_t i = 0; i < b->keys; i++)
		for (unsigned word = 0; word < 4; word++)
			keys[i].words[word] = mix_64(id * 4099 + i, 0xd6e8feb86659fd93ull + word);
	if (b->keys)
		row.endpoint = keys[b->keys - 1];
	row.parent = keys[0];
	return catalogue_add(b->catalogue, &row);
}

static bool trim(struct bench *b, uint64_t id)
{
	struct key key = {.words = {id, 1, 2, 3}};

	id = mix_64(id, 0x9e3779b97f4a7c15ull) % b->rows + 1;
	return catalogue_trim(b->catalogue, id, b->keys / 2, 77, &key, false, 1000);
}

static bool drop(struct bench *b, uint64_t id)
{
	return catalogue_remove(b->catalogue, mix_64(id, 0xd6e8feb86659fd93ull) % b->rows + 1);
}

static bool take(void *context, const struct catalogue_row *row)
{
	struct bench *b = context;

	b->loaded++;
	for (uint32_t i = 0; i < row->pages; i++)
		b->keys_loaded += row->keys[i].words[0] != 0;
	return true;
}

static void load(struct bench *b, const char *name)
{
	struct why why = WHY_INIT;

	b->loaded = 0;
	double cpu = cpu_seconds();
	uint64_t begin = clock_now_ns();

	open_it(b);
	double opened = seconds(begin);

	if (catalogue_load(b->catalogue, take, b, &why))
		die(why.text);
	printf("%-22s %12.3f s (opening: %.3f s; processor: %.3f s), %" PRIu64 " rows\n", name, seconds(begin), opened,
	       cpu_seconds() - cpu, b->loaded);
}

static void throw_out(const struct bench *b)
{
	int fd = open(b->path, O_RDONLY);

	if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		die("the database stays in the page cache");
	close(fd);
}

/* What a cold load can be compared with: the bytes alone, 1 MiB at a time. */
static void read_raw(const struct bench *b)
{
	static char piece[1 << 20];
	double cpu = cpu_seconds();
	uint64_t begin = clock_now_ns();
	int fd = open(b->path, O_RDONLY);

	while (read(fd, piece, sizeof(piece)) > 0)
		;
	close(fd);
	printf("%-22s %12.3f s (processor: %.3f s)\n", "its bytes alone, cold", seconds(begin), cpu_seconds() - cpu);
}

int main(int argc, char **argv)
{
	struct bench b = {
		.rows = argc > 1 ? strtoull(argv[1], NULL, 0) : 200000,
		.keys = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 8,
	};
	char folder[200];

	if (!b.rows || b.keys > 4096)
		die("one row at least, 4,096 keys at most");
	snprintf(folder, sizeof(folder), "%s/bench-catalogue-XXXXXX", argc > 3 ? argv[3] : "/tmp");
	if (!mkdtemp(folder))
		die("cannot make a folder");
	snprintf(b.path, sizeof(b.path), "%s/catalogue.sqlite", folder);
	printf("%" PRIu64 " rows of %u keys\n", b.rows, b.keys);
	open_it(&b);
	all(&b, "add", add, 1);
	print_report(&b);
	uint64_t begin = clock_now_ns();

	catalogue_close(&b.catalogue, 60 * SECOND);
	printf("close                  %12.3f s\n", seconds(begin));
	printf("file                   %12.1f bytes a row\n", (double)file_bytes(&b) / (double)b.rows);
	throw_out(&b);
	read_raw(&b);
	throw_out(&b);
	load(&b, "load, cold");
	print_report(&b);
	catalogue_close(&b.catalogue, 60 * SECOND);
	load(&b, "load, warm");
	all(&b, "trim at random", trim, 10);
	all(&b, "remove at random", drop, 10);
	print_report(&b);
	catalogue_clear(b.catalogue);
	begin = clock_now_ns();
	if (!catalogue_flush(b.catalogue, 60 * SECOND))
		die("not cleared");
	printf("clear                  %12.3f s\n", seconds(begin));
	catalogue_close(&b.catalogue, 60 * SECOND);
	unlink(b.path);
	return rmdir(folder) != 0;
}
