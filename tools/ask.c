/* SPDX-License-Identifier: Apache-2.0
 *
 * stat, probe.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/prefixfs.h"
#include "tools/commands.h"
#include "tools/fallen.h"
#include "tools/host.h"

/* What a fallen mount still says, and that it is one: 1; 0: it is none. */
static int stat_fallen(const char *mount, bool json)
{
	char path[PATH_MAX], *text;
	json_t *lines;

	if (!fallen_is(mount) || host_path(path, "%s/health", mount))
		return 0;
	text = host_read_file(path, NULL);
	lines = text ? fallen_lines(text) : NULL;
	free(text);
	if (!lines)
		return 0;
	show_object(lines, json);
	return fallen_complain(mount);
}

int command_stat(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	char path[PATH_MAX], *text;

	options_read(self, rows, &argc, argv);
	if (argc > 1)
		return usage_error(self, "one namespace is expected, %d are given", argc);
	mount = host_mount(mount);
	if (!mount || (!argc && stat_fallen(mount, json)) || host_mounted(mount) ||
		(argc ? host_namespace(path, mount, argv[0], "/stats") : host_path(path, "%s/health", mount)))
		return 1;
	text = host_read_file(path, NULL);
	if (!text && argc && errno == ENOENT)
		return complain("namespace %s has no layout yet, and so no counters", argv[0]);
	if (!text)
		return complain("%s: %s", path, strerror(errno));
	show_object(host_lines(text), json);
	free(text);
	return 0;
}

static bool parse_key(const char *text, struct pfs_key *ret)
{
	if (strlen(text) != 2 * PFS_KEY_BYTES || strspn(text, "0123456789abcdefABCDEF") != 2 * PFS_KEY_BYTES)
		return false;
	for (unsigned i = 0; i < PFS_KEY_BYTES; i++) {
		char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};

		ret->bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
	return true;
}

int command_probe(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL;
	bool json = false;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object a line", 0, 0},
		{0},
	};
	struct pfs_session *session = NULL;
	struct pfs_options open_options;
	struct pfs_key *keys;
	char path[PATH_MAX];
	uint8_t *bits;
	json_t *out;
	int r = 0;

	options_read(self, rows, &argc, argv);
	if (argc < 2)
		return usage_error(self, "a namespace and at least one key are needed");
	if ((unsigned)argc - 1 > PFS_MAX_KEYS)
		return usage_error(self, "%d keys, at most %u are possible", argc - 1, PFS_MAX_KEYS);
	pfs_options_init(&open_options);
	open_options.read_only = 1; /* who may read may ask */
	keys = calloc((size_t)argc, sizeof(*keys));
	bits = calloc((size_t)argc / 8 + 1, 1);
	for (int i = 1; keys && i < argc && !r; i++)
		if (!parse_key(argv[i], &keys[i - 1]))
			r = usage_error(self, "'%s' is no key of 64 hex digits", argv[i]);
	if (!keys || !bits)
		r = complain("no memory");
	if (!r) {
		mount = host_mount(mount);
		r = !mount || host_namespace(path, mount, argv[0], "");
	}
	if (!r && pfs_open(path, &open_options, &session))
		r = complain_client("no session");
	if (!r && pfs_probe(session, keys, (uint32_t)argc - 1, bits, NULL))
		r = complain_client("probe");
	if (!r) {
		out = json_array();
		for (int i = 0; i < argc - 1; i++)
			json_array_append_new(
				out, json_pack("{s:s, s:b}", "key", argv[i + 1], "there", bits[i / 8] >> i % 8 & 1));
		show_list(out, json);
	}
	pfs_close(&session);
	free(keys);
	free(bits);
	return r;
}
