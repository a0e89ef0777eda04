/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parent's files share. It is one thread and waits in poll(2) alone:
 *
 *   parent.c       the start: the run folder, the socket, the will; and the end
 *   supervise.c    a serving process after the other; signals; what to do until which time
 *   serving.c      one serving process: starting it, what it says, whether it moves, its end
 *   succession.c   between two: the mount that stays or is made anew, the pause, the fallen mount
 *   replacement.c  upgrades: the next serving process beside the present one
 *   obituary.c     the account of a death
 */
#ifndef PREFIXFS_FS_PARENT_STATE_H
#define PREFIXFS_FS_PARENT_STATE_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/config.h"
#include "fs/deaths.h"
#include "fs/fallen.h"
#include "fs/keeper.h"
#include "fs/last_exit.h"
#include "fs/rundir.h"
#include "fs/upgrade_parent.h"
#include "fs/will.h"

#define PARENT_FDS (5u + UPGRADE_PARENT_FDS)
#define PARENT_LAST_LINES 20
#define PARENT_LINE_BYTES 512
#define PARENT_LOOK_MS 1000 /* how often the serving process is looked at */
#define PARENT_STOP_MS 900  /* one that has not ended by then after STOP, and after writing down, is killed */
#define PARENT_LEAVE_MS 80  /* that it has then until the parent ends without it */
#define PARENT_REAP_MS 10   /* that the exit status of a dead one is waited for */

/* A serving process. */
struct serving {
	pid_t pid;       /* 0 = there is none */
	int keeper, log; /* channel to it, its standard error; -1: at the end */
	unsigned mounts; /* parent.mounts at its start: it has the descriptor of that one */
	bool handed_over; /* it was told to end for an upgrade, or killed for one: its end is no death */
	bool waits;      /* WAITS came */
	bool ready;      /* READY came */
	bool reaped;     /* `status` is waitpid's */
	bool given_up;   /* it cannot end, and its connection was ended: gone on without */
	int status;
	uint64_t ready_ns, ended_ns; /* when READY came; when the channel was at its end, 0 = it is not */
	bool giving;        /* heirlooms are on their way */
	uint32_t given;     /* of them */
	bool killed;        /* by the parent */
	uint64_t killed_ms; /* since it had not stopped in that time; 0 = not for that */
	uint64_t hung_s;    /* since its beats stood still for so long; 0 = not for that */
	bool was_stopped;   /* by a signal, when that was seen */
	uint64_t beats;     /* at the last look */
	unsigned still;     /* looks in a row without a new one */
	unsigned dying;     /* looks in a row that found it dead and not ended */
	bool populating;    /* it makes memory of floors present */
	uint64_t oom_kills; /* memory_limit_kills before it */
	char lines[PARENT_LAST_LINES][PARENT_LINE_BYTES]; /* a ring of what it logged */
	unsigned line_count;
	size_t partial; /* bytes of the last, unfinished line */
};

struct parent {
	struct config *config;
	struct rundir dir;
	int launcher; /* pipe to the process that waits for READY, or -1 */
	int terminal; /* standard error of the start, in the background until READY; or -1 */
	int signals;  /* signalfd */
	int listener; /* the clients' socket, inherited by every serving process */
	struct will *will; /* and its memory file, inherited likewise */
	int will_fd;
	int fuse;        /* /dev/fuse of the present mount, or -1 */
	unsigned device; /* of the present mount */
	unsigned mounts; /* made so far */
	int abort;       /* what ends its connection, or -1 */
	bool taken_away; /* the present mount, by us, since its serving process could not end */
	bool remount;    /* the serving process cannot take its connection over */
	struct serving serving; /* the present one */
	struct serving next;    /* of an upgrade: it waits for what it is to be given; pid 0 = there is none */
	struct upgrade_parent upgrade;
	struct upgrade_calls upgrade_calls;
	int program;     /* that serving processes are of; -1 = the parent's own */
	int trying;      /* the upgrade's, borrowed until it is kept or given up; -1 = none is tried */
	bool succeeding; /* an upgrade asks for the next serving process now */
	unsigned upgrades; /* that came to serve */
	struct kept kept;
	bool served;     /* there was a READY */
	bool stopping;   /* a signal asked for the end */
	bool not_begun;  /* the start failed: nothing was ever served */
	uint64_t kill_ns; /* when to kill the serving process, 0 = not */
	uint64_t stop_ms; /* that it was given after STOP; 0 = it was not told */
	pid_t helper;    /* takes the mount away; 0 = none does */
	unsigned restarts;
	struct deaths deaths;
	char last_exit[448]; /* for health: how the serving process ended last, even where the file cannot be written */
	struct last_exit_facts unreaped; /* of the last death whose status was not known; pid 0 = there is none */
	char fallen_text[LAST_EXIT_BYTES + RUNDIR_PATH_BYTES + 96];
	struct fallen fallen;
};

