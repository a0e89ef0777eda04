/* SPDX-License-Identifier: Apache-2.0
 *
 * The tools without a daemon: options, both trace formats, keys and bytes that follow from them, latencies, layouts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/host.h"
#include "tools/latency.h"
#include "tools/layout_file.h"
#include "tools/mix.h"
#include "tools/trace.h"
#include "tools/value_bytes.h"

/* ---- options ---------------------------------------------------------------------------------------------------- */

static void options_of_all_kinds(void **state)
{
	const struct command command = {.name = "x"};
	const char *text = "old";
	uint64_t number = 1, bytes = 2, kept = 3;
	bool flag = false;
	const struct option_row rows[] = {
		{"text", OPTION_TEXT, &text, "T", "", 0, 0},
		{"number", OPTION_NUMBER, &number, "N", "", 0, 100},
		{"bytes", OPTION_BYTES, &bytes, "SIZE", "", 0, 0},
		{"kept", OPTION_NUMBER, &kept, "N", "", 0, 0},
		{"flag", OPTION_FLAG, &flag, NULL, "", 0, 0},
		{0},
	};
	char a[][12] = {"one", "--text=new", "--number", "77", "two", "--bytes", "3M", "--flag", "--", "--three"};
	char *argv[10];
	int argc = 10;

	for (int i = 0; i < argc; i++)
		argv[i] = a[i];
	options_read(&command, rows, &argc, argv);
	assert_int_equal(argc, 3);
	assert_string_equal(argv[0], "one");
	assert_string_equal(argv[1], "two");
	assert_string_equal(argv[2], "--three");
	assert_string_equal(text, "new");
	assert_true(number == 77 && bytes == 3u << 20 && kept == 3 && flag);
}

static void sizes(void **state)
{
	static const char *const wrong[] = {"", "K", "-1", "1KK", "1X", "1.5G", "99999999999999999999", "16777216T"};
	uint64_t n;

	assert_true(bytes_parse("0", &n) && n == 0);
	assert_true(bytes_parse("12", &n) && n == 12);
	assert_true(bytes_parse("4k", &n) && n == 4096);
	assert_true(bytes_parse("2T", &n) && n == 2ull << 40);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_false(bytes_parse(wrong[i], &n));
}

static void lines_of_small_files(void **state)
{
	const char *text = "parent pid: 12\nsocket: /run/a b/sock\nrecords 55\nempty:\nratio 0.5\nid 007\n";
	json_t *object = host_lines(text);
	char *line = host_line(text, "parent pid");

	assert_string_equal(line, "12");
	free(line);
	line = host_line(text, "records");
	assert_string_equal(line, "55");
	free(line);
	assert_null(host_line(text, "record"));
	assert_int_equal(json_integer_value(json_object_get(object, "parent pid")), 12);
	assert_string_equal(json_string_value(json_object_get(object, "socket")), "/run/a b/sock");
	assert_true(json_is_real(json_object_get(object, "ratio")));
	assert_true(json_is_string(json_object_get(object, "id")));
	json_decref(object);
}

/* ---- traces ----------------------------------------------------------------------------------------------------- */

static int read_text(const char *text, const struct trace_options *options, struct trace *ret)
{
	char path[] = "/tmp/prefixfs-trace-XXXXXX";
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	r = trace_read(path, options, ret);
	unlink(path);
	return r;
}

static void twister_is_pythons(void **state)
{
	struct twister t;

	twister_seed(&t, 1); /* random.Random(1).random(), three times */
	assert_true(twister_next(&t) == 0.13436424411240122);
	assert_true(twister_next(&t) == 0.8474337369372327);
	assert_true(twister_next(&t) == 0.763774618976614);
}

static void mooncake_format(void **state)
{
	const struct trace_options options = {0};
	struct trace t;
	struct chain *chains;
	struct pfs_key first[3], *keys;

	assert_int_equal(
		read_text(
			"{\"timestamp\": 0, \"input_length\": 1500, \"output_length\": 1, \"hash_ids\": [7, 8, 9]}\n"
			"{\"timestamp\": 2500, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [7, 8, 20, 21]}\n",
			&options, &t),
		0);
	assert_true(t.count == 2 && t.sessions == 1 && t.block_tokens == 512 && t.references == 7 && t.longest == 4);
	assert_true(t.requests[0].runs == 1 && t.requests[1].runs == 2 && t.requests[1].time == 2.5);
	chains = chains_new(&t);
	keys = (struct pfs_key *)chains_advance(chains, &t, 0);
	memcpy(first, keys, sizeof(first));
	keys = (struct pfs_key *)chains_advance(chains, &t, 1);
	assert_memory_equal(keys, first, 2 * sizeof(*keys)); /* the common prefix has common keys */
	assert_memory_not_equal(&keys[2], &first[2], sizeof(*keys));
	chains_free(chains, &t);
	trace_free(&t);
}

