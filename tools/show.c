/* SPDX-License-Identifier: Apache-2.0
 *
 * Output: JSON lines for programs, aligned text for people.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"

#define PROGRESS_AFTER_NS 1000000000ull
#define PROGRESS_EVERY_NS 100000000ull
#define PROGRESS_WIDTH 30
#define REAL_DIGITS 6

/* A value as people read it; to be freed. */
static char *text_of(const json_t *value)
{
	char *text = NULL;

	if (json_is_string(value))
		return strdup(json_string_value(value));
	if (json_is_null(value))
		return strdup("-");
	if (json_is_boolean(value))
		return strdup(json_is_true(value) ? "yes" : "no");
	if (json_is_real(value))
		return asprintf(&text, "%.*g", REAL_DIGITS, json_real_value(value)) < 0 ? NULL : text;
	return json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
}

static void dump_line(const json_t *object)
{
	json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
	putchar('\n');
	fflush(stdout);
}

void show_object(json_t *object, bool json)
{
	const char *name;
	json_t *value;
	int width = 0;

	if (json) {
		dump_line(object);
		json_decref(object);
		return;
	}
	json_object_foreach(object, name, value) width = (int)strlen(name) > width ? (int)strlen(name) : width;
	json_object_foreach(object, name, value)
	{
		char *text = text_of(value);

		printf("%-*s  %s\n", width, name, text ? text : "?");
		free(text);
	}
	fflush(stdout);
	json_decref(object);
}

static int column_width(const json_t *array, const char *name)
{
	int width = (int)strlen(name);
	const json_t *row;
	size_t i;

	json_array_foreach(array, i, row)
	{
		char *text = text_of(json_object_get(row, name));

		if (text && (int)strlen(text) > width)
			width = (int)strlen(text);
		free(text);
	}
	return width;
}

void show_list(json_t *array, bool json)
{
	json_t *row, *first = json_array_get(array, 0);
	size_t i, columns = json_object_size(first), c = 0;
	const char *name;
	json_t *value;

	if (json) {
		json_array_foreach(array, i, row) dump_line(row);
	} else if (first) {
		int *widths = calloc(columns, sizeof(*widths));

		json_object_foreach(first, name, value)
		{
			int width = column_width(array, name);

			if (widths)
				widths[c] = width;
			c++;
			printf("%-*s%s", c < columns ? width : 0, name, c < columns ? "  " : "\n");
		}
		json_array_foreach(array, i, row)
		{
			c = 0;
			json_object_foreach(first, name, value)
			{
				json_t *cell = json_object_get(row, name);
				char *text = text_of(cell);
				int width = widths ? widths[c] : 0;

				c++;
				if (json_is_number(cell))
					printf("%*s%s", width, text ? text : "?", c < columns ? "  " : "\n");
				else
					printf("%-*s%s", c < columns ? width : 0, text ? text : "?",
						c < columns ? "  " : "\n");
				free(text);
			}
		}
		free(widths);
		fflush(stdout);
	}
	json_decref(array);
}

/* ---- progress --------------------------------------------------------------------------------------------------- */

uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void progress_start(struct progress *p, const char *what, uint64_t goal)
{
	*p = (struct progress){.what = what, .goal = goal, .start_ns = clock_ns(), .wanted = isatty(STDERR_FILENO)};
}

void progress_show(struct progress *p, uint64_t done)
{
	uint64_t now;
	int full;

	if (!p->wanted)
		return;
	now = clock_ns();
	if (now - p->start_ns < PROGRESS_AFTER_NS || now - p->shown_ns < PROGRESS_EVERY_NS)
		return;
	p->shown_ns = now;
	if (done > p->goal)
		done = p->goal;
	full = p->goal ? (int)(done * PROGRESS_WIDTH / p->goal) : 0;
	fprintf(stderr, "\r%s [%.*s%*s] %3.0f%%", p->what, full, "##############################",
		PROGRESS_WIDTH - full, "", p->goal ? 100.0 * (double)done / (double)p->goal : 0.0);
}

void progress_end(struct progress *p)
{
	if (p->shown_ns)
		fprintf(stderr, "\r%*s\r", (int)strlen(p->what) + PROGRESS_WIDTH + 9, "");
	p->shown_ns = 0;
}
