/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend on a GPU with a driver of CUDA's that is made up here, for what drivers seldom say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cuda_api.h"
#include "kernels/say.h"

#define PIECE 0x10000000ull /* where it begins */
#define PAGE 4096ull
#define PAGES 8ull /* of it */

struct range {
	uint64_t begin, bytes;
	CUmemorytype type;
};

static struct driver {
	struct range others[4];       /* what somebody else has registered */
	CUresult query;               /* what all questions for addresses come to */
	uint32_t registered, entered; /* ours; contexts that are pushed */
	CUresult init;                /* what cuInit comes to */
	uint32_t inits;               /* calls */
	CUdevice_attribute unasked;   /* this one cannot be asked */
	CUresult unasked_result;
} driver;

/* ---- the driver -------------------------------------------------------------------------------------------------------- */

static CUresult does_nothing(void)
{
	return CUDA_SUCCESS;
}

static CUresult driver_version(int *ret)
{
	*ret = CUDA_OLDEST_DRIVER;
	return CUDA_SUCCESS;
}

static CUresult init(unsigned flags)
{
	driver.inits++;
	return driver.init;
}

static CUresult error_name(CUresult r, const char **ret)
{
	static char name[32];

	snprintf(name, sizeof(name), "CUDA_ERROR_%d", r);
	*ret = name;
	return CUDA_SUCCESS;
}

static CUresult error_string(CUresult r, const char **ret)
{
	*ret = "in words";
	return CUDA_SUCCESS;
}

static CUresult device_count(int *ret)
{
	*ret = 1;
	return CUDA_SUCCESS;
}

static CUresult device_attribute(int *ret, CUdevice_attribute which, CUdevice device)
{
	if (driver.unasked_result && which == driver.unasked)
		return driver.unasked_result;
	*ret = 9; /* of all: a newer device than is needed, which has what is asked for */
	return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *ret, CUdevice device)
{
	*ret = (CUcontext)&driver;
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	driver.entered++;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *ret)
{
	driver.entered--;
	return CUDA_SUCCESS;
}

static const struct range *range_at(uint64_t begin, uint64_t end)
{
	for (size_t i = 0; i < sizeof(driver.others) / sizeof(*driver.others); i++)
		if (driver.others[i].begin < end && driver.others[i].begin + driver.others[i].bytes > begin)
			return &driver.others[i];
	return NULL;
}

