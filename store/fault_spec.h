/* SPDX-License-Identifier: Apache-2.0
 *
 * What faults strike whom: the rules that the faulty tier and the faulty disk are given as text, and the judging by them.
 *
 *   rules  rule, rule ...   with "seed=<number>" among them, 0 else
 *   rule   <operation>:<effect>[:<when>]
 *   effect an errno's name, `delay:<number><us|ms|s>`, `flip` (a bit is inverted), `short` (half of it is moved),
 *          `kill`, `kill_after` (the process dies before it, or when it was done)
 *   when   nothing: always; 3: from the third on; =3: the third alone; 1/100: by chance
 *
 * What befalls the n-th operation of a kind follows from the rules, the seed and n alone: a failing run can be run again.
 * A struct fault_spec is plain data; whoever has it guards it.
 */
#ifndef PREFIXFS_STORE_FAULT_SPEC_H
#define PREFIXFS_STORE_FAULT_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/why.h"

#define FAULT_RULES 32u
#define FAULT_ANY UINT32_MAX /* operation of a rule that is for all of them */

enum fault_effect {
	FAULT_FAIL,
	FAULT_DELAY,
	FAULT_FLIP,
	FAULT_SHORT,
	FAULT_KILL,
	FAULT_KILL_AFTER
};

enum fault_when {
	FAULT_ALWAYS,
	FAULT_FROM_NTH,
	FAULT_ONLY_NTH,
	FAULT_CHANCE
};

struct fault_rule {
	uint32_t operation; /* number in fault_words.operations, or FAULT_ANY: n counts all operations then */
	enum fault_effect effect;
	int error;         /* FAIL: positive errno */
	uint64_t delay_ns; /* DELAY */
	enum fault_when when;
	uint64_t n; /* FROM_NTH, ONLY_NTH; CHANCE: n of @of */
	uint64_t of;
};

struct fault_spec {
	struct fault_rule rule[FAULT_RULES];
	unsigned rules;
	uint64_t seed;
};

/* What somebody who takes rules understands. */
struct fault_words {
	const char *const *operations; /* [count]; `any` is understood when @any */
	uint32_t count;
	bool any;
	bool nth_flip_is_one; /* "flip:3" inverts a bit in the third alone */
	bool kills; /* `kill` and `kill_after` are understood */
	bool (*allowed)(const struct fault_rule *rule); /* NULL: every effect goes with every operation */
};

/* What strikes one operation. */
struct fault_verdict {
	int error;         /* positive errno, of the first rule that struck; 0 = none */
	uint64_t delay_ns; /* together */
	bool flip, shorten;
	bool kill, kill_after;
	uint64_t flip_bit; /* modulo the bits that there are */
};

/* EINVAL: the sentence names the rule; ENOMEM. *ret is not touched then. */
int fault_spec_parse(const struct fault_words *words, const char *text, struct fault_spec *ret, struct why *why);
/* The operation is the n-th of its kind and the nth_of_all-th altogether, both from 1 on. */
struct fault_verdict fault_spec_judge(const struct fault_spec *spec, uint32_t operation, uint64_t n, uint64_t nth_of_all);

#endif
