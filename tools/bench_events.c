/* SPDX-License-Identifier: Apache-2.0
 *
 * bench view: how many events reach a reader while another one sleeps, and what being scraped costs.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/host.h"

#define SPACE "bench"
#define EVENTS_CHAINS 400u       /* of 1,000 one-page records */
#define EVENTS_AGAINST 100000.0  /* a second */
#define READ_BYTES (64u << 10)
#define SCRAPED_SPACES 64u
#define SCRAPES 100u
#define SCRAPE_MS 100u
#define SCRAPE_AGAINST 1.0 /* percent of a CPU */
#define MIB (1024.0 * 1024.0)

/* What the reading process counts, in memory shared with ours. */
struct reading {
	_Atomic uint64_t lines, lost;
	_Atomic bool ready, stop, failed;
};

static void count_lines(struct reading *reading, const char *text)
{
	static const char gap[] = "\"event\":\"gap\",\"lost\":";

	for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
		const char *lost = memmem(text, (size_t)(end - text), gap, strlen(gap));

		if (lost)
			reading->lost += strtoull(lost + strlen(gap), NULL, 10);
		else
			reading->lines++;
	}
}

/* The quick reader: until it is told to stop and nothing more comes for 100 ms. */
static void read_events(const char *path, struct reading *reading)
{
	static char text[READ_BYTES + 1];
	struct pollfd wait = {.fd = open(path, O_RDONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC), .events = POLLIN};

	reading->failed = wait.fd < 0;
	reading->ready = true;
	while (!reading->failed) {
		ssize_t n = read(wait.fd, text, READ_BYTES);

		if (n > 0) {
			text[n] = 0;
			count_lines(reading, text);
		} else if (n < 0 && errno != EAGAIN && errno != EINTR) {
			reading->failed = true;
		} else if (poll(&wait, 1, 100) == 0 && reading->stop) {
			break;
		}
	}
	_exit(reading->failed);
}

/* Puts records into full memory, so that each is two events, one record stored and one evicted, while one reader reads and another sleeps. Events are counted that reached the
 * reader, over the time from the first put to the last one that it read; what came too fast for it is in `lost`. */
static int put_and_count(const struct bench_options *o, const struct bench_daemon *daemon, struct bench_chains *chains,
	struct reading *reading)
{
	uint64_t before = 0, after = 0, began, ended;
	int r = bench_memory(daemon, &before);

	began = clock_ns();
	if (!r)
		r = bench_fill(chains, EVENTS_CHAINS, "putting");
	ended = clock_ns();
	for (uint64_t last = 0; !r && last != reading->lines + reading->lost;) {
		last = reading->lines + reading->lost;
		ended = clock_ns();
		usleep(20000);
	}
	if (!r)
		r = bench_memory(daemon, &after);
	if (!r)
		bench_print(o, "events_per_s", (double)reading->lines * 1e9 / (double)(ended - began), "1/s", EVENTS_AGAINST,
			json_pack("{s:I, s:I, s:I, s:f}", "put", (json_int_t)EVENTS_CHAINS * BENCH_BATCH, "read",
				(json_int_t)reading->lines, "lost", (json_int_t)reading->lost, "memory_more_mib",
				after > before ? (double)(after - before) / MIB : 0.0));
	return r;
}

static int measure_reading(const struct bench_options *o, const struct bench_daemon *daemon, struct bench_chains *chains)
{
	struct reading *reading = mmap(NULL, sizeof(*reading), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char path[PATH_MAX];
	int status = 0, asleep, r = 1;

	if (reading == MAP_FAILED || host_path(path, "%s/events", daemon->mount))
		return complain("no memory");
	asleep = open(path, O_RDONLY | O_CLOEXEC);
	pid_t reader = fork();

	if (reader == 0)
		read_events(path, reading);
	if (asleep < 0 || reader < 0) {
		complain("%s: %s", path, strerror(errno));
	} else {
		for (unsigned i = 0; i < 5000 && !reading->ready; i++)
			usleep(1000);
		r = reading->ready && !reading->failed ? put_and_count(o, daemon, chains, reading) :
		                                         complain("%s: the reader cannot read", path);
	}
	if (reader > 0) {
		reading->stop = true;
		if (r)
			kill(reader, SIGKILL);
		waitpid(reader, &status, 0);
		if (!r && status)
			r = complain("%s: the reader failed", path);
	}
	if (asleep >= 0)
		close(asleep);
	munmap(reading, sizeof(*reading));
	return r;
}

int bench_events(const struct bench_options *o)
{
	/* Full before it begins, so that what the daemon's memory grows by is not the records'. */
	const struct bench_daemon_options d = {.memory = EVENTS_CHAINS * BENCH_BATCH * BENCH_VALUE};
	struct bench_chains chains = {0};
	struct bench_daemon daemon;
	int r = bench_daemon_start(&daemon, &d, false);

	if (r)
		return r;
	r = bench_namespace(&daemon, SPACE, BENCH_VALUE, 1, d.memory / 8 * 7);
	if (!r)
		r = bench_chains_open(&chains, &daemon, SPACE, 1);
	if (!r)
		r = bench_fill(&chains, EVENTS_CHAINS + EVENTS_CHAINS / 8, "filling");
	if (!r)
		r = measure_reading(o, &daemon, &chains);
	if (chains.session)
		bench_chains_close(&chains);
	bench_daemon_stop(&daemon);
	return r;
}

/* The daemon's time for a while in which metrics are read ten times a second, less that of such a while without. */
static int measure_scrapes(const struct bench_options *o, const struct bench_daemon *daemon)
{
	uint64_t idle = bench_cpu_ns(daemon->serving), busy, began;
	char path[PATH_MAX];
	size_t bytes = 0;

	if (host_path(path, "%s/metrics", daemon->mount))
		return 1;
	usleep(SCRAPES * SCRAPE_MS * 1000);
	busy = bench_cpu_ns(daemon->serving);
	idle = busy - idle;
	began = clock_ns();
	for (unsigned i = 0; i < SCRAPES; i++) {
		uint64_t next = began + (i + 1ull) * SCRAPE_MS * 1000000u, now;
		char *text = host_read_file(path, &bytes);

		if (!text)
			return complain("%s: %s", path, strerror(errno));
		free(text);
		now = clock_ns();
		if (now < next)
			usleep((useconds_t)((next - now) / 1000));
	}
	busy = bench_cpu_ns(daemon->serving) - busy;
	bench_print(o, "metrics_10hz_cpu_percent",
		(busy > idle ? (double)(busy - idle) : 0.0) * 100.0 / (double)(clock_ns() - began), "%", SCRAPE_AGAINST,
		json_pack("{s:I, s:I}", "namespaces", (json_int_t)SCRAPED_SPACES, "bytes", (json_int_t)bytes));
	return 0;
}

int bench_scrapes(const struct bench_options *o)
{
	const struct bench_daemon_options d = {.memory = 1024ull << 20};
	struct bench_daemon daemon;
	char name[16];
	int r = bench_daemon_start(&daemon, &d, false);

	if (r)
		return r;
	for (unsigned i = 0; i < SCRAPED_SPACES && !r; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		r = bench_namespace(&daemon, name, BENCH_VALUE, 1, d.memory / SCRAPED_SPACES / 2);
	}
	if (!r)
		r = measure_scrapes(o, &daemon);
	bench_daemon_stop(&daemon);
	return r;
}
