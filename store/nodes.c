/* SPDX-License-Identifier: Apache-2.0 */
#include "store/nodes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cleanup.h"
#include "store/base/lock.h"

#define NODES_DIR "/sys/devices/system/node/"

bool nodes_in_list(const char *list, uint32_t node)
{
	while (isdigit((unsigned char)*list)) {
		char *end;
		unsigned long from = strtoul(list, &end, 10), to = from;

		if (*end == '-' && isdigit((unsigned char)end[1]))
			to = strtoul(end + 1, &end, 10);
		if (node >= from && node <= to)
			return true;
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

bool nodes_has_memory(uint32_t node, char list[NODES_TEXT])
{
	lock_assert_none_held();
	cleanup(fclosep) FILE *file = fopen(NODES_DIR "has_memory", "re");

	if (!file || !fgets(list, (int)NODES_TEXT, file))
		strcpy(list, "0");
	list[strcspn(list, "\n")] = 0;
	return nodes_in_list(list, node);
}
