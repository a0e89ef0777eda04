/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/dropped.h"

#include <stdio.h>
#include <string.h>

#include "fs/log.h"

void dropped_init(struct dropped *d)
{
	lock_init(&d->lock, LOCK_QUEUE);
}

void dropped_deinit(struct dropped *d)
{
	lock_destroy(&d->lock);
}

static struct dropped_one *find(struct dropped *d, const char *name)
{
	lock_assert_held(&d->lock);
	for (unsigned i = 0; i < d->count; i++)
		if (!strcmp(d->at[i].name, name))
			return &d->at[i];
	return NULL;
}

void dropped_note(struct dropped *d, const char *name, const char *why)
{
	struct dropped_one one;

	snprintf(one.name, sizeof(one.name), "%s", name);
	snprintf(one.text, sizeof(one.text), "the memory of namespace %s was dropped: %s", name, why);
	log_error("%s", one.text);
	lock_take(&d->lock);
	if (d->count < HOST_MAX_SPACES)
		d->at[d->count++] = one;
	lock_drop(&d->lock);
}

bool dropped_is_noted(struct dropped *d, const char *name)
{
	lock_take(&d->lock);
	bool noted = find(d, name);
	lock_drop(&d->lock);
	return noted;
}

void dropped_forget(struct dropped *d, const char *name)
{
	lock_take(&d->lock);
	struct dropped_one *one = find(d, name);
	if (one)
		*one = d->at[--d->count];
	lock_drop(&d->lock);
}

bool dropped_get(struct dropped *d, unsigned i, char text[EVENT_TEXT_BYTES])
{
	lock_take(&d->lock);
	bool there = i < d->count;
	if (there)
		memcpy(text, d->at[i].text, EVENT_TEXT_BYTES);
	lock_drop(&d->lock);
	return there;
}
