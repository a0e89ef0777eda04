/* SPDX-License-Identifier: Apache-2.0
 *
 * client_threads NAMESPACE THREADS ROUNDS: threads that use one session at once, through a call buffer so small that
 * they wait for each other. Each round looks up a chain that the threads share, checks every byte that is there, and
 * puts or gives up what is missing. Prints what happened as one JSON object; 1 if anything was wrong.
 *
 * ROUNDS 0: until standard input ends. Meanwhile the main thread has a get plan of a chain of its own in its hands. With every
 * line of input it checks the bytes of it, releases it, prints what happened so far, and takes another one; then it prints "held".
 *
 * The namespace has one dense class of 4 KiB values and pages of 64 tokens. With STOP_BEFORE_IOCTL=N in the environment
 * the process stops itself (SIGSTOP) before its N-th ioctl.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"
#include "tools/mix.h"
#include "tools/value_bytes.h"

#define PAGES 40u
#define TOKENS 64u
#define VALUE 4096u
#define CHAINS 24u
#define MAX_THREADS 64u

static struct pfs_session *session;
static unsigned rounds;
static atomic_bool over;
static _Atomic uint64_t verified, wrong, put, aborted, lost, noroom, held;

/* In the place of libc's, for the library too. */
int ioctl(int fd, unsigned long request, ...)
{
	static _Atomic int number;
	const char *stop = getenv("STOP_BEFORE_IOCTL");
	va_list args;

	va_start(args, request);
	void *argument = va_arg(args, void *);
	va_end(args);
	if (++number == (stop ? atoi(stop) : 0))
		raise(SIGSTOP);
	return (int)syscall(SYS_ioctl, fd, request, argument);
}

static int say(const char *what)
{
	char text[512];

	pfs_last_error(text, sizeof(text));
	fprintf(stderr, "%s: %s\n", what, text);
	return 1;
}

static void chain_keys(uint64_t chain, struct pfs_key *keys)
{
	for (uint32_t i = 0; i < PAGES; i++)
		mix_key(i ? &keys[i - 1] : NULL, chain, i, &keys[i]);
}

/* *hit: leading pages that are there. */
static int get(const struct pfs_key *keys, uint32_t *hit)
{
	struct pfs_get_request q = {.keys = keys, .key_count = PAGES};
	struct pfs_transfer_request t = {0};
	struct pfs_transfer_result got;
	struct pfs_get_result found;
	struct pfs_blob blob;
	uint64_t good = 0, bad = 0;
	int r = pfs_get_start(session, &q, &found);

	if (r)
		return say("get_start");
	*hit = (uint32_t)(found.raw_prefix_hit_len / TOKENS);
	t.handle = found.handle;
	t.boundary = t.to = found.transferable_len;
	if (!t.boundary) {
		r = pfs_get_cancel(session, found.handle);
		return r ? say("get_cancel") : 0;
	}
	r = pfs_get_transfer(session, &t, &got);
	if (r)
		return say("get_transfer");
	if (!got.plan) {
		lost += got.handle_ended;
		return got.handle_ended && got.delivered_len == 0 ? 0 : say("a transfer of nothing");
	}
	if (pfs_blob(session, got.plan, PFS_BLOB_READ, 0, &blob) || blob.count != got.pages ||
		pfs_blob(session, got.plan, PFS_BLOB_WRITE, 0, &blob) != -EINVAL)
		return say("blob");
	for (uint32_t i = 0; i < got.pages; i++)
		*(value_bytes_match(&keys[i], 0, 0, got.segment + got.offsets[0][i], VALUE) ? &good : &bad) += 1;
	r = pfs_release(session, &got.plan, 1, NULL);
	if (r)
		return say("release");
	if (pfs_release(session, &got.plan, 1, NULL) != -ENOENT)
		return say("a plan was released twice");
	verified += good;
	wrong += bad;
	return 0;
}

static int store(const struct pfs_key *keys, uint32_t first, bool keep)
{
	struct pfs_put_group group = {
		.consumed = PAGES * TOKENS,
		.keys = PAGES - first,
		.class_mask = 1,
		.flags = first ? 0 : PFS_GROUP_ROOT,
	};
	struct pfs_put_request q = {
		.groups = &group,
		.keys = keys + first,
		.group_count = 1,
		.key_count = PAGES - first,
		.class_mask = 1,
	};
	struct pfs_put_outcome outcome;
	struct pfs_put_result ret;
	int r;

	if (first)
		group.parent = keys[first - 1];
	if (pfs_put_start(session, &q, &ret))
		return say("put_start");
	for (uint32_t i = 0; i < q.key_count && ret.status[0] == PFS_GROUP_OK; i++)
		if (ret.answers[0][i] < PFS_ANSWER_MIN)
			value_bytes_fill(&keys[first + i], 0, 0, ret.segment + ret.answers[0][i], VALUE);
	noroom += ret.status[0] != PFS_GROUP_OK;
	r = (keep ? pfs_put_commit : pfs_put_abort)(session, ret.plan, 0, 0, NULL, &outcome);
	if (r)
		return say("the end of a put");
	put += outcome.outcome == PFS_GROUP_COMMITTED;
	aborted += outcome.outcome == PFS_GROUP_ABORTED;
	lost += outcome.outcome == PFS_GROUP_LOST;
	return pfs_put_commit(session, ret.plan, 0, 0, NULL, NULL) == -ENOENT ? 0 : say("a plan was ended twice");
}

