/* SPDX-License-Identifier: Apache-2.0
 *
 * The laboratory of builds without nvcc: it says so.
 */
#include <errno.h>

#include "kernels/lab_ops.h"
#include "kernels/say.h"

static int absent_open(int device, struct lab **ret)
{
	return gpu_say(ENOTSUP, "this program was built without CUDA: nvcc was not found");
}

const struct lab_ops lab_cuda = {.open = absent_open};
