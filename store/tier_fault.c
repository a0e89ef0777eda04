/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults put into another tier. What befalls the n-th read or write follows from the seed and n alone, whatever the
 * threads do: a failing run can be run again.
 *
 * Life of a request:
 *   judged     numbered, and each rule asked                   fault_start, on the caller's thread
 *   waiting    if a delay struck: in the queue                 the timer thread takes it out when it is due
 *   failed     if an error struck: done with it                nothing below was asked
 *   below      with the tier under it, in a copy of the io     below_done flips, shortens, passes on
 */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"
#include "store/base/clock.h"
#include "store/base/lock.h"
#include "store/tier.h"

#define MAX_RULES 32u
#define FOREVER_NS (3600ull * 1000000000u)

enum operation {
	READ,
	WRITE,
	OPERATIONS
};
enum effect {
	FAIL,
	DELAY,
	FLIP,
	SHORT
};
enum when {
	ALWAYS,
	FROM_NTH,
	ONLY_NTH,
	CHANCE
};

struct rule {
	enum operation operation;
	enum effect effect;
	int error;         /* FAIL: positive errno */
	uint64_t delay_ns; /* DELAY */
	enum when when;
	uint64_t n; /* FROM_NTH, ONLY_NTH; CHANCE: n of @of */
	uint64_t of;
};

struct fault_io {
	struct tier_io below; /* what the tier under us sees */
	struct tier_fault *tier;
	struct tier_io *io;    /* the caller's */
	struct fault_io *next; /* (lock) in the queue */
	uint64_t due_ns;       /* 0 = at once */
	enum operation operation;
	int error; /* 0 = none struck */
	bool flip, shorten;
	uint64_t flip_bit; /* modulo the data's length */
	void *copy;        /* of data to write, when a bit of it flips; ours */
};

struct tier_fault {
	struct tier tier;
	struct tier *under;
	struct rule rule[MAX_RULES];
	unsigned rules;
	uint64_t seed;
	_Atomic uint64_t number[OPERATIONS]; /* requests judged */
	_Atomic uint64_t errors;
	_Atomic uint64_t under_way;
	bool timed; /* there is a delay rule, hence a timer thread */
	pthread_t timer;
	struct lock lock;
	struct lock_cond changed; /* (lock) the queue or @stop */
	struct fault_io *queue;   /* (lock) earliest first */
	bool stop;                /* (lock) */
};

static const struct {
	const char *name;
	int number;
} errors[] = {
	{"EIO", EIO},
	{"ENOSPC", ENOSPC},
	{"ENODATA", ENODATA},
	{"ENOMEM", ENOMEM},
	{"EAGAIN", EAGAIN},
	{"EINTR", EINTR},
	{"EROFS", EROFS},
	{"EDQUOT", EDQUOT},
	{"ETIMEDOUT", ETIMEDOUT},
	{"ENODEV", ENODEV},
	{"ENOENT", ENOENT},
	{"ESTALE", ESTALE},
	{"EBADF", EBADF},
	{"EFBIG", EFBIG},
	{"EILSEQ", EILSEQ},
	{"EACCES", EACCES},
	{"EPERM", EPERM},
	{"EINVAL", EINVAL},
	{"ECANCELED", ECANCELED},
};

/* ---- the specification ----------------------------------------------------------------------------------------- */

/* Cuts the text before the next ':' off *@text; NULL when nothing is left. */
static char *next_word(char **text)
{
	char *word = *text;

	if (!word)
		return NULL;
	*text = strchr(word, ':');
	if (*text)
		*(*text)++ = 0;
	return word;
}

static bool parse_number(const char **text, uint64_t *ret)
{
	char *end;

	if (!isdigit((unsigned char)**text))
		return false;
	errno = 0;
	*ret = strtoull(*text, &end, 10);
	*text = end;
	return errno == 0;
}

/* "N/M", "N", "=N" */
static bool parse_when(const char *text, struct rule *rule)
{
	rule->when = rule->effect == FLIP ? ONLY_NTH : FROM_NTH;
	bool only = *text == '=';

	if (only) {
		rule->when = ONLY_NTH;
		text++;
	}
	if (!parse_number(&text, &rule->n))
		return false;
	if (*text == '/' && !only && rule->n > 0) {
		text++;
		rule->when = CHANCE;
		return parse_number(&text, &rule->of) && *text == 0 && rule->of >= rule->n;
	}
	return *text == 0 && rule->n > 0;
}

