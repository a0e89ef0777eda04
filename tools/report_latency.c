/* SPDX-License-Identifier: Apache-2.0
 *
 * The figure of the latencies: a histogram for each call, one below the other on one logarithmic axis.
 */
#include <math.h>

#include "tools/report.h"
#include "tools/report_plot.h"

#define BINS_A_DECADE 10u
#define BINS_MAX (BINS_A_DECADE * 12u)
#define ROW 104.0

struct row {
	const char *name;
	enum replay_op op;
};

static const struct row rows[] = {
	{"get_start", REPLAY_GET_START},
	{"get_transfer", REPLAY_GET_TRANSFER},
	{"put_start", REPLAY_PUT_START},
	{"put_commit", REPLAY_PUT_COMMIT},
	{"release", REPLAY_RELEASE},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* The powers of ten around all that was measured. */
static void ends(const struct report *r, double *from, double *to)
{
	*from = 1e12;
	*to = 0;
	for (unsigned k = 0; k < ROWS; k++) {
		const struct latency *l = &r->sum->op[rows[k].op];

		for (uint32_t i = 0; i < LATENCY_BUCKETS; i++) {
			if (!l->bucket[i])
				continue;
			*from = fmin(*from, fmax(latency_bucket_ns(i), 10));
			*to = fmax(*to, latency_bucket_ns(i + 1));
		}
	}
	*from = *to > 0 ? pow(10, floor(log10(*from))) : 1e3;
	*to = *to > 0 ? pow(10, ceil(log10(*to))) : 1e6;
}

static void draw_row(struct plot *p, const struct latency *l, const char *name, bool last)
{
	unsigned bins = (unsigned)lround(log10(p->x.to / p->x.from)) * BINS_A_DECADE;
	double edges[BINS_MAX + 1], shares[BINS_MAX] = {0}, most = 0;
	double p50 = latency_us(l, 0.5) * 1e3, p99 = latency_us(l, 0.99) * 1e3;
	char text[128], time[PLOT_TEXT], calls[PLOT_TEXT];

	bins = bins > BINS_MAX ? BINS_MAX : bins;
	for (unsigned i = 0; i <= bins; i++)
		edges[i] = p->x.from * pow(10, (double)i / BINS_A_DECADE);
	for (uint32_t i = 0; i < LATENCY_BUCKETS; i++) {
		/* Buckets are narrower than bins: each goes where its middle lies. */
		double at = log10((latency_bucket_ns(i) + 0.5) / p->x.from) * BINS_A_DECADE;

		if (l->bucket[i])
			shares[at < 0        ? 0
				: at >= bins ? bins - 1
					     : (unsigned)at] += (double)l->bucket[i] / (double)l->count;
	}
	for (unsigned i = 0; i < bins; i++)
		most = fmax(most, shares[i]);
	axis_init(&p->y, SCALE_LINEAR, UNIT_PERCENT, 0, most > 0 ? most : 1, 2, true);
	plot_axes(p, last ? "time of a call (logarithmic)" : NULL, "");
	count_text(calls, l->count);
	snprintf(text, sizeof(text), "%s &middot; %s calls", name, calls);
	plot_caption(p, text);
	if (!l->count) {
		plot_nothing(p, "was not called");
		return;
	}
	plot_bars(p, "measured", edges, shares, bins);
	plot_across(p, "p50", p50, NULL);
	plot_across(p, "p99", p99, NULL);
	unit_text(time, UNIT_NS, p50);
	snprintf(text, sizeof(text), "p50 %s", time);
	plot_key(p, "p50", false, 190, text);
	unit_text(time, UNIT_NS, p99);
	snprintf(text, sizeof(text), "p99 %s", time);
	plot_key(p, "p99", false, 315, text);
}

void report_latency(FILE *out, const struct report *r)
{
	struct plot p = {.out = out, .left = 84, .top = 26, .width = 436, .height = ROW - 40};
	double from, to;

	ends(r, &from, &to);
	axis_init(&p.x, SCALE_DECADES, UNIT_NS, from, to, 8, false);
	report_figure(out, "latency", "Latency of the calls", false);
	picture_begin(out, 550, ROWS * ROW + 34, "Distribution of the latencies of the calls");
	for (unsigned k = 0; k < ROWS; k++, p.top += ROW)
		draw_row(&p, &r->sum->op[rows[k].op], rows[k].name, k + 1 == ROWS);
	picture_end(out);
	report_figure_end(out,
		"How long libprefixfs took for each call of the clients, to the daemon and back; the copying of bytes is not in "
		"it. A bar is the share of the calls (%%) that took so long, ten bars for each power of ten. Half of the calls "
		"were done at the solid line (p50), 99 of 100 at the dashed one (p99). A call names all pages of a request, so "
		"long requests take longer.");
}
