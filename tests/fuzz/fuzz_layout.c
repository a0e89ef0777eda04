/* SPDX-License-Identifier: Apache-2.0
 *
 * A layout's JSON. What is accepted is within its limits, and its own JSON says the same again.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "index/layout.h"
#include "tests/fuzz/fuzz.h"

static const char *const texts[] = {
	"{\"version\":1,\"identity\":{\"model\":\"a\"},\"world\":1,\"page_tokens\":64,\"classes\":[{\"name\":\"kv\",\"kind\":"
	"\"dense\",\"planes\":[{\"name\":\"K\",\"bytes\":8192}]}]}",
	"{\"version\":1,\"identity\":{\"model\":\"a\",\"revision\":\"r\",\"kv_dtype\":\"bf16\",\"execution\":\"e\",\"adapters\":"
	"\"\",\"engine\":\"v\",\"hash\":\"h\",\"hash_seed\":\"0\",\"isolation\":\"t\"},\"world\":2,\"page_tokens\":16,\"memory\":"
	"{\"floor\":1073741824},\"context\":131072,\"ladder\":{\"interval\":256},\"classes\":[{\"name\":\"kv\",\"kind\":\"dense\",\"every\":16,\"share_of_rank\":[0,1],\"planes\":"
	"[{\"name\":\"L.K\",\"count\":36,\"bytes\":65536},{\"name\":\"L.V\",\"count\":36,\"bytes\":65536}]},{\"name\":\"w\","
	"\"kind\":\"window\",\"sink\":1,\"last\":4,\"every\":32,\"share_of_rank\":[0,0],\"planes\":[{\"name\":\"x\",\"bytes\":1}]}"
	",{\"name\":\"st\",\"kind\":\"state\",\"share_of_rank\":[0,1],\"share_planes\":[[{\"name\":\"S\",\"bytes\":5000}],"
	"[{\"name\":\"S\",\"bytes\":10}]]}]}",
	"{\"version\":1.0,\"identity\":{\"model\":\"\\u0000\\ud83d\\ude00\"},\"world\":1e3,\"classes\":[[[[null,true,false,-1]]]]}",
	"{\"version\":18446744073709551616,\"world\":-9223372036854775808,\"page_tokens\":4294967296,\"classes\":[]}",
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *to)
{
	if (n >= sizeof(texts) / sizeof(texts[0]))
		return 0;
	memcpy(to, texts[n], strlen(texts[n]));
	return strlen(texts[n]);
}

static void within_limits(const struct layout *l)
{
	assert(l->classes >= 1 && l->classes <= LAYOUT_MAX_CLASSES);
	assert(l->world >= 1 && l->world <= LAYOUT_MAX_WORLD);
	assert(l->page_tokens >= 1 && l->page_tokens <= LAYOUT_MAX_PAGE_TOKENS);
	assert(l->context <= LAYOUT_MAX_CONTEXT && l->interval <= LAYOUT_MAX_CONTEXT && l->interval % l->page_tokens == 0);
	for (uint32_t c = 0; c < l->classes; c++) {
		assert(l->class[c].shares >= 1 && l->class[c].shares <= LAYOUT_MAX_SHARES);
		for (uint32_t s = 0; s < l->class[c].shares; s++) {
			const struct share *share = &l->class[c].share[s];
			uint64_t bytes = 0;

			for (uint32_t p = 0; p < share->plane_kinds; p++)
				bytes += share->planes[p].count * share->planes[p].bytes;
			assert(bytes == share->payload_bytes && bytes <= LAYOUT_MAX_VALUE && bytes > 0);
			assert(share->slot_bytes >= bytes && share->slot_bytes % LAYOUT_VALUE_ALIGN == 0);
		}
		for (uint32_t r = 0; r < l->world; r++)
			assert(l->share_of_rank[r][c] < l->class[c].shares);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct layout *layout = NULL, *again = NULL;
	struct why why = WHY_INIT;
	int r = layout_parse((const char *)data, bytes, &layout, &why);

	if (r) {
		assert(r == -why.error && why.text[0] && !layout);
		return 0;
	}
	within_limits(layout);
	r = layout_parse(layout->json, strlen(layout->json), &again, &why);
	if (r) {
		fprintf(stderr, "its own JSON is refused: %s\n%s\n", why.text, layout->json);
		abort();
	}
	assert(!strcmp(layout->json, again->json));
	assert(!memcmp(layout->fingerprint, again->fingerprint, sizeof(layout->fingerprint)));
	layout_free(&layout);
	layout_free(&again);
	return 0;
}
