/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of fs/ that need no mount: node ids, names of records, spans of a call buffer, parameters, handles.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/buffers.h"
#include "fs/config.h"
#include "fs/deaths.h"
#include "fs/disk_folder.h"
#include "fs/handles.h"
#include "fs/keeper.h"
#include "fs/node.h"
#include "fs/record_name.h"
#include "fs/rundir.h"
#include "fs/span.h"

/* ---- node ids -------------------------------------------------------------------------------------------------- */

static void same_node(struct node a)
{
	struct node b;

	assert_true(node_unpack(node_pack(a), &b));
	assert_int_equal(a.kind, b.kind);
	assert_int_equal(a.number, b.number);
	assert_int_equal(a.record, b.record);
	assert_int_equal(a.generation, b.generation);
}

static void test_node_round_trip(void **state)
{
	for (enum node_kind kind = NODE_README; kind < NODE_RECORD; kind++) {
		same_node((struct node){.kind = kind});
		same_node((struct node){.kind = kind, .number = 1});
		same_node((struct node){.kind = kind, .number = (1ull << 56) - 1});
	}
	for (enum node_kind kind = NODE_RECORD; kind < NODE_KINDS; kind++)
		for (unsigned n = 0; n < NODE_NAMESPACE_BITS; n++)
			for (unsigned r = 0; r < NODE_RECORD_BITS; r++)
				same_node((struct node){.kind = kind,
					.number = 1u << n,
					.record = 1u << r,
					.generation = NODE_GENERATION_MASK >> (r % NODE_GENERATION_BITS)});
	same_node((struct node){.kind = NODE_ROOT});
	assert_int_equal(node_pack((struct node){.kind = NODE_ROOT}), 1);
}

static void test_node_nonsense(void **state)
{
	struct node node;

	assert_false(node_unpack(0, &node));
	assert_false(node_unpack(2, &node));
	assert_false(node_unpack((uint64_t)NODE_RECORD << 56, &node));
	assert_false(node_unpack(1ull << 63 | 7ull << 60, &node));
	assert_int_equal(node_pack((struct node){.kind = NODE_PAGES, .record = 1u << NODE_RECORD_BITS}), 0);
	/* Bits of a generation that do not fit are dropped, not spilt. */
	assert_int_equal(
		node_pack((struct node){.kind = NODE_PAGES, .record = 5, .generation = 1u << NODE_GENERATION_BITS}),
		node_pack((struct node){.kind = NODE_PAGES, .record = 5}));
}

/* ---- names of records ------------------------------------------------------------------------------------------ */

static void test_record_names(void **state)
{
	char name[RECORD_NAME_BYTES + 1];
	struct key key, back;
	uint64_t consumed;

	for (unsigned i = 0; i < 32; i++)
		key.bytes[i] = (uint8_t)(i * 37 + 1);
	record_name(0x0123456789abcdefull, &key, name);
	assert_int_equal(strlen(name), RECORD_NAME_BYTES);
	assert_memory_equal(name, "0123456789abcdef-01264b70", 25);
	assert_true(record_name_parse(name, &consumed, &back));
	assert_int_equal(consumed, 0x0123456789abcdefull);
	assert_memory_equal(back.bytes, key.bytes, 32);
	for (unsigned i = 0; i < RECORD_NAME_BYTES; i++) { /* upper case would be a second name for the same record */
		char old = name[i];

		name[i] = i == 16 ? '0' : 'A';
		assert_false(record_name_parse(name, &consumed, &back));
		name[i] = old;
	}
	name[RECORD_NAME_BYTES - 1] = 0;
	assert_false(record_name_parse(name, &consumed, &back));
	assert_false(record_name_parse("", &consumed, &back));
}

/* ---- spans ----------------------------------------------------------------------------------------------------- */

