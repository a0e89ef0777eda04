/* SPDX-License-Identifier: Apache-2.0
 *
 * replay: a recorded workload against a namespace, from several client processes.
 */
#include "tools/replay.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/host.h"
#include "tools/replay_kills.h"
#include "tools/report.h"

#define MAX_CLIENTS 256u
#define TELL_AFTER_NS 1500000000ull
#define SLOT_UNIT 4096u
#define GRANT_UNIT (2u << 20)

static const char more[] =
	"\nTRACE is a file of the Mooncake format or of the kvct format (sessions of coding agents), which may be gzipped.\n"
	"Each request is looked up, what is there is fetched and checked byte for byte, what is missing is put. The hit ratio\n"
	"is block hits in leading runs / all block references, each request looked up before its own inserts. Requests are\n"
	"dealt to the clients in turn. With --order strict (the default) a request is looked up when all before it have been\n"
	"committed, so that results do not depend on the number of clients; with lookups, when all before it have been looked\n"
	"up; with free, clients do not wait for each other. Where a namespace has several ranks each client is a scheduler and a\n"
	"process a rank, which get one answer for each request by a ticket; a hit is what was restored on all of them. Of layouts\n"
	"with windows or states a hit is what one can go on from; states are put at the boundaries that the look-up wants and at\n"
	"the request's end. Rates divide the bytes of a client by the time that it spent in\n"
	"put or get plans, the making and checking of the bytes included; they are summed over the clients, except where\n"
	"clients take turns (strict). bytes_from_disk is what the daemon read back into memory meanwhile, for whomever;\n"
	"unfetched_pages hit, and could not be read back or found no room to be read into: they are put again. A daemon that\n"
	"is gone is waited for, 30 s a request; standard error says so.\n\n"
	"--kills has the daemon's serving process killed with signal 9 while clients work, once in each of N equal parts of the\n"
	"requests, where --seed says. Every byte is checked as ever. The daemon must be one that goes on after so many deaths\n"
	"(its option --deaths), and yours to kill. longest_gap_ms is the longest time between two answers to a client within a\n"
	"request, the making and checking of bytes included; reattached counts sessions that attached anew; hit_ratio_before_kill\n"
	"and _after_kill are of requests begun before and after the first kill.\n\n"
	"--report writes one HTML page with pictures that a browser shows without anything else: the hit ratio over the\n"
	"requests and over capacity beside leaf-first LRU and the optimum in hindsight, latencies, evictions, bytes.";

static bool parse_order(const char *text, enum replay_order *ret)
{
	static const char *const names[] = {"strict", "lookups", "free"};

	for (unsigned i = 0; i < 3; i++) {
		if (!strcmp(text, names[i])) {
			*ret = (enum replay_order)i;
			return true;
		}
	}
	return false;
}

/* A number in a small file of @folder; -1 when there is none. */
static int64_t counter(const char *folder, const char *small_file, const char *name)
{
	char file[PATH_MAX], *text, *value;
	int64_t n = -1;

	if (host_path(file, "%s/%s", folder, small_file) || !(text = host_read_file(file, NULL)))
		return -1;
	value = host_line(text, name);
	if (value)
		n = strtoll(value, NULL, 10);
	free(value);
	free(text);
	return n;
}

/* Of the daemon, as a replay changes them; -1: the namespace does not say. */
struct tallies {
	int64_t evicted, promoted, promoted_bytes;
};

static struct tallies tallies(const char *path)
{
	return (struct tallies){
		.evicted = counter(path, "stats", "values_evicted"),
		.promoted = counter(path, "stats", "values_promoted"),
		.promoted_bytes = counter(path, "stats", "bytes_promoted"),
	};
}

/* After a restart of the daemon the counters began anew. */
static int64_t grown(int64_t before, int64_t now)
{
	return before >= 0 && now >= before ? now - before : now;
}

static double gbps(uint64_t bytes, uint64_t ns)
{
	return ns ? (double)bytes / (double)ns : 0;
}

