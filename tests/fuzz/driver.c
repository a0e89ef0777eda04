/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_<target> [--seconds N] [--seed N] [--replay HEX] [--write-seeds FOLDER]: tries mutations of the target's seeds for so
 * long.
 *
 * The seed of the random numbers is printed, and at a failure the input in hex; --replay HEX tries that one alone (`-`:
 * reads hex from standard input). --write-seeds makes a corpus for libFuzzer and tries nothing. PREFIXFS_FUZZ_SECONDS is the default of --seconds.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define CORPUS 256u
#define INPUT_S 60u /* that one input may take, under a sanitizer on a busy machine */

struct input {
	size_t bytes;
	uint8_t at[FUZZ_INPUT_MAX];
};

static struct input corpus[CORPUS], *current; /* the latter shared with the parent, which outlives what it brings about */
static unsigned corpus_count, seeds;
static uint64_t state;

/* ---- mutations ------------------------------------------------------------------------------------------------- */

static uint32_t pick(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 32) * below >> 32);
}

static void make_place(struct input *in, size_t at, size_t bytes)
{
	if (bytes > FUZZ_INPUT_MAX - in->bytes)
		bytes = FUZZ_INPUT_MAX - in->bytes;
	memmove(in->at + at + bytes, in->at + at, in->bytes - at);
	for (size_t i = 0; i < bytes; i++)
		in->at[at + i] = (uint8_t)pick(256);
	in->bytes += bytes;
}

static void cut(struct input *in, size_t at, size_t bytes)
{
	if (bytes > in->bytes - at)
		bytes = in->bytes - at;
	memmove(in->at + at, in->at + at + bytes, in->bytes - at - bytes);
	in->bytes -= bytes;
}

/* A piece of another input over, or between, what is there. */
static void splice(struct input *in, size_t at)
{
	const struct input *other = &corpus[pick(corpus_count)];
	size_t from = other->bytes ? pick((uint32_t)other->bytes) : 0, n = 1 + pick(64);

	if (n > other->bytes - from)
		n = other->bytes - from;
	if (pick(2)) {
		if (n > FUZZ_INPUT_MAX - in->bytes)
			n = FUZZ_INPUT_MAX - in->bytes;
		make_place(in, at, n);
	} else if (n > in->bytes - at) {
		n = in->bytes - at;
	}
	memcpy(in->at + at, other->at + from, n);
}

static void mutate(struct input *in)
{
	static const uint8_t telling[] = {0, 1, 2, 3, 4, 7, 8, 15, 16, 32, 63, 64, 65, 127, 128, 254, 255, '\n', '"', '-', ' '};
	size_t at = in->bytes ? pick((uint32_t)in->bytes) : 0;

	switch (in->bytes ? pick(8) : 0) {
	case 0:
		make_place(in, at, 1 + pick(8));
		break;
	case 1:
		cut(in, at, 1 + pick(16));
		break;
	case 2:
		in->at[at] ^= (uint8_t)(1u << pick(8));
		break;
	case 3:
		in->at[at] = telling[pick(sizeof(telling))];
		break;
	case 4:
		in->at[at] = (uint8_t)(in->at[at] + pick(9) - 4);
		break;
	case 5:
		in->at[at] = (uint8_t)pick(256);
		break;
	default:
		splice(in, at);
	}
}

