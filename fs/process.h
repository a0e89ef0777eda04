/* SPDX-License-Identifier: Apache-2.0
 *
 * What tells a process from any other that lives.
 */
#ifndef PREFIXFS_FS_PROCESS_H
#define PREFIXFS_FS_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

/* The inode of @pidfd where pidfds are files of pidfs (Linux 6.9): every descriptor of one process has it, and it is never another's. Else
 * @pid, which is another's only when that one is gone; 0: not known here, of another pid namespace. Any thread; does not block. */
uint64_t process_number(int pidfd, pid_t pid);
/* The pid of a process that lives; 0: it is gone, or not known here. */
pid_t process_pid(int pidfd);

#endif