/* All that was counted; the counts of all clients together go to @sum. */
static json_t *results(const struct replay_shared *shared, uint32_t processes, bool in_turn, double seconds,
	const struct tallies *grew, struct replay_counts *sum)
{
	static const char *const names[] = {"get_start", "get_transfer", "release", "put_start", "put_commit"};
	double put_gbps = 0, get_gbps = 0;
	char name[64];
	json_t *out;

	for (uint32_t i = 0; i < processes; i++) {
		const struct replay_counts *c = &shared->counts[i];
		const uint64_t *from = &c->requests;
		uint64_t *to = &sum->requests;

		for (size_t k = 0; k < offsetof(struct replay_counts, op) / sizeof(uint64_t); k++)
			to[k] += from[k];
		for (unsigned k = 0; k < REPLAY_OPS; k++)
			latency_merge(&sum->op[k], &c->op[k]);
		if (c->longest_gap_ns > sum->longest_gap_ns)
			sum->longest_gap_ns = c->longest_gap_ns;
		put_gbps += gbps(c->bytes_put, c->put_ns);
		get_gbps += gbps(c->bytes_got, c->get_ns);
	}
	if (in_turn) {
		put_gbps = gbps(sum->bytes_put, sum->put_ns);
		get_gbps = gbps(sum->bytes_got, sum->get_ns);
	}
	out = json_pack("{s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "requests", (json_int_t)sum->requests, "hit_ratio",
		sum->references ? (double)sum->hits / (double)sum->references : 0.0, "block_references",
		(json_int_t)sum->references, "block_hits", (json_int_t)sum->hits, "bytes_put",
		(json_int_t)sum->bytes_put, "bytes_got", (json_int_t)sum->bytes_got, "verified_values",
		(json_int_t)sum->verified, "wrong_values", (json_int_t)sum->wrong);
	if (grew->promoted >= 0 && grew->promoted_bytes >= 0) {
		json_object_set_new(out, "values_from_disk", json_integer(grew->promoted));
		json_object_set_new(out, "bytes_from_disk", json_integer(grew->promoted_bytes));
	}
	if (grew->evicted >= 0)
		json_object_set_new(out, "evicted_values", json_integer(grew->evicted));
	json_object_set_new(out, "new_values", json_integer((json_int_t)sum->new_values));
	json_object_set_new(out, "noroom_groups", json_integer((json_int_t)sum->noroom_groups));
	json_object_set_new(out, "toobig_groups", json_integer((json_int_t)sum->toobig_groups));
	json_object_set_new(out, "unfetched_pages", json_integer((json_int_t)sum->unfetched_pages));
	json_object_set_new(out, "lost_plans", json_integer((json_int_t)sum->lost_plans));
	json_object_set_new(out, "exists", json_integer((json_int_t)sum->exists));
	json_object_set_new(out, "inflight", json_integer((json_int_t)sum->inflight));
	json_object_set_new(out, "reattached", json_integer((json_int_t)sum->reattached));
	json_object_set_new(out, "longest_gap_ms", json_real((double)sum->longest_gap_ns / 1e6));
	json_object_set_new(out, "put_gbps", json_real(put_gbps));
	json_object_set_new(out, "get_gbps", json_real(get_gbps));
	for (unsigned k = 0; k < REPLAY_OPS; k++) {
		snprintf(name, sizeof(name), "%s_p50_us", names[k]);
		json_object_set_new(out, name, json_real(latency_us(&sum->op[k], 0.5)));
		snprintf(name, sizeof(name), "%s_p99_us", names[k]);
		json_object_set_new(out, name, json_real(latency_us(&sum->op[k], 0.99)));
	}
	json_object_set_new(out, "seconds", json_real(seconds));
	return out;
}

/* Memory that the values of so many pages need: slots come in grants of a class. */
static uint64_t pages_need(const struct layout_view *layout, uint64_t pages)
{
	uint64_t bytes = 0;

	for (uint32_t c = 0; c < layout->classes; c++) {
		const struct layout_class *class = &layout->class[c];
		uint64_t slot = (class->payload_bytes + SLOT_UNIT - 1) / SLOT_UNIT * SLOT_UNIT;
		uint64_t values = pages * layout->page_tokens / class->every;
		uint64_t in_grant = slot && slot < GRANT_UNIT ? GRANT_UNIT / slot : 1;

		if (!strcmp(class->kind, "state"))
			values = 1;
		bytes += slot < GRANT_UNIT ? (values + in_grant - 1) / in_grant * GRANT_UNIT : values * slot;
	}
	return bytes;
}

