/* SPDX-License-Identifier: Apache-2.0
 *
 * The page that replay --report writes: one HTML file that needs nothing else, with pictures of how a replay went.
 */
#ifndef PREFIXFS_TOOLS_REPORT_H
#define PREFIXFS_TOOLS_REPORT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "tools/layout_file.h"
#include "tools/replay.h"
#include "tools/report_reuse.h"
#include "tools/trace.h"

/* ---- looks at the namespace while the clients work: report_watch.c ---------------------------------------------- */

#define REPORT_LOOKS 512u

/* Counters of the namespace at one moment; evicted and noroom since the beginning of the replay. */
struct report_look {
	uint64_t at_ns; /* since the beginning */
	uint64_t evicted, noroom, slot_bytes, pages;
};

/* Looks come a pause apart. When there is no room for more, every second one is forgotten and the pause doubled. */
struct report_watch {
	const char *path; /* of the namespace; NULL: nobody wants a report */
	uint64_t begin_ns, pause_ns;
	uint64_t last_evicted, last_noroom; /* as the namespace counted them; a restart of the daemon begins anew */
	uint64_t budget_bytes;
	uint32_t count;
	struct report_look look[REPORT_LOOKS];
};

void report_watch_start(struct report_watch *watch, const char *path);
/* Looks, if it is time to. */
void report_watch(struct report_watch *watch);
/* Looks once more. */
void report_watch_end(struct report_watch *watch);

/* ---- the page: report.c ----------------------------------------------------------------------------------------- */

struct report {
	const char *file, *trace_name, *ns;
	const struct layout_view *layout;
	const struct trace *trace;
	const struct replay_options *options;
	const struct replay_sample *samples;
	const struct replay_counts *sum; /* of all clients */
	const struct report_watch *watch;
	const json_t *result; /* what replay prints */
	double seconds;
	time_t began;

	/* Computed by report_write. */
	struct reuse reuse;
	double page_bytes;       /* memory that a page takes, rows and padding included; 0 = not known */
	uint64_t capacity_pages; /* pages that the budget has room for; 0 = not known */
};

/* Could the page be written to @file? 0, or 1 after a sentence. Leaves nothing behind. */
int report_check(const char *file);
/* Writes it under another name, which is then changed. 0, or 1 after a sentence. */
int report_write(struct report *report);

/* ---- its figures ------------------------------------------------------------------------------------------------ */

/* Begins a figure, and ends it with what one sees there, in HTML. */
void report_figure(FILE *out, const char *id, const char *title, bool wide);
void report_figure_end(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

int report_hits(FILE *out, const struct report *report);      /* report_hits.c; 1: no memory */
int report_capacity(FILE *out, const struct report *report);  /* report_capacity.c; 1: no memory */
void report_latency(FILE *out, const struct report *report);  /* report_latency.c */
void report_eviction(FILE *out, const struct report *report); /* report_flow.c */
void report_bytes(FILE *out, const struct report *report);    /* report_flow.c */

#endif
