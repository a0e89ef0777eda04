/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures as SVG inside a page: scales, axes with readable ticks, lines, bars, marks. Colours are classes of the page's
 * style sheet, so that a picture follows the reader's light or dark.
 */
#ifndef PREFIXFS_TOOLS_REPORT_PLOT_H
#define PREFIXFS_TOOLS_REPORT_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum unit {
	UNIT_COUNT,   /* 12,345; 1.2 M */
	UNIT_PERCENT, /* of a fraction */
	UNIT_SECONDS,
	UNIT_NS,    /* as ns, us, ms, s */
	UNIT_BYTES, /* KiB, MiB, ... */
	UNIT_RATE,  /* bytes a second as kB/s, MB/s, GB/s */
};

enum scale {
	SCALE_LINEAR,
	SCALE_DECADES, /* logarithmic, ticks at powers of ten */
	SCALE_DOUBLES, /* logarithmic, ticks at powers of two */
};

#define PLOT_TICKS 24u
#define PLOT_TEXT 48u

/* Ends of an axis and its ticks. */
struct axis {
	enum scale scale;
	enum unit unit;
	double from, to;
	unsigned ticks;
	double tick[PLOT_TICKS];
};

/* An axis that begins and ends at the values given, or for @round a little outside, at a tick. @about: how many ticks there is
 * room for. Logarithmic ones need 0 < @from < @to. */
void axis_init(struct axis *axis, enum scale scale, enum unit unit, double from, double to, unsigned about, bool round);
/* As a tick says it, in HTML. */
void unit_text(char to[PLOT_TEXT], enum unit unit, double value);
/* A whole number with commas. */
void count_text(char to[PLOT_TEXT], uint64_t value);

/* A data area in a picture. */
struct plot {
	FILE *out;
	double left, top, width, height;
	struct axis x, y;
};

/* A picture of @width by @height units, which a screen reader calls @title. */
void picture_begin(FILE *out, double width, double height, const char *title);
void picture_end(FILE *out);

double plot_x(const struct plot *plot, double value);
double plot_y(const struct plot *plot, double value);
/* Grid, ticks and their texts; a title NULL leaves the texts of that axis out. */
void plot_axes(const struct plot *plot, const char *x_title, const char *y_title);
/* A line through @count points; @class names its colour and dashes. Points whose y is NaN interrupt it. */
void plot_line(const struct plot *plot, const char *class, const double *x, const double *y, size_t count);
/* @count bars side by side, bar i from @edges[i] to @edges[i + 1]. */
void plot_bars(const struct plot *plot, const char *class, const double *edges, const double *heights, size_t count);
/* The same as an area under steps. */
void plot_area(const struct plot *plot, const char *class, const double *edges, const double *heights, size_t count);
void plot_dot(const struct plot *plot, const char *class, double x, double y);
/* A line across at @x, with a text at its foot unless that is NULL. */
void plot_across(const struct plot *plot, const char *class, double x, const char *text);
/* A line along at @y, with a text at its end or its beginning. */
void plot_along(const struct plot *plot, const char *class, double y, bool at_end, const char *text);
/* A text in the middle of the data area, where there is nothing to show. */
void plot_nothing(const struct plot *plot, const char *text);
/* A text above the data area. */
void plot_caption(const struct plot *plot, const char *text);

/* One entry of a legend above the data area, at @x units from its left. */
void plot_key(const struct plot *plot, const char *class, bool area, double x, const char *text);

/* @text as HTML. */
void html_text(FILE *out, const char *text);

#endif
