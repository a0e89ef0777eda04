/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing and reading beside fio, pair by pair: who comes first changes from pair to pair. docs/benchmarks.md, "Disk", has the
 * method in words.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_disk.h"

/* What the daemon has under way at most, so that fio has as much (store/disk_private.h, store/spill.c). */
#define WORKER_BYTES (64ull << 20) /* of one worker's transfers */
#define WORKER_FILES 16u           /* of one worker, reading */
#define WRITE_FILES 16u            /* being written */
#define TRANSFER_MOST (8ull << 20)
#define ALONE_LEAST (1ull << 20) /* pages so long get transfers of their own */

#define MEMORY_MORE (64ull << 20)
#define MIB (1 << 20)
#define GIB (1 << 30)

struct figure_names {
	const char *write, *read, *write_gbps, *read_gbps;
	double write_against, read_against;
};

struct pairs {
	const struct bench_disk *bench;
	struct bench_shape shape;
	struct figure_names names;
	uint64_t count;
	double *write, *read, *fio_write, *fio_read; /* bytes per second */
	double *write_ratio, *read_ratio;
	double *write_cpu, *read_cpu, *memory, *private; /* s/GiB, s/GiB, MiB, MiB */
	bool direct;
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- fio ----------------------------------------------------------------------------------------------------------- */

static struct bench_fio fio_of(const struct pairs *p, bool write)
{
	const struct bench_disk *b = p->bench;
	uint64_t record = p->shape.page_bytes * p->shape.record_pages, under_way;
	struct bench_fio fio = {
		.folder = b->fio_dir,
		.files = p->shape.records,
		.file_bytes = record,
		.jobs = b->workers,
		.block_bytes = p->shape.page_bytes >= ALONE_LEAST ? p->shape.page_bytes : record,
		.buffered = !p->direct,
		.sync = b->durable,
	};

