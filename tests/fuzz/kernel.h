/* SPDX-License-Identifier: Apache-2.0
 *
 * A host with one small namespace, in this process, and the kernel's part towards it: raw requests are handed to libfuse in
 * the caller's thread, and each is seen answered once. Of everything else that aborts it says what is wrong before.
 */
#ifndef PREFIXFS_TESTS_FUZZ_KERNEL_H
#define PREFIXFS_TESTS_FUZZ_KERNEL_H

#include "fs/client/prefixfs_abi.h"
#include "fs/fs.h"

#define BUFFER PFS_MIN_CALL_BUFFER
#define UNDER_WAY 64u

struct kernel {
	unsigned count; /* requests that have no answer yet */
	/* Of the request that was sent last: */
	int error;      /* a negative errno, 0, or 1: there is no answer yet */
	size_t bytes;
	uint8_t reply[1 << 17];
};
extern struct kernel kernel;
extern struct fs kernel_fs;
extern fuse_ino_t kernel_ctl; /* the namespace's */

void kernel_open(void); /* once; it is taken down at exit */
/* A request of @head, which is the operation's own struct, and @body behind it. Its number, to interrupt it by. At most
 * UNDER_WAY may be without an answer. */
uint64_t kernel_send(
	uint32_t opcode, uint64_t node, const void *head, size_t head_bytes, const void *body, size_t body_bytes);
void kernel_interrupt(uint64_t request);
bool kernel_step(void); /* of a queued call; false: there is none */
/* Interrupts what is under way, and sees it answered. */
void kernel_finish(void);
/* Nothing is under way and nobody holds anything: are all transient counters 0, index and slots sound? */
void kernel_check(void);
/* Lets all values go by RESET, and sees to it. */
void kernel_empty(void);

/* A session, attached, with every range acknowledged. */
struct client {
	uint64_t handle; /* of the open file */
	uint64_t session, seq;
	uint8_t *buffer; /* the call buffer, of BUFFER bytes */
	uint64_t last;   /* number of the last request */
	uint64_t transferable[8]; /* of the handles, as far as they were answered at once */
};
void client_open(struct client *client, bool read_only);
void client_close(struct client *client); /* as when its process is gone */
int client_ioctl(struct client *client, unsigned cmd, const void *in, size_t in_bytes, size_t out_bytes); /* kernel.error */

#endif
