/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of sessions/<id>: who it is, what it holds, what it waits for, what went wrong last.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fs/ctl.h"
#include "fs/handles.h"
#include "fs/ioctl.h"
#include "fs/record_name.h"
#include "fs/text.h"
#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/session.h"

/* The name of the process that has the number now; "unknown" where it cannot be seen from here. What is no plain
 * character is shown as a question mark: a process may call itself anything. */
static void process_name(pid_t pid, char to[32])
{
	char path[64];
	FILE *f;

	strcpy(to, "unknown");
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	f = pid > 0 ? fopen(path, "re") : NULL;
	if (!f)
		return;
	size_t n = fread(to, 1, 31, f);
	fclose(f);
	to[n] = 0;
	to[strcspn(to, "\n")] = 0;
	for (char *c = to; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	if (!to[0])
		strcpy(to, "unknown");
}

static void print_number(FILE *to, const char *name, uint32_t value)
{
	if (value == UINT32_MAX)
		fprintf(to, "%s: none\n", name);
	else
		fprintf(to, "%s: %u\n", name, value);
}

static void print_who(const struct session_info *s, FILE *to)
{
	char client[2 * sizeof(s->client_id) + 1], process[32];

	process_name(s->pid, process);
	hex_print(s->client_id, sizeof(s->client_id), client);
	fprintf(to, "namespace: %s\npid: %d\nprocess: %s\nuid: %u\ngid: %u\n", s->space, (int)s->pid, process, s->uid,
		s->gid);
	fprintf(to, "attached: %s\nread_only: %s\nclient: %s\n", s->attached ? "yes" : "no", s->read_only ? "yes" : "no",
		s->buffer_bytes ? client : "none");
	print_number(to, "guard", s->guard ? s->guard : UINT32_MAX);
	print_number(to, "rank", s->rank);
	print_number(to, "node", s->node);
	fprintf(to, "age_s: %" PRId64 "\n", (int64_t)clock_wall_s() - s->opened_s);
}

static void print_held(const struct session_info *s, FILE *to)
{
	uint32_t all = s->put_plans + s->get_plans + s->handles;

	fprintf(to,
		"put_plans: %u\nget_plans: %u\nhandles: %u\noldest_ms: %" PRIu64 "\npins: %u\nprepared_bytes: %" PRIu64
		"\ncall_buffer_bytes: %" PRIu64 "\nquarantined_slots: %u\nranges: %u of %u acknowledged\n",
		s->put_plans, s->get_plans, s->handles, s->oldest_ms, s->pins, s->prepared_bytes, s->buffer_bytes,
		s->quarantined, s->acknowledged, s->ranges);
	for (uint32_t i = 0; i < s->shown; i++) {
		const struct session_holding *h = &s->holding[i];

		fprintf(to, "%s %" PRIu64 ": age_ms=%" PRIu64, h->kind, h->id,
			h->age_ns / 1000000u);
		if (h->busy)
			fprintf(to, " busy\n");
		else
			fprintf(to, " values=%u bytes=%" PRIu64 "\n", h->values, h->bytes);
	}
	fprintf(to, "listed: %u, the oldest; not listed: %u\n", s->shown, all > s->shown ? all - s->shown : 0);
}

static void print_imports(const struct session_info *s, FILE *to)
{
	fprintf(to, "imports: %u\n", s->imports);
	for (uint32_t i = 0; i < s->imports; i++) {
		const struct session_import *m = &s->import[i];

		if (m->here)
			fprintf(to, "import %" PRIu64 ": bytes=%" PRIu64 " written=%" PRIu64 " requests=%u\n", m->id, m->bytes,
				m->written, m->users);
		else
			fprintf(to, "import %" PRIu64 ": its descriptor has not come\n", m->id);
	}
}

static void print_tickets(const struct session_info *s, FILE *to)
{
	static const char *const gates[] = { "none", "deliver", "confirm" };
	char id[2 * sizeof(s->ticket[0].id) + 1];

	fprintf(to, "tickets: %u\n", s->tickets);
	for (uint32_t i = 0; i < s->tickets && i < SESSION_TICKETS; i++) {
		const struct session_ticket *t = &s->ticket[i];

		hex_print(t->id, sizeof(t->id), id);
		fprintf(to, "ticket %s: gate=%s", id, gates[t->gate]);
		if (t->gate == SESSION_TICKET_DELIVERS)
			fprintf(to, " from=%" PRIu64 " to=%" PRIu64, t->from, t->to);
		fprintf(to, " came=%u of=%u", t->came, t->world);
		if (t->lacks != SESSION_RANK_NONE)
			fprintf(to, " lacks_rank=%u", t->lacks);
		fprintf(to, " idle_ms=%" PRIu64 "\n", t->idle_ms);
	}
}

static const char *operation_name(unsigned nr)
{
	const char *name = ioctl_name(nr);

	return name ? name : "unknown";
}

/* Requests under way, which the session's ctl knows. */
static void print_requests(struct fs *fs, uint64_t number, FILE *to)
{
	struct ctl_request requests[CTL_RUNNING];
	uint64_t now_ns = clock_now_ns(), handle = atomic_load(&fs->ctls[number % HOST_MAX_SESSIONS]);
	struct ctl *ctl = handles_take(fs->handles, handle, HANDLE_CTL);
	uint32_t n = 0;

	if (ctl) {
		if (ctl_session_number(ctl) == number)
			n = ctl_requests(ctl, requests);
		handles_put(fs->handles, handle);
	}
	fprintf(to, "requests: %u\n", n);
	for (uint32_t i = 0; i < n; i++)
		fprintf(to, "request %" PRIu64 ": %s age_ms=%" PRIu64 "\n", requests[i].seq, operation_name(requests[i].nr),
			now_ns > requests[i].since_ns ? (now_ns - requests[i].since_ns) / 1000000u : 0);
}

int text_print_session(struct fs *fs, uint64_t number, FILE *to)
{
	cleanup(freep) struct session_info *s = malloc(sizeof(*s));
	int r = s ? session_info(fs->host, number, s) : -ENOMEM;

	if (r)
		return r;
	print_who(s, to);
	print_held(s, to);
	print_imports(s, to);
	print_tickets(s, to);
	print_requests(fs, number, to);
	if (s->error[0])
		fprintf(to, "last error: %s (%s, request %" PRIu64 ", %" PRIu64 " ms ago)\n", s->error,
			operation_name(s->error_op), s->error_seq, s->error_ms);
	else
		fprintf(to, "last error: none\n");
	return 0;
}
