/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing behind: a disk that fails is tried again later and later, and closed in the end.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/base/clock.h"
#include "store/spill_private.h"

#define SPILL_PAUSE_MIN 100000000ull
#define SPILL_PAUSE_MAX 30000000000ull
#define SPILL_CLOSE_FAILURES 8u
#define SPILL_CLOSE_NS 10000000000ull

/* ---- failures ------------------------------------------------------------------------------------------------------------ */

static bool lacks_room(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

/* Under the lock. */
static void close_tier(struct tiering *t, int error)
{
	t->closed = true;
	snprintf(t->error_text, sizeof(t->error_text), "the disk tier is closed after %u failures in a row, the last one: %s",
		 t->failures, strerror(-error));
	spill_cancel_all(t);
	space_room(t->space);
}

/* Under the lock. */
static void note_failure(struct tiering *t, int error, bool read)
{
	uint64_t now = clock_now_ns();

	t->error = -error;
	if (!read && now >= t->retry_ns) { /* those that were under way together fail together: one pause */
		t->retry_pause_ns = t->retry_pause_ns * 2 < SPILL_PAUSE_MIN ? SPILL_PAUSE_MIN : t->retry_pause_ns * 2;
		t->retry_pause_ns = t->retry_pause_ns > SPILL_PAUSE_MAX ? SPILL_PAUSE_MAX : t->retry_pause_ns;
		t->retry_ns = now + t->retry_pause_ns;
	}
	t->full |= lacks_room(error);
	snprintf(t->error_text, sizeof(t->error_text), "a record file cannot be %s: %s", read ? "read" : "written", strerror(-error));
	if (!lacks_room(error)) {
		t->failing_since_ns = t->failures ? t->failing_since_ns : now;
		t->failures++;
		t->write_failures += !read;
	}
	if (t->failures >= SPILL_CLOSE_FAILURES && now - t->failing_since_ns >= SPILL_CLOSE_NS)
		close_tier(t, error);
}

void tiering_result(struct tiering *t, int error, bool read)
{
	if (error == -ECANCELED)
		return;
	lock_take(&t->space->lock);
	if (t->closed) {
		/* stays so */
	} else if (error) {
		note_failure(t, error, read);
	} else if (read) {
		t->failures = t->write_failures; /* one can often still read where nothing can be written */
	} else {
		t->failures = t->write_failures = 0;
		t->error = 0;
		t->error_text[0] = 0;
		t->retry_ns = t->retry_pause_ns = 0;
	}
	lock_drop(&t->space->lock);
}
