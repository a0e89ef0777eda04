/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at a namespace's counters while a replay goes on.
 */
#include <stdlib.h>

#include "tools/cli.h"
#include "tools/host.h"
#include "tools/report.h"

#define FIRST_PAUSE_NS 50000000u

static bool number(const char *text, const char *name, uint64_t *ret)
{
	char *value = host_line(text, name);

	if (!value)
		return false;
	*ret = strtoull(value, NULL, 10);
	free(value);
	return true;
}

/* By how much a counter rose; one that fell began anew. */
static uint64_t rise(uint64_t *last, uint64_t now)
{
	uint64_t more = now >= *last ? now - *last : now;

	*last = now;
	return more;
}

static void forget_half(struct report_watch *w)
{
	for (uint32_t i = 1; i < w->count / 2; i++)
		w->look[i] = w->look[2 * i];
	w->count /= 2;
	w->pause_ns *= 2;
}

static void look(struct report_watch *w)
{
	const struct report_look *before = w->count ? &w->look[w->count - 1] : NULL;
	struct report_look now = {.at_ns = clock_ns() - w->begin_ns};
	uint64_t evicted, noroom;
	char file[PATH_MAX], *text;

	if (host_path(file, "%s/stats", w->path))
		return;
	text = host_read_file(file, NULL);
	if (!text) /* the daemon is being started again */
		return;
	if (number(text, "values_evicted", &evicted) && number(text, "put_noroom", &noroom) &&
		number(text, "slot_bytes", &now.slot_bytes) && number(text, "pages", &now.pages)) {
		if (before) {
			now.evicted = before->evicted + rise(&w->last_evicted, evicted);
			now.noroom = before->noroom + rise(&w->last_noroom, noroom);
		}
		w->last_evicted = evicted;
		w->last_noroom = noroom;
		number(text, "budget_bytes", &w->budget_bytes);
		w->look[w->count++] = now;
	}
	free(text);
}

void report_watch_start(struct report_watch *w, const char *path)
{
	w->path = path;
	w->begin_ns = clock_ns();
	w->pause_ns = FIRST_PAUSE_NS;
	w->count = 0;
	look(w);
}

void report_watch(struct report_watch *w)
{
	if (!w->path || (w->count && clock_ns() - w->begin_ns < w->look[w->count - 1].at_ns + w->pause_ns))
		return;
	if (w->count == REPORT_LOOKS)
		forget_half(w);
	look(w);
}

void report_watch_end(struct report_watch *w)
{
	if (w->path) {
		if (w->count == REPORT_LOOKS)
			forget_half(w);
		look(w);
	}
}