static void test_spans(void **state)
{
	static unsigned char buffer[4096];
	struct span span = {buffer, sizeof(buffer)};
	struct why why = WHY_INIT;
	void *at = NULL;

	assert_int_equal(span_take(&span, "a", 0, 128, 32, &at, &why), 0);
	assert_ptr_equal(at, buffer);
	assert_int_equal(span_take(&span, "a", 4088, 1, 8, &at, &why), 0);
	assert_ptr_equal(at, buffer + 4088);
	assert_int_equal(span_take(&span, "a", UINT64_MAX - 7, 0, 8, &at, &why), 0);
	assert_null(at);
	assert_int_equal(span_take(&span, "keys_offset", 8, 128, 32, &at, &why), -EINVAL);
	assert_non_null(strstr(why.text, "keys_offset"));
	assert_int_equal(span_take(&span, "a", 4096, 1, 1, &at, &why), -EINVAL);
	assert_int_equal(span_take(&span, "a", 4, 1, 1, &at, &why), -EINVAL);
	assert_int_equal(span_take(&span, "a", UINT64_MAX - 7, 1, 8, &at, &why), -EINVAL);
	assert_int_equal(span_take(&span, "a", UINT64_MAX - 7, 1, 16, &at, &why), -EINVAL);
	assert_int_equal(span_take(&span, "a", 0, UINT64_MAX, 8, &at, &why), -EINVAL);
	assert_int_equal(span_take(&span, "a", 0, 1ull << 61, 8, &at, &why), -EINVAL);
	assert_int_equal(span_take(&span, "a", 8, UINT64_MAX / 8 + 1, 8, &at, &why), -EINVAL);
}

/* ---- parameters ------------------------------------------------------------------------------------------------ */

static void test_sizes(void **state)
{
	uint64_t n = 0;

	assert_true(config_parse_size("4096", &n) && n == 4096);
	assert_true(config_parse_size("16K", &n) && n == 16 << 10);
	assert_true(config_parse_size("2m", &n) && n == 2 << 20);
	assert_true(config_parse_size("3G", &n) && n == 3ull << 30);
	assert_true(config_parse_size("1T", &n) && n == 1ull << 40);
	assert_false(config_parse_size("", &n));
	assert_false(config_parse_size("G", &n));
	assert_false(config_parse_size("-1", &n));
	assert_false(config_parse_size("1GG", &n));
	assert_false(config_parse_size("1 G", &n));
	assert_false(config_parse_size("1.5G", &n));
	assert_false(config_parse_size("99999999999999999999", &n));
	assert_false(config_parse_size("18446744073709551615K", &n));
}

static int set(const char *name, const char *value, struct why *why)
{
	struct config config;

	config_init(&config);
	return config_set(&config, name, value, why);
}

static void test_parameters(void **state)
{
	struct why why = WHY_INIT;

	assert_int_equal(set("memory", "64M", &why), 0);
	assert_int_equal(set("populate-threads", "8", &why), 0);
	assert_int_equal(set("populate_threads", "8", &why), 0);
	assert_int_equal(set("populate_threads", "65", &why), -EINVAL);
	assert_non_null(strstr(why.text, "1 to 64"));
	assert_int_equal(set("memory", "1M", &why), -EINVAL);
	assert_int_equal(set("memory", "lots", &why), -EINVAL);
	assert_int_equal(set("hugepages", "thp", &why), 0);
	assert_int_equal(set("hugepages", "th", &why), -EINVAL);
	assert_non_null(strstr(why.text, "auto|never|thp|require"));
	assert_int_equal(set("populate", "maybe", &why), -EINVAL);
	assert_int_equal(set("mode", "0750", &why), 0);
	assert_int_equal(set("mode", "999", &why), -EINVAL);
	assert_int_equal(set("no_such", "1", &why), -EINVAL);
	assert_non_null(strstr(why.text, "known are: memory hugepages"));
}

static int parse(struct config *config, enum config_action *action, struct why *why, char *const *argv)
{
	int argc = 0;

	while (argv[argc])
		argc++;
	config_init(config);
	return config_parse_args(config, argc, argv, action, why);
}
#define PARSE(...) parse(&config, &action, &why, (char *[]){(char[]){"prefixfsd"}, __VA_ARGS__, NULL})
#define A(text) ((char[]){text})

