/* SPDX-License-Identifier: Apache-2.0
 *
 * `prefixfs upgrade`: another program takes the serving process's place, on request. The parent stays what it is.
 *
 * Socket `parent.sock` in the run folder (SOCK_SEQPACKET, mode 0600), the parent's own, one connection at a time; the peer must be
 * root or the parent's own user (SO_PEERCRED). One request, with the program's descriptor (opened O_RDONLY by the asker: its mount
 * namespace and its path are its own business), then lines of progress, then one answer:
 *
 *   asker -> parent    struct upgrade_request, descriptor
 *   parent -> asker    struct upgrade_answer, done 0: a sentence on what goes on
 *   parent -> asker    struct upgrade_answer, done 1: error 0, or why nothing was changed
 *
 * The judge: the parent runs the new program as `prefixfsd --judge` with the daemon's own options and the kernel's INIT as its standard
 * input; it reads nothing of the cache, touches nothing and writes struct upgrade_verdict to its standard output within
 * config.upgrade_judge_ms, or is refused. What it would answer to INIT is found out by answering it, to nobody.
 *
 *   refused, with the sentence                                                          errno
 *   "... speaks version 2 to its parent, this daemon 1: stop it and start the new one"  EPROTO
 *   "... knows tables of versions 2 to 4; those here have 5: an older program cannot
 *    take them over; stop with --drain, then start it"                                  ENOTSUP
 *   "... answers the kernel's INIT otherwise: max_write 1048576, and not 131072; the
 *    mount would be made anew, which --remount allows"                                EXDEV
 *   "... does not take this daemon's options: <its own sentence>"                       EINVAL
 *   "... answered nothing within 5000 ms", "... is no prefixfsd", "... ended with status n" ENOEXEC
 *   "only root and uid n, whose daemon this is, may ask"                                EACCES
 *   "this is no request for an upgrade ...", "... came without a program"               EINVAL
 *   "the daemon is being stopped"                                                       ESHUTDOWN
 *   "an upgrade is under way already"                                                   EBUSY
 *   "the new serving process ended before it served: <reason>; <version> serves again"  ECANCELED
 *   the same, "...; <version> serves on", where the old one had not been told to end yet         ECANCELED
 *   "the old one did not end what it ran within <n> ms and was killed"                  is no refusal: a line of progress
 *
 * The parent's one thread (fs/upgrade_parent.h); nothing of it blocks but fork.
 */
#ifndef PREFIXFS_FS_UPGRADE_H
#define PREFIXFS_FS_UPGRADE_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/client/upgrade_wire.h"
#include "fs/will.h"
#include "store/base/why.h"

#define UPGRADE_JUDGE_MS 5000u /* that who asks has to say what for; and a judge, where config.upgrade_judge_ms says nothing else */
#define UPGRADE_DRAIN_MS 100u /* that the old one has for what it runs; then it is killed: no worse than a death */

/* What a program says about itself. */
struct upgrade_verdict {
	uint64_t magic;
	uint32_t bytes;
	uint32_t will_version;
	uint32_t tables_oldest, tables_newest; /* that it adopts; it leaves a version as it is as long as it can */
	uint32_t abi_version;
	uint32_t error;    /* its options were refused: errno, and text */
	uint32_t reply_bytes; /* of its reply to INIT; 0: there was no INIT */
	char version[32];
	char text[420];
	uint8_t reply[WILL_INIT_BYTES];
};

/* For --judge: reads the kernel's INIT from standard input to its end, at most UPGRADE_JUDGE_MS, and writes the verdict on these options to
 * standard output. @config_error: 0, or what config_parse_args and config_settle said, with @why. Returns the exit status. */
struct config;
int upgrade_judge(const struct config *config, int config_error, const struct why *why);
/* May a program with @verdict follow this one? @tables_version: the highest of the namespaces' tables, 0 = there are none. @init: what the
 * kernel was answered; reply_bytes 0 = nothing yet, then there is nothing to compare. 0, EPROTO, EINVAL, ENOTSUP, and where all else is
 * well EXDEV, with the sentence. Pure; any bytes may stand in @verdict. */
int upgrade_may_follow(const struct upgrade_verdict *verdict, uint32_t tables_version, const struct will_init *init, struct why *why);

#endif