/* ---- supervise.c ------------------------------------------------------------------------------------------------------ */

/* For whoever started us: the log, and the terminal while somebody waits there. */
void parent_say(struct parent *p, const char *sentence);
/* Until all is over: the exit status. */
int parent_supervise(struct parent *p);
/* Reads the signals that have come and what has ended. */
void parent_hear_signals(struct parent *p);
/* In *n entries of @fds, PARENT_FDS at most: what may come. */
void parent_gather(struct parent *p, struct pollfd *fds, unsigned *n);
/* By a signal, or by an unmount: whoever took the mount away, if it was not us, wants no other one. */
bool parent_told_to_stop(const struct parent *p);
/* It was told to stop while nobody served, and --drain is to write down what memory holds: one more serving process does that. */
bool parent_has_to_write_down(const struct parent *p);

/* ---- serving.c -------------------------------------------------------------------------------------------------------- */

/* @s is p->serving, or the one beside it, which waits to be given what is held. */
int serving_start(struct parent *p, struct serving *s, struct why *why);
/* From now on it is given what is held. */
void serving_begin(struct parent *p);
/* p->next takes the place of p->serving, which is cleared. */
void serving_promote(struct parent *p);
/* Is p->next there, and has it the descriptor of the present mount? */
bool serving_waits(const struct parent *p);
/* What it logged and what it tells, as far as that is there; what it is to be given, as far as the channel takes it. */
void serving_hear(struct parent *p, struct serving *s);
/* Called every PARENT_LOOK_MS: kills one in which nothing moves; ends the connection of one that is dead and cannot end. */
void serving_look(struct parent *p);
void serving_tell_stop(struct parent *p, bool hurry);
/* HANDOVER. One that cannot hear it is killed. */
void serving_hand_over(struct parent *p);
void serving_kill(struct serving *s);
/* No thread of it runs a line of the program any more: the next one may start. At the end of its channel it is killed once more, which
 * says nothing to who has ended. */
bool serving_is_over(struct parent *p, uint64_t now_ns);
void serving_clear(struct parent *p);
/* Kills p->next, and lets go of it. */
void serving_discard_next(struct parent *p);
/* The last line that it logged. */
const char *serving_last_line(const struct serving *s, const char *otherwise);
/* Whoever waits for the start goes on. */
void serving_release_launcher(struct parent *p);

/* ---- succession.c ----------------------------------------------------------------------------------------------------- */

/* The mount for the next serving process: the one that is there, where its connection can be taken over, else a new one. */
int succession_mount(struct parent *p, struct why *why);
/* Takes the mount away and ends its connection. */
void succession_unmount(struct parent *p);
/* Waits before the next start, which an upgrade may bring forward, and an end that has something to write down. False: the end was asked for
 * meanwhile. */
bool succession_pause(struct parent *p, uint64_t ms);
/* Nobody serves any more: the parent answers, until it is told to stop. True: until an upgrade starts a serving process once more. */
bool succession_fall(struct parent *p);

/* ---- obituary.c ------------------------------------------------------------------------------------------------------- */

enum obituary_verdict { OBITUARY_STOPPED, OBITUARY_OVER, OBITUARY_FALL, OBITUARY_NEXT };

/* What the end of the serving process means, and the account of it, where it was a death. STOPPED: all is over, and well; OVER: over, with
 * exit status 1; FALL: it is not started again; NEXT: it is, after *pause_ms. */
enum obituary_verdict obituary_judge(struct parent *p, uint64_t *pause_ms);
/* The exit status of one whose end was not known became known. */
void obituary_reaped(struct parent *p, int status);
/* The reason that an earlier run on this mount point left. */
void obituary_recall(struct parent *p);
/* Why @s ended, by what is known; LAST_EXIT_REASON_BYTES. One that refused to begin has said it itself. */
void obituary_reason(const struct parent *p, const struct serving *s, char *reason);
/* The account of the end of p->serving, as of a death, without counting as one; @next: what follows. */
void obituary_note(struct parent *p, const char *reason, const char *next);
/* Warns of what --drain was to write, and is lost with the last serving process. */
void obituary_undrained(const struct parent *p);

/* ---- replacement.c -------------------------------------------------------------------------------------------------- */

/* Listens for `prefixfs upgrade`. Where that is not possible it is a warning. */
void replacement_begin(struct parent *p);
/* Who asks, the judge, the one that waits; and what is due. */
void replacement_hear(struct parent *p);
/* The serving process came to serve. */
void replacement_ready(struct parent *p);
/* p->serving is over. True: that was an upgrade's doing, and the next one is to be started; false: it was a death. */
bool replacement_goes_on(struct parent *p);
/* The next serving process could not be started, or there is no mount for it. */
void replacement_failed(struct parent *p, const char *reason);
/* The daemon is to stop. */
void replacement_stop(struct parent *p);
void replacement_end(struct parent *p);

#endif
