/* SPDX-License-Identifier: Apache-2.0
 *
 * Sentences, one a thread.
 */
#include "kernels/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/prefixfs_gpu.h"

static _Thread_local char sentence[512];

int gpu_say(int error, const char *format, ...)
{
	char text[sizeof(sentence)]; /* what is said may quote the last one */
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	memcpy(sentence, text, sizeof(text));
	return -error;
}

const char *gpu_said(void)
{
	return sentence;
}

size_t pfs_gpu_last_error(char *to, size_t size)
{
	size_t length = strlen(sentence);

	if (size > 0)
		snprintf(to, size, "%s", sentence);
	return length;
}
