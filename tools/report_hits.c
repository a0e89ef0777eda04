/* SPDX-License-Identifier: Apache-2.0
 *
 * The figure of the hit ratio over the requests, measured and as it could have been.
 */
#include <math.h>
#include <stdlib.h>

#include "tools/report.h"
#include "tools/report_plot.h"

#define POINTS 400u
#define WINDOWS 40u /* a window is the trace's requests over this, */
#define LEAST 10u   /* but not fewer than these */

enum {
	MEASURED,
	LRU,
	OPTIMUM,
	SERIES
};

/* Hits of each request, and the ratios at the points of a line. */
struct series {
	uint32_t *hits;
	double sum[POINTS];
};

static void add_up(const struct report *r, const uint32_t *hits, double *to, size_t points)
{
	uint64_t sum = 0, references = 0;
	size_t point = 0;

	for (size_t i = 0; i < r->trace->count; i++) {
		sum += hits[i];
		references += r->trace->requests[i].pages;
		while (point < points && (i + 1) * points >= (point + 1) * r->trace->count)
			to[point++] = references ? (double)sum / (double)references : NAN;
	}
}

/* The ratio of the @window requests up to each point. */
static void in_windows(const struct report *r, const uint32_t *hits, size_t window, double *to, size_t points)
{
	uint64_t sum = 0, references = 0;
	size_t point = 0;

	for (size_t i = 0; i < r->trace->count; i++) {
		sum += hits[i];
		references += r->trace->requests[i].pages;
		if (i >= window) {
			sum -= hits[i - window];
			references -= r->trace->requests[i - window].pages;
		}
		while (point < points && (i + 1) * points >= (point + 1) * r->trace->count)
			to[point++] = references && i + 1 >= window ? (double)sum / (double)references : NAN;
	}
}

static void key(const struct plot *p, const char *class, double x, const char *name, double value)
{
	char text[128];

	snprintf(text, sizeof(text), isnan(value) ? "%s" : "%s: %.1f %%", name, value * 100);
	plot_key(p, class, false, x, text);
}

/* The whole run: measured, up to each request and around it. */
static void draw_run(
	FILE *out, const struct report *r, const struct series *s, size_t points, size_t window, const double *x)
{
	struct plot p = {.out = out, .left = 84, .top = 40, .width = 436, .height = 260};
	double windowed[POINTS], most = 0.05;

	in_windows(r, s[MEASURED].hits, window, windowed, points);
	for (size_t i = 0; i < points; i++)
		most = fmax(most, fmax(windowed[i], s[MEASURED].sum[i])); /* fmax passes over what is no number */
	axis_init(&p.x, SCALE_LINEAR, UNIT_COUNT, 0, (double)r->trace->count, 6, false);
	axis_init(&p.y, SCALE_LINEAR, UNIT_PERCENT, 0, most, 5, true);
	plot_axes(&p, "requests, in the order of the trace", "hit ratio (% of pages asked for)");
	plot_line(&p, "window", x, windowed, points);
	plot_line(&p, "measured", x, s[MEASURED].sum, points);
	key(&p, "measured", 0, "measured, up to here", s[MEASURED].sum[points - 1]);
	key(&p, "window", 220, "of the last requests alone", NAN);
}

/* The later part enlarged, beside what could have been. */
static void draw_beside(FILE *out, const struct report *r, const struct series *s, size_t points, const double *x)
{
	struct plot p = {.out = out, .left = 60, .top = 40, .width = 460, .height = 260};
	size_t skip = points / 5;
	double least = 1, most = 0;

	for (unsigned k = 0; k < SERIES; k++)
		for (size_t i = skip; i < points; i++) {
			least = fmin(least, s[k].sum[i]);
			most = fmax(most, s[k].sum[i]);
		}
	axis_init(&p.x, SCALE_LINEAR, UNIT_COUNT, x[skip], (double)r->trace->count, 6, false);
	axis_init(&p.y, SCALE_LINEAR, UNIT_PERCENT, least, most, 5, true);
	plot_axes(&p, "requests (the first fifth left out)", "");
	plot_line(&p, "measured", x + skip, s[MEASURED].sum + skip, points - skip);
	plot_line(&p, "optimum", x + skip, s[OPTIMUM].sum + skip, points - skip);
	plot_line(&p, "lru", x + skip, s[LRU].sum + skip, points - skip);
	key(&p, "measured", 0, "measured", NAN);
	key(&p, "lru", 110, "leaf-first LRU", s[LRU].sum[points - 1]);
	key(&p, "optimum", 290, "optimum", s[OPTIMUM].sum[points - 1]);
}

static void draw(FILE *out, const struct report *r, struct series *s, size_t points, size_t window)
{
	double x[POINTS];

	for (size_t i = 0; i < points; i++)
		x[i] = (double)((i + 1) * r->trace->count) / (double)points;
	for (unsigned k = 0; k < SERIES; k++)
		add_up(r, s[k].hits, s[k].sum, points);
	fputs("<div class=\"pair\">\n", out);
	picture_begin(out, 550, 350, "Hit ratio over the requests of the trace");
	draw_run(out, r, s, points, window, x);
	picture_end(out);
	if (r->capacity_pages) {
		picture_begin(out, 550, 350, "The same enlarged, beside leaf-first LRU and the optimum in hindsight");
		draw_beside(out, r, s, points, x);
		picture_end(out);
	}
	fputs("</div>\n", out);
}

int report_hits(FILE *out, const struct report *r)
{
	size_t count = r->trace->count, points = count < POINTS ? count : POINTS, window = count / WINDOWS;
	struct series *s = calloc(SERIES, sizeof(*s));
	char pages[PLOT_TEXT];
	int failed = !s;

	window = window < LEAST ? LEAST : window;
	for (unsigned k = 0; k < SERIES && !failed; k++) {
		s[k].hits = calloc(count, sizeof(*s[k].hits));
		failed = !s[k].hits;
	}
	if (!failed) {
		for (size_t i = 0; i < count; i++)
			s[MEASURED].hits[i] = r->samples[i].hits;
		reuse_lru(&r->reuse, r->capacity_pages, s[LRU].hits);
		reuse_optimum(&r->reuse, r->capacity_pages, s[OPTIMUM].hits);
		count_text(pages, r->capacity_pages);
		report_figure(out, "hits", "Hit ratio over the requests", true);
		draw(out, r, s, points, window);
		report_figure_end(out,
			"Left: pages found of pages asked for, of all requests up to each one (thick), and of the last %zu alone "
			"(thin). It begins low because a page must be computed once before it can be found. Right: the thick line "
			"enlarged, beside two that are computed from the trace for the %s pages that this budget holds, beginning "
			"empty: a cache that evicts the end of a chain unused for longest (leaf-first LRU), and one that knows the "
			"future (optimum in hindsight), which no cache can beat. A measured line below them "
			"lost pages to put groups without room, or to requests that ran side by side and did not see what the other one "
			"was storing; above them, the namespace was not empty at the beginning.",
			window, pages);
	}
	for (unsigned k = 0; s && k < SERIES; k++)
		free(s[k].hits);
	free(s);
	return failed;
}
