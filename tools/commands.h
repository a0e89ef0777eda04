/* SPDX-License-Identifier: Apache-2.0
 *
 * The subcommands, each in the file of its name.
 */
#ifndef PREFIXFS_TOOLS_COMMANDS_H
#define PREFIXFS_TOOLS_COMMANDS_H

#include "tools/cli.h"

int command_mount(const struct command *self, int argc, char **argv);
int command_unmount(const struct command *self, int argc, char **argv);
int command_upgrade(const struct command *self, int argc, char **argv);
int command_ns(const struct command *self, int argc, char **argv);
int command_size(const struct command *self, int argc, char **argv);
int command_stat(const struct command *self, int argc, char **argv);
int command_probe(const struct command *self, int argc, char **argv);
int command_evict(const struct command *self, int argc, char **argv);
int command_pin(const struct command *self, int argc, char **argv);
int command_unpin(const struct command *self, int argc, char **argv);
int command_touch(const struct command *self, int argc, char **argv);
int command_drain(const struct command *self, int argc, char **argv);
int command_fsck(const struct command *self, int argc, char **argv);
int command_reset(const struct command *self, int argc, char **argv);
int command_replay(const struct command *self, int argc, char **argv);
int command_bench(const struct command *self, int argc, char **argv);
int command_version(const struct command *self, int argc, char **argv);

#endif
