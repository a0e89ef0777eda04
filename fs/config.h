/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon can be told: one row here is a parameter's name, type, default, limits and help text. The command
 * line, the configuration file, `--help` and the mount's `config` file are all made from it.
 *
 * Sizes accept K, M, G and T (powers of 1024). A dash in a name is as good as an underscore. Immutable once the
 * parent has read it; the serving process gets the effective values on its command line.
 */
#ifndef PREFIXFS_FS_CONFIG_H
#define PREFIXFS_FS_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "store/base/why.h"

/* x(type, name, default, least or choices, most, help). Numbers of choices count from 0. */
#define CONFIG_PARAMETERS(x) \
	x(SIZE, memory, "1G", 16ull << 20, 64ull << 40, "budget for values in memory, the padding of slots included") \
	x(CHOICE, hugepages, "auto", "auto|never|thp|require", 0, "backing of the segments; require insists") \
	x(BOOL, populate, "true", 0, 1, "make granted memory present before it is handed out") \
	x(UINT, populate_threads, "4", 1, 64, "threads that do so") \
	x(UINT, loop_threads, "0", 0, 64, "threads that serve the mount; 0 = the cores, at most 4") \
	x(UINT, handle_ttl_ms, "60000", 100, 3600000, "a handle neither transferred nor cancelled is cancelled then") \
	x(UINT, fill_ttl_ms, "60000", 100, 3600000, "a put group that waits for another plan is given up then, and so is what only some ranks have committed") \
	x(UINT, token_ttl_ms, "10000", 100, 600000, "how long the token of ATTACH may be shown") \
	x(UINT, max_namespaces, "64", 1, 64, "namespaces at once") \
	x(UINT, max_connections, "64", 1, 4096, "connections to the socket that have not shown their token yet") \
	x(UINT, hello_ms, "5000", 10, 600000, "a connection that has not shown its token by then is closed") \
	x(CHOICE, allow_other, "auto", "auto|yes|no", 0, "let other users see the mount; auto = yes for root") \
	x(TEXT, run_dir, "", 0, 64, "folder for socket and state; empty = /run/prefixfs or $XDG_RUNTIME_DIR/prefixfs") \
	x(MODE, mode, "0755", 0, 07777, "permission bits of the mount's root and of ns/") \
	x(UINT, uid, "self", 0, 4294967294, "owner of the root and of ns/") \
	x(UINT, gid, "self", 0, 4294967294, "group of the root and of ns/") \
	x(TEXT, memory_fault, "", 0, 255, "faults put into the mount's reads of memory, for tests, as read:EIO:1/100") \
	x(TEXT, disk, "", 0, 255, "folder of the record files, which must be there; empty = memory alone") \
	x(SIZE, disk_bytes, "0", 0, 1ull << 50, "budget for record files; 0 = a tenth of what is free there at the start") \
	x(UINT, disk_workers, "2", 1, 16, "threads that write and read them") \
	x(CHOICE, durability, "none", "none|data", 0, "data: a file is synced before it counts") \
	x(BOOL, disk_only, "false", 0, 1, "everything is written at once, memory is for what is in use") \
	x(CHOICE, disk_io, "auto", "auto|uring|plain", 0, "how files are written and read; uring insists on io_uring") \
	x(TEXT, disk_fault, "", 0, 255, "faults put into the disk's operations, for tests") \
	x(UINT, expire, "0", 0, 3153600000, "seconds after which a record that was not used goes; 0 = never") \
	x(TEXT, drain, "none", 0, 16, "what is written down at the end: none, full, or the newest for so many seconds") \
	x(UINT, drain_limit, "60", 1, 86400, "seconds that the end may take for that at most") \
	x(UINT, deaths, "5", 1, 1000, "the serving process is not started again after this many deaths in 60 s") \
	x(UINT, watchdog_s, "30", 0, 86400, "a serving process in which nothing moves for so many looks, one a second, is killed; 0 = never") \
	x(UINT, upgrade_judge_ms, "5000", 10, 600000, "a program that `prefixfs upgrade` names must have said by then what it is") \
	x(UINT, upgrade_ready_ms, "30000", 10, 3600000, "and serve by then, or the one of before serves again") \
	x(BOOL, core, "false", 0, 1, "a core dump of a serving process that faults; while it is written nobody is answered") \
	x(BOOL, resend, "true", 0, 1, "no: the mount is made anew after a death, as where the kernel sends no request again; for tests") \
	x(TEXT, crash_at, "", 0, 255, "points at which serving processes die one after the other, for tests") \
	x(TEXT, stop_at, "", 0, 255, "points at which they are stopped, likewise") \
	x(BOOL, foreground, "false", 0, 1, "do not go into the background; log to standard error") \
	x(TEXT, log_file, "", 0, 255, "where the log goes in the background; empty = the file log in the run folder") \
	x(CHOICE, log_level, "info", "error|warning|info|debug", 0, "the least grave lines that are logged")

