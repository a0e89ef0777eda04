/* SPDX-License-Identifier: Apache-2.0
 *
 * Written out by hand: printf() would cost several times as much, and somebody may read 100,000 a second.
 */
#include "fs/event_text.h"

#include <assert.h>
#include <string.h>

#include "fs/record_name.h"
#include "fs/version.h"

static const char *const names[EVENT_KINDS] = {
	[HOST_EVENT_STORED] = "stored",
	[HOST_EVENT_EVICTED] = "evicted",
	[HOST_EVENT_TRIMMED] = "trimmed",
	[HOST_EVENT_ROW_DROPPED] = "row_dropped",
	[HOST_EVENT_PINNED] = "pinned",
	[HOST_EVENT_UNPINNED] = "unpinned",
	[HOST_EVENT_CORRUPT] = "corrupt",
	[HOST_EVENT_SPILLED] = "spilled",
	[HOST_EVENT_DEMOTED] = "demoted",
	[HOST_EVENT_ROOM] = "room",
	[HOST_EVENT_GRANT] = "grant",
	[HOST_EVENT_RECUT] = "recut",
	[HOST_EVENT_RESET] = "reset",
	[HOST_EVENT_SPACE_CREATED] = "namespace_created",
	[HOST_EVENT_SPACE_REMOVED] = "namespace_removed",
	[HOST_EVENT_SESSION_ATTACHED] = "session_attached",
	[HOST_EVENT_SESSION_ENDED] = "session_ended",
	[EVENT_DEGRADED] = "degraded",
	[EVENT_RECOVERED] = "recovered",
	[EVENT_RESUMED] = "resumed",
};

static const char *const reasons[] = {
	[HOST_WHY_ROOM] = "room",
	[HOST_WHY_HAND] = "hand",
	[HOST_WHY_LOST] = "lost",
	[HOST_WHY_DISK] = "disk",
	[HOST_WHY_AGE] = "age",
};
#define REASONS (sizeof(reasons) / sizeof(reasons[0]))

static char *put(char *to, const char *text)
{
	size_t n = strlen(text);

	memcpy(to, text, n);
	return to + n;
}

static char *put_number(char *to, uint64_t number)
{
	char digits[20];
	unsigned n = 0;

	do {
		digits[n++] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	while (n)
		*to++ = digits[--n];
	return to;
}

/* `,"name":number` */
static char *put_member(char *to, const char *name, uint64_t number)
{
	to = put(to, ",\"");
	to = put(to, name);
	to = put(to, "\":");
	return put_number(to, number);
}

static char *put_string(char *to, const char *name, const char *text)
{
	static const char hex[] = "0123456789abcdef";

	to = put(to, ",\"");
	to = put(to, name);
	to = put(to, "\":\"");
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
			*to++ = (char)c;
		} else {
			to = put(to, "\\u00");
			*to++ = hex[c >> 4];
			*to++ = hex[c & 15];
		}
	}
	*to++ = '"';
	return to;
}

static char *put_head(char *to, uint64_t number, uint64_t time_us, const char *event)
{
	uint64_t fraction = time_us % 1000000;

	to = put(to, "{\"seq\":");
	to = put_number(to, number);
	to = put(to, ",\"time\":");
	to = put_number(to, time_us / 1000000);
	*to++ = '.';
	for (uint32_t unit = 100000; unit; unit /= 10)
		*to++ = (char)('0' + fraction / unit % 10);
	to = put(to, ",\"event\":\"");
	to = put(to, event);
	*to++ = '"';
	return to;
}

static char *put_record(char *to, const struct event *e)
{
	char name[RECORD_NAME_BYTES + 1];

	record_name(e->record.consumed, &e->record.endpoint, name);
	return put_string(to, "record", name);
}

static char *put_why(char *to, const struct event *e)
{
	assert(e->why < REASONS);
	return put_string(to, "why", reasons[e->why]);
}

static char *put_fields(char *to, const struct event *e, const char *text)
{
	switch ((int)e->kind) {
	case HOST_EVENT_STORED:
		to = put_record(to, e);
		to = put_member(to, "pages", e->pages);
		return put_member(to, "row", e->number);
	case HOST_EVENT_SPILLED:
	case HOST_EVENT_DEMOTED:
		to = put_record(to, e);
		to = put_member(to, e->kind == HOST_EVENT_SPILLED ? "pages" : "values", e->pages);
		return put_member(to, "bytes", e->number);
	case HOST_EVENT_EVICTED:
	case HOST_EVENT_TRIMMED:
		to = put_record(to, e);
		to = put_member(to, "pages", e->pages);
		return put_why(to, e);
	case HOST_EVENT_ROW_DROPPED:
		return put_why(put_record(to, e), e);
	case HOST_EVENT_PINNED:
	case HOST_EVENT_UNPINNED:
		return put_record(to, e);
	case HOST_EVENT_CORRUPT:
		to = put_record(to, e);
		return e->pages == TABLES_PAGE_ROW ? put_string(to, "page", "row") : put_member(to, "page", e->pages);
	case HOST_EVENT_GRANT:
	case HOST_EVENT_RECUT:
		to = put_member(to, "bytes", e->other.bytes);
		to = put_member(to, "class", e->other.class_index);
		return put_member(to, "share", e->other.share);
	case HOST_EVENT_RESET:
		return put_member(to, "generation", e->number);
	case HOST_EVENT_SESSION_ATTACHED:
	case HOST_EVENT_SESSION_ENDED:
		to = put_member(to, "session", e->number);
		return put_member(to, "pid", e->other.pid > 0 ? (uint64_t)e->other.pid : 0);
	case EVENT_DEGRADED:
	case EVENT_RECOVERED:
		return put_string(to, "text", text ? text : "");
	case EVENT_RESUMED:
		to = put_member(to, "restarts", e->number);
		to = put_member(to, "upgrades", e->other.bytes);
		return put_string(to, "version", version_text);
	default:
		return to;
	}
}

size_t event_line(
	const struct event *e, uint64_t number, const char *name, const char *text, char to[EVENT_LINE_BYTES])
{
	assert(e->kind < EVENT_KINDS && (!text || strlen(text) < EVENT_TEXT_BYTES));
	char *at = put_head(to, number, e->time_us, names[e->kind]);

	if (name)
		at = put_string(at, "ns", name);
	at = put(put_fields(at, e, text), "}\n");
	assert((size_t)(at - to) <= EVENT_LINE_BYTES);
	return (size_t)(at - to);
}

size_t event_gap_line(uint64_t first, uint64_t lost, uint64_t time_us, char to[EVENT_LINE_BYTES])
{
	char *at = put_head(to, first, time_us, "gap");

	at = put(put_member(at, "lost", lost), "}\n");
	return (size_t)(at - to);
}