static void test_command_line(void **state)
{
	static struct config config, again;
	enum config_action action;
	struct why why = WHY_INIT;
	char argument[512], *argv[64] = {A("prefixfsd")};
	int argc = 1;

	assert_int_equal(PARSE(A("--memory"), A("64M"), A("--no-populate"), A("-f"), A("/mnt")), 0);
	assert_true(config.memory == 64 << 20 && !config.populate && config.foreground);
	assert_string_equal(config.mountpoint, "/mnt");
	assert_int_equal(PARSE(A("/mnt"), A("--memory=32M"), A("--populate=no")), 0);
	assert_int_equal(PARSE(A("--memory")), -EINVAL);
	assert_int_equal(PARSE(A("--memory=32M")), -EINVAL); /* no mount point */
	assert_int_equal(PARSE(A("/a"), A("/b")), -EINVAL);
	assert_int_equal(PARSE(A("--nonsense"), A("/a")), -EINVAL);
	assert_int_equal(PARSE(A("--no-memory"), A("/a")), -EINVAL);
	assert_int_equal(PARSE(A("-x"), A("/a")), -EINVAL);
	assert_int_equal(PARSE(A("--config"), A("/nonexistent/file"), A("/a")), -ENOENT);
	assert_int_equal(PARSE(A("--help")), 0);
	assert_int_equal(action, CONFIG_HELP);

	/* What the parent tells the serving process is what it has itself. */
	assert_int_equal(PARSE(A("--memory=48M"), A("--memory-fault=read:EIO:1/3"), A("--mode=0700"), A("/mnt")), 0);
	while (config_argument(&config, (unsigned)argc - 1, argument, sizeof(argument)))
		argv[argc++] = strdup(argument);
	argv[argc] = A("/mnt");
	assert_int_equal(parse(&again, &action, &why, argv), 0);
	assert_memory_equal(&config, &again, sizeof(config));
	for (int i = 1; i < argc; i++)
		free(argv[i]);
}

static void test_faults_are_judged_at_start(void **state)
{
	static struct config config;
	struct why why = WHY_INIT;

	config_init(&config);
	strcpy(config.run_dir, "/run/x");
	assert_int_equal(config_settle(&config, &why), 0);
	assert_int_equal(config_set(&config, "memory_fault", "read:EIO:1/100,read:delay:5ms,seed=7", &why), 0);
	assert_int_equal(config_settle(&config, &why), 0);
	assert_int_equal(config_set(&config, "memory_fault", "read:EIO,read:EBANANA:3", &why), 0);
	assert_int_equal(config_settle(&config, &why), -EINVAL);
	assert_string_equal(why.text, "memory_fault: fault rule 'read:EBANANA:3' is not understood");
	assert_int_equal(config_set(&config, "memory_fault", "", &why), 0);
	assert_int_equal(config_set(&config, "disk", "/var/lib/x", &why), 0);
	assert_int_equal(config_set(&config, "disk_fault", "write:ENOSPC:3,read:flip:1/100,seed=7", &why), 0);
	assert_int_equal(config_settle(&config, &why), 0);
	assert_int_equal(config_set(&config, "disk_fault", "write:ENOSPC:3,wirte:EIO", &why), 0);
	assert_int_equal(config_settle(&config, &why), -EINVAL);
	assert_string_equal(why.text, "disk_fault: fault rule 'wirte:EIO' is not understood");
	assert_int_equal(config_set(&config, "disk_fault", "", &why), 0);
	assert_int_equal(config_set(&config, "crash_at", "put_word:5,,adopt_index:2:again", &why), 0);
	assert_int_equal(config_set(&config, "stop_at", ",put_word:again", &why), 0);
	assert_int_equal(config_settle(&config, &why), 0);
	static const char *const wrong[] = {"put_wrod", "put_word:", "put_word:0", "put_word:again:2", "put_word:2:agains", "put_word:2x", ",,x"};
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(config_set(&config, "stop_at", wrong[i], &why), 0);
		assert_int_equal(config_settle(&config, &why), -EINVAL);
	}
	assert_string_equal(why.text, "stop_at: rule 'x' is not understood");
}

/* ---- handles --------------------------------------------------------------------------------------------------- */

static unsigned ended;

static void end(void *object)
{
	ended++;
}

