/* SPDX-License-Identifier: Apache-2.0
 *
 * client_manage NAMESPACE: what is done by hand, through libprefixfs. Exits with 0, or says what was not so.
 *
 * The namespace has one dense class of 4,096 bytes and pages of 64 tokens.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/prefixfs.h"

#define PAGES 4u
#define MUST(condition) must(condition, #condition, __LINE__)

static void must(int holds, const char *text, int line)
{
	char why[512];

	if (holds)
		return;
	pfs_last_error(why, sizeof(why));
	fprintf(stderr, "line %d: not so: %s (%s)\n", line, text, why);
	exit(1);
}

static void make_keys(struct pfs_key *keys, uint32_t n, unsigned chain)
{
	for (uint32_t i = 0; i < n; i++) {
		char name[64];
		int length = snprintf(name, sizeof(name), "chain %u, page %u", chain, i);

		MUST(!pfs_key_from_bytes(name, (size_t)length, &keys[i]));
	}
}

static struct pfs_put_result start(struct pfs_session *s, const struct pfs_key *keys, uint32_t n)
{
	struct pfs_put_group group = {.consumed = n * 64ull, .keys = n, .class_mask = 1, .flags = PFS_GROUP_ROOT};
	struct pfs_put_request request = {
		.groups = &group, .keys = keys, .group_count = 1, .key_count = n, .class_mask = 1};
	struct pfs_put_result plan;

	MUST(!pfs_put_start(s, &request, &plan));
	MUST(plan.status[0] == PFS_GROUP_OK);
	return plan;
}

static uint32_t end(struct pfs_session *s, uint64_t plan, uint32_t *outcome)
{
	struct pfs_put_outcome ended;
	uint32_t status = PFS_GROUP_OK;

	MUST(!pfs_put_commit(s, plan, 0, 0, &status, &ended));
	*outcome = ended.outcome;
	return status;
}

static uint32_t probe(struct pfs_session *s, const struct pfs_key *keys, uint32_t n)
{
	struct pfs_probe_result found;

	MUST(!pfs_probe(s, keys, n, NULL, &found));
	return found.hits;
}

static void removal(struct pfs_session *s, const struct pfs_key *keys)
{
	struct pfs_remove_result gone;
	uint32_t answers[PAGES + 1];

	MUST(!pfs_remove(s, keys, PAGES + 1, 0, answers, &gone));
	MUST(gone.removed == PAGES && gone.absent == 1 && gone.busy == 0 && gone.values == PAGES);
	MUST(answers[0] == PFS_REMOVE_DONE && answers[PAGES] == PFS_REMOVE_ABSENT);
	MUST(!pfs_remove(s, keys, 1, 1, NULL, NULL));
	MUST(pfs_remove(s, keys, 1, 2, NULL, NULL) == -EINVAL);
	MUST(pfs_remove(s, keys, 0, 0, NULL, NULL) == -EINVAL);
	MUST(probe(s, keys, PAGES) == 0);
}

static void pins(struct pfs_session *s, const struct pfs_key *keys)
{
	static struct pfs_key many[200];
	struct pfs_pin_result held;
	uint32_t answers[2], outcome;

	make_keys(many, 200, 9);
	MUST(end(s, start(s, many, 200).plan, &outcome) == PFS_GROUP_COMMITTED);
	many[1] = keys[0];
	MUST(pfs_pin(s, many, 2, 0, answers, &held) == -ENOSPC);
	MUST(answers[0] == PFS_PIN_NOROOM && answers[1] == PFS_PIN_DONE);
	MUST(held.changed == 1 && held.pinned_bytes == PAGES * 4096 && held.limit_bytes > held.pinned_bytes);
	MUST(!pfs_pin(s, keys, 1, PFS_PIN_RELEASE, NULL, &held));
	MUST(held.changed == 1 && held.pinned_bytes == 0);
}

int main(int argc, char **argv)
{
	struct pfs_put_result early, late;
	struct pfs_reset_result renewed;
	struct pfs_session_info info;
	struct pfs_key keys[PAGES + 1];
	struct pfs_options options;
	struct pfs_session *s;
	uint64_t values = 1;
	uint32_t outcome, touched;

	if (argc != 2)
		return 2;
	pfs_options_init(&options);
	options.rank = 0;
	options.wait_prewarm = 1;
	MUST(!pfs_open(argv[1], &options, &s));
	make_keys(keys, PAGES + 1, 1);
	MUST(end(s, start(s, keys, PAGES).plan, &outcome) == PFS_GROUP_COMMITTED);
	MUST(!pfs_touch(s, keys, PAGES + 1, 0, 0, &touched) && touched == PAGES);
	pins(s, keys);
	MUST(!pfs_drain(s, &values) && values == 0);

	/* A plan from before a reset is lost at its commit; that is an outcome, no error, and costs no connection. */
	early = start(s, &keys[PAGES], 1);
	MUST(!pfs_reset(s, &renewed) && renewed.generation == 2);
	MUST(probe(s, keys, PAGES) == 0);
	late = start(s, &keys[PAGES], 1);
	MUST(late.new_values == 1 && late.answers[0][0] != early.answers[0][0]);
	MUST(end(s, late.plan, &outcome) == PFS_GROUP_COMMITTED && outcome == PFS_GROUP_COMMITTED);
	MUST(end(s, early.plan, &outcome) == PFS_GROUP_LOST && outcome == PFS_GROUP_LOST);
	MUST(pfs_put_commit(s, early.plan, 0, 0, NULL, NULL) == -ENOENT);
	MUST(probe(s, &keys[PAGES], 1) == 1);
	MUST(!pfs_reset(s, NULL));
	MUST(!pfs_info(s, &info) && info.reattached == 0);

	MUST(end(s, start(s, keys, PAGES).plan, &outcome) == PFS_GROUP_COMMITTED);
	removal(s, keys);
	pfs_close(&s);
	options.read_only = 1;
	MUST(!pfs_open(argv[1], &options, &s));
	MUST(pfs_reset(s, NULL) == -EROFS && pfs_drain(s, NULL) == -EROFS);
	MUST(pfs_remove(s, keys, 1, 0, NULL, NULL) == -EROFS && pfs_pin(s, keys, 1, 0, NULL, NULL) == -EROFS);
	MUST(!pfs_touch(s, keys, 1, 0, 0, NULL));
	pfs_close(&s);
	return 0;
}