static void next_input(void)
{
	*current = corpus[pick(corpus_count)];
	for (unsigned n = pick(4) ? 1 + pick(6) : 1 + pick(40); n; n--)
		mutate(current);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static void try_current(void)
{
	/* Memory of its very length, so that reading behind it is seen. */
	uint8_t *copy = malloc(current->bytes ? current->bytes : 1);

	memcpy(copy, current->at, current->bytes);
	alarm(INPUT_S);
	LLVMFuzzerTestOneInput(copy, current->bytes);
	free(copy);
}

static int replay(const char *hex)
{
	static char text[2 * FUZZ_INPUT_MAX + 2];
	unsigned byte;

	if (!strcmp(hex, "-"))
		hex = fgets(text, sizeof(text), stdin) ? text : "";
	current->bytes = 0;
	for (; sscanf(hex, "%2x", &byte) == 1 && current->bytes < FUZZ_INPUT_MAX; hex += 2)
		current->at[current->bytes++] = (uint8_t)byte;
	try_current();
	printf("%zu bytes: nothing found\n", current->bytes);
	return 0;
}

static void read_seeds(void)
{
	while (corpus_count < CORPUS) {
		corpus[corpus_count].bytes = fuzz_seed(corpus_count, corpus[corpus_count].at);
		if (!corpus[corpus_count].bytes)
			break;
		corpus_count++;
	}
	seeds = corpus_count;
	if (!seeds)
		abort();
}

static int write_seeds(const char *folder)
{
	for (unsigned i = 0; i < seeds; i++) {
		char path[4096];
		FILE *to;

		snprintf(path, sizeof(path), "%s/seed%u", folder, i);
		to = fopen(path, "w");
		if (!to || fwrite(corpus[i].at, 1, corpus[i].bytes, to) != corpus[i].bytes || fclose(to)) {
			perror(path);
			return 1;
		}
	}
	return 0;
}

static int fuzz(unsigned seconds)
{
	time_t end = time(NULL) + seconds;
	uint64_t runs = 0;

	for (; runs < seeds; runs++) {
		*current = corpus[runs];
		try_current();
	}
	while (time(NULL) < end) {
		next_input();
		try_current();
		runs++;
		/* Without a measure of what is new the corpus wanders: seeds stay, the others are what came last. */
		if (corpus_count < CORPUS)
			corpus[corpus_count++] = *current;
		else if (seeds < CORPUS)
			corpus[seeds + pick(CORPUS - seeds)] = *current;
	}
	printf("%llu inputs, nothing found\n", (unsigned long long)runs);
	return 0;
}

/* In a process of its own, so that whatever ends it leaves the input behind: a signal, or a sanitizer's report. */
static int watched(unsigned seconds, int argc, char **argv)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		LLVMFuzzerInitialize(&argc, &argv);
		exit(fuzz(seconds));
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 2;
	if (status == 0)
		return 0;
	fprintf(stderr, "%s %d\ninput: --replay ", WIFSIGNALED(status) ? "signal" : "exit status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	for (size_t i = 0; i < current->bytes; i++)
		fprintf(stderr, "%02x", current->at[i]);
	fprintf(stderr, "\n");
	return 1;
}

int main(int argc, char **argv)
{
	const char *env = getenv("PREFIXFS_FUZZ_SECONDS"), *hex = NULL, *folder = NULL;
	unsigned seconds = env ? (unsigned)strtoul(env, NULL, 10) : 2;
	uint64_t seed = (uint64_t)time(NULL) * 1000003 ^ (uint64_t)getpid();

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--seconds"))
			seconds = (unsigned)strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--replay"))
			hex = argv[i + 1];
		else if (!strcmp(argv[i], "--write-seeds"))
			folder = argv[i + 1];
		else
			argc = 0;
	}
	if (argc % 2 == 0) {
		fprintf(stderr, "usage: %s [--seconds N] [--seed N] [--replay HEX] [--write-seeds FOLDER]\n", argv[0]);
		return 2;
	}
	current = mmap(NULL, sizeof(*current), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (current == MAP_FAILED)
		return 2;
	read_seeds();
	if (folder)
		return write_seeds(folder);
	if (hex) {
		LLVMFuzzerInitialize(&argc, &argv);
		return replay(hex);
	}
	printf("--seconds %u --seed %llu\n", seconds, (unsigned long long)seed);
	fflush(stdout);
	state = seed * 0x9e3779b97f4a7c15ull | 1;
	return watched(seconds, argc, argv);
}