/* Groups that can never fit: what would let them. */
static void hint_toobig(const struct replay_shared *shared, uint32_t processes, const struct layout_view *layout,
	const char *mount, const char *path)
{
	int64_t budget = counter(path, "stats", "budget_bytes"), memory = counter(mount, "config", "memory");
	uint64_t groups = 0, need;
	uint32_t pages = 0, fit;
	char limit[128] = "";

	for (uint32_t i = 0; i < processes; i++) {
		groups += shared->counts[i].toobig_groups;
		if (shared->counts[i].toobig_pages > pages)
			pages = shared->counts[i].toobig_pages;
	}
	if (groups == 0 || budget < 0 || memory < budget)
		return;
	/* Twice as much as the values take: grants of other sizes and the limits of the tables are the daemon's to know. */
	need = pages_need(layout, pages);
	for (fit = pages; fit > 1 && 2 * pages_need(layout, fit) > (uint64_t)budget;)
		fit--;
	if (need > (uint64_t)memory / 2)
		snprintf(limit, sizeof(limit), ", and a session may hold half of the memory in open puts, %lld bytes",
			(long long)memory / 2);
	complain("%llu put group%s can never fit: %s %u page%s, %llu bytes%s; --memory=%lluM or --group-pages %u would do",
		(unsigned long long)groups, groups == 1 ? "" : "s", groups == 1 ? "it has" : "the largest has", pages,
		pages == 1 ? "" : "s", (unsigned long long)need, limit,
		(unsigned long long)((2 * need + (uint64_t)(memory - budget) + (1u << 20) - 1) >> 20), fit);
}

/* Tells once when the namespace has been away for longer than a restart takes; is quiet when it is back. */
struct watch {
	const char *path;
	char ctl[PATH_MAX];
	uint64_t since_ns; /* 0 = it is there */
	time_t since;
	uint64_t looked_ns;
	bool told;
};

static void watch(struct watch *w)
{
	char since[16], until[16];
	time_t end;
	int error;

	if (!access(w->ctl, F_OK)) {
		w->since_ns = 0;
		w->told = false;
		return;
	}
	error = errno;
	if (!w->since_ns) {
		w->since_ns = clock_ns();
		w->since = time(NULL);
	}
	if (w->told || clock_ns() - w->since_ns < TELL_AFTER_NS)
		return;
	w->told = true;
	end = w->since + REPLAY_WAIT_S;
	strftime(since, sizeof(since), "%H:%M:%S", localtime(&w->since));
	strftime(until, sizeof(until), "%H:%M:%S", localtime(&end));
	complain("waiting for the daemon of %s: %s; since %s, a request waits until %s", w->path, strerror(error), since,
		until);
}

/* The end of a client. 0, or 1 after the sentence of one that failed: the others are told to stop. */
static int say_end(uint32_t i, int status, const struct replay_counts *counts, struct replay_shared *shared)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	atomic_store(&shared->stop, 1);
	if (WIFSIGNALED(status))
		return complain("client %u was ended by signal %d", i, WTERMSIG(status));
	return complain("client %u: %s", i, counts->error);
}

/* Looks around every now and then while clients work. */
static void look_around(struct watch *w, struct report_watch *counters, uint64_t pace_ns)
{
	uint64_t now = clock_ns();

	if (now - w->looked_ns < pace_ns)
		return;
	w->looked_ns = now;
	watch(w);
	report_watch(counters);
}

/* Runs the clients, each in a process of its own. 0, or 1 after the sentences of those that failed. */
static int run_clients(const struct trace *trace, const struct layout_view *layout,
	const struct replay_options *options, struct replay_shared *shared, const char *path,
	struct report_watch *counters, struct replay_kills *kills)
{
	pid_t pids[MAX_CLIENTS];
	uint32_t started = 0;
	int failed = 0;
	const struct timespec pace = {.tv_nsec = counters->path ? 50000000 : 200000000}, quick = {.tv_nsec = 500000};
	struct watch w = {.path = path};
	sigset_t ended, before;

