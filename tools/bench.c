/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/commands.h"

int command_bench(const struct command *self, int argc, char **argv)
{
	return usage_error(self, "not built yet");
}
