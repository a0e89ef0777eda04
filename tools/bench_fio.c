/* SPDX-License-Identifier: Apache-2.0
 *
 * fio beside us: the same number of files of the same length on the same file system, with the same block size and as much under
 * way. What it is told stands in bench_fio_told, and is printed with the figures.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench_disk.h"

#define WORDS 24u
#define WORD_BYTES (PATH_MAX + 32)

/* The first that works is kept. */
static const char *const engines[] = {"io_uring", "libaio", "psync"};
static unsigned engine;

struct words {
	char text[WORDS][WORD_BYTES];
	const char *at[WORDS + 1];
	unsigned count;
};

static void __attribute__((format(printf, 2, 3))) add(struct words *w, const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(w->text[w->count], sizeof(w->text[0]), format, values);
	va_end(values);
	w->at[w->count] = w->text[w->count];
	w->count++;
}

static void make_words(struct words *w, const struct bench_fio *fio, bool write)
{
	w->count = 0;
	add(w, "fio");
	add(w, "--name=bench");
	add(w, "--directory=%s", fio->folder);
	add(w, "--filename_format=$jobnum.$filenum");
	add(w, "--rw=%s", write ? "write" : "read");
	add(w, "--bs=%llu", (unsigned long long)fio->block_bytes);
	add(w, "--direct=%d", !fio->buffered);
	add(w, "--ioengine=%s", engines[engine]);
	add(w, "--iodepth=%llu", (unsigned long long)fio->depth);
	add(w, "--numjobs=%llu", (unsigned long long)fio->jobs);
	add(w, "--thread");
	add(w, "--nrfiles=%llu", (unsigned long long)(fio->files / fio->jobs));
	add(w, "--filesize=%llu", (unsigned long long)fio->file_bytes);
	add(w, "--size=%llu", (unsigned long long)(fio->files / fio->jobs * fio->file_bytes));
	add(w, "--file_service_type=sequential");
	add(w, "--openfiles=64");
	add(w, "--fallocate=native");
	add(w, "--invalidate=1");
	if (engine == 0)
		add(w, "--fixedbufs=1"); /* registered memory, as the daemon has: without it fio is slower by up to a half */
	if (write && fio->sync)
		add(w, "--fsync_on_close=1");
	add(w, "--group_reporting");
	add(w, "--output-format=json");
	w->at[w->count] = NULL;
}

json_t *bench_fio_told(const struct bench_fio *fio, bool write)
{
	static struct words words;
	json_t *told = json_array();

	make_words(&words, fio, write);
	for (unsigned i = 0; i < words.count; i++)
		json_array_append_new(told, json_string(words.at[i]));
	return told;
}

bool bench_fio_there(void)
{
	static const char *const words[] = {"fio", "--version", NULL};
	struct bench_child child;

	return !bench_child_start(&child, words, true) && bench_child_end(&child) == 0;
}

/* What fio prints before its JSON are notes. */
static json_t *read_json(FILE *from)
{
	int c;

	do
		c = fgetc(from);
	while (c != EOF && c != '{');
	if (c == EOF)
		return NULL;
	ungetc(c, from);
	return json_loadf(from, JSON_DISABLE_EOF_CHECK, NULL);
}

static int run_once(const struct bench_fio *fio, bool write, bool quiet, double *bytes_s)
{
	static struct words words;
	struct bench_child child;
	json_t *said, *job, *part;
	uint64_t bytes = fio->files * fio->file_bytes, moved;
	int status;

	make_words(&words, fio, write);
	if (bench_child_start(&child, words.at, quiet))
		return 1;
	said = read_json(child.out);
	status = bench_child_end(&child);
	job = json_array_get(json_object_get(said, "jobs"), 0);
	part = json_object_get(job, write ? "write" : "read");
	moved = (uint64_t)json_integer_value(json_object_get(part, "io_bytes"));
	*bytes_s = json_number_value(json_object_get(part, "bw_bytes"));
	if (!status && json_integer_value(json_object_get(job, "error")))
		status = 1;
	json_decref(said);
	if (status || *bytes_s <= 0)
		return quiet ? 1 : complain("fio failed in %s (status %d)", fio->folder, status);
	if (moved != bytes)
		return complain("fio moved %llu of %llu bytes", (unsigned long long)moved, (unsigned long long)bytes);
	return 0;
}

int bench_fio_run(const struct bench_fio *fio, bool write, double *bytes_s)
{
	static bool known;

	for (; !known && engine + 1 < sizeof(engines) / sizeof(engines[0]); engine++)
		if (!run_once(fio, write, true, bytes_s)) {
			known = true;
			return 0;
		}
	known = true;
	return run_once(fio, write, false, bytes_s);
}
