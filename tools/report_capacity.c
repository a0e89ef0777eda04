/* SPDX-License-Identifier: Apache-2.0
 *
 * The figure of the hit ratio over capacity.
 */
#include <math.h>

#include "tools/report.h"
#include "tools/report_plot.h"

#define POINTS 160u        /* of the curve of leaf-first LRU */
#define OPTIMUM_POINTS 40u /* each of them goes through all links in time's order */

static double ratio(const struct report *r, uint64_t hits)
{
	return r->reuse.references ? (double)hits / (double)r->reuse.references : 0;
}

static void curves(const struct plot *p, const struct report *r, double unit)
{
	double x[POINTS], y[POINTS], least = p->x.from, most = p->x.to;

	for (unsigned i = 0; i < OPTIMUM_POINTS; i++) {
		x[i] = least * pow(most / least, (double)i / (OPTIMUM_POINTS - 1));
		y[i] = ratio(r, reuse_optimum(&r->reuse, (uint64_t)(x[i] / unit), NULL));
	}
	plot_line(p, "optimum", x, y, OPTIMUM_POINTS);
	for (unsigned i = 0; i < POINTS; i++) {
		x[i] = least * pow(most / least, (double)i / (POINTS - 1));
		y[i] = ratio(r, reuse_lru(&r->reuse, (uint64_t)(x[i] / unit), NULL));
	}
	plot_line(p, "lru", x, y, POINTS);
}

int report_capacity(FILE *out, const struct report *r)
{
	struct plot p = {.out = out, .left = 84, .top = 40, .width = 436, .height = 460};
	double distinct = (double)r->reuse.distinct, unit = r->page_bytes > 0 ? r->page_bytes : 1;
	double most = distinct > (double)r->capacity_pages ? distinct : (double)r->capacity_pages;
	double measured = r->sum->references ? (double)r->sum->hits / (double)r->sum->references : 0;
	double unlimited = ratio(r, reuse_unlimited(&r->reuse));
	char text[128], all[PLOT_TEXT], own[PLOT_TEXT], page[PLOT_TEXT], need[PLOT_TEXT];
	bool bytes = r->page_bytes > 0;

	axis_init(&p.x, bytes ? SCALE_DOUBLES : SCALE_DECADES, bytes ? UNIT_BYTES : UNIT_COUNT,
		(distinct / 256 > 1 ? distinct / 256 : 1) * unit, most * 1.3 * unit, 6, true);
	axis_init(&p.y, SCALE_LINEAR, UNIT_PERCENT, 0, fmax(0.05, fmax(measured, unlimited)), 5, true);
	report_figure(out, "capacity", "Hit ratio over capacity", false);
	picture_begin(out, 550, 550, "Hit ratio over the capacity of the cache");
	plot_axes(&p, bytes ? "capacity (memory, logarithmic)" : "capacity (pages, logarithmic)",
		"hit ratio (% of pages asked for)");
	snprintf(text, sizeof(text), "unlimited: %.1f %%", unlimited * 100);
	plot_along(&p, "limit", unlimited, false, text);
	curves(&p, r, unit);
	if (r->capacity_pages) {
		double at = bytes ? (double)r->watch->budget_bytes : (double)r->capacity_pages;

		unit_text(own, bytes ? UNIT_BYTES : UNIT_COUNT, at);
		snprintf(text, sizeof(text), "this run: %.1f %% with %s", measured * 100, own);
		plot_across(&p, "own", at, text);
		plot_dot(&p, "measured", at, measured);
	}
	plot_key(&p, "lru", false, 0, "leaf-first LRU");
	plot_key(&p, "optimum", false, 150, "optimum in hindsight");
	picture_end(out);
	count_text(all, r->reuse.distinct);
	unit_text(page, UNIT_BYTES, r->page_bytes);
	unit_text(need, UNIT_BYTES, distinct * unit);
	report_figure_end(out,
		"What the trace lets a cache of each size hit that begins empty. The solid curve is exact for pages evicted by "
		"leaf-first LRU: a page is found if no more pages than the cache holds were used since its last use (its "
		"stack distance, counted for every use in the trace). The dotted one is the best that any cache could do. "
		"The vertical line is this run's budget and the dot what was measured. Without a limit the first use of each of "
		"%s pages would be the only misses%s%s%s%s%s.",
		all, bytes ? "; that takes " : "", bytes ? need : "", bytes ? ", since a page takes " : "",
		bytes ? page : "", bytes ? " here" : "");
	return 0;
}
