/* SPDX-License-Identifier: Apache-2.0
 *
 * client_news NAMESPACE RANK AUTO_ACK: an engine that does nothing but wait for news; RANK -1: without one. Prints "ready" when there
 * are none left, then waits for news and takes them until the session was attached anew, and prints how often it was.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "fs/client/prefixfs.h"

static int say(const char *what)
{
	char text[512];

	pfs_last_error(text, sizeof(text));
	fprintf(stderr, "%s: %s\n", what, text);
	return 1;
}

static int wait_for_news(struct pfs_session *session, int timeout_ms)
{
	struct pollfd p = {.fd = pfs_poll_fd(session), .events = POLLIN};

	return poll(&p, 1, timeout_ms);
}

int main(int argc, char **argv)
{
	struct pfs_session_info info = {0};
	struct pfs_session *session;
	struct pfs_options options;

	if (argc != 4) {
		fprintf(stderr, "usage: client_news NAMESPACE RANK AUTO_ACK\n");
		return 2;
	}
	pfs_options_init(&options);
	options.rank = (uint32_t)atoi(argv[2]);
	options.auto_ack = (uint8_t)atoi(argv[3]);
	options.wait_prewarm = 1;
	if (pfs_open(argv[1], &options, &session))
		return say(argv[1]);
	while (wait_for_news(session, 0) > 0)
		if (pfs_news(session, 0))
			return say("news of the beginning");
	puts("ready");
	fflush(stdout);
	while (info.reattached == 0)
		if (wait_for_news(session, -1) != 1 || pfs_news(session, 0) || pfs_info(session, &info))
			return say("news");
	printf("%llu\n", (unsigned long long)info.reattached);
	pfs_close(&session);
	return 0;
}
