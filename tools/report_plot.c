/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report_plot.h"

#include <math.h>
#include <string.h>

/* ---- texts ------------------------------------------------------------------------------------------------------ */

void html_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		case '&':
			fputs("&amp;", out);
			break;
		case '"':
			fputs("&quot;", out);
			break;
		default:
			if ((unsigned char)*text >= ' ') /* bytes of UTF-8 as they are */
				fputc(*text, out);
			else
				fputc('?', out);
		}
	}
}

void count_text(char to[PLOT_TEXT], uint64_t value)
{
	char digits[24];
	int n = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	char *at = to;

	for (int i = 0; i < n; i++) {
		if (i > 0 && (n - i) % 3 == 0)
			*at++ = ',';
		*at++ = digits[i];
	}
	*at = '\0';
}

struct step {
	double size;
	const char *name;
};

/* In the largest unit that leaves at least 1 in front of it. */
static void stepped(char to[PLOT_TEXT], double value, const struct step *steps)
{
	while (steps[1].name && fabs(value) < steps[0].size * 0.9995)
		steps++;
	value /= steps->size;
	snprintf(to, PLOT_TEXT, fabs(value) < 999.5 ? "%.3g%s" : "%.0f%s", value, steps->name);
}

void unit_text(char to[PLOT_TEXT], enum unit unit, double value)
{
	static const struct step counts[] = {{1e9, " G"}, {1e6, " M"}, {1, ""}, {0}};
	static const struct step times[] = {{1e9, " s"}, {1e6, " ms"}, {1e3, " &micro;s"}, {1, " ns"}, {0}};
	static const struct step rates[] = {
		{1e12, " TB/s"}, {1e9, " GB/s"}, {1e6, " MB/s"}, {1e3, " kB/s"}, {1, " B/s"}, {0}};
	static const struct step sizes[] = {
		{0x1p40, " TiB"}, {0x1p30, " GiB"}, {0x1p20, " MiB"}, {0x1p10, " KiB"}, {1, " B"}, {0}};

	switch (unit) {
	case UNIT_COUNT:
		if (value >= 1 && value < 1e6)
			count_text(to, (uint64_t)(value + 0.5));
		else
			stepped(to, value, counts);
		break;
	case UNIT_PERCENT:
		snprintf(to, PLOT_TEXT, "%.3g %%", value * 100);
		break;
	case UNIT_SECONDS:
		snprintf(to, PLOT_TEXT, value < 1000 ? "%.4g s" : "%.0f s", value);
		break;
	case UNIT_NS:
		stepped(to, value, times);
		break;
	case UNIT_BYTES:
		stepped(to, value, sizes);
		break;
	case UNIT_RATE:
		stepped(to, value, rates);
		break;
	}
}

/* ---- axes ------------------------------------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten. */
static double round_step(double step)
{
	double power = pow(10, floor(log10(step))), rest = step / power;

	return power * (rest <= 1.0001 ? 1 : rest <= 2.0001 ? 2 : rest <= 5.0001 ? 5 : 10);
}

static void linear_ticks(struct axis *a, unsigned about, bool round)
{
	double unit = 1, step, first;

	if (a->unit == UNIT_BYTES) /* round in KiB, MiB, ... */
		while (unit * 1024 <= a->to - a->from)
			unit *= 1024;
	step = round_step((a->to - a->from) / unit / about) * unit;
	if ((a->unit == UNIT_COUNT) && step < 1)
		step = 1;
	if (round) {
		a->from = floor(a->from / step + 1e-9) * step;
		a->to = ceil(a->to / step - 1e-9) * step;
	}
	first = ceil(a->from / step - 1e-9);
	for (double k = first; k * step <= a->to + step * 1e-9 && a->ticks < PLOT_TICKS; k++)
		a->tick[a->ticks++] = k * step + 0.0; /* not -0 */
}

static void log_ticks(struct axis *a, double base, unsigned about, bool round)
{
	double from = log(a->from) / log(base), to = log(a->to) / log(base), step;

	if (round) {
		from = floor(from + 1e-9);
		to = ceil(to - 1e-9);
		a->from = pow(base, from);
		a->to = pow(base, to);
	}
	step = ceil((to - from) / about - 1e-9);
	step = step < 1 ? 1 : step;
	for (double k = ceil(from / step - 1e-9) * step; k <= to + 1e-9 && a->ticks < PLOT_TICKS; k += step)
		a->tick[a->ticks++] = pow(base, k);
}

void axis_init(struct axis *axis, enum scale scale, enum unit unit, double from, double to, unsigned about, bool round)
{
	if (!(to > from))
		to = from + 1;
	*axis = (struct axis){.scale = scale, .unit = unit, .from = from, .to = to};
	if (scale == SCALE_LINEAR)
		linear_ticks(axis, about, round);
	else
		log_ticks(axis, scale == SCALE_DECADES ? 10 : 2, about, round);
}

/* Where @value lies between the ends, 0 to 1. */
static double place(const struct axis *a, double value)
{
	double at = a->scale == SCALE_LINEAR ? (value - a->from) / (a->to - a->from)
	                                     : log((value > 0 ? value : a->from) / a->from) / log(a->to / a->from);

	return at < 0 ? 0 : at > 1 ? 1 : at;
}

double plot_x(const struct plot *plot, double value)
{
	return plot->left + plot->width * place(&plot->x, value);
}

