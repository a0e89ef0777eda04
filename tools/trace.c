/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/mix.h"

#define KEEP_MAX PFS_MAX_KEYS

/* ---- building --------------------------------------------------------------------------------------------------- */

static void *grow(void *list, size_t *room, size_t need, size_t size)
{
	size_t wanted = *room ? *room : 1024;
	void *p;

	while (wanted < need)
		wanted *= 2;
	if (wanted == *room)
		return list;
	p = realloc(list, wanted * size);
	if (p)
		*room = wanted;
	return p;
}

static int add_run(struct trace *t, uint64_t first, uint64_t count)
{
	struct trace_request *q = &t->requests[t->count - 1];
	struct trace_run *last = q->runs ? &t->runs[t->run_count - 1] : NULL;
	void *p;

	if (count == 0)
		return 0;
	if (q->pages + count > KEEP_MAX)
		return complain("a request of more than %u blocks", KEEP_MAX);
	q->pages += (uint32_t)count;
	if (last && last->first + last->count == first) {
		last->count += (uint32_t)count;
		return 0;
	}
	p = grow(t->runs, &t->run_room, t->run_count + 1, sizeof(*t->runs));
	if (!p)
		return complain("no memory for the trace");
	t->runs = p;
	t->runs[t->run_count++] = (struct trace_run){.first = first, .count = (uint32_t)count};
	q->runs++;
	return 0;
}

static int add_request(struct trace *t, double time, uint32_t session, uint32_t keep)
{
	void *p = grow(t->requests, &t->room, t->count + 1, sizeof(*t->requests));

	if (!p)
		return complain("no memory for the trace");
	t->requests = p;
	t->requests[t->count++] = (struct trace_request){
		.time = time,
		.session = session,
		.keep = keep,
		.pages = keep,
		.first_run = t->run_count,
	};
	return 0;
}

static int add_session(struct trace *t, const char *id)
{
	size_t room = t->session_room;
	void *p = grow(t->salts, &room, (size_t)t->sessions + 1, sizeof(*t->salts));
	uint64_t salt = 0x70726566697866ull;

	if (!p)
		return complain("no memory for the trace");
	t->salts = p;
	t->session_room = (uint32_t)room;
	for (; *id; id++)
		salt = mix64(salt + (uint8_t)*id);
	t->salts[t->sessions++] = salt;
	return 0;
}

/* ---- the two formats -------------------------------------------------------------------------------------------- */

static int read_mooncake(struct trace *t, const json_t *line)
{
	const json_t *ids = json_object_get(line, "hash_ids"), *id;
	size_t i;

	t->block_tokens = 512;
	if (t->sessions == 0 && add_session(t, "mooncake"))
		return 1;
	if (!json_is_array(ids) || json_array_size(ids) == 0)
		return complain("hash_ids is no list of ids");
	if (add_request(t, json_number_value(json_object_get(line, "timestamp")) / 1000, 0, 0))
		return 1;
	json_array_foreach(ids, i,
		id) if (!json_is_integer(id) || add_run(t, (uint64_t)json_integer_value(id),
							1)) return complain("hash_ids has something that is no id");
	return 0;
}

static int read_kvct_request(struct trace *t, const json_t *q, double start, uint32_t before)
{
	const json_t *keep = json_array_get(q, 4), *runs = json_array_get(q, 5), *run;
	size_t i;

	if (!json_is_number(json_array_get(q, 0)) || !json_is_integer(keep) || !json_is_array(runs))
		return complain("a request is not [t, tokens, model, is_main, keep, runs]");
	if (json_integer_value(keep) < 0 || json_integer_value(keep) > before)
		return complain("a request keeps %lld blocks of %u", (long long)json_integer_value(keep), before);
	if (add_request(t, start + json_number_value(json_array_get(q, 0)), t->sessions - 1,
		    (uint32_t)json_integer_value(keep)))
		return 1;
	json_array_foreach(runs, i, run)
	{
		const json_t *first = json_array_get(run, 0), *count = json_array_get(run, 1);

		if (!json_is_integer(first) || !json_is_integer(count) || json_integer_value(count) < 0)
			return complain("a run is not [first, count]");
		if (add_run(t, (uint64_t)json_integer_value(first), (uint64_t)json_integer_value(count)))
			return 1;
	}
	return 0;
}

static int read_kvct(struct trace *t, const json_t *line, double drawn)
{
	const json_t *requests = json_object_get(line, "reqs"), *start = json_object_get(line, "start"), *q;
	const char *id = json_string_value(json_object_get(line, "id"));
	json_int_t block = json_integer_value(json_object_get(line, "block"));
	uint32_t before = 0;
	size_t i;

	if (!id || !json_is_array(requests) || block <= 0)
		return complain("a session lacks id, block or reqs");
	if (t->block_tokens && t->block_tokens != (uint32_t)block)
		return complain("session %s has blocks of %lld tokens, those before it %u", id, (long long)block,
			t->block_tokens);
	t->block_tokens = (uint32_t)block;
	if (add_session(t, id))
		return 1;
	json_array_foreach(requests, i, q)
	{
		if (read_kvct_request(t, q, json_is_number(start) ? json_number_value(start) : drawn, before))
			return 1;
		before = t->requests[t->count - 1].pages;
	}
	return 0;
}

