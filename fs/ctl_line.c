/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ctl_line.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* A byte of a line; "\r" is looked at when the line is whole. */
static int check_byte(unsigned char c, size_t column, struct why *why)
{
	if ((c >= ' ' && c < 0x7f) || c == '\t' || c == '\r')
		return 0;
	return why_set(why, EINVAL, "byte 0x%02x in column %zu: a command has printable ASCII, blanks and tabs only", c,
		column);
}

/* The line without its end: a "\r" there is dropped, anywhere else it is refused. */
static int finish(struct ctl_line *line, struct why *why)
{
	const char *cr;

	if (line->bytes && line->text[line->bytes - 1] == '\r')
		line->bytes--;
	cr = memchr(line->text, '\r', line->bytes);
	if (cr)
		return why_set(why, EINVAL, "byte 0x0d in column %zu: a carriage return ends a line or is none",
			(size_t)(cr - line->text) + 1);
	if (line->bytes > CTL_LINE_BYTES)
		return why_set(why, EMSGSIZE, "the line is over the limit of %u bytes", CTL_LINE_BYTES);
	line->text[line->bytes] = '\0';
	return CTL_LINE_WHOLE;
}

static int take(struct ctl_line *line, const char *from, size_t bytes, size_t *taken, struct why *why)
{
	int r;

	for (size_t i = 0; i < bytes; i++) {
		if (from[i] == '\n') {
			*taken = i + 1;
			return finish(line, why);
		}
		if (line->bytes >= CTL_LINE_BYTES + (from[i] == '\r'))
			return why_set(why, EMSGSIZE, "the line is over the limit of %u bytes", CTL_LINE_BYTES);
		r = check_byte((unsigned char)from[i], line->bytes + 1, why);
		if (r)
			return r;
		line->text[line->bytes++] = from[i];
	}
	*taken = bytes;
	return 0;
}

int ctl_line_take(struct ctl_line *line, const char *from, size_t bytes, size_t *taken, struct why *why)
{
	size_t n = 0;
	int r = take(line, from, bytes, &n, why);

	assert(line->bytes < sizeof(line->text));
	if (r < 0)
		line->bytes = 0;
	else
		*taken = n;
	return r;
}

int ctl_line_words(struct ctl_line *line, char *words[CTL_LINE_WORDS], struct why *why)
{
	char *rest = NULL, *word = strtok_r(line->text, " \t", &rest);
	unsigned count = 0;

	line->bytes = 0;
	if (word && word[0] == '#')
		return 0;
	for (; word; word = strtok_r(NULL, " \t", &rest)) {
		if (count == CTL_LINE_WORDS)
			return why_set(why, E2BIG, "the line has more than %u words, the most that a command has",
				CTL_LINE_WORDS);
		words[count++] = word;
	}
	return (int)count;
}