double plot_y(const struct plot *plot, double value)
{
	return plot->top + plot->height * (1 - place(&plot->y, value));
}

/* ---- drawing ---------------------------------------------------------------------------------------------------- */

void picture_begin(FILE *out, double width, double height, const char *title)
{
	fprintf(out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", width, height);
	html_text(out, title);
	fputs("\">\n", out);
}

void picture_end(FILE *out)
{
	fputs("</svg>\n", out);
}

void plot_axes(const struct plot *p, const char *x_title, const char *y_title)
{
	double bottom = p->top + p->height, right = p->left + p->width;
	char text[PLOT_TEXT];

	for (unsigned i = 0; i < p->y.ticks; i++) {
		double y = plot_y(p, p->y.tick[i]);

		fprintf(p->out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", p->left,
			right, y, y);
		if (!y_title)
			continue;
		unit_text(text, p->y.unit, p->y.tick[i]);
		fprintf(p->out, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
			p->left - 6, y + 4, text);
	}
	for (unsigned i = 0; i < p->x.ticks; i++) {
		double x = plot_x(p, p->x.tick[i]);

		fprintf(p->out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x,
			p->top, bottom);
		if (!x_title)
			continue;
		unit_text(text, p->x.unit, p->x.tick[i]);
		fprintf(p->out, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x,
			bottom + 19, text);
	}
	fprintf(p->out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", p->left, p->top, bottom, right);
	if (x_title)
		fprintf(p->out, "<text class=\"title\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
			p->left + p->width / 2, bottom + 38, x_title);
	if (y_title && *y_title)
		fprintf(p->out,
			"<text class=\"title\" text-anchor=\"middle\" transform=\"translate(%.1f %.1f) rotate(-90)\">%s</text>\n",
			p->left - 62, p->top + p->height / 2, y_title);
}

void plot_line(const struct plot *p, const char *class, const double *x, const double *y, size_t count)
{
	bool pen_down = false;

	fprintf(p->out, "<path class=\"line %s\" d=\"", class);
	for (size_t i = 0; i < count; i++) {
		if (!isnan(y[i]))
			fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', plot_x(p, x[i]), plot_y(p, y[i]));
		pen_down = !isnan(y[i]);
	}
	fputs("\"/>\n", p->out);
}

void plot_bars(const struct plot *p, const char *class, const double *edges, const double *heights, size_t count)
{
	double bottom = p->top + p->height;

	for (size_t i = 0; i < count; i++) {
		double left = plot_x(p, edges[i]), right = plot_x(p, edges[i + 1]), top = plot_y(p, heights[i]);

		if (heights[i] > 0)
			fprintf(p->out,
				"<rect class=\"bar %s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n",
				class, left + 0.5, top, right - left > 2 ? right - left - 1 : 1,
				bottom - top < 1 ? 1 : bottom - top);
	}
}

void plot_area(const struct plot *p, const char *class, const double *edges, const double *heights, size_t count)
{
	double bottom = p->top + p->height;

	fprintf(p->out, "<path class=\"area %s\" d=\"M%.1f %.1f", class, plot_x(p, edges[0]), bottom);
	for (size_t i = 0; i < count; i++)
		fprintf(p->out, "V%.1fH%.1f", plot_y(p, heights[i]), plot_x(p, edges[i + 1]));
	fprintf(p->out, "V%.1fZ\"/>\n", bottom);
}

void plot_dot(const struct plot *p, const char *class, double x, double y)
{
	fprintf(p->out, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n", class, plot_x(p, x),
		plot_y(p, y));
}

void plot_across(const struct plot *p, const char *class, double x, const char *text)
{
	double at = plot_x(p, x), bottom = p->top + p->height;
	bool left = at > p->left + p->width / 2;

	fprintf(p->out, "<line class=\"line %s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", class, at, at,
		p->top, bottom);
	if (text)
		fprintf(p->out, "<text class=\"note\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
			left ? "end" : "start", left ? at - 6 : at + 6, bottom - 10, text);
}

void plot_along(const struct plot *p, const char *class, double y, bool at_end, const char *text)
{
	double at = plot_y(p, y);

	fprintf(p->out, "<line class=\"line %s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", class, p->left,
		p->left + p->width, at, at);
	fprintf(p->out, "<text class=\"note\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
		at_end ? "end" : "start", at_end ? p->left + p->width - 6 : p->left + 6, at - 6, text);
}

void plot_nothing(const struct plot *p, const char *text)
{
	fprintf(p->out, "<text class=\"title\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
		p->left + p->width / 2, p->top + p->height / 2 + 4, text);
}

void plot_caption(const struct plot *p, const char *text)
{
	fprintf(p->out, "<text class=\"head\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", p->left, p->top - 8, text);
}

void plot_key(const struct plot *p, const char *class, bool area, double x, const char *text)
{
	double y = p->top - 14;

	if (area)
		fprintf(p->out, "<rect class=\"bar %s\" x=\"%.1f\" y=\"%.1f\" width=\"22\" height=\"9\"/>\n", class,
			p->left + x, y - 5);
	else
		fprintf(p->out, "<line class=\"line %s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", class,
			p->left + x, p->left + x + 22, y, y);
	fprintf(p->out, "<text class=\"key\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", p->left + x + 28, y + 4, text);
}