static void test_handles(void **state)
{
	struct handles *h = handles_new(3, 1);
	uint64_t a = 0, b = 0, c = 0, d = 0;
	int x, y;

	ended = 0;
	assert_true(handles_open(h, HANDLE_CTL, 3, &x, end, &a) && handles_open(h, HANDLE_TEXT, 3, &y, end, &b));
	assert_int_equal(a >> 48, 1);
	assert_true(handles_known(h, a) && handles_known(h, b));
	assert_ptr_equal(handles_take(h, a, HANDLE_CTL), &x);
	assert_null(handles_take(h, a, HANDLE_TEXT));
	assert_null(handles_take(h, a + 1 + (1ull << 33), HANDLE_CTL));
	assert_null(handles_take(h, 0, HANDLE_CTL));
	assert_null(handles_take(h, UINT64_MAX, HANDLE_CTL));
	handles_close(h, a);
	assert_int_equal(ended, 0); /* somebody has it */
	assert_null(handles_take(h, a, HANDLE_CTL));
	assert_false(handles_known(h, a));
	handles_close(h, a);
	handles_put(h, a);
	assert_int_equal(ended, 1);
	assert_true(handles_open(h, HANDLE_CTL, 3, &x, end, &c));
	assert_int_equal((uint16_t)c, (uint16_t)a); /* the same place, another id */
	assert_int_not_equal(c, a);
	assert_null(handles_take(h, a, HANDLE_CTL));
	assert_false(handles_open(h, HANDLE_CTL, 1, &x, end, &d)); /* limit of the kind */
	assert_true(handles_open(h, HANDLE_CTL, 3, &x, end, &d));
	assert_false(handles_open(h, HANDLE_CTL, 9, &x, end, &d)); /* full */
	struct handles *next = handles_new(3, 2); /* the serving process after it */
	uint64_t e = 0;
	assert_true(handles_open(next, HANDLE_CTL, 3, &y, end, &e));
	assert_int_equal((uint16_t)e, (uint16_t)a);
	assert_null(handles_take(next, a, HANDLE_CTL));
	assert_false(handles_known(next, a) || handles_known(h, e));
	handles_close(next, a);
	assert_true(handles_known(next, e));
	handles_free(&next);
	handles_free(&h);
	assert_null(h);
	assert_int_equal(ended, 5);
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

static void test_buffers(void **state)
{
	struct buffers b;

	buffers_init(&b);
	void *small = buffers_get(&b, 1), *large = buffers_get(&b, 4u << 20);
	assert_non_null(small);
	assert_non_null(large);
	assert_null(buffers_get(&b, (4u << 20) + 1));
	assert_int_equal((uintptr_t)small % 16, 0);
	memset(large, 1, 4u << 20);
	buffers_put(&b, small);
	assert_ptr_equal(buffers_get(&b, 4096), small); /* no allocation after warm-up */
	buffers_put(&b, small);
	buffers_put(&b, large);
	buffers_put(&b, NULL);
	buffers_deinit(&b);
}

/* ---- the channel between the processes --------------------------------------------------------------------------- */

static void test_kept_descriptors(void **state)
{
	struct keeper_message m = {.what = "session", .number = 7};
	struct kept kept = {0};
	int first = dup(0), second = dup(0);

	kept_add(&kept, &m, first);
	kept_add(&kept, &m, second); /* replaces */
	assert_int_equal(kept.count, 1);
	assert_int_equal(close(first), -1);
	m.number = 8;
	kept_drop(&kept, &m);
	assert_int_equal(kept.count, 1);
	m.number = 7;
	kept_drop(&kept, &m);
	assert_int_equal(kept.count, 0);
	assert_int_equal(close(second), -1);
	kept_clear(&kept);
}

/* ---- the run folder ---------------------------------------------------------------------------------------------- */

static void test_rundir(void **state)
{
	char base[] = "/tmp/pfs-unit-XXXXXX", run[64], text[32];
	struct rundir a, b;
	struct why why = WHY_INIT;

	assert_non_null(mkdtemp(base));
	snprintf(run, sizeof(run), "%s/run", base);
	assert_int_equal(rundir_init(&a, run, "/mnt/prefixfs", &why), 0);
	assert_int_equal(rundir_init(&b, run, "/mnt/prefixfs", &why), 0);
	assert_string_equal(a.path, b.path); /* the same every time: it may be bind-mounted */
	assert_int_equal(rundir_claim(&a, false, &why), 0);
	assert_int_equal(rundir_claim(&b, false, &why), -EBUSY);
	snprintf(text, sizeof(text), "pid %d", (int)getpid());
	assert_non_null(strstr(why.text, text));
	assert_int_equal(rundir_write(&a, "spaces/x", "hello", 5), 0);
	assert_int_equal(rundir_write(&a, "spaces/x", "hello, world", 12), 0);
	assert_int_equal(rundir_read(&b, "spaces/x", text, sizeof(text)), 12);
	assert_string_equal(text, "hello, world");
	assert_int_equal(rundir_read(&b, "spaces/x", text, 6), 5);
	assert_int_equal(rundir_read(&b, "spaces/y", text, sizeof(text)), -ENOENT);
	rundir_remove(&a, false);
	assert_int_equal(access(a.path, F_OK), -1);
	assert_int_equal(rmdir(run), 0); /* it is others' too */
	assert_int_equal(rmdir(base), 0);
	assert_int_equal(
		rundir_init(&a, "/a/path/that/is/much/too/long/for/a/socket/to/be/made/in/it/and/still/goes/on/and/on",
			"/mnt/prefixfs", &why),
		-ENAMETOOLONG);
}

static void claim(struct rundir *dir)
{
	struct why why = WHY_INIT;

	assert_int_equal(rundir_claim(dir, false, &why), 0);
}

/* A start does not take the reason of the end before away. */
static void test_rundir_keeps_the_reason(void **state)
{
	char base[] = "/tmp/pfs-unit-XXXXXX", text[32];
	struct rundir a;
	struct why why = WHY_INIT;

	assert_non_null(mkdtemp(base));
	assert_int_equal(rundir_init(&a, base, "/mnt/prefixfs", &why), 0);
	claim(&a);
	assert_int_equal(rundir_write(&a, "last_exit", "reason: one", 11), 0);
	assert_int_equal(rundir_write(&a, "log", "first", 5), 0);
	assert_int_equal(rundir_write(&a, "spaces/x", "x", 1), 0);
	close(a.lock); /* as if it was killed */
	claim(&a);
	assert_int_equal(rundir_read(&a, "last_exit", text, sizeof(text)), 11);
	assert_string_equal(text, "reason: one");
	assert_int_equal(rundir_read(&a, "log", text, sizeof(text)), -ENOENT);
	assert_int_equal(rundir_read(&a, "log.1", text, sizeof(text)), 5);
	assert_string_equal(text, "first");
	assert_int_equal(rundir_read(&a, "spaces/x", text, sizeof(text)), -ENOENT);

	assert_int_equal(rundir_write(&a, "log", "second", 6), 0);
	rundir_remove(&a, true);
	claim(&a);
	assert_int_equal(rundir_read(&a, "log.1", text, sizeof(text)), 6); /* one generation */
	assert_string_equal(text, "second");
	rundir_remove(&a, true);
	claim(&a); /* one that wrote no log of its own leaves the one before */
	assert_int_equal(rundir_read(&a, "log.1", text, sizeof(text)), 6);
	assert_int_equal(rundir_read(&a, "last_exit", text, sizeof(text)), 11);
	rundir_remove(&a, false);
	assert_int_equal(access(a.path, F_OK), -1);
	assert_int_equal(rmdir(base), 0);
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

#define SECOND 1000000000ull

static void test_deaths_too_often(void **state)
{
	struct deaths d = {.count = 0};

	/* Twenty seconds apart, three are within a minute. */
	for (uint64_t n = 0; n < 100; n++)
		assert_int_equal(deaths_note(&d, (100 + 20 * n) * SECOND, false, 4), DEATHS_GO_ON);
	assert_int_equal(d.recent, 3);
	assert_int_equal(deaths_note(&d, (100 + 20 * 99 + 1) * SECOND, false, 4), DEATHS_TOO_OFTEN);
}

static void test_pauses(void **state)
{
	struct deaths d = {.count = 0};

	for (uint64_t ms = 100; ms <= 3200; ms *= 2)
		assert_int_equal(deaths_pause_ms(&d, DEATHS_LOOP_S * SECOND - 1), ms);
	assert_int_equal(deaths_pause_ms(&d, 0), 3200);
	assert_int_equal(deaths_pause_ms(&d, DEATHS_LOOP_S * SECOND), 0);
	assert_int_equal(deaths_pause_ms(&d, 0), 100);
}

static void test_deaths_while_populating(void **state)
{
	struct deaths d = {.count = 0};

	/* However far apart. */
	for (uint64_t n = 0; n < 3; n++)
		assert_int_equal(deaths_note(&d, (1 + n) * 3600 * SECOND, true, 4), DEATHS_GO_ON);
	assert_int_equal(deaths_note(&d, 4 * 3600 * SECOND, true, 4), DEATHS_OF_MEMORY);
	assert_int_equal(d.populating, 4);
	assert_int_equal(d.recent, 1);

	/* Not when one of them got its memory, or died of something else. */
	deaths_populated(&d);
	for (uint64_t n = 0; n < 20; n++) {
		assert_int_equal(deaths_note(&d, (10 + n) * 3600 * SECOND, true, 4), DEATHS_GO_ON);
		if (n % 3 == 2)
			deaths_populated(&d);
	}
	assert_int_equal(d.populating, 2);
	assert_int_equal(deaths_note(&d, 40 * 3600 * SECOND, false, 4), DEATHS_GO_ON);
	assert_int_equal(d.populating, 0);
}

/* ---- the folder of record files -------------------------------------------------------------------------------- */

static int folder_check(struct config *config, const char *disk, const char *mount, struct why *why)
{
	*why = (struct why)WHY_INIT;
	snprintf(config->disk, sizeof(config->disk), "%s", disk);
	snprintf(config->mountpoint, sizeof(config->mountpoint), "%s", mount);
	return disk_folder_check(config, why);
}

static void test_disk_folder(void **state)
{
	static struct config config;
	char folder[] = "/tmp/prefixfs-folder-XXXXXX", path[64], below[64], twin[64];
	struct why why;

	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/kv", folder);
	snprintf(below, sizeof(below), "%s/link", folder);
	snprintf(twin, sizeof(twin), "%s/k", folder);
	assert_int_equal(mkdir(path, 0700) | symlink(path, below), 0);
	assert_int_equal(folder_check(&config, "", path, &why), 0);
	assert_int_equal(folder_check(&config, path, "/elsewhere", &why), 0);
	assert_int_equal(folder_check(&config, path, twin, &why), 0);
	assert_int_equal(folder_check(&config, path, path, &why), -EINVAL);
	assert_non_null(strstr(why.text, "is the mount point"));
	assert_int_equal(folder_check(&config, below, path, &why), -EINVAL);
	assert_int_equal(folder_check(&config, path, folder, &why), -EINVAL);
	assert_non_null(strstr(why.text, "lies below the mount point"));
	assert_int_equal(folder_check(&config, folder, path, &why), -EINVAL);
	assert_non_null(strstr(why.text, "the mount point"));
	assert_int_equal(folder_check(&config, "/", path, &why), -EINVAL);
	assert_int_equal(folder_check(&config, twin, "/elsewhere", &why), -ENOENT);
	assert_non_null(strstr(why.text, twin));
	assert_int_equal(folder_check(&config, "/dev/null", "/elsewhere", &why), -ENOTDIR);
	assert_int_equal(folder_check(&config, "/dev/null/x", "/elsewhere", &why), -ENOTDIR);
	assert_int_equal(unlink(below) | rmdir(path) | rmdir(folder), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_node_round_trip),
		cmocka_unit_test(test_node_nonsense),
		cmocka_unit_test(test_record_names),
		cmocka_unit_test(test_spans),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_parameters),
		cmocka_unit_test(test_command_line),
		cmocka_unit_test(test_faults_are_judged_at_start),
		cmocka_unit_test(test_handles),
		cmocka_unit_test(test_buffers),
		cmocka_unit_test(test_kept_descriptors),
		cmocka_unit_test(test_deaths_too_often),
		cmocka_unit_test(test_pauses),
		cmocka_unit_test(test_deaths_while_populating),
		cmocka_unit_test(test_rundir),
		cmocka_unit_test(test_rundir_keeps_the_reason),
		cmocka_unit_test(test_disk_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