enum { CONFIG_HUGE_AUTO, CONFIG_HUGE_NEVER, CONFIG_HUGE_THP, CONFIG_HUGE_REQUIRE };
enum { CONFIG_DURABILITY_NONE, CONFIG_DURABILITY_DATA };
enum { CONFIG_DISK_AUTO, CONFIG_DISK_URING, CONFIG_DISK_PLAIN };
enum { CONFIG_OTHER_AUTO, CONFIG_OTHER_YES, CONFIG_OTHER_NO };

#define CONFIG_DISK_LEAST (16ull << 20) /* of disk_bytes */
#define CONFIG_TEXT_BYTES 256u
#define CONFIG_FIELD_SIZE(name) uint64_t name;
#define CONFIG_FIELD_UINT(name) uint64_t name;
#define CONFIG_FIELD_MODE(name) uint64_t name;
#define CONFIG_FIELD_BOOL(name) uint64_t name;
#define CONFIG_FIELD_CHOICE(name) uint64_t name;
#define CONFIG_FIELD_TEXT(name) char name[CONFIG_TEXT_BYTES];

struct config {
#define X(type, name, ...) CONFIG_FIELD_##type(name)
	CONFIG_PARAMETERS(X)
#undef X
	char mountpoint[PATH_MAX]; /* absolute, links resolved, once the parent has checked it */
	char serve[640];           /* of the serving process alone: what it inherited; empty in the parent */
};

/* Everything at its default. */
void config_init(struct config *config);
/* One parameter. EINVAL: unknown (the sentence names the known ones), malformed, outside its limits. */
int config_set(struct config *config, const char *name, const char *value, struct why *why);
/* A JSON object of parameters; numbers, booleans and strings. */
int config_read_file(struct config *config, const char *path, struct why *why);

enum config_action { CONFIG_RUN, CONFIG_HELP, CONFIG_VERSION };
/* Seconds that writing down at the end may take, 0 = nothing is; *newest: the newest first, for as far as it gets. */
uint64_t config_drain_s(const struct config *config, bool *newest);

/* The whole command line; a --config FILE is read before the other options, wherever it stands. */
int config_parse_args(struct config *config, int argc, char *const *argv, enum config_action *action, struct why *why);
/* Fills in what depends on the machine: loop_threads, run_dir, allow_other; makes `disk` absolute. Refuses what cannot go together. */
int config_settle(struct config *config, struct why *why);

/* "name value" lines, the `config` file of the mount. */
void config_print(const struct config *config, FILE *to);
void config_print_help(FILE *to);
/* The value of parameter number @i as "--name=value", which config_parse_args reads back; false past the last one. */
bool config_argument(const struct config *config, unsigned i, char *to, size_t bytes);

/* "16M", "0x10", "4096" -> number; false when it is none or too large. */
bool config_parse_size(const char *text, uint64_t *ret);

#endif
