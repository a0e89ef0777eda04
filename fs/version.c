/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/version.h"

#ifndef PFS_VERSION
#define PFS_VERSION "unknown"
#endif

const char version_text[] = PFS_VERSION;
