/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/why.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Marks a text that did not fit. */
static void why_ellipsis(struct why *why, int wanted)
{
	if (wanted >= (int)sizeof(why->text))
		memcpy(why->text + sizeof(why->text) - 4, "...", 4);
}

int why_set(struct why *why, int error, const char *format, ...)
{
	int saved = errno;

	assert(error > 0);
	if (why) {
		va_list args;

		va_start(args, format);
		int wanted = vsnprintf(why->text, sizeof(why->text), format, args);
		va_end(args);
		why_ellipsis(why, wanted);
		why->error = error;
	}
	errno = saved;
	return -error;
}

void why_prefix(struct why *why, const char *format, ...)
{
	int saved = errno;

	if (why) {
		struct why old = *why;
		va_list args;

		va_start(args, format);
		int used = vsnprintf(why->text, sizeof(why->text), format, args);
		va_end(args);
		if (used < (int)sizeof(why->text)) {
			size_t left = sizeof(why->text) - (size_t)used;

			used += snprintf(why->text + used, left, ": %s", old.text);
		}
		why_ellipsis(why, used);
	}
	errno = saved;
}
