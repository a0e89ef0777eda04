/* SPDX-License-Identifier: Apache-2.0
 *
 * The line splitter of the text face of ctl.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/ctl_line.h"

/* What came out of @bytes written in pieces of @piece: words joined by '|', lines ended by ';', "!ERRNO" for an error,
 * after which the rest is left off. */
static void split(const char *from, size_t bytes, size_t piece, char *to)
{
	struct ctl_line *line = calloc(1, sizeof(*line)); /* so that the sanitizer sees its end */

	to[0] = '\0';
	for (size_t at = 0; at < bytes;) {
		size_t n = bytes - at < piece ? bytes - at : piece, taken = SIZE_MAX;
		char *words[CTL_LINE_WORDS];
		struct why why = WHY_INIT;
		int r = ctl_line_take(line, from + at, n, &taken, &why), count = 0;

		if (r == CTL_LINE_WHOLE)
			count = ctl_line_words(line, words, &why);
		if (r < 0 || count < 0) {
			assert_int_equal(why.error, r < 0 ? -r : -count);
			assert_true(why.text[0]);
			assert_int_equal(line->bytes, 0);
			sprintf(to + strlen(to), "!%s", strerrorname_np(why.error));
			break;
		}
		assert_true(taken > 0 && taken <= n);
		at += taken;
		for (int i = 0; i < count; i++)
			sprintf(to + strlen(to), "%s%s", i ? "|" : "", words[i]);
		if (r == CTL_LINE_WHOLE)
			strcat(to, ";");
	}
	free(line);
}

static void is_split(const char *from, size_t bytes, const char *expected)
{
	static char got[1 << 16];

	for (size_t piece = 1; piece <= bytes; piece++) {
		split(from, bytes, piece, got);
		assert_string_equal(got, expected);
	}
}

#define IS_SPLIT(from, expected) is_split(from, sizeof(from) - 1, expected)

static void lines_however_they_are_cut(void **state)
{
	IS_SPLIT("help\n", "help;");
	IS_SPLIT("help", "");
	IS_SPLIT("a b\nc\n", "a|b;c;");
	IS_SPLIT("  probe \t x  y \n", "probe|x|y;");
	IS_SPLIT("stat\r\nplan\r\n", "stat;plan;");
	IS_SPLIT("\n\r\n \t\n# help\n  #help\nhelp # no comment\n", ";;;;;help|#|no|comment;");
}

static void bytes_that_no_line_has(void **state)
{
	char line[8] = "ab?cd\n";

	IS_SPLIT("x\nst\0at\n", "x;!EINVAL");
	IS_SPLIT("st\rat\n", "!EINVAL");
	IS_SPLIT("stat\r\r\n", "!EINVAL");
	for (unsigned c = 0; c < 256; c++) {
		if ((c >= ' ' && c < 0x7f) || c == '\t' || c == '\n')
			continue;
		line[2] = (char)c;
		is_split(line, 6, "!EINVAL");
	}
}

static void as_long_as_may_be_and_one_more(void **state)
{
	static char text[CTL_LINE_BYTES + 3], got[1 << 16];
	const size_t pieces[] = {1, 7, CTL_LINE_BYTES - 1, CTL_LINE_BYTES, CTL_LINE_BYTES + 1, CTL_LINE_BYTES + 3};

	for (unsigned i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		memset(text, 'x', sizeof(text));
		text[CTL_LINE_BYTES] = '\n';
		split(text, CTL_LINE_BYTES + 1, pieces[i], got);
		assert_int_equal(strlen(got), CTL_LINE_BYTES + 1);
		memcpy(text + CTL_LINE_BYTES, "\r\n", 2);
		split(text, CTL_LINE_BYTES + 2, pieces[i], got);
		assert_int_equal(strlen(got), CTL_LINE_BYTES + 1);
		memcpy(text + CTL_LINE_BYTES, "x\n", 2);
		split(text, CTL_LINE_BYTES + 2, pieces[i], got);
		assert_string_equal(got, "!EMSGSIZE");
		memcpy(text + CTL_LINE_BYTES, "\rx\n", 3);
		split(text, CTL_LINE_BYTES + 3, pieces[i], got);
		assert_true(got[0] == '!');
	}
}

static void as_many_words_as_may_be(void **state)
{
	static char text[2 * CTL_LINE_WORDS + 3], got[1 << 16];

	for (unsigned i = 0; i <= CTL_LINE_WORDS; i++)
		memcpy(text + 2 * i, "w ", 2);
	text[2 * CTL_LINE_WORDS - 1] = '\n';
	split(text, 2 * CTL_LINE_WORDS, 100, got);
	assert_int_equal(strlen(got), 2 * CTL_LINE_WORDS);
	text[2 * CTL_LINE_WORDS - 1] = ' ';
	text[2 * CTL_LINE_WORDS + 1] = '\n';
	split(text, 2 * CTL_LINE_WORDS + 2, 100, got);
	assert_string_equal(got, "!E2BIG");
}

static void after_an_error_a_line_begins_anew(void **state)
{
	struct ctl_line line = {0};
	char *words[CTL_LINE_WORDS];
	struct why why = WHY_INIT;
	size_t taken = 99;

	assert_int_equal(ctl_line_take(&line, "half", 4, &taken, &why), 0);
	assert_int_equal(taken, 4);
	taken = 99;
	assert_int_equal(ctl_line_take(&line, "\1", 1, &taken, &why), -EINVAL);
	assert_int_equal(taken, 99);
	assert_int_equal(ctl_line_take(&line, "help\nrest", 9, &taken, &why), CTL_LINE_WHOLE);
	assert_int_equal(taken, 5);
	assert_int_equal(ctl_line_words(&line, words, &why), 1);
	assert_string_equal(words[0], "help");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_however_they_are_cut),
		cmocka_unit_test(bytes_that_no_line_has),
		cmocka_unit_test(as_long_as_may_be_and_one_more),
		cmocka_unit_test(as_many_words_as_may_be),
		cmocka_unit_test(after_an_error_a_line_begins_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
