/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules about faults: the text taken apart, and the lot drawn for each operation.
 */
#include "store/fault_spec.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"

#define MOST_DELAY_NS (3600ull * 1000000000u)

/* ---- the text -------------------------------------------------------------------------------------------------- */

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
	{"EOPNOTSUPP", EOPNOTSUPP},
	{"EEXIST", EEXIST},
	{"EMFILE", EMFILE},
	{"ENFILE", ENFILE},
	{"EBUSY", EBUSY},
};

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
static bool parse_when(const struct fault_words *words, const char *text, struct fault_rule *rule)
{
	bool one = words->nth_flip_is_one && rule->effect == FAULT_FLIP;

	rule->when = one ? FAULT_ONLY_NTH : FAULT_FROM_NTH;
	bool only = *text == '=';

	if (only) {
		rule->when = FAULT_ONLY_NTH;
		text++;
	}
	if (!parse_number(&text, &rule->n))
		return false;
	if (*text == '/' && !only && rule->n > 0) {
		text++;
		rule->when = FAULT_CHANCE;
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
			return *ret_ns <= MOST_DELAY_NS;
		}
	return false;
}

static bool parse_effect(const struct fault_words *words, const char *word, struct fault_rule *rule)
{
	if (!word)
		return false;
	if (!strcmp(word, "delay"))
		rule->effect = FAULT_DELAY;
	else if (!strcmp(word, "flip"))
		rule->effect = FAULT_FLIP;
	else if (!strcmp(word, "short"))
		rule->effect = FAULT_SHORT;
	else if (words->kills && !strcmp(word, "kill"))
		rule->effect = FAULT_KILL;
	else if (words->kills && !strcmp(word, "kill_after"))
		rule->effect = FAULT_KILL_AFTER;
	else {
		rule->effect = FAULT_FAIL;
		for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
			if (!strcmp(word, errors[i].name))
				rule->error = errors[i].number;
		return rule->error != 0;
	}
	return true;
}

static bool parse_operation(const struct fault_words *words, const char *word, uint32_t *ret)
{
	*ret = FAULT_ANY;
	if (words->any && !strcmp(word, "any"))
		return true;
	for (uint32_t i = 0; i < words->count; i++)
		if (!strcmp(word, words->operations[i]))
			*ret = i;
	return *ret != FAULT_ANY;
}

/* @text is cut up. */
static bool parse_rule(const struct fault_words *words, char *text, struct fault_rule *ret)
{
	struct fault_rule rule = {0};

	if (!parse_operation(words, next_word(&text), &rule.operation))
		return false;
	if (!parse_effect(words, next_word(&text), &rule))
		return false;
	if (rule.effect == FAULT_DELAY && !parse_delay(next_word(&text), &rule.delay_ns))
		return false;
	if (text && !parse_when(words, text, &rule))
		return false;
	if (words->allowed && !words->allowed(&rule))
		return false;
	*ret = rule;
	return true;
}

int fault_spec_parse(const struct fault_words *words, const char *text, struct fault_spec *ret, struct why *why)
{
	cleanup(freep) char *copy = strdup(text);
	struct fault_spec spec = {.rules = 0};
	char *rest = copy, *word;

	if (!copy)
		return why_set(why, ENOMEM, "no memory for a fault specification");
	while ((word = strsep(&rest, ","))) {
		size_t at = (size_t)(word - copy);
		const char *seed = word + strlen("seed=");

		if (*word == 0)
			continue;
		if (!strncmp(word, "seed=", strlen("seed="))) {
			if (parse_number(&seed, &spec.seed) && *seed == 0)
				continue;
		} else if (spec.rules == FAULT_RULES) {
			return why_set(why, EINVAL, "fault specification: more than %u rules", FAULT_RULES);
		} else if (parse_rule(words, word, &spec.rule[spec.rules])) {
			spec.rules++;
			continue;
		}
		return why_set(
			why, EINVAL, "fault rule '%.*s' is not understood", (int)strcspn(text + at, ","), text + at);
	}
	*ret = spec;
	return 0;
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) /* splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* A number for rule @rule at operation @n of its kind; @use tells apart what one rule needs several for. */
static uint64_t draw(const struct fault_spec *spec, unsigned rule, uint64_t n, unsigned use)
{
	return mix(mix(mix(spec->seed) ^ n) ^ ((uint64_t)rule << 8 | use));
}

static bool strikes(const struct fault_spec *spec, unsigned number, uint64_t n)
{
	const struct fault_rule *rule = &spec->rule[number];

	switch (rule->when) {
	case FAULT_ALWAYS:
		return true;
	case FAULT_FROM_NTH:
		return n >= rule->n;
	case FAULT_ONLY_NTH:
		return n == rule->n;
	case FAULT_CHANCE:
		return draw(spec, number, n, 0) % rule->of < rule->n;
	}
	return false;
}

struct fault_verdict fault_spec_judge(const struct fault_spec *spec, uint32_t operation, uint64_t n, uint64_t nth_of_all)
{
	struct fault_verdict verdict = {.error = 0};

	for (unsigned i = 0; i < spec->rules; i++) {
		const struct fault_rule *rule = &spec->rule[i];
		uint64_t number = rule->operation == FAULT_ANY ? nth_of_all : n;

		if ((rule->operation != FAULT_ANY && rule->operation != operation) || !strikes(spec, i, number))
			continue;
		switch (rule->effect) {
		case FAULT_FAIL:
			if (!verdict.error)
				verdict.error = rule->error;
			break;
		case FAULT_DELAY:
			verdict.delay_ns += rule->delay_ns;
			break;
		case FAULT_FLIP:
			verdict.flip = true;
			verdict.flip_bit = draw(spec, i, number, 1);
			break;
		case FAULT_SHORT:
			verdict.shorten = true;
			break;
		case FAULT_KILL:
			verdict.kill = true;
			break;
		case FAULT_KILL_AFTER:
			verdict.kill_after = true;
			break;
		}
	}
	return verdict;
}
