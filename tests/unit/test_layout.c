/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts: what is accepted and what follows from it; what is refused, with which sentence.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "index/layout.h"

#define IDENTITY "\"identity\":{\"model\":\"m\"}"
#define PLANES "\"planes\":[{\"name\":\"k\",\"bytes\":100}]"
#define KV "{\"name\":\"kv\",\"kind\":\"dense\"," PLANES "}"
#define WITH_CLASSES(classes) "{\"version\":1," IDENTITY ",\"world\":2,\"page_tokens\":64,\"classes\":[" classes "]}"
#define WITH_CLASS(members) WITH_CLASSES("{\"name\":\"c\"," members "}")
#define DENSE "\"kind\":\"dense\","

static struct layout *parse(const char *text)
{
	struct why why = WHY_INIT;
	struct layout *layout = NULL;

	if (layout_parse(text, strlen(text), &layout, &why))
		fail_msg("%s", why.text);
	return layout;
}

static void test_good(void **state)
{
	struct layout *l = parse(
		"{\"version\":1,\"identity\":{\"model\":\"Qwen\",\"kv_dtype\":\"bf16\"},\"world\":4,\"page_tokens\":64,"
		"\"memory\":{\"floor\":4096,\"blobs\":{\"bytes\":65536}},\"classes\":["
		"{\"name\":\"kv\",\"kind\":\"dense\",\"planes\":[{\"name\":\"L.K\",\"count\":36,\"bytes\":65536},"
		"{\"name\":\"L.V\",\"count\":36,\"bytes\":65537}]},"
		"{\"name\":\"idx\",\"kind\":\"dense\",\"every\":256,\"share_of_rank\":[0,0,1,1],"
		"\"share_planes\":[[{\"name\":\"a\",\"bytes\":1}],[{\"name\":\"a\",\"bytes\":4097}]]},"
		"{\"name\":\"win\",\"kind\":\"window\",\"sink\":1,\"last\":3,\"share_of_rank\":[0,0,0,0]," PLANES "},"
		"{\"name\":\"gdn\",\"kind\":\"state\"," PLANES "}]}");

	(void)state;
	assert_int_equal(l->world, 4);
	assert_int_equal(l->page_tokens, 64);
	assert_int_equal(l->classes, 4);
	assert_int_equal(l->floor_bytes, 4096);
	assert_int_equal(l->blobs_bytes, 65536);
	assert_int_equal(l->blobs_count, 16384);
	assert_int_equal(l->page_columns, 4 + 2 + 1);
	assert_int_equal(l->row_columns, 4);
	assert_int_equal(layout_column(l, 0, 3), 3);
	assert_int_equal(layout_column(l, 1, 1), 5);
	assert_int_equal(layout_column(l, 2, 0), 6);
	assert_int_equal(layout_column(l, 3, 2), 2);
	assert_true(layout_is_row(l, 3) && !layout_is_row(l, 2));
	assert_int_equal(l->class[0].shares, 4);
	assert_int_equal(l->share_of_rank[3][0], 3);
	assert_int_equal(l->share_of_rank[2][1], 1);
	assert_int_equal(l->class[0].share[2].plane_kinds, 2);
	assert_int_equal(l->class[0].share[2].payload_bytes, 36 * (65536 + 65537));
	assert_int_equal(l->class[0].share[2].slot_bytes, (36 * (65536 + 65537) + 4095) / 4096 * 4096);
	assert_int_equal(l->class[1].every_pages, 4);
	assert_int_equal(l->class[1].share[0].slot_bytes, 4096);
	assert_int_equal(l->class[1].share[1].slot_bytes, 8192);
	assert_int_equal(l->class[2].sink, 1);
	assert_int_equal(l->class[2].last, 3);
	assert_int_equal(l->class[3].every_pages, 1);
	assert_true(layout_has_value(l, 0, 64));
	assert_false(layout_has_value(l, 1, 192));
	assert_true(layout_has_value(l, 1, 512));

	/* The canonical text is a layout, the same one. */
	struct layout *again = parse(l->json);

	assert_string_equal(l->json, again->json);
	assert_memory_equal(l->fingerprint, again->fingerprint, 16);
	assert_memory_equal(l->identity, again->identity, 32);
	layout_free(&again);
	layout_free(&l);
	assert_null(l);
}

