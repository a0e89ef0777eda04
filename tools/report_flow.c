/* SPDX-License-Identifier: Apache-2.0
 *
 * The figures over the time of the replay: evictions and refusals, bytes moved and memory in use.
 */
#include <math.h>

#include "tools/report.h"
#include "tools/report_plot.h"

#define BINS 60u
#define WHOLE 534.0 /* units of all panels of a picture together */

/* Something for each of BINS equal parts of the replay. */
struct flow {
	double edges[BINS + 1], value[BINS];
	double sum, most;
};

static void flow_init(struct flow *f, const struct report *r)
{
	*f = (struct flow){0};
	for (unsigned i = 0; i <= BINS; i++)
		f->edges[i] = r->seconds * i / BINS;
}

static void flow_add(struct flow *f, double at, double amount)
{
	double bin = at / f->edges[BINS] * BINS;

	f->value[bin < 0 ? 0 : bin >= BINS ? BINS - 1 : (unsigned)bin] += amount;
	f->sum += amount;
}

/* What came between two looks is spread evenly over the time between them. */
static void flow_spread(struct flow *f, double from, double to, double amount)
{
	double width = f->edges[BINS] / BINS;

	for (unsigned i = 0; i < BINS && to > from; i++) {
		double overlap = fmin(to, f->edges[i + 1]) - fmax(from, f->edges[i]);

		if (i + 1 == BINS)
			overlap = fmax(overlap, to - fmax(from, f->edges[i]));
		if (overlap > 0)
			f->value[i] += amount * overlap / (to - from) / width;
	}
	f->sum += amount;
}

static void flow_end(struct flow *f, double factor)
{
	for (unsigned i = 0; i < BINS; i++) {
		f->value[i] *= factor;
		f->most = fmax(f->most, f->value[i]);
	}
}

static void panel(struct plot *p, const struct report *r, const char *title, enum unit unit, double most, bool last)
{
	axis_init(&p->x, SCALE_LINEAR, UNIT_SECONDS, 0, r->seconds, 7, false);
	axis_init(&p->y, SCALE_LINEAR, unit, 0, most > 0 ? most : 1, 4, true);
	plot_axes(p, last ? "time of the replay" : NULL, "");
	plot_caption(p, title);
}

/* ---- evictions and refusals ------------------------------------------------------------------------------------- */

