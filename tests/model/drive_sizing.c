/* SPDX-License-Identifier: Apache-2.0
 *
 * sizing_plan for whoever compares it: a line in is `page context interval budget` and for each class `kind every values bytes`,
 * kind being dense, window or state; a line out is `fits` and the slots of each class, or `short`, the class and the least budget,
 * or `over`.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/sizing.h"

static int read_class(char **at, struct sizing_class *ret)
{
	static const char *const kinds[] = {"dense", "window", "state"};
	char *kind = strtok_r(NULL, " \n", at);

	if (!kind)
		return 0;
	for (unsigned i = 0; i < 3; i++)
		if (!strcmp(kind, kinds[i]))
			ret->kind = (enum sizing_kind)i;
	ret->every_tokens = strtoull(strtok_r(NULL, " \n", at), NULL, 10);
	ret->values = strtoull(strtok_r(NULL, " \n", at), NULL, 10);
	ret->share_bytes = strtoull(strtok_r(NULL, " \n", at), NULL, 10);
	return 1;
}

int main(void)
{
	char *line = NULL, *at;
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0) {
		struct sizing plan = {0};
		int r;

		plan.page_tokens = strtoull(strtok_r(line, " \n", &at), NULL, 10);
		plan.context = strtoull(strtok_r(NULL, " \n", &at), NULL, 10);
		plan.interval = strtoull(strtok_r(NULL, " \n", &at), NULL, 10);
		plan.budget = strtoull(strtok_r(NULL, " \n", &at), NULL, 10);
		while (plan.classes < SIZING_MAX_CLASSES && read_class(&at, &plan.class[plan.classes]))
			plan.classes++;
		r = sizing_plan(&plan);
		if (r == -EOVERFLOW)
			printf("over");
		else if (r == -ENOSPC)
			printf("short %u %" PRIu64, plan.short_class, plan.request_bytes);
		else
			printf("fits");
		for (uint32_t c = 0; c < plan.classes && !r; c++)
			printf(" %" PRIu64, plan.class[c].slots);
		putchar('\n');
	}
	free(line);
	return 0;
}
