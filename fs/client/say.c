/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fs/client/client.h"

static _Thread_local char sentence[512];

int say(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	return -error;
}

void say_text(const char *text)
{
	snprintf(sentence, sizeof(sentence), "%s", text);
}

size_t pfs_last_error(char *to, size_t size)
{
	size_t length = strlen(sentence);

	if (size > 0) {
		size_t n = length < size ? length : size - 1;

		memcpy(to, sentence, n);
		to[n] = '\0';
	}
	return length;
}
