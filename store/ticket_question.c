/* SPDX-License-Identifier: Apache-2.0
 *
 * What is asked under a ticket: compared, and summed up for when only the outcome is remembered.
 */
#include "store/ticket.h"

#include <errno.h>
#include <string.h>

#include "index/mix.h"

static const uint64_t odd[2] = { 0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full };

int ticket_differs(const char *what, uint64_t is, uint64_t was, struct why *why)
{
	return why_set(why, EINVAL, "ticket: %s: it is %llu here and %llu for whoever came first", what, (unsigned long long)is,
		       (unsigned long long)was);
}

int ticket_question_check(const struct ticket_question *is, const struct ticket_question *was, struct why *why)
{
	if (is->keys != was->keys)
		return ticket_differs("number of keys", is->keys, was->keys, why);
	if (memcmp(is->keys_sum, was->keys_sum, sizeof(is->keys_sum)))
		return why_set(why, EINVAL, "ticket: keys: they are others than those of whoever came first");
	if (is->groups != was->groups)
		return ticket_differs("number of groups", is->groups, was->groups, why);
	if (is->groups_sum != was->groups_sum)
		return why_set(why, EINVAL, "ticket: groups: their lengths are others than those of whoever came first");
	if (is->start != was->start)
		return ticket_differs("start", is->start, was->start, why);
	if (is->have != was->have)
		return ticket_differs("have", is->have, was->have, why);
	if (is->limit != was->limit)
		return ticket_differs("limit", is->limit, was->limit, why);
	if (is->class_mask != was->class_mask)
		return ticket_differs("class mask", is->class_mask, was->class_mask, why);
	if (is->policy != was->policy)
		return ticket_differs("policy", is->policy, was->policy, why);
	if (is->prompt_len != was->prompt_len)
		return ticket_differs("prompt_len", is->prompt_len, was->prompt_len, why);
	if (is->room != was->room)
		return ticket_differs("room", is->room, was->room, why);
	return 0;
}

void ticket_question_sum(const struct ticket_question *q, uint64_t sum[2])
{
	const uint64_t words[] = {
		q->keys_sum[0], q->keys_sum[1], q->groups_sum, q->start, q->have, q->limit, q->prompt_len,
		(uint64_t)q->keys << 32 | q->groups, (uint64_t)q->class_mask << 32 | q->policy, q->room,
	};

	sum[0] = sum[1] = 0;
	for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		for (uint32_t j = 0; j < 2; j++)
			sum[j] = mix_64(sum[j] ^ words[i], odd[j]) + odd[1 - j];
}
