/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda.so.1 and its functions. It stays loaded: its threads do not like to lose it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "kernels/cuda_api.h"
#include "kernels/say.h"

typedef CUresult (*get_address)(const char *name, void **ret, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *why);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda_api api;
static int error;
static char why[256], version[32];

static int __attribute__((format(printf, 2, 3))) fail(int number, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	error = number;
	return -number;
}

/* Every function of the table. */
static int load_functions(get_address address)
{
	const struct {
		const char *name;
		void *to;
	} functions[] = {
#define CUDA_ROW(function) {#function, &api.p_##function},
		CUDA_FUNCTIONS(CUDA_ROW)
#undef CUDA_ROW
	};

	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
		if (address(functions[i].name, functions[i].to, CUDA_OLDEST_DRIVER, CU_GET_PROC_ADDRESS_DEFAULT, NULL) !=
			CUDA_SUCCESS)
			return fail(ENOTSUP, "the CUDA driver is too old: it has no %s, 12.0 or newer is needed", functions[i].name);
	return 0;
}

static void load_batch(get_address address)
{
	if (api.driver_version >= 13000) {
		address("cuMemcpyBatchAsync", (void **)&api.batch_13, 13000, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
		address("cuMemcpy3DBatchAsync", (void **)&api.batch_3d_13, 13000, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
	} else if (api.driver_version >= CUDA_BATCH_DRIVER) {
		address("cuMemcpyBatchAsync", (void **)&api.batch_12, CUDA_BATCH_DRIVER, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
		address("cuMemcpy3DBatchAsync", (void **)&api.batch_3d_12, CUDA_BATCH_DRIVER, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
	}
}

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	get_address address;

	if (!library) {
		fail(ENODEV, "no CUDA driver: %s", dlerror());
		return;
	}
	*(void **)&address = dlsym(library, "cuGetProcAddress_v2");
	if (!address) {
		fail(ENOTSUP, "the CUDA driver is too old: it has no %s, 12.0 or newer is needed", "cuGetProcAddress_v2");
		return;
	}
	if (load_functions(address))
		return;
	if (api.p_cuDriverGetVersion(&api.driver_version) != CUDA_SUCCESS)
		api.driver_version = 0;
	snprintf(version, sizeof(version), "%d.%d", api.driver_version / 1000, api.driver_version % 1000 / 10);
	if (api.driver_version < CUDA_OLDEST_DRIVER) {
		fail(ENOTSUP, "the CUDA driver is of version %s, 12.0 or newer is needed", version);
		return;
	}
	load_batch(address);
}

/* Again where it failed: what a driver waits for may have come meanwhile. */
static CUresult init(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool done;
	CUresult r;

	pthread_mutex_lock(&lock);
	r = done ? CUDA_SUCCESS : api.p_cuInit(0);
	done = !r;
	pthread_mutex_unlock(&lock);
	return r;
}

/* @r is what cuInit said. */
static int cannot_start(CUresult r)
{
	bool none = r == CUDA_ERROR_NO_DEVICE;
	bool unfit = r == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH || r == CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE;
	char what[96];
	int said;

	snprintf(what, sizeof(what), "the CUDA driver of version %s %s", version, none ? "finds no device that it can use" : "does not start");
	said = cuda_said(&api, r, what);
	return none ? -ENODEV : unfit ? -ENOTSUP : said;
}

int cuda_load(const struct cuda_api **ret)
{
	CUresult r;

	pthread_once(&once, load);
	if (error)
		return gpu_say(error, "%s", why);
	r = init();
	if (r)
		return cannot_start(r);
	*ret = &api;
	return 0;
}

int cuda_said(const struct cuda_api *a, CUresult result, const char *what)
{
	const char *name = NULL, *text = NULL;

	a->p_cuGetErrorName(result, &name);
	a->p_cuGetErrorString(result, &text);
	return gpu_say(result == CUDA_ERROR_OUT_OF_MEMORY ? ENOMEM : EIO, "%s: %s, %s", what, name ? name : "an unknown error of CUDA",
		text ? text : "without a word");
}
