/* SPDX-License-Identifier: Apache-2.0
 *
 * A layout as the question that store/base/sizing.h answers: the daemon and `prefixfs size` ask it of the same layout in the same way.
 */
#ifndef PREFIXFS_INDEX_LAYOUT_SIZING_H
#define PREFIXFS_INDEX_LAYOUT_SIZING_H

#include "index/layout.h"
#include "store/base/sizing.h"

/* Fills in what @layout says: its classes, pages, interval and the tokens of a request, LAYOUT_REQUEST where it has no context. The
 * budget is left at 0, for the caller. Pure; any thread. */
void layout_sizing(const struct layout *layout, struct sizing *ret);

#endif
