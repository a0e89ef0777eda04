/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines: "<time> prefixfsd[<pid>] <level>: <sentence>", one write(2) each, to standard error.
 *
 * The serving process's standard error is a pipe to the parent, which copies it to where the log goes and remembers the
 * last lines for the file that says why a process died. Thread-safe; may be called under any lock (one write to a pipe
 * that the parent empties).
 */
#ifndef PREFIXFS_FS_LOG_H
#define PREFIXFS_FS_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level);
/* In a serving process whose parent, who copies its log, is gone: from now on the log goes where the parent's went (fs/serving.c). */
void log_by_itself(void);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
