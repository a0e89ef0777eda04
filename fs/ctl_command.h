/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of the text face of ctl (docs/view.md): words in, one JSON object out.
 *
 *   begin   STEP_MORE: step() follows;  0 or an error: it is over
 *   step    STEP_MORE, 0 or an error; others have their turn between two steps. STEP_WAIT: for a change of the namespace
 *           or run->wake_ns; then a step again
 *   end     the answer; after begin, whatever that said, and any number of steps, also when it is not done
 *
 * They work on the store as the ioctls do: 64 keys or records in one stay under the space lock, 1,024 a step. Nothing is
 * held between steps. What waits for a disk is an errand (fs/errands.h), done by another thread. One thread at a time; locks of the store are taken, none may be held.
 */
#ifndef PREFIXFS_FS_CTL_COMMAND_H
#define PREFIXFS_FS_CTL_COMMAND_H

#include <jansson.h>

#include "fs/ctl_line.h"
#include "fs/errands.h"
#include "store/get.h"
#include "store/manage.h"

#define CTL_ANSWER_MAX 16384u /* bytes of an answer, its '\n' included */

struct ctl;
struct ctl_command;

struct ctl_command_run {
	const struct ctl_command *command; /* NULL: the name is none */
	struct ctl *ctl;
	json_t *answer;   /* an object; what is known so far */
	json_t *refusals; /* of records: a list in the answer, or NULL */
	unsigned count;   /* of the arguments' keys */
	unsigned next;    /* to be worked on */
	unsigned absent, refused;
	uint64_t wake_ns; /* after STEP_WAIT */
	struct why why;   /* of the first refusal */
	uint64_t hits[CTL_LINE_WORDS / 64];
	uint64_t consumed[CTL_LINE_WORDS]; /* with keys: names of records */
	struct key keys[CTL_LINE_WORDS];
	union {
		struct probe probe;
		struct touch touch;
		struct pinning pinning;
		struct eviction eviction;
		struct reset reset;
		struct {
			uint64_t number, until_ns;
			struct errand_state state;
			bool disk;
		} errand;
	} work;
};

/* @words are not needed afterwards; @ctl is, and open for writing. EINVAL: no such command, or not so. */
int ctl_command_begin(
	struct ctl_command_run *run, struct ctl *ctl, char **words, unsigned count, struct why *why);
int ctl_command_step(struct ctl_command_run *run, struct why *why);
/* The answer, one line of at most CTL_ANSWER_MAX bytes, to be freed; NULL: no memory. With @why->error it is an error's:
 * "error", "errno", and what was done before. */
char *ctl_command_end(struct ctl_command_run *run, const struct why *why, size_t *bytes);
/* The answer of an error that no command made. */
char *ctl_command_error(const struct why *why, size_t *bytes);

#endif
