/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's driver, loaded at run time.
 */
#ifndef PREFIXFS_KERNELS_CUDA_API_H
#define PREFIXFS_KERNELS_CUDA_API_H

#include <cuda.h>
#include <stdbool.h>

#define CUDA_OLDEST_DRIVER 12000
#define CUDA_BATCH_DRIVER 12080 /* from which on copies are submitted in batches */

/* As they are since 12.0. Names stand here without their version, which cuda.h adds. */
#define CUDA_FUNCTIONS(x)                                                                                              \
	x(cuDriverGetVersion) x(cuInit) x(cuGetErrorName) x(cuGetErrorString) x(cuDeviceGetCount) x(cuDeviceGet)        \
	x(cuDeviceGetName) x(cuDeviceGetAttribute) x(cuDevicePrimaryCtxRetain) x(cuDevicePrimaryCtxRelease)             \
	x(cuCtxPushCurrent) x(cuCtxPopCurrent) x(cuCtxGetStreamPriorityRange) x(cuStreamCreateWithPriority)             \
	x(cuStreamDestroy) x(cuStreamSynchronize) x(cuStreamWaitEvent) x(cuEventCreate) x(cuEventDestroy)               \
	x(cuEventRecord) x(cuEventSynchronize) x(cuEventElapsedTime) x(cuEventQuery) x(cuMemAlloc) x(cuMemFree)         \
	x(cuMemGetInfo) x(cuMemHostAlloc) x(cuMemFreeHost) x(cuMemHostRegister) x(cuMemHostUnregister)                  \
	x(cuPointerGetAttribute) x(cuMemcpyHtoDAsync) x(cuMemcpyDtoHAsync) x(cuMemcpy2DAsync) x(cuMemsetD8Async)       \
	x(cuModuleLoadData) x(cuModuleUnload) x(cuModuleGetFunction) x(cuFuncSetAttribute) x(cuLaunchKernel)

#define CUDA_MEMBER(name) __typeof__(&name) p_##name;

typedef CUresult (*cuda_batch_12)(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
	size_t *places, size_t attribute_count, size_t *failed, CUstream stream);
typedef CUresult (*cuda_batch_13)(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
	size_t *places, size_t attribute_count, CUstream stream);

typedef CUresult (*cuda_batch_3d_12)(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream stream);
typedef CUresult (*cuda_batch_3d_13)(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream);

struct cuda_api {
	CUDA_FUNCTIONS(CUDA_MEMBER)
	cuda_batch_12 batch_12; /* NULL where there is none; at most one of the two */
	cuda_batch_13 batch_13;
	cuda_batch_3d_12 batch_3d_12; /* so is this */
	cuda_batch_3d_13 batch_3d_13;
	int driver_version;
};

/* Loads libcuda once, and starts it: again where that failed before, for a driver may become ready. -ENODEV (it is not there, or it finds no
 * device), -ENOTSUP (too old, or not of the kernel's or the device's version), -EIO, -ENOMEM (what CUDA says). Any thread. */
int cuda_load(const struct cuda_api **ret);
/* "@what: CUDA_ERROR_..., sentence". -ENOMEM where memory of the device is short, else -EIO. */
int cuda_said(const struct cuda_api *api, CUresult result, const char *what);

/* The image of all kernels: made by the build from move.cu. */
extern const unsigned char gpu_image[];

#endif
