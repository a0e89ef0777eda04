/* SPDX-License-Identifier: Apache-2.0
 *
 * Deaths of the serving process between two operations: another host adopts a copy of the tables as they are in that moment, over the same
 * segment. The one that died stays whole meanwhile, and is taken apart then.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/adopt.h"
#include "store/fills.h"
#include "store/host_private.h"
#include "tests/model/drive.h"

/* A memory file with the same bytes and the same holes. */
static int copy_of(int from)
{
	int to = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	static char buffer[1 << 20];
	struct stat st;
	off_t at = 0;

	need(to >= 0 && !fstat(from, &st) && !ftruncate(to, st.st_size) ? buffer : NULL);
	while ((at = lseek(from, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(from, at, SEEK_HOLE);

		while (at < end) {
			size_t n = (size_t)(end - at) < sizeof(buffer) ? (size_t)(end - at) : sizeof(buffer);

			need(pread(from, buffer, n, at) == (ssize_t)n && pwrite(to, buffer, n, at) == (ssize_t)n ? buffer : NULL);
			at += (off_t)n;
		}
	}
	return to;
}

static void adopt(const struct space *dead)
{
	static const struct space_access access = { 0, 0, 0700 };
	const char *text = space_layout(dead)->json;
	struct adoption adoption = {
		.name = "test",
		.serial = space_serial(dead),
		.access = &access,
		.segment_fd = dup(segment_fd(dead->segment)),
		.tables_fd = copy_of(dead->tables_fd),
	};
	struct adopt_report report;
	struct why why = WHY_INIT;

	if (layout_parse(text, strlen(text), &adoption.layout, &why))
		fail(&why);
	adoption.layout->floor_bytes = space_floor_bytes(dead);
	w.host = host_make();
	if (host_space_adopt(w.host, &adoption, &w.space, &report, &why))
		fail(&why);
	if (report.torn_entries || report.torn_records || report.torn_groups || report.torn_grants || report.torn_seats)
		differs("of what was adopted between two operations something was being made");
	host_adopted(w.host);
	while (atomic_load(&w.space->prewarm_done) < w.space->prewarm_goal)
		sched_yield();
}

static void take_apart(struct host *host, struct space *space, struct session **session)
{
	for (uint32_t rank = 0; rank <= w.world; rank++) {
		uint64_t number = session_number(session[rank]);

		session_release(session[rank]);
		host_process_gone(host, number);
		session_unref(&session[rank]);
		host_process_gone(w.host, number); /* nor does it touch anything in the next life */
	}
	space_unref(&space);
	host_free(&host);
}

void do_death(void)
{
	struct session *session[WORLD_MAX + 1];
	struct host *host = w.host;
	struct space *space = w.space;

	w.doubt = was_late();
	memcpy(session, w.session, sizeof(session));
	adopt(space);
	take_apart(host, space, session);
	for (uint32_t rank = 0; rank <= w.world; rank++)
		w.session[rank] = attach(rank < w.world ? rank : SESSION_RANK_NONE);
	w.plan_count = 0;
	if (!w.space->fills)
		return;
	fills_run(w.space->fills, w.begin_ns + w.seconds * 1000000000u); /* it is that late: the model's time goes on */
	while (fills_sweep(w.space->fills))
		;
}