static const char kvct[] =
	"{\"id\":\"a\",\"block\":64,\"start\":10,\"reqs\":[[0.0,1,0,1,0,[[1,3]]],[5.0,1,0,1,2,[[9,2],[11,1]]]]}\n"
	"{\"id\":\"b\",\"block\":64,\"start\":12,\"reqs\":[[0.0,1,0,1,0,[[1,3]]],[1.0,1,0,1,3,[]]]}\n";

static void kvct_format(void **state)
{
	struct trace_options options = {0};
	struct trace t;
	struct chain *chains;
	struct pfs_key a[3], b[3];
	const struct pfs_key *keys;

	assert_int_equal(read_text(kvct, &options, &t), 0);
	assert_true(t.count == 4 && t.sessions == 2 && t.block_tokens == 64 && t.references == 3 + 3 + 3 + 5);
	/* By time: a at 10, b at 12 and 13, a at 15. */
	assert_true(t.requests[0].session == 0 && t.requests[1].session == 1 && t.requests[2].session == 1 &&
		    t.requests[3].session == 0);
	chains = chains_new(&t);
	memcpy(a, chains_advance(chains, &t, 0), sizeof(a));
	memcpy(b, chains_advance(chains, &t, 1), sizeof(b));
	assert_memory_not_equal(a, b, sizeof(a)); /* ids are local to their session */
	assert_memory_equal(chains_advance(chains, &t, 2), b, sizeof(b));
	keys = chains_advance(chains, &t, 3);
	assert_memory_equal(keys, a, 2 * sizeof(*keys));
	assert_memory_not_equal(&keys[2], &a[2], sizeof(*keys));
	chains_free(chains, &t);
	trace_free(&t);
	options.max_requests = 3;
	options.max_sessions = 1;
	assert_int_equal(read_text(kvct, &options, &t), 0);
	assert_true(t.count == 2 && t.sessions == 1);
	trace_free(&t);
}

static void kvct_starts_are_drawn(void **state)
{
	const struct trace_options options = {.spread = 1000, .seed = 1};
	struct trace t;

	assert_int_equal(read_text("{\"id\":\"a\",\"block\":64,\"reqs\":[[0.0,1,0,1,0,[[1,3]]]]}\n"
				   "{\"id\":\"b\",\"block\":64,\"reqs\":[[0.0,1,0,1,0,[[1,3]]]]}\n",
				 &options, &t),
		0);
	assert_true(t.requests[0].session == 0 && t.requests[0].time > 134.3 && t.requests[0].time < 134.4);
	assert_true(t.requests[1].time > 847.4 && t.requests[1].time < 847.5);
	trace_free(&t);
}

static void traces_refused(void **state)
{
	static const char *const texts[] = {
		"",
		"x\n",
		"{}\n",
		"{\"hash_ids\": []}\n",
		"{\"hash_ids\": [\"a\"]}\n",
		"{\"id\":\"a\",\"block\":64,\"reqs\":[[0]]}\n",
		"{\"id\":\"a\",\"block\":64,\"reqs\":[[0.0,1,0,1,4,[]]]}\n",
		"{\"id\":\"a\",\"block\":0,\"reqs\":[]}\n",
		"{\"id\":\"a\",\"block\":64,\"reqs\":[[0.0,1,0,1,0,[[1,-3]]]]}\n",
		"{\"id\":\"a\",\"block\":64,\"reqs\":[[0.0,1,0,1,0,[[1,9999999]]]]}\n",
	};
	const struct trace_options options = {0};
	struct trace t;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		assert_int_equal(read_text(texts[i], &options, &t), 1);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static void bytes_match_their_key_alone(void **state)
{
	static const size_t lengths[] = {0, 1, 63, 64, 65, 4096, 73728 + 5};
	struct pfs_key key, other;
	uint8_t *at = aligned_alloc(64, 80000 / 64 * 64);

	assert_non_null(at);
	mix_key(NULL, 1, 2, &key);
	mix_key(&key, 1, 3, &other);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		size_t n = lengths[i];

		at[n] = 0x77;
		value_bytes_fill(&key, 1, 2, at, n);
		assert_int_equal(at[n], 0x77);
		assert_true(value_bytes_match(&key, 1, 2, at, n));
		if (n < 8)
			continue;
		assert_false(value_bytes_match(&other, 1, 2, at, n));
		assert_false(value_bytes_match(&key, 0, 2, at, n));
		assert_false(value_bytes_match(&key, 1, 3, at, n));
		for (size_t k = 0; k < n; k += n < 200 ? 1 : 997) {
			at[k] ^= 1;
			assert_false(value_bytes_match(&key, 1, 2, at, n));
			at[k] ^= 1;
		}
		at[n - 1] ^= 0x80;
		assert_false(value_bytes_match(&key, 1, 2, at, n));
	}
	free(at);
}

