/* SPDX-License-Identifier: Apache-2.0
 *
 * bench disk: its options, its folder, and what its parts share.
 */
#include "tools/bench_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"

#define FREE_PART 20u /* of a file system: what the daemon leaves free */
#define MIB (1ull << 20)

double bench_median(double *values, uint64_t count)
{
	for (uint64_t i = 1; i < count; i++) {
		double value = values[i];
		uint64_t at = i;

		for (; at > 0 && values[at - 1] > value; at--)
			values[at] = values[at - 1];
		values[at] = value;
	}
	if (!count)
		return 0;
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

json_t *bench_values(const double *values, uint64_t count)
{
	json_t *array = json_array();

	for (uint64_t i = 0; i < count; i++)
		json_array_append_new(array, json_real(values[i]));
	return array;
}

/* ---- its folder ------------------------------------------------------------------------------------------------------ */

void bench_disk_settle(const struct bench_disk *b)
{
	int fd = open(b->scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return;
	syncfs(fd);
	close(fd);
}

int bench_disk_empty(const struct bench_disk *b)
{
	bench_folder_remove(b->disk);
	bench_folder_remove(b->fio_dir);
	if (mkdir(b->disk, 0700) || mkdir(b->fio_dir, 0700))
		return complain("%s: %s", b->scratch, strerror(errno));
	return 0;
}

int bench_disk_room(const struct bench_disk *b, uint64_t bytes, uint64_t files)
{
	struct statvfs s;
	uint64_t free, keep;

	if (statvfs(b->dir, &s))
		return complain("%s: %s", b->dir, strerror(errno));
	free = (uint64_t)s.f_bavail * s.f_frsize;
	keep = (uint64_t)s.f_blocks * s.f_frsize / FREE_PART;
	if (free < bytes + keep)
		return complain("%s: %llu MiB are free, %llu are needed, and %llu that the daemon leaves free", b->dir,
			(unsigned long long)(free / MIB), (unsigned long long)(bytes / MIB),
			(unsigned long long)(keep / MIB));
	if (s.f_files && s.f_favail < files)
		return complain("%s: %llu files are possible, %llu are needed", b->dir, (unsigned long long)s.f_favail,
			(unsigned long long)files);
	return 0;
}

int bench_disk_memory(uint64_t bytes)
{
	char *text = host_read_file("/proc/meminfo", NULL), *line = text ? host_line(text, "MemAvailable") : NULL;
	uint64_t there = line ? strtoull(line, NULL, 10) << 10 : UINT64_MAX;

	free(line);
	free(text);
	if (there < bytes)
		return complain("%llu MiB of memory are available, %llu are needed: --bytes asks for less",
			(unsigned long long)(there / MIB), (unsigned long long)(bytes / MIB));
	return 0;
}

int bench_disk_start(const struct bench_disk *b, struct bench_daemon *daemon, uint64_t memory, uint64_t disk_bytes)
{
	const struct bench_daemon_options o = {
		.memory = memory,
		.populate = true,
		.disk = b->disk,
		.disk_bytes = disk_bytes,
		.disk_workers = b->workers,
		.durable = b->durable,
	};
	int r = bench_daemon_start(daemon, &o, false);

	if (!r && bench_disk_word(daemon, "bytes") < 0) {
		r = complain("the daemon has no disk tier in %s", b->disk);
		bench_daemon_stop(daemon);
	}
	return r;
}

/* ---- checksums --------------------------------------------------------------------------------------------------------- */

int bench_disk_checksum(const struct bench_disk *b)
{
	const char *words[] = {bench_daemon_program(), "--bench-checksum", NULL};
	struct bench_child child;
	json_t *said;
	double bytes, ns;
	int status;

	if (!bench_wants(&b->base, "checksum_gbps"))
		return 0;
	if (bench_child_start(&child, words, false))
		return 1;
	said = json_loadf(child.out, JSON_DISABLE_EOF_CHECK, NULL);
	status = bench_child_end(&child);
	bytes = json_number_value(json_object_get(said, "bytes"));
	ns = json_number_value(json_object_get(said, "ns"));
	if (!status && ns > 0)
		bench_print(&b->base, "checksum_gbps", bytes / ns, "GB/s", 8,
			json_pack("{s:O}", "value_bytes", json_object_get(said, "value_bytes")));
	json_decref(said);
	return status || ns <= 0 ? complain("prefixfsd --bench-checksum failed (status %d)", status) : 0;
}

/* ---- the command -------------------------------------------------------------------------------------------------------- */

#define FIGURES \
	"write_vs_fio, read_vs_fio, write_gbps, read_gbps, cpu_s_per_gib, disk_memory_mib, write_small_vs_fio,\n" \
	"read_small_vs_fio, write_small_gbps, read_small_gbps, checksum_gbps, restart_1m_records_s, rebuild_files_per_s,\n" \
	"control_slowdown"

static const char more[] =
	"\nMakes a folder of its own in DIR and takes it away again; starts daemons of its own on private mounts. Each figure is\n"
	"one JSON object a line, as of bench control.\n"
	"\nWriting: records of 16 pages of 4.5 MiB are put into memory, then drained. Reading: the daemon is started anew, so that\n"
	"nothing is in memory, and all of them are got; then once more, and compared. Small: 8 pages of 256 KiB. Beside each fio\n"
	"writes and reads as many files of the same length; who is first alternates. Ratios are medians over the pairs.\n"
	"cpu_s_per_gib is the daemon's, disk_memory_mib what its disk tier has besides segment and index.\n"
	"\nFigures: " FIGURES ".";

static bool known(const struct bench_options *options)
{
	char list[] = FIGURES, *save = NULL;

	for (const char *name = strtok_r(list, ", \n", &save); name; name = strtok_r(NULL, ", \n", &save))
		if (bench_wants(options, name))
			return true;
	return false;
}

static int make_folders(struct bench_disk *b)
{
	char whole[PATH_MAX];

	if (!realpath(b->dir, whole))
		return complain("%s: %s", b->dir, strerror(errno));
	if (bench_scratch_make(whole, b->scratch))
		return 1;
	if (host_path(b->disk, "%s/disk", b->scratch) || host_path(b->fio_dir, "%s/fio", b->scratch))
		return 1;
	return bench_disk_empty(b);
}

static int measure(struct bench_disk *b)
{
	int r = make_folders(b);

	b->fio = bench_fio_there();
	if (!r)
		r = bench_disk_checksum(b);
	if (!r)
		r = bench_disk_pairs(b);
	if (!r)
		r = bench_disk_control(b);
	if (!r)
		r = bench_disk_restart(b);
	bench_scratch_remove();
	return r;
}

int bench_disk(const struct command *self, int argc, char **argv)
{
	struct bench_disk b = {
		.base = {.repeats = 200},
		.bytes = 4ull << 30,
		.page_bytes = 4608 << 10,
		.pairs = 5,
		.workers = 2,
		.records = 1000000,
		.record_pages = 8,
		.rebuild_records = 100000,
	};
	bool json = false;
	const struct option_row rows[] = {
		{"dir", OPTION_TEXT, &b.dir, "DIR", "on the file system that is measured; must be given", 0, 0},
		{"bytes", OPTION_BYTES, &b.bytes, "SIZE",
			"of one pass of writing or reading (4G); twice as much memory is needed", 1 << 20, 1ull << 42},
		{"pairs", OPTION_NUMBER, &b.pairs, "N", "passes beside fio (5)", 1, 100},
		{"page-bytes", OPTION_BYTES, &b.page_bytes, "SIZE", "of a large page (4608K)", 4096, 64 << 20},
		{"sessions", OPTION_NUMBER, &b.sessions, "N",
			"that read at once (0: enough for what the daemon has under way)", 0, BENCH_SESSIONS_MOST},
		{"workers", OPTION_NUMBER, &b.workers, "N", "disk_workers of the daemon, and jobs of fio (2)", 1, 16},
		{"durable", OPTION_FLAG, &b.durable, NULL, "durability data, and fio syncs each file", 0, 0},
		{"records", OPTION_NUMBER, &b.records, "N", "in the catalogue of a restart (1000000)", 16, 16000000},
		{"record-pages", OPTION_NUMBER, &b.record_pages, "N", "pages of each (8)", 1, 64},
		{"rebuild-records", OPTION_NUMBER, &b.rebuild_records, "N",
			"files of a restart without a catalogue (100000)", 16, 16000000},
		{"cold", OPTION_FLAG, &b.cold, NULL,
			"restarts with the kernel's caches dropped, which are the whole host's", 0, 0},
		{"repeats", OPTION_NUMBER, &b.base.repeats, "N",
			"batches behind the p50 without load of control_slowdown (200)", 20, 100000},
		{"figure", OPTION_TEXT, &b.base.figure, "NAME", "only figures whose names begin so", 0, 0},
		{"human", OPTION_FLAG, &b.base.human, NULL, "aligned text instead of JSON", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line (the default)", 0, 0},
		{0},
	};
	struct command with_more = *self;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc)
		return usage_error(self, "unexpected argument '%s'", argv[0]);
	if (!b.dir)
		return usage_error(self, "--dir names no folder");
	if (!known(&b.base))
		return usage_error(self, "--figure is '%s', and none begins so; --help lists them", b.base.figure);
	if (b.page_bytes % 4096)
		return usage_error(self, "--page-bytes is %llu, no multiple of 4096", (unsigned long long)b.page_bytes);
	return measure(&b);
}
