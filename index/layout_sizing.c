/* SPDX-License-Identifier: Apache-2.0 */
#include "index/layout_sizing.h"

#include <assert.h>

static_assert(LAYOUT_MAX_CLASSES <= SIZING_MAX_CLASSES, "a sizing has room for each class");

void layout_sizing(const struct layout *layout, struct sizing *ret)
{
	static const enum sizing_kind kinds[] = {
		[VALUE_DENSE] = SIZING_DENSE,
		[VALUE_WINDOW] = SIZING_WINDOW,
		[VALUE_STATE] = SIZING_STATE,
	};

	*ret = (struct sizing){
		.page_tokens = layout->page_tokens,
		.context = layout->context ? layout->context : LAYOUT_REQUEST,
		.interval = layout->interval,
		.classes = layout->classes,
	};
	for (uint32_t c = 0; c < layout->classes; c++) {
		const struct value_class *class = &layout->class[c];
		struct sizing_class *to = &ret->class[c];

		to->kind = kinds[class->kind];
		to->every_tokens = (uint64_t)class->every_pages * layout->page_tokens;
		to->values = (uint64_t)class->sink + class->last;
		for (uint32_t s = 0; s < class->shares; s++)
			to->share_bytes += class->share[s].slot_bytes;
	}
}