static void *work(void *argument)
{
	uint64_t dice = (uintptr_t)argument;
	struct pfs_key own[PAGES], *keys = own;

	if (dice % 2 && pfs_keys_area(session, PAGES, &keys)) {
		say("keys_area");
		return (void *)1;
	}
	for (unsigned i = 0; rounds ? i < rounds : !over; i++) {
		struct pfs_probe_result probe;
		uint8_t bits[(PAGES + 7) / 8];
		uint32_t hit = 0;

		dice = mix64(dice);
		chain_keys(dice % CHAINS, keys);
		if (get(keys, &hit) || (hit < PAGES && store(keys, hit, dice >> 32 & 3)))
			return (void *)1;
		if (pfs_probe(session, keys, PAGES, bits, &probe)) {
			say("probe");
			return (void *)1;
		}
	}
	if (keys != own && pfs_keys_free(session, keys)) {
		say("keys_free");
		return (void *)1;
	}
	return NULL;
}

/* ---- a plan in hand --------------------------------------------------------------------------------------------- */

/* Puts the chain until all of it can be got. */
static int hold(const struct pfs_key *keys, struct pfs_transfer_result *got)
{
	for (;;) {
		struct pfs_get_request q = {.keys = keys, .key_count = PAGES};
		struct pfs_transfer_request t = {.boundary = PAGES * TOKENS, .to = PAGES * TOKENS};
		struct pfs_get_result found;

		if (pfs_get_start(session, &q, &found))
			return say("get_start of what is to be held");
		t.handle = found.handle;
		if (found.transferable_len == PAGES * TOKENS) {
			if (pfs_get_transfer(session, &t, got))
				return say("get_transfer of what is to be held");
			if (got->delivered_len == t.to)
				return 0;
			if (got->plan)
				pfs_release(session, &got->plan, 1, NULL);
			if (!got->handle_ended)
				pfs_get_cancel(session, found.handle);
			continue;
		}
		if (pfs_get_cancel(session, found.handle) || store(keys, (uint32_t)(found.raw_prefix_hit_len / TOKENS), true))
			return say("putting what is to be held");
	}
}

static int let_go(const struct pfs_key *keys, const struct pfs_transfer_result *got)
{
	bool right = true;

	for (uint32_t i = 0; i < PAGES; i++)
		right &= value_bytes_match(&keys[i], 0, 0, got->segment + got->offsets[0][i], VALUE);
	held += right;
	wrong += !right;
	return pfs_release(session, &got->plan, 1, NULL) ? say("release of what was held") : 0;
}

static int print(unsigned failed)
{
	struct pfs_session_info info;

	if (pfs_info(session, &info))
		return say("info");
	printf("{\"verified\": %llu, \"wrong\": %llu, \"put\": %llu, \"aborted\": %llu, \"lost\": %llu, \"noroom\": %llu, "
	       "\"held\": %llu, \"reattached\": %llu, \"remapped\": %llu, \"failed_threads\": %u}\n",
		(unsigned long long)verified, (unsigned long long)wrong, (unsigned long long)put,
		(unsigned long long)aborted, (unsigned long long)lost, (unsigned long long)noroom, (unsigned long long)held,
		(unsigned long long)info.reattached, (unsigned long long)info.remapped, failed);
	return fflush(stdout);
}

/* Until standard input ends. */
static int hold_on(void)
{
	struct pfs_transfer_result got;
	struct pfs_key keys[PAGES];
	int c, r = 0;

	chain_keys(CHAINS, keys);
	do {
		r = hold(keys, &got);
		if (r)
			break;
		puts("held");
		fflush(stdout);
		while ((c = getchar()) != '\n' && c != EOF)
			;
		r = let_go(keys, &got);
		if (!r && c != EOF)
			r = print(0);
	} while (!r && c != EOF);
	over = true;
	return r;
}

int main(int argc, char **argv)
{
	unsigned threads = argc == 4 ? (unsigned)atoi(argv[2]) : 0, bad = 0;
	pthread_t thread[MAX_THREADS];
	struct pfs_options options;

	if (!threads || threads > MAX_THREADS) {
		fprintf(stderr, "usage: client_threads NAMESPACE THREADS ROUNDS\n");
		return 2;
	}
	rounds = (unsigned)atoi(argv[3]);
	pfs_options_init(&options);
	options.rank = 0;
	options.call_buffer_bytes = PFS_MIN_CALL_BUFFER;
	options.wait_prewarm = 1;
	if (pfs_open(argv[1], &options, &session))
		return say(argv[1]);
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1)))
			return 1;
	if (!rounds)
		bad += hold_on() != 0;
	for (unsigned i = 0; i < threads; i++) {
		void *r;

		pthread_join(thread[i], &r);
		bad += r != NULL;
	}
	bad += print(bad) != 0;
	pfs_close(&session);
	return bad || wrong;
}
