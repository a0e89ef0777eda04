/* SPDX-License-Identifier: Apache-2.0
 *
 * prefixfs: the command line.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/client/prefixfs.h"
#include "tools/commands.h"

static const struct command commands[] = {
	{"mount", "MOUNTPOINT [--OPTION=VALUE ...]", "start the daemon and mount",
		"Options are the daemon's own: prefixfsd --help lists them.", command_mount},
	{"unmount", "[MOUNTPOINT]", "unmount, and wait for the daemon's end", NULL, command_unmount},
	{"upgrade", "[FILE]", "have another program serve a running mount", NULL, command_upgrade},
	{"ns", "create|list|show|remove ...", "namespaces", NULL, command_ns},
	{"size", "--layout FILE | --model NAME [--tp N] --budget SIZE", "how many values and requests a budget holds",
		"Asks no daemon. Status 1 with a sentence where the budget is too small for one request.", command_size},
	{"stat", "[NAMESPACE]", "counters of the host, or of one namespace", NULL, command_stat},
	{"probe", "NAMESPACE KEY...", "which pages are there?", "A key is 64 hex digits.", command_probe},
	{"evict", "NAMESPACE RECORD... | --all | --bytes SIZE", "evict records by name, by amount, or all", NULL, command_evict},
	{"pin", "NAMESPACE RECORD...", "keep records from being evicted",
		"At most a tenth of the namespace's floor can be pinned.", command_pin},
	{"unpin", "NAMESPACE RECORD...", "let pinned records be evicted again", NULL, command_unpin},
	{"touch", "NAMESPACE RECORD...", "have records count as used now", NULL, command_touch},
	{"drain", "[NAMESPACE | MOUNTPOINT]", "write everything to disk that is in memory alone",
		"Of one namespace, or of all. Puts go on meanwhile.", command_drain},
	{"fsck", "[NAMESPACE | MOUNTPOINT | FOLDER]", "check record files",
		"Of one namespace or of all, while the daemon runs: every value is read, what is bad goes and its record is\n"
		"named; --repair, --rebuild and --values are refused then. Or in a folder that no daemon has.\n"
		"Status 0: nothing is wrong, or all of it was put right; 1: something is wrong still, or it could not be checked.",
		command_fsck},
	{"reset", "NAMESPACE", "begin a new generation: nothing stored before is found any more",
		"What engines read stays readable for them; puts under way are lost.", command_reset},
	{"replay", "TRACE --ns NAME", "drive a namespace with a recorded workload, and check every byte", NULL, command_replay},
	{"bench", "control|view|disk|gpu|ranks|survive ...",
		"measure the control path, the mount, the disk tier, the way to a GPU, several ranks, or kills",
		NULL, command_bench},
	{"version", "", "versions of this program and of the mounted daemon", NULL, command_version},
	{0},
};

int main(int argc, char **argv)
{
	int r = 0;

	if (argc == 2 && !strcmp(argv[1], "--version")) /* as other programs have it; `version` says more */
		printf("prefixfs %s\n", pfs_version());
	else
		r = command_dispatch("prefixfs", "The command line of prefixfs, the KV-cache tier daemon.", commands,
			argc - 1, argv + 1);

	if (fflush(stdout) || ferror(stdout)) /* a full disk behind the output is a failure, too */
		return complain("standard output: %s", strerror(errno));
	return r;
}
