/* SPDX-License-Identifier: Apache-2.0
 *
 * The mount as the commands see it: where it is, and its small files.
 */
#ifndef PREFIXFS_TOOLS_HOST_H
#define PREFIXFS_TOOLS_HOST_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* The mount point: @given, or $PREFIXFS_MOUNT, or the one that this host has. NULL after a sentence. Static storage. */
const char *host_mount(const char *given);
/* <mount>/ns/<name>, or <mount>/<rest...>; NULL after a sentence when it is too long. */
int host_path(char to[PATH_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Is a prefixfs mounted at @mount, and served? 0, or 1 after a sentence; 1 where it is fallen. */
int host_mounted(const char *mount);

struct host_mount_row {
	long owner;      /* the uid for which it was mounted */
	unsigned device; /* its minor number */
	char point[PATH_MAX];
};

/* What the kernel knows of the prefixfs at @mount: nothing of the mount is read, so it answers where nobody serves, too.
 * False: there is none. */
bool host_mount_find(const char *mount, struct host_mount_row *ret);
struct host_daemon {
	long parent, serving; /* processes; serving 0: nobody does, the mount is fallen or the next one is not started yet */
	bool disk;            /* it has a disk tier */
};

/* The processes that serve @mount, found in /proc. False: none is to be seen that does, and *ret is 0. */
bool host_daemon_find(const struct host_mount_row *mount, struct host_daemon *ret);
/* Was it stopped by a signal or a debugger? */
bool host_process_stopped(long pid);
/* <mount>/ns/<name><rest> of a namespace that is there; refused with a sentence otherwise. */
int host_namespace(char to[PATH_MAX], const char *mount, const char *name, const char *rest);
/* <mount>/ns/<name>, for a @name that can be a namespace's; refused likewise. */
int host_new_namespace(char to[PATH_MAX], const char *mount, const char *name);
/* <records>/<name>, for a @name that can be a record's; refused likewise. */
int host_record(char to[PATH_MAX], const char *records, const char *name);
/* A whole small file (at most 1 MiB), NUL-terminated, to be freed; NULL with errno. */
char *host_read_file(const char *path, size_t *bytes);
/* The same of a text, @ms at most (ETIMEDOUT): of a mount whose daemon may be stuck. */
char *host_read_within(const char *path, unsigned ms);
/* The value of "name: value" or "name value" in @text, to be freed; NULL if there is none. */
char *host_line(const char *text, const char *name);
/* All lines of @text as an object; what is a number becomes one. */
json_t *host_lines(const char *text);
/* Gives a command, which ends with a line end, to the ctl open at @fd; 0 or an errno. *answer: the object that it left, or
 * NULL. */
int host_command(int fd, const char *command, json_t **answer);
/* Why it failed. Lives as long as @answer. */
const char *host_command_why(const json_t *answer, int error);
/* Names of the namespaces at @mount that one may see: an array of strings; NULL after a sentence. */
json_t *host_namespaces(const char *mount);
/* The folder of this program. */
const char *host_program_folder(void);

#endif
