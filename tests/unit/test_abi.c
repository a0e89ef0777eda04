/* SPDX-License-Identifier: Apache-2.0
 *
 * The control ABI keeps the promises of its header: no padding, whole 8-byte units, at most 4 KiB, numbers once.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#include "fs/client/prefixfs_abi.h"
#pragma GCC diagnostic pop

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const unsigned long requests[] = {PFS_IOC_ATTACH, PFS_IOC_SEGMENTS, PFS_IOC_SEGMENTS_ACK, PFS_IOC_PUT_START,
	PFS_IOC_PUT_COMMIT, PFS_IOC_PUT_ABORT, PFS_IOC_GET_START, PFS_IOC_GET_TRANSFER, PFS_IOC_GET_CANCEL,
	PFS_IOC_RELEASE, PFS_IOC_PROBE, PFS_IOC_STAT, PFS_IOC_LAST_ERROR, PFS_IOC_EMPTY, PFS_IOC_TOUCH,
	PFS_IOC_REMOVE, PFS_IOC_PIN, PFS_IOC_DRAIN, PFS_IOC_RESET, PFS_IOC_BLOB_PUT, PFS_IOC_BLOB_GET, PFS_IOC_BLOB_REMOVE,
	PFS_IOC_BLOB_LOCK, PFS_IOC_IMPORT,
	PFS_IOC_GET_INTO, PFS_IOC_GET_CONFIRM};

#define N_REQUESTS (sizeof(requests) / sizeof(requests[0]))

static void sizes(void **state)
{
	for (size_t i = 0; i < N_REQUESTS; i++) {
		unsigned int size = _IOC_SIZE(requests[i]);

		assert_true(size <= 4096);
		assert_int_equal(size % 8, 0);
		if (requests[i] != PFS_IOC_EMPTY)
			assert_true(size > sizeof(struct pfs_call));
	}
}

static void numbers(void **state)
{
	uint64_t seen = 0;

	for (size_t i = 0; i < N_REQUESTS; i++) {
		unsigned int nr = _IOC_NR(requests[i]);

		assert_int_equal(_IOC_TYPE(requests[i]), PFS_IOC_TYPE);
		assert_true(nr >= 1 && nr <= PFS_IOC_NR_LAST);
		assert_false(seen & (UINT64_C(1) << nr));
		seen |= UINT64_C(1) << nr;
	}
}

/* The layout is the wire: these numbers change with PFS_ABI_VERSION only. */
static void places(void **state)
{
	assert_int_equal(sizeof(struct pfs_call), 32);
	assert_int_equal(offsetof(struct pfs_call, seq), 8);
	assert_int_equal(sizeof(struct pfs_attach), 472);
	assert_int_equal(offsetof(struct pfs_attach, state_mask), 228);
	assert_int_equal(sizeof(struct pfs_range), 48);
	assert_int_equal(sizeof(struct pfs_put_group), 64);
	assert_int_equal(sizeof(struct pfs_hello), 24);
	assert_int_equal(sizeof(struct pfs_touch), 64);
	assert_int_equal(sizeof(struct pfs_remove), 80);
	assert_int_equal(offsetof(struct pfs_remove, values), 72);
	assert_int_equal(sizeof(struct pfs_pin), 80);
	assert_int_equal(offsetof(struct pfs_pin, pinned_bytes), 64);
	assert_int_equal(sizeof(struct pfs_drain), 56);
	assert_int_equal(sizeof(struct pfs_reset), 56);
	assert_int_equal(sizeof(struct pfs_settle), 40);
	assert_int_equal(_IOC_NR(PFS_IOC_SETTLE), 29);
	assert_int_equal(sizeof(struct pfs_import), 64);
	assert_int_equal(offsetof(struct pfs_import, token), 48);
	assert_int_equal(sizeof(struct pfs_get_into), 264);
	assert_int_equal(offsetof(struct pfs_get_into, class_offset), 104);
	assert_int_equal(offsetof(struct pfs_get_into, delivered_len), 240);
	assert_int_equal(offsetof(struct pfs_hello, kind), 4);
	assert_int_equal(_IOC_NR(PFS_IOC_IMPORT), 15);
	assert_int_equal(_IOC_NR(PFS_IOC_GET_INTO), 28);
	assert_int_equal(sizeof(struct pfs_blob_put), 136);
	assert_int_equal(offsetof(struct pfs_blob_put, version), 104);
	assert_int_equal(sizeof(struct pfs_blob_get), 152);
	assert_int_equal(offsetof(struct pfs_blob_get, capacity), 128);
	assert_int_equal(sizeof(struct pfs_blob_remove), 80);
	assert_int_equal(sizeof(struct pfs_blob_lock), 112);
	assert_int_equal(_IOC_NR(PFS_IOC_BLOB_PUT), 24);
	assert_int_equal(_IOC_NR(PFS_IOC_BLOB_LOCK), 27);
	assert_int_equal(_IOC_NR(PFS_IOC_TOUCH), 17);
	assert_int_equal(_IOC_NR(PFS_IOC_REMOVE), 18);
	assert_int_equal(_IOC_NR(PFS_IOC_PIN), 19);
	assert_int_equal(_IOC_NR(PFS_IOC_DRAIN), 22);
	assert_int_equal(_IOC_NR(PFS_IOC_RESET), 23);
	assert_int_equal(sizeof(struct pfs_welcome), 128);
	/* where the second version of a struct begins */
	assert_int_equal(offsetof(struct pfs_attach, guard_pid), PFS_BYTES_ATTACH_1);
	assert_int_equal(offsetof(struct pfs_attach, value_bytes), 344);
	assert_int_equal(offsetof(struct pfs_put_start, ticket), PFS_BYTES_PUT_START_1);
	assert_int_equal(sizeof(struct pfs_put_start), 120);
	assert_int_equal(offsetof(struct pfs_get_start, candidates_offset), PFS_BYTES_GET_START_1);
	assert_int_equal(offsetof(struct pfs_get_start, interval), 316);
	assert_int_equal(sizeof(struct pfs_get_start), 320);
	assert_int_equal(offsetof(struct pfs_get_transfer, candidate), PFS_BYTES_GET_TRANSFER_1);
	assert_int_equal(sizeof(struct pfs_get_transfer), 112);
	assert_int_equal(sizeof(struct pfs_get_confirm), 64);
	assert_int_equal(offsetof(struct pfs_get_confirm, restored), 56);
	assert_int_equal(_IOC_NR(PFS_IOC_GET_CONFIRM), 16);
	assert_int_equal(sizeof(struct pfs_candidate), 48);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(numbers),
		cmocka_unit_test(places),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
