/* SPDX-License-Identifier: Apache-2.0
 *
 * The parent's side of an upgrade: who asks, what the judge says, and how far it has come. It owns parent.sock, the asker's connection
 * and the judge's process; serving processes are the parent's, which is called for them and tells what becomes of them.
 *
 *   IDLE      nobody asks
 *   ASKED     an asker is connected and has not said for what             UPGRADE_JUDGE_MS
 *   JUDGING   the program runs with --judge                               config.upgrade_judge_ms
 *   LOADING   the next one was started, the old one serves                config.upgrade_ready_ms, then the next one is killed
 *   DRAINING  the next one waits, the old one ends                        UPGRADE_DRAIN_MS, then it is killed
 *   STARTING  the old one is over, the next one has all it needs          config.upgrade_ready_ms, then it is killed
 *   BACK      the next one ended before READY, the old program is started
 *
 *   ASKED, JUDGING -> IDLE     refused, judged only, or the asker went away: nothing was changed
 *   LOADING -> DRAINING        upgrade_parent_loaded
 *   LOADING -> IDLE            upgrade_parent_died: ECANCELED, nothing was changed
 *   LOADING, DRAINING -> STARTING  upgrade_parent_over
 *   STARTING -> IDLE           upgrade_parent_ready: the answer, with the pause, and the program is kept
 *   DRAINING, STARTING -> BACK upgrade_parent_died
 *   BACK -> IDLE               upgrade_parent_ready or _died: ECANCELED
 *
 * Once the judge has spoken the asker's going changes nothing. One thread, the parent's; nothing blocks but fork. Each call does what is
 * there and returns.
 */
#ifndef PREFIXFS_FS_UPGRADE_PARENT_H
#define PREFIXFS_FS_UPGRADE_PARENT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/config.h"
#include "fs/upgrade.h"

#define UPGRADE_PARENT_FDS 4u

/* What the parent does for it. All return at once. */
struct upgrade_calls {
	void *context;
	/* The highest version of the tables that are held; 0: there are none. */
	uint32_t (*tables_version)(void *context);
	/* Starts a serving process of @program (borrowed, open for reading), which waits for its heirlooms; -1: of the program that the daemon
	 * has. @remount: its mount will be another. 0: upgrade_parent_loaded is to come; 1: it is started by succeed, which cannot be before; or
	 * a negative errno with the sentence. */
	int (*start_program)(void *context, int program, bool remount, struct why *why);
	/* Tells the old one to end what it runs. -ESRCH: nobody serves, or that process has ended already; upgrade_parent_over does not come. */
	int (*hand_over)(void *context);
	void (*kill_old)(void *context);
	/* The old one is over: what start_program started is given all it needs. */
	void (*succeed)(void *context);
	/* That one took too long: upgrade_parent_died is to come. */
	void (*kill_new)(void *context);
	/* @program becomes the parent's: of it are all further serving processes. */
	void (*keep_program)(void *context, int program);
};

enum upgrade_state { UPGRADE_IDLE, UPGRADE_ASKED, UPGRADE_JUDGING, UPGRADE_LOADING, UPGRADE_DRAINING, UPGRADE_STARTING, UPGRADE_BACK };

struct upgrade_parent {
	enum upgrade_state state;
	const struct upgrade_calls *calls; /* borrowed, like the next two */
	const struct config *config;
	const struct will_init *init;
	int listener, asker, program;      /* -1 = none */
	bool judge_only, remount;
	char version[33];                  /* of the program that serves; "" = this one's */
	char tried[33];                    /* of the one that the judge was asked about last */
	pid_t judge;                       /* 0 = none, or it has been reaped */
	bool judge_reaped;                 /* by the parent, with judge_status */
	int judge_status;
	int judge_end, judge_said;         /* its pidfd; what it writes; -1 */
	uint32_t verdict_bytes;
	bool too_much;                     /* it wrote more than a verdict */
	struct upgrade_verdict verdict;
	uint64_t until_ns;                 /* of this state; 0 = no limit, or it has passed */
	uint64_t over_ns;                  /* when the old one was over */
	bool died;                         /* the next one, before the old one was over */
	bool late;                         /* it was killed for config.upgrade_ready_ms */
	struct why why;                    /* why the next one did not come to serve */
};

/* Nothing is open. @calls, @config and @init (of the will) are borrowed until upgrade_parent_end. */
void upgrade_parent_init(
	struct upgrade_parent *upgrade, const struct upgrade_calls *calls, const struct config *config, const struct will_init *init);
/* Makes the socket @path, mode 0600, in place of what lies there. ENAMETOOLONG, or what bind and listen say. */
int upgrade_parent_listen(struct upgrade_parent *upgrade, const char *path, struct why *why);
/* Lets go of all; who asks is told ESHUTDOWN. The judge is killed and reaped. */
void upgrade_parent_end(struct upgrade_parent *upgrade);

/* What to poll for until the next upgrade_parent_hear; returns how many, at most UPGRADE_PARENT_FDS. */
unsigned upgrade_parent_fds(const struct upgrade_parent *upgrade, struct pollfd *fds);
/* Milliseconds until upgrade_parent_hear has something to do by itself; -1: never. */
int upgrade_parent_timeout(const struct upgrade_parent *upgrade, uint64_t now_ns);
/* Does what is there, and what is due. */
void upgrade_parent_hear(struct upgrade_parent *upgrade, uint64_t now_ns);
/* The parent's waitpid came upon @pid. False: it is not the judge. */
bool upgrade_parent_reaped(struct upgrade_parent *upgrade, pid_t pid, int status);
/* Version of the program that serves. */
const char *upgrade_parent_version(const struct upgrade_parent *upgrade);
/* A connection as one that was accepted; taken over. */
void upgrade_parent_take(struct upgrade_parent *upgrade, int asker, uint64_t now_ns);

/* Has the next serving process been started for an upgrade, and not served yet? Then what becomes of both is to be told: */
bool upgrade_parent_waits(const struct upgrade_parent *upgrade);
/* The next one has all that it can have before the old one is over. */
void upgrade_parent_loaded(struct upgrade_parent *upgrade, uint64_t now_ns);
/* The old one is over: its channel is at its end. */
void upgrade_parent_over(struct upgrade_parent *upgrade, uint64_t now_ns);
/* READY of the one that was started last. */
void upgrade_parent_ready(struct upgrade_parent *upgrade, uint64_t now_ns);
/* The one that was started last ended before READY, since @reason (fs/last_exit.h). In BACK its successors are the parent's business, as
 * after any death. */
void upgrade_parent_died(struct upgrade_parent *upgrade, const char *reason, uint64_t now_ns);
/* The daemon is to stop: whoever asks is told so, and nothing further is begun. */
void upgrade_parent_stop(struct upgrade_parent *upgrade);

#endif
