/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_level_now = LOG_LEVEL_INFO;
static const char *const log_level_names[] = {"error", "warning", "info", "debug"};

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level_now, (int)level, memory_order_relaxed);
}

void log_by_itself(void)
{
	dup2(STDOUT_FILENO, STDERR_FILENO);
}

void log_line(enum log_level level, const char *format, ...)
{
	int saved = errno;
	char line[1024];
	struct timespec now;
	struct tm day;
	va_list args;

	if ((int)level > atomic_load_explicit(&log_level_now, memory_order_relaxed))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &day);
	size_t used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &day);
	used += (size_t)snprintf(line + used, sizeof(line) - used, ".%03ldZ prefixfsd[%d] %s: ", now.tv_nsec / 1000000,
		(int)getpid(), log_level_names[level]);
	va_start(args, format);
	int wanted = vsnprintf(line + used, sizeof(line) - used, format, args);
	va_end(args);
	used += wanted < 0 ? 0 : (size_t)wanted;
	if (used >= sizeof(line)) {
		memcpy(line + sizeof(line) - 5, "...", 3);
		used = sizeof(line) - 2;
	}
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, used) < 0) {
		/* Nobody listens: there is no better place to say it. */
	}
	errno = saved;
}