static int read_line(struct trace *t, const char *text, size_t length, double drawn)
{
	json_error_t error;
	json_t *line = json_loadb(text, length, 0, &error);
	int r;

	if (!line)
		return complain("no JSON: %s", error.text);
	if (json_object_get(line, "hash_ids"))
		r = read_mooncake(t, line);
	else if (json_object_get(line, "reqs"))
		r = read_kvct(t, line, drawn);
	else
		r = complain("neither hash_ids nor reqs: this is no trace");
	json_decref(line);
	return r;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static FILE *open_trace(const char *path, pid_t *child)
{
	size_t length = strlen(path);
	int fd = open(path, O_RDONLY | O_CLOEXEC), pipes[2];
	struct stat st;

	*child = 0;
	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && S_ISDIR(st.st_mode)) {
		close(fd);
		errno = EISDIR;
		return NULL;
	}
	if (length < 3 || strcmp(path + length - 3, ".gz"))
		return fdopen(fd, "re");
	if (pipe2(pipes, O_CLOEXEC)) {
		close(fd);
		return NULL;
	}
	*child = fork();
	if (*child == 0) {
		if (dup2(fd, STDIN_FILENO) >= 0 && dup2(pipes[1], STDOUT_FILENO) >= 0)
			execlp("gzip", "gzip", "-dc", NULL);
		_exit(127);
	}
	close(fd);
	close(pipes[1]);
	if (*child < 0) {
		close(pipes[0]);
		return NULL;
	}
	return fdopen(pipes[0], "re");
}

static int by_time(const void *a, const void *b)
{
	const struct trace_request *x = a, *y = b;

	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

/* A session's requests must stay in its own order, whatever their times say. */
static void order_sessions(struct trace *t)
{
	for (size_t i = 1; i < t->count; i++)
		if (t->requests[i].session == t->requests[i - 1].session &&
			t->requests[i].time < t->requests[i - 1].time)
			t->requests[i].time = t->requests[i - 1].time;
}

static void finish(struct trace *t, const struct trace_options *options)
{
	order_sessions(t);
	for (size_t i = 0; i < t->count; i++)
		t->requests[i].number = i;
	qsort(t->requests, t->count, sizeof(*t->requests), by_time);
	if (options->max_requests && t->count > options->max_requests)
		t->count = options->max_requests;
	for (size_t i = 0; i < t->count; i++) {
		t->references += t->requests[i].pages;
		if (t->requests[i].pages > t->longest)
			t->longest = t->requests[i].pages;
	}
}

int trace_read(const char *path, const struct trace_options *options, struct trace *ret)
{
	struct trace t = {0};
	struct twister random;
	char *line = NULL;
	size_t size = 0, number = 0;
	ssize_t length;
	pid_t child;
	int r = 0, status;
	FILE *f = open_trace(path, &child);

	if (!f)
		return complain("%s: %s", path, strerror(errno));
	twister_seed(&random, options->seed);
	while (!r && (length = getline(&line, &size, f)) > 0) {
		double drawn = options->spread * twister_next(&random);

		number++;
		if (options->max_sessions && t.sessions >= options->max_sessions && t.block_tokens != 512)
			break;
		if (length > 1 && read_line(&t, line, (size_t)length, drawn))
			r = complain("%s: line %zu cannot be used", path, number);
	}
	if (!r && ferror(f))
		r = complain("%s: %s", path, strerror(errno));
	free(line);
	fclose(f);
	if (child && waitpid(child, &status, 0) == child && !r && WIFEXITED(status) && WEXITSTATUS(status))
		r = complain("%s: gzip says %d", path, WEXITSTATUS(status));
	if (!r && t.count == 0)
		r = complain("%s: no request in it", path);
	if (r) {
		trace_free(&t);
		return 1;
	}
	finish(&t, options);
	*ret = t;
	return 0;
}

void trace_free(struct trace *trace)
{
	free(trace->requests);
	free(trace->runs);
	free(trace->salts);
	*trace = (struct trace){0};
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

struct chain *chains_new(const struct trace *trace)
{
	struct chain *chains = calloc(trace->sessions, sizeof(*chains));

	for (size_t i = 0; chains && i < trace->count; i++)
		chains[trace->requests[i].session].left++;
	return chains;
}

const struct pfs_key *chains_advance(struct chain *chains, const struct trace *trace, size_t i)
{
	const struct trace_request *q = &trace->requests[i];
	struct chain *c = &chains[q->session];

	if (q->pages > c->room) {
		struct pfs_key *p = realloc(c->keys, (q->pages + q->pages / 4) * sizeof(*p));

		if (!p)
			return NULL;
		c->keys = p;
		c->room = q->pages + q->pages / 4;
	}
	c->count = q->keep;
	for (uint32_t k = 0; k < q->runs; k++) {
		const struct trace_run *run = &trace->runs[q->first_run + k];

		for (uint32_t n = 0; n < run->count; n++, c->count++)
			mix_key(c->count ? &c->keys[c->count - 1] : NULL, trace->salts[q->session], run->first + n,
				&c->keys[c->count]);
	}
	c->left--;
	return c->keys;
}

void chains_free(struct chain *chains, const struct trace *trace)
{
	for (uint32_t i = 0; chains && i < trace->sessions; i++)
		free(chains[i].keys);
	free(chains);
}
