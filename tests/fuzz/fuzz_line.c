/* SPDX-License-Identifier: Apache-2.0
 *
 * The line splitter of the text face: the same bytes in one piece and in pieces say the same, and words are clean.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fs/ctl_line.h"
#include "fs/record_name.h"
#include "tests/fuzz/fuzz.h"

static const char *const texts[] = {
	"help\n",
	"probe 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\r\n",
	"\n\r\n# comment\n evict\t--all \nstat\nplan\n",
	"pin 0000000000000100-00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
	"a b c d e f g h i j k l m n o p q r s t u v w x y z\n\0\n",
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *to)
{
	size_t count = sizeof(texts) / sizeof(texts[0]);

	if (n < count) {
		memcpy(to, texts[n], strlen(texts[n]));
		return strlen(texts[n]);
	}
	if (n >= count + 2)
		return 0;
	memset(to, n == count ? 'x' : ' ', FUZZ_INPUT_MAX); /* the longest line, the most words */
	for (size_t i = 0; n > count && i < FUZZ_INPUT_MAX; i += 2)
		to[i] = 'w';
	return FUZZ_INPUT_MAX;
}

static bool clean(const char *word)
{
	for (; *word; word++)
		if (*word <= ' ' || *word >= 0x7f)
			return false;
	return true;
}

struct outcome {
	unsigned lines, words;
	uint64_t sum; /* of their bytes */
	int64_t error;
};

static void take_words(struct ctl_line *line, struct outcome *out, struct why *why)
{
	char *words[CTL_LINE_WORDS];
	uint64_t consumed;
	uint8_t key[32];
	int count = ctl_line_words(line, words, why);

	assert(count <= (int)CTL_LINE_WORDS && line->bytes == 0);
	out->lines++;
	for (int i = 0; i < count; i++) {
		struct key endpoint;

		assert(clean(words[i]) && words[i][0]);
		for (const char *p = words[i]; *p; p++)
			out->sum = out->sum * 31 + (unsigned char)*p;
		out->words++;
		if (strlen(words[i]) >= 2 * sizeof(key))
			hex_parse(words[i], sizeof(key), key);
		record_name_parse(words[i], &consumed, &endpoint);
	}
	if (count < 0)
		out->error = count;
}

static struct outcome split(const uint8_t *data, size_t bytes, size_t piece)
{
	struct ctl_line *line = calloc(1, sizeof(*line));
	struct outcome out = {0};

	for (size_t at = 0; at < bytes && !out.error;) {
		size_t n = bytes - at < piece ? bytes - at : piece, taken = 0;
		struct why why = WHY_INIT;
		int r = ctl_line_take(line, (const char *)data + at, n, &taken, &why);

		if (r < 0)
			out.error = r;
		else
			assert(taken >= 1 && taken <= n);
		if (r == CTL_LINE_WHOLE)
			take_words(line, &out, &why);
		assert(!out.error || (why.error == -out.error && why.text[0] && !line->bytes));
		at += taken;
	}
	free(line);
	return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct outcome whole = split(data, bytes, bytes), one = split(data, bytes, 1),
		       some = split(data, bytes, 1 + (bytes ? data[0] : 0));

	assert(!memcmp(&whole, &one, sizeof(whole)) && !memcmp(&whole, &some, sizeof(whole)));
	return 0;
}