	if (host_path(w.ctl, "%s/ctl", path))
		return 1;
	sigemptyset(&ended);
	sigaddset(&ended, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ended, &before); /* the end of a client is waited for together with a look around */
	for (; started < options->clients; started++) {
		struct replay_client client = {
			.trace = trace,
			.layout = layout,
			.options = options,
			.shared = shared,
			.counts = &shared->counts[started * options->processes],
			.number = started,
			.processes = options->processes,
			.path = path,
		};

		pids[started] = fork();
		if (pids[started] < 0) {
			failed = complain("fork: %s", strerror(errno));
			atomic_store(&shared->stop, 1);
			break;
		}
		if (pids[started] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			sigprocmask(SIG_SETMASK, &before, NULL);
			_exit(replay_client_run(&client));
		}
	}
	/* Whoever ends first: the others may wait for a turn that a dead one does not pass on. */
	for (uint32_t left = started; left > 0;) {
		uint32_t ended_now = 0;

		for (uint32_t i = 0; i < started; i++) {
			int status = 0;
			pid_t pid = pids[i] ? waitpid(pids[i], &status, WNOHANG) : 0;

			if (pid == 0 || (pid < 0 && errno == EINTR))
				continue;
			pids[i] = 0;
			ended_now++;
			if (say_end(i, status, &shared->counts[i * options->processes], shared))
				failed = 1;
		}
		left -= ended_now;
		replay_kills_look(kills, atomic_load_explicit(&shared->begun, memory_order_relaxed));
		atomic_store_explicit(&shared->kills, (uint32_t)kills->done, memory_order_relaxed);
		look_around(&w, counters, (uint64_t)pace.tv_nsec);
		if (left > 0 && ended_now == 0)
			sigtimedwait(&ended, NULL, kills->done < kills->wanted ? &quick : &pace);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return failed;
}

/* Zeroed memory that the clients share; NULL: there is none. */
static void *share(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static void add_kills(json_t *result, const struct replay_kills *kills, const struct replay_counts *sum)
{
	json_object_set_new(result, "kills", json_integer((json_int_t)kills->done));
	json_object_set_new(result, "hit_ratio_before_kill",
		json_real(ratio(sum->hits - sum->hits_killed, sum->references - sum->references_killed)));
	json_object_set_new(result, "hit_ratio_after_kill", json_real(ratio(sum->hits_killed, sum->references_killed)));
}

static void show_kills(const struct replay_kills *kills, const struct replay_counts *sum)
{
	printf("%llu kill%s: %llu wrong values of %llu verified, %llu sessions attached anew, hit ratio %.4f, longest gap %.1f ms\n",
		(unsigned long long)kills->done, kills->done == 1 ? "" : "s", (unsigned long long)sum->wrong, (unsigned long long)sum->verified,
		(unsigned long long)sum->reattached, ratio(sum->hits, sum->references),
		(double)sum->longest_gap_ns / 1e6);
}

/* Prints what came of it, and writes the report if one is wanted. The exit status. */
static int finish(struct report *report, const struct replay_shared *shared, const struct tallies *grew,
	const struct replay_kills *kills, bool json)
{
	const struct replay_options *options = report->options;
	struct replay_counts *sum = calloc(1, sizeof(*sum));
	json_t *result;
	int r = 0;

	if (!sum)
		return complain("no memory");
	result = results(shared, options->clients * options->processes, options->order == ORDER_STRICT, report->seconds, grew, sum);
	report->result = result;
	report->sum = sum;
	if (report->file) {
		r = report_write(report);
		if (!r)
			json_object_set_new(result, "report", json_string(report->file));
	}
	if (kills->wanted)
		add_kills(result, kills, sum);
	show_object(result, json);
	if (kills->wanted && !json)
		show_kills(kills, sum);
	if (kills->done < kills->wanted)
		r = complain("%llu kills of %llu found no time: the requests were over", (unsigned long long)kills->done,
			(unsigned long long)kills->wanted);
	if (sum->wrong)
		r = complain("%llu values are not what was put under their keys", (unsigned long long)sum->wrong);
	free(sum);
	return r;
}

int command_replay(const struct command *self, int argc, char **argv)
{
	const char *mount = NULL, *ns = NULL, *order = "strict", *ranks = "processes", *file = NULL;
	uint64_t clients = 1, group_pages = 0, seed = 1, spread = 86400, killing = 0;
	bool json = false, planes = false, sessions = false;
	struct trace_options wish = {0};
	struct layout_wish make = {0};
	static struct report_watch watch;
	const struct option_row rows[] = {
		{"mount", OPTION_TEXT, &mount, "DIR", "the mount (PREFIXFS_MOUNT, or the only one)", 0, 0},
		{"ns", OPTION_TEXT, &ns, "NAME", "the namespace", 0, 0},
		{"clients", OPTION_NUMBER, &clients, "N", "client processes (1)", 1, MAX_CLIENTS},
		{"order", OPTION_TEXT, &order, "HOW", "strict, lookups or free (strict)", 0, 0},
		{"requests", OPTION_NUMBER, &wish.max_requests, "N", "the first N requests in time", 1, 0},
		{"sessions", OPTION_NUMBER, &wish.max_sessions, "N", "the first N sessions of the file", 1, 0},
		{"spread", OPTION_NUMBER, &spread, "SECONDS", "where starts are drawn: over this time (86400)", 0, 0},
		{"seed", OPTION_NUMBER, &seed, "N", "of that drawing, and of where --kills fall (1)", 0, UINT32_MAX},
		{"kills", OPTION_NUMBER, &killing, "N", "kill the daemon's serving process N times meanwhile", 1, 10000},
		{"ranks", OPTION_TEXT, &ranks, "HOW", "of several ranks: processes or sessions (processes)", 0, 0},
		{"group-pages", OPTION_NUMBER, &group_pages, "N", "pages of a put group (all that missed)", 1, 65536},
		{"planes", OPTION_FLAG, &planes, NULL, "values pass through planes of the client's own", 0, 0},
		{"layout", OPTION_TEXT, &make.file, "FILE", "create the namespace first, of this layout", 0, 0},
		{"model", OPTION_TEXT, &make.model, "NAME", "create it of a layout that comes along", 0, 0},
		{"tp", OPTION_NUMBER, &make.tp, "N", "its tensor parallel size", 1, 1024},
		{"one-rank", OPTION_FLAG, &make.one_rank, NULL, "one rank's values as a world of their own", 0, 0},
		{"plane-divisor", OPTION_NUMBER, &make.plane_divisor, "N", "divide the bytes of every plane", 1,
			1 << 20},
		{"floor", OPTION_BYTES, &make.floor_bytes, "SIZE", "memory that is its own", 1, 0},
		{"report", OPTION_TEXT, &file, "FILE", "write a page with pictures of it, as HTML", 0, 0},
		{"json", OPTION_FLAG, &json, NULL, "one JSON object", 0, 0},
		{0},
	};
	struct command with_more = *self;
	struct replay_options options = {0};
	struct replay_kills kills = {0};
	struct replay_shared *shared;
	struct layout_view layout;
	struct trace trace;
	char path[PATH_MAX];
	struct tallies before;
	size_t bytes;
	time_t began;
	int r;

	with_more.more = more;
	options_read(&with_more, rows, &argc, argv);
	if (argc != 1)
		return usage_error(self, "one trace is expected, %d are given", argc);
	if (!ns)
		return usage_error(self, "--ns is needed");
	if (layout_wish_check(self, &make))
		return EXIT_USAGE;
	if (!parse_order(order, &options.order))
		return usage_error(self, "--order is '%s', not strict, lookups or free", order);
	sessions = !strcmp(ranks, "sessions");
	if (!sessions && strcmp(ranks, "processes"))
		return usage_error(self, "--ranks is '%s', not processes or sessions", ranks);
	if (file && report_check(file))
		return 1;
	mount = host_mount(mount);
	if (!mount || ((make.file || make.model) && layout_create(mount, ns, &make, LAYOUT_MODE_DEFAULT)))
		return 1;
	if (host_namespace(path, mount, ns, "") || layout_view_read(mount, ns, &layout))
		return 1;
	wish.spread = (double)spread;
	wish.seed = (uint32_t)seed;
	if (trace_read(argv[0], &wish, &trace)) {
		layout_view_free(&layout);
		return 1;
	}
	if (killing && replay_kills_start(&kills, mount, killing, seed, trace.count)) {
		trace_free(&trace);
		layout_view_free(&layout);
		return 1;
	}
	options.clients = (uint32_t)clients;
	options.group_pages = (uint32_t)group_pages;
	options.planes = planes;
	options.may_part = killing > 0;
	options.processes = layout.world > 1 && !sessions ? (uint32_t)layout.world + 1 : 1;
	bytes = sizeof(*shared) + clients * options.processes * sizeof(shared->counts[0]);
	shared = share(bytes);
	if (!shared || (file && !(shared->samples = share(trace.count * sizeof(*shared->samples)))))
		return complain("no memory for %u clients and %zu requests", options.clients, trace.count);
	before = tallies(path);
	began = time(NULL);
	if (file)
		report_watch_start(&watch, path);
	shared->begin_ns = clock_ns();
	r = run_clients(&trace, &layout, &options, shared, path, &watch, &kills);
	if (!r) {
		double seconds = (double)(clock_ns() - shared->begin_ns) / 1e9;
		struct tallies now = tallies(path);
		const struct tallies unknown = {-1, -1, -1}, grew = {
			.evicted = grown(before.evicted, now.evicted),
			.promoted = grown(before.promoted, now.promoted),
			.promoted_bytes = grown(before.promoted_bytes, now.promoted_bytes),
		};
		struct report report = {
			.file = file,
			.trace_name = argv[0],
			.ns = ns,
			.layout = &layout,
			.trace = &trace,
			.options = &options,
			.samples = shared->samples,
			.watch = &watch,
			.seconds = seconds,
			.began = began,
		};

		report_watch_end(&watch);
		r = finish(&report, shared, kills.done ? &unknown : &grew, &kills, json); /* counters begin anew with each death */
		hint_toobig(shared, options.clients * options.processes, &layout, mount, path);
	}
	if (file)
		munmap(shared->samples, trace.count * sizeof(*shared->samples));
	munmap(shared, bytes);
	trace_free(&trace);
	layout_view_free(&layout);
	return r;
}