void report_eviction(FILE *out, const struct report *r)
{
	const struct report_watch *w = r->watch;
	struct plot p = {.out = out, .left = 84, .top = 26, .width = 436, .height = WHOLE / 2 - 52};
	struct flow evicted, noroom;
	char values[PLOT_TEXT], groups[PLOT_TEXT], title[128];

	flow_init(&evicted, r);
	flow_init(&noroom, r);
	for (uint32_t i = 1; i < w->count; i++)
		flow_spread(&evicted, (double)w->look[i - 1].at_ns / 1e9, (double)w->look[i].at_ns / 1e9,
			(double)(w->look[i].evicted - w->look[i - 1].evicted));
	for (size_t i = 0; i < r->trace->count; i++)
		if (r->samples[i].noroom)
			flow_add(&noroom, (double)r->samples[i].end_ns / 1e9, r->samples[i].noroom);
	flow_end(&evicted, 1);
	flow_end(&noroom, 1);
	count_text(values, (uint64_t)(evicted.sum + 0.5));
	count_text(groups, (uint64_t)(noroom.sum + 0.5));

	report_figure(out, "evictions", "Evictions and refusals over time", false);
	picture_begin(out, 550, WHOLE + 20, "Evictions and refusals over the time of the replay");
	snprintf(title, sizeof(title), "values evicted a second &middot; %s in all", values);
	panel(&p, r, title, UNIT_COUNT, evicted.most, false);
	if (evicted.sum > 0)
		plot_area(&p, "evicted", evicted.edges, evicted.value, BINS);
	else
		plot_nothing(&p, "nothing was evicted");
	p.top += WHOLE / 2;
	snprintf(title, sizeof(title), "put groups without room (NOROOM) &middot; %s in all", groups);
	panel(&p, r, title, UNIT_COUNT, noroom.most, true);
	if (noroom.sum > 0)
		plot_bars(&p, "refused", noroom.edges, noroom.value, BINS);
	else
		plot_nothing(&p, "every group got room");
	picture_end(out);
	report_figure_end(out,
		"Above: values that the daemon let go to make room, from the namespace's counters, read %u times. Evictions begin "
		"when the budget is full. Below: put groups that got no room and were tried again or left out. Some are usual "
		"while the namespace still grows, since new memory is granted in the background; a steady stream says that "
		"everything is in use.",
		w->count);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static void memory_in_use(struct plot *p, const struct report *r)
{
	double x[REPORT_LOOKS], y[REPORT_LOOKS], most = (double)r->watch->budget_bytes;
	char text[128], budget[PLOT_TEXT];

	for (uint32_t i = 0; i < r->watch->count; i++) {
		x[i] = (double)r->watch->look[i].at_ns / 1e9;
		y[i] = (double)r->watch->look[i].slot_bytes;
		most = fmax(most, y[i]);
	}
	panel(p, r, "memory in use by values", UNIT_BYTES, most * 1.15, true);
	if (r->watch->budget_bytes) {
		unit_text(budget, UNIT_BYTES, (double)r->watch->budget_bytes);
		snprintf(text, sizeof(text), "budget: %s", budget);
		plot_along(p, "own", (double)r->watch->budget_bytes, true, text);
	}
	plot_line(p, "measured", x, y, r->watch->count);
}

void report_bytes(FILE *out, const struct report *r)
{
	struct plot p = {.out = out, .left = 84, .top = 26, .width = 436, .height = WHOLE / 3 - 52};
	char got_text[PLOT_TEXT], put_text[PLOT_TEXT], title[128];
	struct flow got, put;

	flow_init(&got, r);
	flow_init(&put, r);
	for (size_t i = 0; i < r->trace->count; i++) {
		flow_add(&got, (double)r->samples[i].end_ns / 1e9, (double)r->samples[i].bytes_got);
		flow_add(&put, (double)r->samples[i].end_ns / 1e9, (double)r->samples[i].bytes_put);
	}
	flow_end(&got, BINS / r->seconds);
	flow_end(&put, BINS / r->seconds);
	unit_text(got_text, UNIT_BYTES, got.sum);
	unit_text(put_text, UNIT_BYTES, put.sum);

	report_figure(out, "bytes", "Bytes over time", false);
	picture_begin(out, 550, WHOLE + 20, "Bytes moved and memory in use over the time of the replay");
	snprintf(title, sizeof(title), "fetched and checked &middot; %s in all", got_text);
	panel(&p, r, title, UNIT_RATE, got.most, false);
	if (got.sum > 0)
		plot_area(&p, "measured", got.edges, got.value, BINS);
	else
		plot_nothing(&p, "nothing was fetched");
	p.top += WHOLE / 3;
	snprintf(title, sizeof(title), "put &middot; %s in all", put_text);
	panel(&p, r, title, UNIT_RATE, put.most, false);
	if (put.sum > 0)
		plot_area(&p, "lru", put.edges, put.value, BINS);
	else
		plot_nothing(&p, "nothing was put");
	p.top += WHOLE / 3;
	memory_in_use(&p, r);
	picture_end(out);
	report_figure_end(out,
		"Payload bytes of all clients in each %.3g s, counted when the request that moved them ends: fetched from the "
		"cache and compared byte for byte (above), made and stored (middle). The making and comparing is done by the "
		"clients' CPUs and is part of the time. Below: memory of the slots in use, padding included, which stops "
		"growing at the namespace's budget.",
		r->seconds / BINS);
}