static CUresult host_register(void *address, size_t bytes, unsigned flags)
{
	if (range_at((uintptr_t)address, (uintptr_t)address + bytes))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	driver.registered++;
	return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *ret, CUpointer_attribute which, CUdeviceptr at)
{
	const struct range *found = range_at(at, at + 1);

	assert_int_equal(driver.entered, 1);
	if (driver.query || !found)
		return driver.query ? driver.query : CUDA_ERROR_INVALID_VALUE;
	if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*(unsigned *)ret = found->type;
	else if (which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
		*(CUdeviceptr *)ret = found->begin;
	else if (which == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
		*(size_t *)ret = found->bytes;
	else
		fail_msg("attribute %d", which);
	return CUDA_SUCCESS;
}

static CUresult get_address(const char *name, void **ret, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *why)
{
	static const struct {
		const char *name;
		void *function;
	} made_up[] = {
		{"cuDriverGetVersion", (void *)driver_version},
		{"cuInit", (void *)init},
		{"cuGetErrorName", (void *)error_name},
		{"cuGetErrorString", (void *)error_string},
		{"cuDeviceGetCount", (void *)device_count},
		{"cuDeviceGetAttribute", (void *)device_attribute},
		{"cuDevicePrimaryCtxRetain", (void *)retain},
		{"cuCtxPushCurrent", (void *)push},
		{"cuCtxPopCurrent", (void *)pop},
		{"cuMemHostRegister", (void *)host_register},
		{"cuPointerGetAttribute", (void *)pointer_attribute},
	};

	*ret = (void *)does_nothing;
	for (size_t i = 0; i < sizeof(made_up) / sizeof(*made_up); i++)
		if (!strcmp(name, made_up[i].name))
			*ret = made_up[i].function;
	return CUDA_SUCCESS;
}

void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags)
{
	assert_string_equal(name, "libcuda.so.1");
	return &driver;
}

void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name)
{
	assert_ptr_equal(library, &driver);
	assert_string_equal(name, "cuGetProcAddress_v2");
	return (void *)get_address;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------------- */

static int open_device(struct backend **ret)
{
	struct backend_needs needs = {.device = 0};
	int r = backend_cuda.open(&needs, ret);

	assert_int_equal(driver.entered, 0);
	return r;
}

static struct backend *begin(void)
{
	struct backend *b;

	memset(&driver, 0, sizeof(driver));
	assert_int_equal(open_device(&b), 0);
	return b;
}

/* The first test of the process: what has started is not asked again. */
static void a_driver_that_does_not_start_is_asked_again(void **state)
{
	static const struct {
		CUresult init;
		int error;
		const char *words;
	} rows[] = {
		{CUDA_ERROR_SYSTEM_NOT_READY, -EIO, "the CUDA driver of version 12.0 does not start: CUDA_ERROR_802, in words"},
		{CUDA_ERROR_NO_DEVICE, -ENODEV, "the CUDA driver of version 12.0 finds no device that it can use: CUDA_ERROR_100, in words"},
		{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, -ENOTSUP, "the CUDA driver of version 12.0 does not start: CUDA_ERROR_803, in words"},
		{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, -ENOTSUP, "the CUDA driver of version 12.0 does not start: CUDA_ERROR_804, in words"},
		{CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM, "the CUDA driver of version 12.0 does not start: CUDA_ERROR_2, in words"},
	};
	struct backend *b = NULL;

	memset(&driver, 0, sizeof(driver));
	for (uint32_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		driver.init = rows[i].init;
		assert_int_equal(open_device(&b), rows[i].error);
		assert_string_equal(gpu_said(), rows[i].words);
		assert_null(b);
		assert_int_equal(driver.inits, i + 1);
	}
	b = begin();
	b->ops->close(b);
	assert_int_equal(driver.inits, 1);
	b = begin();
	b->ops->close(b);
	assert_int_equal(driver.inits, 0);
}

/* None is of compute capability 0.0 for that. What old drivers do not know of the device has not. */
static void a_device_that_cannot_be_asked_says_why(void **state)
{
	static const CUdevice_attribute needed[] = {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
		CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT};
	static const CUdevice_attribute features[] = {CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED};
	struct backend *b = NULL;

	memset(&driver, 0, sizeof(driver));
	for (uint32_t i = 0; i < 6; i++) {
		driver.unasked = i < 4 ? needed[i] : features[i - 4];
		driver.unasked_result = i < 4 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_ADDRESS;
		assert_int_equal(open_device(&b), -EIO);
		assert_string_equal(gpu_said(), i < 4 ? "asking for the device's attributes: CUDA_ERROR_1, in words" :
							"asking for the device's attributes: CUDA_ERROR_700, in words");
		assert_null(b);
	}
	driver.unasked = CU_DEVICE_ATTRIBUTE_MPS_ENABLED;
	driver.unasked_result = CUDA_ERROR_INVALID_VALUE;
	assert_int_equal(open_device(&b), 0);
	assert_int_equal(b->mps, 0);
	b->ops->close(b);
	b = begin();
	assert_int_equal(b->mps, 1);
	b->ops->close(b);
}

/* ---- what others have registered ------------------------------------------------------------------------------------------ */

/* @hole: the page that the sentence names. */
static void refused(struct backend *b, uint64_t hole)
{
	char words[160];
	bool foreign = true;

	snprintf(words, sizeof(words), "%llu bytes at 0x%llx: somebody has registered a part of them, not what is at 0x%llx", PAGES * PAGE, PIECE,
		PIECE + hole * PAGE);
	assert_int_equal(b->ops->host_register(b, PIECE, PAGES * PAGE, false, &foreign), -EINVAL);
	assert_string_equal(gpu_said(), words);
	assert_false(foreign);
	assert_int_equal(driver.registered, 0);
	assert_int_equal(driver.entered, 0);
}

static void accepted(struct backend *b, bool theirs)
{
	bool foreign = !theirs;

	assert_int_equal(b->ops->host_register(b, PIECE, PAGES * PAGE, false, &foreign), 0);
	assert_int_equal(foreign, theirs);
	assert_int_equal(driver.registered, !theirs);
	assert_int_equal(driver.entered, 0);
}

static void what_others_have_registered_whole_is_accepted(void **state)
{
	struct backend *b = begin();

	driver.others[0] = (struct range){PIECE, PAGES * PAGE, CU_MEMORYTYPE_HOST};
	accepted(b, true);
	driver.others[0] = (struct range){PIECE - PAGE, (PAGES + 2) * PAGE, CU_MEMORYTYPE_HOST};
	accepted(b, true);
	memset(driver.others, 0, sizeof(driver.others));
	for (uint64_t i = 0; i < 2; i++) /* neighbours */
		driver.others[i] = (struct range){PIECE + (i ? PAGES * PAGE : -PAGE), PAGE, CU_MEMORYTYPE_HOST};
	accepted(b, false);
	b->ops->close(b);
}

static void what_others_have_registered_in_part_is_refused(void **state)
{
	struct backend *b = begin();

	for (uint64_t hole = 0; hole < PAGES; hole++) {
		driver.others[0] = (struct range){PIECE - PAGE, (hole + 1) * PAGE, CU_MEMORYTYPE_HOST};
		driver.others[1] = (struct range){PIECE + (hole + 1) * PAGE, PAGES * PAGE, CU_MEMORYTYPE_HOST};
		refused(b, hole);
	}
	driver.others[0] = (struct range){PIECE, 2 * PAGE, CU_MEMORYTYPE_HOST};
	driver.others[1] = (struct range){PIECE + 2 * PAGE, PAGES * PAGE, CU_MEMORYTYPE_DEVICE}; /* that is no memory of the host */
	refused(b, 2);
	b->ops->close(b);
}

/* Copies would cross from one to the other. */
static void what_others_have_registered_in_pieces_is_refused(void **state)
{
	struct backend *b = begin();
	bool foreign = true;
	char words[160];

	driver.others[0] = (struct range){PIECE + 3 * PAGE, PAGES * PAGE, CU_MEMORYTYPE_HOST};
	driver.others[1] = (struct range){PIECE - 2 * PAGE, 5 * PAGE, CU_MEMORYTYPE_HOST};
	snprintf(words, sizeof(words), "%llu bytes at 0x%llx: somebody has registered them in several pieces, one up to 0x%llx", PAGES * PAGE, PIECE,
		PIECE + 3 * PAGE);
	assert_int_equal(b->ops->host_register(b, PIECE, PAGES * PAGE, false, &foreign), -EINVAL);
	assert_string_equal(gpu_said(), words);
	assert_false(foreign);
	assert_int_equal(driver.registered, 0);
	b->ops->close(b);
}

/* The driver cannot be asked. */
static void a_driver_that_does_not_tell_is_believed_nothing(void **state)
{
	struct backend *b = begin();
	bool foreign = true;

	driver.others[0] = (struct range){PIECE, PAGES * PAGE, CU_MEMORYTYPE_HOST};
	driver.query = CUDA_ERROR_ILLEGAL_ADDRESS;
	assert_int_equal(b->ops->host_register(b, PIECE, PAGES * PAGE, false, &foreign), -EIO);
	assert_string_equal(gpu_said(), "asking what is registered: CUDA_ERROR_700, in words");
	assert_false(foreign);
	assert_int_equal(driver.entered, 0);
	b->ops->close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_driver_that_does_not_start_is_asked_again),
		cmocka_unit_test(a_device_that_cannot_be_asked_says_why),
		cmocka_unit_test(what_others_have_registered_whole_is_accepted),
		cmocka_unit_test(what_others_have_registered_in_part_is_refused),
		cmocka_unit_test(what_others_have_registered_in_pieces_is_refused),
		cmocka_unit_test(a_driver_that_does_not_tell_is_believed_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
