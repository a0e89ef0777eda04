/* SPDX-License-Identifier: Apache-2.0 */
#include "index/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "index/layout_json.h"
#include "store/base/cleanup.h"
#include "store/base/digest.h"

void layout_free(struct layout **layoutp)
{
	struct layout *layout = *layoutp;

	*layoutp = NULL;
	if (!layout)
		return;
	for (uint32_t c = 0; c < LAYOUT_MAX_CLASSES; c++)
		for (uint32_t s = 0; s < LAYOUT_MAX_SHARES; s++)
			free(layout->class[c].share[s].planes);
	free(layout->share_of_rank);
	free(layout->json);
	free(layout);
}

static uint64_t slot_bytes(uint64_t payload)
{
	if (payload < LAYOUT_VALUE_ALIGN)
		payload = LAYOUT_VALUE_ALIGN;
	return (payload + LAYOUT_VALUE_ALIGN - 1) & ~(uint64_t)(LAYOUT_VALUE_ALIGN - 1);
}

static bool same_planes(const struct share *a, const struct share *b)
{
	if (a->plane_kinds != b->plane_kinds)
		return false;
	for (uint32_t i = 0; i < a->plane_kinds; i++)
		if (strcmp(a->planes[i].name, b->planes[i].name) || a->planes[i].count != b->planes[i].count ||
			a->planes[i].bytes != b->planes[i].bytes)
			return false;
	return true;
}

bool layout_shares_alike(const struct value_class *class)
{
	for (uint32_t s = 1; s < class->shares; s++)
		if (!same_planes(&class->share[0], &class->share[s]))
			return false;
	return true;
}

/* Planes of a share: names differ, count and bytes within limits; their sums. */
static int check_share(struct share *share, const char *class_name, uint32_t number, struct why *why)
{
	uint64_t planes = 0, bytes = 0;

	for (uint32_t i = 0; i < share->plane_kinds; i++) {
		const struct plane *p = &share->planes[i];

		for (uint32_t j = 0; j < i; j++)
			if (!strcmp(p->name, share->planes[j].name))
				return why_set(why, EINVAL, "class \"%s\", share %u: two planes are named \"%s\"",
					class_name, number, p->name);
		planes += p->count;
		bytes += p->count * p->bytes; /* each factor is checked: below 2^45 */
		if (planes > LAYOUT_MAX_PLANES)
			return why_set(why, EINVAL, "class \"%s\", share %u: %llu planes are over the limit of %u",
				class_name, number, (unsigned long long)planes, LAYOUT_MAX_PLANES);
		if (bytes > LAYOUT_MAX_VALUE)
			return why_set(why, EINVAL,
				"class \"%s\", share %u: %llu bytes a value are over the limit of %llu", class_name,
				number, (unsigned long long)bytes, (unsigned long long)LAYOUT_MAX_VALUE);
	}
	share->payload_bytes = bytes;
	share->slot_bytes = slot_bytes(bytes);
	return 0;
}

/* A window longer than anything a request can have is a mistake. */
static int check_window(const struct layout *layout, uint32_t c, struct why *why)
{
	const struct value_class *class = &layout->class[c];
	uint64_t every = (uint64_t)class->every_pages * layout->page_tokens, tokens;

	if (class->kind != VALUE_WINDOW || !layout->context)
		return 0;
	if (__builtin_mul_overflow((uint64_t)class->sink + class->last, every, &tokens))
		tokens = UINT64_MAX;
	if (tokens > layout->context)
		return why_set(why, EINVAL,
			"classes[%u]: sink %u and last %u values of %llu tokens are %llu, over context, %llu", c, class->sink,
			class->last, (unsigned long long)every, (unsigned long long)tokens,
			(unsigned long long)layout->context);
	return 0;
}

static int derive(struct layout *layout, struct why *why)
{
	uint32_t *const masks[] = {
		[VALUE_DENSE] = &layout->dense_mask,
		[VALUE_WINDOW] = &layout->window_mask,
		[VALUE_STATE] = &layout->state_mask,
	};

	for (uint32_t c = 0; c < layout->classes; c++) {
		struct value_class *class = &layout->class[c];
		uint32_t *columns = class->kind == VALUE_STATE ? &layout->row_columns : &layout->page_columns;

		for (uint32_t d = 0; d < c; d++)
			if (!strcmp(class->name, layout->class[d].name))
				return why_set(why, EINVAL, "classes[%u].name and classes[%u].name are both \"%s\"", d,
					c, class->name);
		int error = check_window(layout, c, why);

		for (uint32_t s = 0; s < class->shares && !error; s++)
			error = check_share(&class->share[s], class->name, s, why);
		if (error)
			return error;
		class->first_column = *columns;
		*columns += class->shares;
		*masks[class->kind] |= 1u << c;
		layout->shared |= class->shares > 1;
	}
	return 0;
}

static void identity_free(char *(*identity)[LAYOUT_IDENTITY_MEMBERS])
{
	for (unsigned i = 0; i < LAYOUT_IDENTITY_MEMBERS; i++)
		free((*identity)[i]);
}

int layout_parse(const char *text, size_t size, struct layout **ret, struct why *why)
{
	cleanup(identity_free) char *identity[LAYOUT_IDENTITY_MEMBERS] = {NULL};
	cleanup(layout_free) struct layout *layout = calloc(1, sizeof(*layout));
	cleanup(freep) char *identity_text = NULL;
	cleanup(freep) char *fingerprint_text = NULL;

	if (!layout)
		return why_set(why, ENOMEM, "no memory for a layout");
	if (size > LAYOUT_MAX_JSON)
		return why_set(why, EFBIG, "a layout of %zu bytes is over the limit of %u", size, LAYOUT_MAX_JSON);
	int error = layout_json_read(text, size, layout, identity, why);

	if (!error)
		error = derive(layout, why);
	if (error)
		return error;
	identity_text = layout_json_text(layout, identity, LAYOUT_TEXT_IDENTITY);
	fingerprint_text = layout_json_text(layout, identity, LAYOUT_TEXT_FINGERPRINT);
	layout->json = layout_json_text(layout, identity, LAYOUT_TEXT_ALL);
	if (!identity_text || !fingerprint_text || !layout->json)
		return why_set(why, ENOMEM, "no memory for the canonical text of a layout");
	digest_256(identity_text, strlen(identity_text), layout->identity);
	digest_128(fingerprint_text, strlen(fingerprint_text), layout->fingerprint);
	*ret = STEAL(layout);
	return 0;
}