static void test_identity(void **state)
{
	struct layout *a = parse(WITH_CLASSES(KV));
	/* written otherwise, the same */
	struct layout *b = parse(
		"{ \"classes\": [{\"planes\":[{\"bytes\":100,\"count\":1,\"name\":\"k\"}],\"every\":64,\"kind\":\"dense\","
		"\"share_of_rank\":[0,1],\"name\":\"kv\"}], \"page_tokens\":64, \"world\":2, \"memory\":{\"floor\":1},"
		"\"identity\":{\"revision\":\"\",\"model\":\"m\"}, \"version\":1 }");
	struct layout *c = parse(
		"{\"version\":1,\"identity\":{\"model\":\"n\"},\"world\":2,\"page_tokens\":64,\"classes\":[" KV "]}");
	struct layout *d = parse("{\"version\":1," IDENTITY ",\"world\":2,\"page_tokens\":32,\"classes\":[" KV "]}");

	(void)state;
	assert_string_equal(a->json,
		"{\"classes\":[{\"every\":64,\"kind\":\"dense\",\"name\":\"kv\",\"planes\":[{\"bytes\":100,\"count\":1,"
		"\"name\":\"k\"}],\"share_of_rank\":[0,1]}],\"identity\":{\"adapters\":\"\",\"engine\":\"\","
		"\"execution\":\"\",\"hash\":\"\",\"hash_seed\":\"\",\"isolation\":\"\",\"kv_dtype\":\"\",\"model\":\"m\","
		"\"revision\":\"\"},\"page_tokens\":64,\"version\":1,\"world\":2}");
	assert_memory_equal(a->identity, b->identity, 32);
	assert_memory_equal(a->fingerprint, b->fingerprint, 16);
	assert_memory_not_equal(a->identity, c->identity, 32);
	assert_memory_not_equal(a->fingerprint, c->fingerprint, 16);
	assert_memory_equal(a->identity, d->identity, 32);
	assert_memory_not_equal(a->fingerprint, d->fingerprint, 16);
	layout_free(&a);
	layout_free(&b);
	layout_free(&c);
	layout_free(&d);
}

/* Members that say nothing about what the values are. */
static void test_ladder(void **state)
{
	struct layout *plain = parse(WITH_CLASSES(KV));
	struct layout *odd = parse("{\"version\":1," IDENTITY ",\"world\":2,\"page_tokens\":48,\"classes\":[" KV "]}");
	struct layout *given = parse("{\"version\":1," IDENTITY ",\"world\":2,\"page_tokens\":64,\"context\":131072,"
				     "\"ladder\":{\"interval\":256},\"classes\":[" KV "]}");
	struct layout *none = parse("{\"version\":1," IDENTITY ",\"world\":2,\"page_tokens\":64,"
				    "\"ladder\":{\"interval\":0},\"classes\":[" KV "]}");
	struct layout *again = parse(given->json);

	(void)state;
	assert_int_equal(plain->interval, 8192);
	assert_int_equal(plain->context, 0);
	assert_int_equal(odd->interval, 8208);
	assert_int_equal(given->interval, 256);
	assert_int_equal(given->context, 131072);
	assert_int_equal(none->interval, 0);
	assert_memory_equal(plain->fingerprint, given->fingerprint, 16);
	assert_memory_equal(plain->fingerprint, none->fingerprint, 16);
	assert_memory_equal(plain->identity, given->identity, 32);
	assert_string_equal(given->json, again->json);
	assert_int_equal(again->interval, 256);
	assert_int_equal(again->context, 131072);
	assert_true(plain->shared && plain->dense_mask == 1 && !plain->window_mask && !plain->state_mask);
	layout_free(&plain);
	layout_free(&odd);
	layout_free(&given);
	layout_free(&none);
	layout_free(&again);
}

