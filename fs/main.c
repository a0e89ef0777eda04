/* SPDX-License-Identifier: Apache-2.0
 *
 * prefixfsd: the daemon. Called by a user it becomes the parent; the parent calls it again as the serving process. With
 * --judge it says what it is, to a daemon that may be upgraded to it. With --fsck it looks at record files that no daemon has, and serves nothing; what begins with --bench is for prefixfs bench disk.
 */
#include <stdio.h>
#include <string.h>

#include "fs/bench.h"
#include "fs/config.h"
#include "fs/fsck.h"
#include "fs/log.h"
#include "fs/parent.h"
#include "fs/serve.h"
#include "fs/upgrade.h"
#include "fs/version.h"

int main(int argc, char **argv)
{
	static struct config config;
	enum config_action action;
	struct why why = WHY_INIT;

	if (argc > 1 && !strcmp(argv[1], "--fsck"))
		return fsck_main(argc - 2, argv + 2);
	if (argc > 1 && !strcmp(argv[1], "--bench-checksum"))
		return bench_checksum_main(argc - 2, argv + 2);
	if (argc > 1 && !strcmp(argv[1], "--bench-records"))
		return bench_records_main(argc - 2, argv + 2);
	bool judge = argc > 1 && !strcmp(argv[1], "--judge");
	if (judge) {
		argc--;
		argv++;
	}
	config_init(&config);
	int r = config_parse_args(&config, argc, argv, &action, &why);
	if (!r && action == CONFIG_HELP) {
		config_print_help(stdout);
		return 0;
	}
	if (!r && action == CONFIG_VERSION) {
		printf("prefixfsd %s\n", version_text);
		return 0;
	}
	if (!r)
		r = config_settle(&config, &why);
	if (judge)
		return upgrade_judge(&config, r, &why);
	if (r) {
		fprintf(stderr, "prefixfsd: %s\n", why.text);
		return 1;
	}
	log_set_level((enum log_level)config.log_level);
	if (config.serve[0])
		serve_run(&config);
	return parent_run(&config);
}
