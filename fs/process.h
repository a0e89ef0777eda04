/* SPDX-License-Identifier: Apache-2.0
 *
 * What tells a process from any other that lives.
 */
#ifndef PREFIXFS_FS_PROCESS_H
#define PREFIXFS_FS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The inode of @pidfd where pidfds are files of pidfs (Linux 6.9): every descriptor of one process has it, and it is never another's. Else
 * @pid, which is another's only when that one is gone; 0: not known here, of another pid namespace. Any thread; does not block. */
uint64_t process_number(int pidfd, pid_t pid);
/* A descriptor of process @pid, close-on-exec, the caller's; it may have ended by the time that it is used. -ESRCH: there is none, or it
 * has ended (a number that is a thread's is no process); -EMFILE, -ENFILE, -ENOMEM. Any thread; does not block. */
int process_open(uint32_t pid);
/* Is @thread one of process @pid, which lives? */
bool process_has_thread(uint32_t pid, pid_t thread);
/* Has the process of @pidfd ended? */
bool process_ended(int pidfd);
/* The pid of a process that lives; 0: it is gone, or not known here. */
pid_t process_pid(int pidfd);

#endif