static const struct {
	const char *text, *sentence;
} bad[] = {
	{"", "the layout is no JSON: line 1"},
	{"{", "the layout is no JSON: line 1"},
	{"[]", "the layout is a list; it must be an object"},
	{"{}", "version is missing"},
	{"{\"version\":2}", "version is 2; it must be from 1 to 1"},
	{"{\"version\":\"1\"}", "version is a string; it must be an integer"},
	{"{\"version\":1,\"version\":1}", "the layout is no JSON: line 1"},
	{"{\"version\":1,\"page\":1}", "page is no member of a layout (version 1)"},
	{"{\"version\":1}", "identity is missing"},
	{"{\"version\":1,\"identity\":{}}", "identity.model is missing"},
	{"{\"version\":1,\"identity\":{\"model\":\"\"}}", "identity.model has 0 bytes; it must have from 1 to 1024"},
	{"{\"version\":1,\"identity\":{\"model\":3}}", "identity.model is an integer; it must be a string"},
	{"{\"version\":1,\"identity\":{\"model\":\"m\",\"lora\":\"x\"}}", "identity.lora is no member of a layout"},
	{"{\"version\":1," IDENTITY "}", "world is missing"},
	{"{\"version\":1," IDENTITY ",\"world\":0}", "world is 0; it must be from 1 to 1024"},
	{"{\"version\":1," IDENTITY ",\"world\":1.5}", "world is a fraction; it must be an integer"},
	{"{\"version\":1," IDENTITY ",\"world\":1025}", "world is 1025; it must be from 1 to 1024"},
	{"{\"version\":1," IDENTITY ",\"world\":1}", "page_tokens is missing"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":65537}",
		"page_tokens is 65537; it must be from 1 to 65536"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1}", "classes is missing"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1,\"memory\":7}",
		"memory is an integer; it must be an object"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1,\"memory\":{\"blobs\":{\"bytes\":65535}}}",
		"memory.blobs.bytes is 65535; it must be from 65536 to 1099511627776"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1,\"memory\":{\"blobs\":{\"bytes\":65536,\"count\":0}}}",
		"memory.blobs.count is 0; it must be from 1 to 1048576"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1,\"memory\":{\"floor\":-1}}",
		"memory.floor is -1; it must be from 0 to 9223372036854775807"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1,\"memory\":{\"roof\":1}}",
		"memory.roof is no member of a layout"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":1,\"context\":0}",
		"context is 0; it must be from 1 to 1099511627776"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":64,\"ladder\":{\"interval\":100}}",
		"ladder.interval is 100; it must be 0 or a multiple of page_tokens, 64"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":64,\"ladder\":8192}",
		"ladder is an integer; it must be an object"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":64,\"ladder\":{\"step\":64}}",
		"ladder.step is no member of a layout"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":64,\"context\":131072,\"classes\":[" KV
	 ",{\"name\":\"w\",\"kind\":\"window\",\"sink\":4,\"last\":4096," PLANES "}]}",
		"classes[1]: sink 4 and last 4096 values of 64 tokens are 262400, over context, 131072"},
	{"{\"version\":1," IDENTITY ",\"world\":1,\"page_tokens\":64,\"context\":131072,\"classes\":["
	 "{\"name\":\"w\",\"kind\":\"window\",\"every\":4294967296,\"sink\":4294967295,\"last\":4294967295," PLANES "}]}",
		"classes[0]: sink 4294967295 and last 4294967295 values of 4294967296 tokens are 18446744073709551615, over context"},
	{WITH_CLASSES(""), "classes has 0 elements; it must have from 1 to 16"},
	{WITH_CLASSES(KV "," KV), "classes[0].name and classes[1].name are both \"kv\""},
	{WITH_CLASSES("1"), "classes[0] is an integer; it must be an object"},
	{WITH_CLASSES("{}"), "classes[0].name is missing"},
	{WITH_CLASSES("{\"name\":\"a b\"}"), "classes[0].name has byte 0x20 at 1"},
	{WITH_CLASSES("{\"name\":\"\"}"), "classes[0].name has 0 bytes; it must have from 1 to 63"},
	{WITH_CLASSES("{\"name\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}"),
		"classes[0].name has 64 bytes; it must have from 1 to 63"},
	{WITH_CLASS("\"kind\":\"sparse\""), "classes[0].kind is \"sparse\"; it must be dense, window or state"},
	{WITH_CLASS("\"colour\":1"), "classes[0].colour is no member of a layout"},
	{WITH_CLASS(DENSE PLANES ",\"every\":65"), "classes[0].every is 65; it must be a multiple of page_tokens, 64"},
	{WITH_CLASS(DENSE PLANES ",\"every\":0"), "classes[0].every is 0; it must be from 1 to"},
	{WITH_CLASS(DENSE PLANES ",\"sink\":1"), "classes[0].sink and classes[0].last go with kind window only"},
	{WITH_CLASS("\"kind\":\"window\"," PLANES), "classes[0].last is missing"},
	{WITH_CLASS("\"kind\":\"window\",\"last\":0," PLANES), "classes[0].last is 0; it must be from 1 to"},
	{WITH_CLASS("\"kind\":\"state\",\"every\":64," PLANES), "classes[0].every does not go with kind state"},
	{WITH_CLASS(DENSE PLANES ",\"share_of_rank\":[0]"),
		"classes[0].share_of_rank has 1 elements; it must have from 2 to 2"},
	{WITH_CLASS(DENSE PLANES ",\"share_of_rank\":[0,64]"),
		"classes[0].share_of_rank[1] is 64; it must be from 0 to 63"},
	{WITH_CLASS(DENSE PLANES ",\"share_of_rank\":[0,2]"), "classes[0].share_of_rank gives share 1 to no rank"},
	{WITH_CLASS(DENSE "\"share_of_rank\":[0,0]"), "classes[0].planes and classes[0].share_planes are both missing"},
	{WITH_CLASS(DENSE PLANES ",\"share_planes\":[]"),
		"classes[0].planes and classes[0].share_planes are both given"},
	{WITH_CLASS(DENSE "\"planes\":[]"), "classes[0].planes has 0 elements; it must have from 1 to 4096"},
	{WITH_CLASS(DENSE "\"planes\":[3]"), "classes[0].planes[0] is an integer; it must be an object"},
	{WITH_CLASS(DENSE "\"planes\":[{\"name\":\"k\"}]"), "classes[0].planes[0].bytes is missing"},
	{WITH_CLASS(DENSE "\"planes\":[{\"name\":\"k\",\"bytes\":0}]"),
		"classes[0].planes[0].bytes is 0; it must be from 1 to 4294967296"},
	{WITH_CLASS(DENSE "\"planes\":[{\"name\":\"k\",\"bytes\":1,\"count\":4097}]"),
		"classes[0].planes[0].count is 4097; it must be from 1 to 4096"},
	{WITH_CLASS(DENSE
		 "\"planes\":[{\"name\":\"k\",\"bytes\":1,\"count\":4000},{\"name\":\"v\",\"bytes\":1,\"count\":97}]"),
		"class \"c\", share 0: 4097 planes are over the limit of 4096"},
	{WITH_CLASS(DENSE "\"planes\":[{\"name\":\"k\",\"bytes\":4294967296,\"count\":2}]"),
		"class \"c\", share 0: 8589934592 bytes a value are over the limit of 4294967296"},
	{WITH_CLASS(DENSE "\"planes\":[{\"name\":\"k\",\"bytes\":1},{\"name\":\"k\",\"bytes\":1}]"),
		"class \"c\", share 0: two planes are named \"k\""},
	{WITH_CLASS(DENSE "\"share_planes\":[[{\"name\":\"k\",\"bytes\":1}]]"),
		"classes[0].share_planes has 1 elements; it must have from 2 to 2"},
	{WITH_CLASS(DENSE "\"share_planes\":[[{\"name\":\"k\",\"bytes\":1}],[]]"),
		"classes[0].share_planes[1] has 0 elements; it must have from 1 to 4096"},
	{"{\"version\":1," IDENTITY ",\"world\":65,\"page_tokens\":64,\"classes\":[" KV "]}",
		"classes[0].share_of_rank is missing; a share for each of 65 ranks is over the limit of 64"},
};