static void bytes_are_quick(void **state)
{
	const size_t n = 72 << 10;
	uint8_t *at = aligned_alloc(64, n);
	struct pfs_key key;
	uint64_t begin, fill_ns, match_ns;
	bool same = true;

	assert_non_null(at);
	mix_key(NULL, 1, 2, &key);
	begin = clock_ns();
	for (unsigned i = 0; i < 2000; i++)
		value_bytes_fill(&key, 0, 0, at, n);
	fill_ns = clock_ns() - begin;
	begin = clock_ns();
	for (unsigned i = 0; i < 2000; i++)
		same &= value_bytes_match(&key, 0, 0, at, n);
	match_ns = clock_ns() - begin;
	assert_true(same);
	print_message("fill %.1f GB/s, match %.1f GB/s\n", 2000.0 * (double)n / (double)fill_ns,
		2000.0 * (double)n / (double)match_ns);
	free(at);
}

static void latencies(void **state)
{
	static struct latency l, sum;

	memset(&l, 0, sizeof(l));
	assert_true(latency_us(&l, 0.5) == 0);
	for (uint64_t i = 1; i <= 1000; i++)
		latency_add(&l, i * 1000);
	assert_true(latency_us(&l, 0.5) > 490 && latency_us(&l, 0.5) < 510);
	assert_true(latency_us(&l, 0.99) > 975 && latency_us(&l, 0.99) < 1005);
	latency_add(&l, UINT64_MAX);
	latency_merge(&sum, &l);
	assert_int_equal(sum.count, 1001);
	for (uint64_t ns = 1; ns < 1ull << 40; ns = ns * 5 / 4 + 1)
		assert_true(latency_bucket(ns + 1) >= latency_bucket(ns));
}

/* ---- layouts ---------------------------------------------------------------------------------------------------- */

static void layout_views(void **state)
{
	json_t *layout = json_loads(
		"{\"version\":1,\"world\":2,\"page_tokens\":64,\"classes\":[{\"name\":\"kv\",\"kind\":\"dense\","
		"\"planes\":[{\"name\":\"K\",\"count\":3,\"bytes\":128},{\"name\":\"V\",\"bytes\":64}]},"
		"{\"name\":\"s\",\"kind\":\"state\",\"planes\":[{\"name\":\"a\",\"bytes\":5}]}]}",
		0, NULL);
	struct layout_view view;

	assert_non_null(layout);
	assert_int_equal(layout_view_of(layout, &view), 0);
	assert_true(view.world == 2 && view.page_tokens == 64 && view.classes == 2);
	assert_true(
		view.class[0].planes == 4 && view.class[0].payload_bytes == 3 * 128 + 64 && view.class[0].every == 64);
	assert_true(view.class[0].plane_bytes[3] == 64);
	assert_string_equal(view.class[1].kind, "state");
	layout_view_free(&view);
	json_decref(layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_of_all_kinds),
		cmocka_unit_test(sizes),
		cmocka_unit_test(lines_of_small_files),
		cmocka_unit_test(twister_is_pythons),
		cmocka_unit_test(mooncake_format),
		cmocka_unit_test(kvct_format),
		cmocka_unit_test(kvct_starts_are_drawn),
		cmocka_unit_test(traces_refused),
		cmocka_unit_test(bytes_match_their_key_alone),
		cmocka_unit_test(bytes_are_quick),
		cmocka_unit_test(latencies),
		cmocka_unit_test(layout_views),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
