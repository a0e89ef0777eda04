/* SPDX-License-Identifier: Apache-2.0
 *
 * Which memory of the process is registered with the device. Registrations do not overlap. Each counts who asked for it and which
 * copies use it.
 */
#ifndef PREFIXFS_KERNELS_REGISTRY_H
#define PREFIXFS_KERNELS_REGISTRY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct registration {
	uint64_t begin, end, generation;
	uint32_t holders; /* who asked for it */
	uint32_t users;   /* copies under way */
	bool busy;        /* the driver is being asked */
	bool read_only, foreign;
};

struct registry {
	pthread_mutex_t lock; /* guards all below; nothing else is taken under it */
	pthread_cond_t idle;  /* one is not busy any more */
	struct registration **sorted;
	uint32_t count, room;
	uint64_t bytes;
};

int registry_init(struct registry *registry);
/* Nothing is registered any more. */
void registry_deinit(struct registry *registry);

/* Memory that is registered in one call of the driver, as somebody asks for it. */
struct piece {
	uint64_t begin, bytes, generation;
	bool ours;                 /* whoever has the list is one of its holders */
	struct registration *last; /* registry_drop: who has the list was the last one */
};

enum registry_answer {
	REGISTRY_HELD = 0,   /* was there, counts once more */
	REGISTRY_NEW = 1,    /* register it, then registry_settle */
	REGISTRY_ANEW = 2,   /* the same place of another generation: unregister, register, registry_settle */
};

/* Somebody wants @bytes at @begin registered. Waits while another thread asks the driver about the same place. An answer, with *ret,
 * or -EINVAL (it overlaps another), -EBUSY (copies use the older generation), -ENOMEM. */
int registry_want(struct registry *registry, uint64_t begin, uint64_t bytes, uint64_t generation, struct registration **ret);
/* The driver was asked: it is registered, or @failed and forgotten. */
void registry_settle(struct registry *registry, struct registration *registration, bool failed, bool read_only, bool foreign);

/* One holder less of each of @pieces, all different, or of none. Waits while another thread asks the driver about one. Where nobody else
 * holds a piece its `last` is set: unregister that, then registry_forget. -ENOENT, -ESTALE (another generation), -EBUSY (copies use it).
 * @unmapping: their memory goes next. So no copy may use it, whoever else holds it, and what is another's by now is passed over. */
int registry_drop(struct registry *registry, struct piece *pieces, uint32_t count, bool unmapping);
void registry_forget(struct registry *registry, struct registration *registration);
/* Any one that is left, or NULL: for the end. */
struct registration *registry_any(struct registry *registry);

/* What the values of a copy lie in. */
struct spans {
	struct registration **list; /* by address */
	uint32_t count;
};

/* Every value, @bytes at values[i], must lie in registrations, which may be several neighbours; then these are used until
 * registry_release. @write: none of them may be read-only. -EFAULT, -EROFS, -ENOMEM. */
int registry_claim(struct registry *registry, const uint64_t *values, uint32_t count, uint64_t bytes, bool write,
	struct spans *ret);
void registry_release(struct registry *registry, struct spans *spans);

/* Where the registration that holds @address ends; *at: where to look first, the caller's, 0 at the start. */
uint64_t spans_end(const struct spans *spans, uint64_t address, uint32_t *at);

void registry_counts(struct registry *registry, uint32_t *registrations, uint64_t *bytes);

#endif