static void test_bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct why why = WHY_INIT;
		struct layout *layout = NULL;

		assert_int_equal(layout_parse(bad[i].text, strlen(bad[i].text), &layout, &why), -EINVAL);
		assert_null(layout);
		assert_int_equal(why.error, EINVAL);
		if (strncmp(why.text, bad[i].sentence, strlen(bad[i].sentence)))
			fail_msg("%s\n  says: %s\n  not:  %s", bad[i].text, why.text, bad[i].sentence);
	}
}

static void test_size(void **state)
{
	struct why why = WHY_INIT;
	struct layout *layout = NULL;
	size_t size = LAYOUT_MAX_JSON + 1;
	char *text = malloc(size);

	(void)state;
	memset(text, ' ', size);
	memcpy(text, WITH_CLASSES(KV), strlen(WITH_CLASSES(KV)));
	assert_int_equal(layout_parse(text, size, &layout, &why), -EFBIG);
	assert_string_equal(why.text, "a layout of 131073 bytes is over the limit of 131072");
	assert_int_equal(layout_parse(text, size - 1, &layout, &why), 0);
	layout_free(&layout);
	free(text);
}

/* Every prefix of a good layout is refused, and none is read beyond its end. */
static void test_prefixes(void **state)
{
	static const char text[] = WITH_CLASSES(KV);

	(void)state;
	for (size_t size = 0; size < strlen(text); size++) {
		char *copy = malloc(size ? size : 1);
		struct layout *layout = NULL;

		memcpy(copy, text, size);
		assert_int_equal(layout_parse(copy, size, &layout, NULL), -EINVAL);
		free(copy);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_identity),
		cmocka_unit_test(test_ladder),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_size),
		cmocka_unit_test(test_prefixes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