static bool parse_delay(const char *text, uint64_t *ret_ns)
{
	static const struct {
		const char *unit;
		uint64_t ns;
	} units[] = {{"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
	uint64_t value;

	if (!text || !parse_number(&text, &value) || value > 3600000000u)
		return false;
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(text, units[i].unit)) {
			*ret_ns = value * units[i].ns;
			return *ret_ns <= FOREVER_NS;
		}
	return false;
}

static bool parse_effect(const char *word, struct rule *rule)
{
	if (!word)
		return false;
	if (!strcmp(word, "delay"))
		rule->effect = DELAY;
	else if (!strcmp(word, "flip"))
		rule->effect = FLIP;
	else if (!strcmp(word, "short"))
		rule->effect = SHORT;
	else {
		rule->effect = FAIL;
		for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
			if (!strcmp(word, errors[i].name))
				rule->error = errors[i].number;
		return rule->error != 0;
	}
	return true;
}

/* @text is cut up. */
static bool parse_rule(char *text, struct rule *ret)
{
	struct rule rule = {0};
	const char *operation = next_word(&text);

	if (!strcmp(operation, "read"))
		rule.operation = READ;
	else if (!strcmp(operation, "write"))
		rule.operation = WRITE;
	else
		return false;
	if (!parse_effect(next_word(&text), &rule))
		return false;
	if (rule.effect == DELAY && !parse_delay(next_word(&text), &rule.delay_ns))
		return false;
	if (text && !parse_when(text, &rule))
		return false;
	*ret = rule;
	return true;
}

static int parse_spec(struct tier_fault *t, const char *spec, struct why *why)
{
	cleanup(freep) char *copy = strdup(spec);
	char *rest = copy, *text;

	if (!copy)
		return why_set(why, ENOMEM, "no memory for a fault specification");
	while ((text = strsep(&rest, ","))) {
		size_t at = (size_t)(text - copy);
		const char *seed = text + strlen("seed=");

		if (*text == 0)
			continue;
		if (!strncmp(text, "seed=", strlen("seed="))) {
			if (parse_number(&seed, &t->seed) && *seed == 0)
				continue;
		} else if (t->rules == MAX_RULES) {
			return why_set(why, EINVAL, "fault specification: more than %u rules", MAX_RULES);
		} else if (parse_rule(text, &t->rule[t->rules])) {
			t->timed |= t->rule[t->rules++].effect == DELAY;
			continue;
		}
		return why_set(
			why, EINVAL, "fault rule '%.*s' is not understood", (int)strcspn(spec + at, ","), spec + at);
	}
	return 0;
}

int tier_fault_check(const char *spec, struct why *why)
{
	struct tier_fault t = {.rules = 0};

	return parse_spec(&t, spec, why);
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) /* splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* A number for rule @rule at request @n of its operation; @use tells apart what one rule needs several for. */
static uint64_t draw(const struct tier_fault *t, unsigned rule, uint64_t n, unsigned use)
{
	return mix(mix(mix(t->seed) ^ n) ^ ((uint64_t)rule << 8 | use));
}

static bool strikes(const struct tier_fault *t, unsigned number, uint64_t n)
{
	const struct rule *rule = &t->rule[number];

	switch (rule->when) {
	case ALWAYS:
		return true;
	case FROM_NTH:
		return n >= rule->n;
	case ONLY_NTH:
		return n == rule->n;
	case CHANCE:
		return draw(t, number, n, 0) % rule->of < rule->n;
	}
	return false;
}

static void judge(struct tier_fault *t, struct fault_io *f)
{
	uint64_t n = ++t->number[f->operation];
	uint64_t delay_ns = 0;

	for (unsigned i = 0; i < t->rules; i++) {
		const struct rule *rule = &t->rule[i];

		if (rule->operation != f->operation || !strikes(t, i, n))
			continue;
		switch (rule->effect) {
		case FAIL:
			if (!f->error)
				f->error = rule->error;
			break;
		case DELAY:
			delay_ns += rule->delay_ns;
			break;
		case FLIP:
			f->flip = true;
			f->flip_bit = draw(t, i, n, 1);
			break;
		case SHORT:
			f->shorten = true;
			break;
		}
	}
	if (delay_ns)
		f->due_ns = clock_now_ns() + delay_ns;
}

/* ---- going on -------------------------------------------------------------------------------------------------- */

static void end(struct tier_fault *t, struct tier_io *io, int result)
{
	if (result)
		t->errors++;
	io->result = result;
	io->done(io);
	t->under_way--;
}

static void flip(const struct fault_io *f, void *data, size_t bytes)
{
	if (bytes)
		((uint8_t *)data)[f->flip_bit / 8 % bytes] ^= (uint8_t)(1u << f->flip_bit % 8);
}

static void below_done(struct tier_io *below)
{
	struct fault_io *f = below->context;
	struct tier_fault *t = f->tier;
	struct tier_io *io = f->io;
	int result = below->result;

	if (!result && f->flip && f->operation == READ)
		flip(f, below->buffer, below->bytes);
	if (!result && f->shorten)
		result = -EIO;
	free(f->copy);
	free(f);
	end(t, io, result);
}

/* Fails it or hands it to the tier under us. */
static void fault_go(struct fault_io *f)
{
	struct tier_fault *t = f->tier;
	int error = f->error;

	if (!error && f->flip && f->operation == WRITE) {
		f->copy = malloc(f->io->bytes ? f->io->bytes : 1);
		error = f->copy ? 0 : ENOMEM;
	}
	if (error) {
		struct tier_io *io = f->io;

		free(f);
		end(t, io, -error);
		return;
	}
	f->below = (struct tier_io){
		.offset = f->io->offset,
		.buffer = f->io->buffer,
		.bytes = f->shorten ? f->io->bytes / 2 : f->io->bytes,
		.done = below_done,
		.context = f,
	};
	if (f->copy) {
		memcpy(f->copy, f->io->buffer, f->below.bytes);
		flip(f, f->copy, f->below.bytes);
		f->below.buffer = f->copy;
	}
	if (f->operation == READ)
		t->under->ops->read(t->under, &f->below);
	else
		t->under->ops->write(t->under, &f->below);
}

static void fault_start(struct tier *tier, struct tier_io *io, enum operation operation)
{
	struct tier_fault *t = (struct tier_fault *)tier;
	struct fault_io *f = calloc(1, sizeof(*f));

	lock_assert_none_held();
	t->under_way++;
	if (!f) {
		end(t, io, -ENOMEM);
		return;
	}
	f->tier = t;
	f->io = io;
	f->operation = operation;
	judge(t, f);
	if (!f->due_ns) {
		fault_go(f);
		return;
	}
	lock_take(&t->lock);
	struct fault_io **at = &t->queue;

	while (*at && (*at)->due_ns <= f->due_ns)
		at = &(*at)->next;
	f->next = *at;
	*at = f;
	lock_cond_wake_all(&t->changed);
	lock_drop(&t->lock);
}

static void *timer_thread(void *argument)
{
	struct tier_fault *t = argument;

	lock_take(&t->lock);
	for (;;) {
		uint64_t now = clock_now_ns();
		struct fault_io *first = t->queue;

		if (first && first->due_ns <= now) {
			t->queue = first->next;
			lock_drop(&t->lock);
			fault_go(first);
			lock_take(&t->lock);
		} else if (t->stop) {
			break; /* nothing is under way, so the queue is empty */
		} else {
			lock_cond_wait(&t->changed, &t->lock, first ? first->due_ns : now + FOREVER_NS);
		}
	}
	lock_drop(&t->lock);
	return NULL;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static void fault_read(struct tier *tier, struct tier_io *io)
{
	fault_start(tier, io, READ);
}

static void fault_write(struct tier *tier, struct tier_io *io)
{
	fault_start(tier, io, WRITE);
}

static void fault_dispose(struct tier_fault *t)
{
	lock_cond_destroy(&t->changed);
	lock_destroy(&t->lock);
	free(t);
}

static void fault_free(struct tier **tier)
{
	struct tier_fault *t = (struct tier_fault *)*tier;

	*tier = NULL;
	tier_await_idle(&t->under_way);
	if (t->timed) {
		lock_take(&t->lock);
		t->stop = true;
		lock_cond_wake_all(&t->changed);
		lock_drop(&t->lock);
		pthread_join(t->timer, NULL);
	}
	assert(!t->queue);
	t->under->ops->free(&t->under);
	fault_dispose(t);
}

static uint64_t fault_errors(const struct tier *tier)
{
	return ((const struct tier_fault *)tier)->errors;
}

static const struct tier_ops ops = {
	.name = "fault",
	.read = fault_read,
	.write = fault_write,
	.free = fault_free,
	.errors = fault_errors,
};

static int start_timer(struct tier_fault *t)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&t->timer, NULL, timer_thread, t);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

int tier_fault_new(struct tier *under, const char *spec, struct tier **ret, struct why *why)
{
	struct tier_fault *t = calloc(1, sizeof(*t));

	if (!t)
		return why_set(why, ENOMEM, "no memory for a fault tier");
	t->tier.ops = &ops;
	t->under = under;
	lock_init(&t->lock, LOCK_QUEUE);
	lock_cond_init(&t->changed);
	int r = parse_spec(t, spec, why);

	if (!r && t->timed) {
		int error = start_timer(t);

		if (error)
			r = why_set(why, error, "no thread for a fault tier: %s", strerrordesc_np(error));
	}
	if (r) {
		fault_dispose(t);
		return r;
	}
	*ret = &t->tier;
	return 0;
}
