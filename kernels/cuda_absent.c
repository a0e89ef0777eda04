/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend of builds without nvcc: it says so.
 */
#include <errno.h>

#include "kernels/backend.h"
#include "kernels/say.h"

static int absent_open(const struct backend_needs *needs, struct backend **ret)
{
	return gpu_say(ENOTSUP, "this library was built without CUDA: nvcc was not found; PFS_KERNELS=ref has plain C do the work");
}

const struct backend_ops backend_cuda = {.name = "cuda", .open = absent_open};
