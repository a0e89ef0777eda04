/* SPDX-License-Identifier: Apache-2.0
 *
 * What `prefixfs upgrade` and a daemon's parent say to each other; fs/upgrade.h says what it means. Not installed.
 */
#ifndef PREFIXFS_FS_CLIENT_UPGRADE_WIRE_H
#define PREFIXFS_FS_CLIENT_UPGRADE_WIRE_H

#include <stdint.h>

#define UPGRADE_MAGIC 0x5046535550474431ull /* "PFSUPGD1" */
#define UPGRADE_SOCKET "parent.sock"        /* in the run folder; SOCK_SEQPACKET */

struct upgrade_request { /* and the program's descriptor, opened O_RDONLY */
	uint64_t magic;
	uint32_t bytes;      /* sizeof */
	uint32_t judge_only; /* 1: answer what the judge says and change nothing */
	uint32_t remount;    /* 1: also when the mount must be made anew */
	uint32_t reserved;
};

struct upgrade_answer {
	uint64_t magic;
	uint32_t done;
	uint32_t error;    /* errno */
	uint32_t pause_us; /* done: from the old one's last answer to the new one's readiness */
	uint32_t reserved;
	char text[480];
};

#endif