	fio.block_bytes = least(fio.block_bytes, TRANSFER_MOST);
	under_way = least(WORKER_BYTES, record * (write ? (WRITE_FILES + b->workers - 1) / b->workers : WORKER_FILES));
	fio.depth = (under_way + fio.block_bytes - 1) / fio.block_bytes;
	return fio;
}

static int fio_once(struct pairs *p, bool write, uint64_t pair)
{
	struct bench_fio fio = fio_of(p, write);

	if (!p->bench->fio)
		return 0;
	bench_disk_settle(p->bench);
	return bench_fio_run(&fio, write, write ? &p->fio_write[pair] : &p->fio_read[pair]);
}

/* ---- one pair ------------------------------------------------------------------------------------------------------- */

static uint64_t memory_of(const struct pairs *p)
{
	/* Twice as much: writing behind begins when half is in use, and is to begin with the drain. */
	return 2 * bench_shape_bytes(&p->shape) + MEMORY_MORE;
}

static int start(struct pairs *p, struct bench_daemon *daemon)
{
	return bench_disk_start(p->bench, daemon, memory_of(p), 2 * bench_shape_bytes(&p->shape) + GIB);
}

static unsigned sessions_of(const struct pairs *p)
{
	uint64_t record = p->shape.page_bytes * p->shape.record_pages;
	uint64_t n = p->bench->sessions;

	if (!n)
		n = least(WORKER_BYTES, record * WORKER_FILES) * p->bench->workers / record + 2;
	return (unsigned)least(n < 4 ? 4 : n, BENCH_SESSIONS_MOST);
}

static int write_once(struct pairs *p, uint64_t pair)
{
	struct bench_chains chains = {0};
	struct bench_daemon daemon;
	struct bench_moved moved;
	uint64_t before = 0, after = 0;
	int r = start(p, &daemon);

	if (r)
		return r;
	p->direct = bench_disk_word(&daemon, "direct") == 1;
	r = bench_namespace(&daemon, "bench", p->shape.page_bytes, 1, memory_of(p) / 16 * 15);
	if (!r)
		r = bench_chains_open(&chains, &daemon, "bench", p->shape.record_pages);
	if (!r)
		r = bench_move_put(&chains, &p->shape, pair * p->shape.records);
	bench_disk_settle(p->bench);
	if (!r)
		r = bench_memory(&daemon, &before) || bench_move_drain(&daemon, &chains, &p->shape, &moved) ||
		    bench_memory(&daemon, &after);
	if (!r) {
		p->write[pair] = (double)moved.bytes * 1e9 / (double)moved.ns;
		p->write_cpu[pair] = (double)moved.cpu_ns / 1e9 / ((double)moved.bytes / GIB);
		p->memory[pair] = (double)moved.memory / MIB;
		p->private[pair] = after > before ? (double)(after - before) / MIB : 0;
	}
	bench_chains_close(&chains);
	bench_daemon_stop(&daemon);
	return r;
}

/* A daemon that was started anew has nothing in memory. */
static int read_once(struct pairs *p, uint64_t pair)
{
	struct bench_daemon daemon;
	struct bench_moved moved;
	uint64_t before = 0, after = 0, first = pair * p->shape.records;
	int r = start(p, &daemon);

	if (r)
		return r;
	r = bench_memory(&daemon, &before);
	bench_disk_settle(p->bench);
	if (!r)
		r = bench_move_read(&daemon, &p->shape, first, sessions_of(p), &moved);
	if (!r)
		r = bench_memory(&daemon, &after) || bench_move_verify(&daemon, &p->shape, first);
	if (!r) {
		double memory = (double)moved.memory / MIB,
		       private = after > before ? (double)(after - before) / MIB : 0;

		p->read[pair] = (double)moved.bytes * 1e9 / (double)moved.ns;
		p->read_cpu[pair] = (double)moved.cpu_ns / 1e9 / ((double)moved.bytes / GIB);
		p->memory[pair] = memory > p->memory[pair] ? memory : p->memory[pair];
		p->private[pair] = private > p->private[pair] ? private : p->private[pair];
	}
	bench_daemon_stop(&daemon);
	return r;
}

static int one_pair(struct pairs *p, uint64_t pair)
{
	bool we_first = pair % 2 == 0;
	int r = bench_disk_empty(p->bench);

	if (!r && !we_first)
		r = fio_once(p, true, pair);
	if (!r)
		r = write_once(p, pair);
	if (!r && we_first)
		r = fio_once(p, true, pair);
	if (!r && !we_first)
		r = fio_once(p, false, pair);
	if (!r)
		r = read_once(p, pair);
	if (!r && we_first)
		r = fio_once(p, false, pair);
	if (r)
		return r;
	p->write_ratio[pair] = p->bench->fio ? p->write[pair] / p->fio_write[pair] : 0;
	p->read_ratio[pair] = p->bench->fio ? p->read[pair] / p->fio_read[pair] : 0;
	return bench_disk_empty(p->bench);
}

/* ---- printing --------------------------------------------------------------------------------------------------------- */

static void print_way(const struct pairs *p, bool write)
{
	const struct bench_options *o = &p->bench->base;
	const char *ratio = write ? p->names.write : p->names.read,
		   *rate = write ? p->names.write_gbps : p->names.read_gbps;
	double *ours = write ? p->write : p->read, *fios = write ? p->fio_write : p->fio_read;
	double *ratios = write ? p->write_ratio : p->read_ratio;
	struct bench_fio fio = fio_of(p, write);
	json_t *more = json_pack("{s:I, s:I, s:I, s:b}", "page_bytes", (json_int_t)p->shape.page_bytes, "record_pages",
		(json_int_t)p->shape.record_pages, "records", (json_int_t)p->shape.records, "direct", p->direct);

	if (!write)
		json_object_set_new(more, "sessions", json_integer(sessions_of(p)));
	if (bench_wants(o, rate)) {
		json_t *mine = json_deep_copy(more);

		json_object_set_new(mine, "pairs", bench_values(ours, p->count));
		bench_print(o, rate, bench_median(ours, p->count) / 1e9, "GB/s", 0, mine);
	}
	if (bench_wants(o, ratio) && !p->bench->fio) {
		bench_skip(o, ratio, "fio is not installed", NULL);
	} else if (bench_wants(o, ratio)) {
		json_object_set_new(more, "pairs", bench_values(ratios, p->count));
		json_object_set_new(more, "fio_gbps", json_real(bench_median(fios, p->count) / 1e9));
		json_object_set_new(more, "fio", bench_fio_told(&fio, write));
		bench_print(o, ratio, bench_median(ratios, p->count), "x",
			write ? p->names.write_against : p->names.read_against, json_incref(more));
	}
	json_decref(more);
}

/* Of the large pages alone. */
static void print_costs(const struct pairs *p)
{
	const struct bench_options *o = &p->bench->base;
	double write = bench_median(p->write_cpu, p->count), read = bench_median(p->read_cpu, p->count);

	if (bench_wants(o, "cpu_s_per_gib"))
		bench_print(o, "cpu_s_per_gib", (write + read) / 2, "s/GiB", 0,
			json_pack("{s:f, s:f}", "writing", write, "reading", read));
	if (bench_wants(o, "disk_memory_mib"))
		bench_print(o, "disk_memory_mib", bench_median(p->memory, p->count), "MiB", 0,
			json_pack("{s:f}", "private_growth_mib", bench_median(p->private, p->count)));
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

static bool make_arrays(struct pairs *p)
{
	double **arrays[] = {&p->write, &p->read, &p->fio_write, &p->fio_read, &p->write_ratio, &p->read_ratio,
		&p->write_cpu, &p->read_cpu, &p->memory, &p->private};
	size_t n = sizeof(arrays) / sizeof(arrays[0]);
	double *all = calloc(n * p->count, sizeof(*all));

	for (size_t i = 0; i < n && all; i++)
		*arrays[i] = all + i * p->count;
	return all;
}

static int run_shape(
	const struct bench_disk *b, uint64_t page_bytes, uint32_t record_pages, struct figure_names names, bool costs)
{
	struct pairs p = {
		.bench = b,
		.shape = {.page_bytes = page_bytes, .record_pages = record_pages},
		.names = names,
		.count = b->pairs,
		.direct = true,
	};
	uint64_t record = page_bytes * record_pages;
	int r;

	p.shape.records = b->bytes / record / b->workers * b->workers;
	if (p.shape.records < b->workers)
		return complain("--bytes is %llu, %llu are the least for records of %u pages of %llu bytes",
			(unsigned long long)b->bytes, (unsigned long long)(record * b->workers), record_pages,
			(unsigned long long)page_bytes);
	r = bench_disk_room(b, 2 * bench_shape_bytes(&p.shape), 2 * p.shape.records + 300) ||
	    bench_disk_memory(memory_of(&p));
	if (r)
		return r;
	if (!make_arrays(&p))
		return complain("no memory");
	for (uint64_t i = 0; i < p.count && !r; i++)
		r = one_pair(&p, i);
	if (!r) {
		print_way(&p, true);
		print_way(&p, false);
		if (costs)
			print_costs(&p);
	}
	free(p.write);
	return r;
}

static bool wants_any(const struct bench_options *o, const char *const *names)
{
	for (; *names; names++)
		if (bench_wants(o, *names))
			return true;
	return false;
}

int bench_disk_pairs(const struct bench_disk *b)
{
	static const char *const large[] = {
		"write_vs_fio", "read_vs_fio", "write_gbps", "read_gbps", "cpu_s_per_gib", "disk_memory_mib", NULL};
	static const char *const small[] = {
		"write_small_vs_fio", "read_small_vs_fio", "write_small_gbps", "read_small_gbps", NULL};
	int r = 0;

	if (wants_any(&b->base, large))
		r = run_shape(b, b->page_bytes, 16,
			(struct figure_names){"write_vs_fio", "read_vs_fio", "write_gbps", "read_gbps", 0.90, 0.95},
			true);
	if (!r && wants_any(&b->base, small))
		r = run_shape(b, 256 << 10, 8,
			(struct figure_names){"write_small_vs_fio", "read_small_vs_fio", "write_small_gbps",
				"read_small_gbps", 0, 0.85},
			false);
	return r;
}
