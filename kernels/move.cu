/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels. Each moves all pieces of a rectangle between values, or what stands for them in the ring, and planes; twin_move (ref.c)
 * does the same. `scatter` goes to planes, `gather` from them; the plain ones load and store, the bulk ones have the copy
 * engine of each multiprocessor do it.
 */
#include <stdint.h>

#include "kernels/move.h"

/* As in kernels/shape.h. */
struct column {
	uint64_t base, stride, offset, bytes, row_bytes, row_stride;
	uint32_t page, reserved;
};
static_assert(sizeof(column) == 56, "the host writes it");

/* One piece: where it lies in the value and on the device. */
struct piece {
	uint64_t value, plane, bytes, row_bytes, row_stride;
};

static __device__ __forceinline__ piece find_piece(const move_args &a, uint64_t number)
{
	uint64_t row = number / a.column_count;
	const column *c = static_cast<const column *>(a.columns) + (number - row * a.column_count);

	return {a.values[row] + c->offset, c->base + a.pages[row * a.pages_per_value + c->page] * c->stride, c->bytes, c->row_bytes,
		c->row_stride};
}

/* Contiguous on both sides; @lane of @lanes threads. Four loads are on their way before the first is stored. */
template <typename word>
static __device__ __forceinline__ void copy_words(uint64_t to, uint64_t from, uint64_t bytes, uint32_t lane, uint32_t lanes)
{
	word *t = reinterpret_cast<word *>(to);
	const word *f = reinterpret_cast<const word *>(from);
	uint64_t words = bytes / sizeof(word), i = lane;

	for (; i + 3ull * lanes < words; i += 4ull * lanes) {
		word w0 = __ldcs(f + i), w1 = __ldcs(f + i + lanes), w2 = __ldcs(f + i + 2ull * lanes), w3 = __ldcs(f + i + 3ull * lanes);

		__stcs(t + i, w0);
		__stcs(t + i + lanes, w1);
		__stcs(t + i + 2ull * lanes, w2);
		__stcs(t + i + 3ull * lanes, w3);
	}
	for (; i < words; i += lanes)
		__stcs(t + i, __ldcs(f + i));
}

/* In rows on the device. */
template <typename word, bool to_device>
static __device__ __forceinline__ void copy_rows(const piece &p, uint32_t lane, uint32_t lanes)
{
	uint64_t words = p.bytes / sizeof(word), row_words = p.row_bytes / sizeof(word);

	for (uint64_t i = lane; i < words; i += lanes) {
		uint64_t row = i / row_words;
		word *plane = reinterpret_cast<word *>(p.plane + row * p.row_stride) + (i - row * row_words);
		word *value = reinterpret_cast<word *>(p.value) + i;

		if (to_device)
			__stcs(plane, __ldcs(value));
		else
			__stcs(value, __ldcs(plane));
	}
}

template <typename word, bool to_device>
static __device__ __forceinline__ void copy_piece(const piece &p, uint32_t lane, uint32_t lanes)
{
	if (p.row_bytes == p.bytes)
		copy_words<word>(to_device ? p.plane : p.value, to_device ? p.value : p.plane, p.bytes, lane, lanes);
	else
		copy_rows<word, to_device>(p, lane, lanes);
}

template <bool to_device> static __device__ void move(const move_args &a)
{
	uint32_t lane = threadIdx.x & (a.lanes - 1), groups = blockDim.x / a.lanes;
	uint64_t pieces = static_cast<uint64_t>(a.column_count) * a.row_count, step = static_cast<uint64_t>(gridDim.x) * groups;

	for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * groups + threadIdx.x / a.lanes; i < pieces; i += step) {
		piece p = find_piece(a, i);
		uint64_t bits = p.value | p.plane | p.row_bytes | (p.row_bytes == p.bytes ? 0 : p.row_stride);

		if ((bits & 15) == 0)
			copy_piece<int4, to_device>(p, lane, a.lanes);
		else if ((bits & 7) == 0)
			copy_piece<uint2, to_device>(p, lane, a.lanes);
		else if ((bits & 3) == 0)
			copy_piece<uint32_t, to_device>(p, lane, a.lanes);
		else
			copy_piece<unsigned char, to_device>(p, lane, a.lanes);
	}
}

extern "C" __global__ void __launch_bounds__(MOVE_THREADS, 1) pfs_scatter(const __grid_constant__ move_args a)
{
	move<true>(a);
}

extern "C" __global__ void __launch_bounds__(MOVE_THREADS, 1) pfs_gather(const __grid_constant__ move_args a)
{
	move<false>(a);
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

/* From pinned memory of the host, past the copy engine. All in 4-byte words. */
extern "C" __global__ void __launch_bounds__(TABLES_THREADS) pfs_tables(const __grid_constant__ tables_args a)
{
	const uint2 *from = static_cast<const uint2 *>(a.from);
	uint2 *to = static_cast<uint2 *>(a.to);
	uint32_t pairs = a.bytes / 8, step = gridDim.x * TABLES_THREADS, first = blockIdx.x * TABLES_THREADS + threadIdx.x;

	for (uint32_t i = first; i < pairs; i += step)
		to[i] = __ldcv(from + i);
	if (first == 0 && a.bytes % 8)
		*reinterpret_cast<uint32_t *>(to + pairs) = __ldcv(reinterpret_cast<const uint32_t *>(from + pairs));
}

/* ---- bulk --------------------------------------------------------------------------------------------------------- */

#if __CUDA_ARCH__ >= 900

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
	return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

static __device__ __forceinline__ void bulk_in(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
		"r"(bytes), "r"(barrier)
		: "memory");
}

static __device__ __forceinline__ void bulk_out(uint64_t to, uint32_t from, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void wait_in(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	do
		asm volatile("{\n\t.reg .pred p;\n\t"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
			     "selp.u32 %0, 1, 0, p;\n\t}"
			: "=r"(done)
			: "r"(barrier), "r"(parity)
			: "memory");
	while (!done);
}

/* Bytes @at..@at + @bytes - 1 of a plane, row by row, out of the buffer or into it. */
template <bool to_device>
static __device__ __forceinline__ void bulk_rows(const piece &p, uint64_t at, uint32_t bytes, uint32_t buffer, uint32_t barrier)
{
	for (uint32_t done = 0; done < bytes;) {
		uint64_t row = (at + done) / p.row_bytes, within = at + done - row * p.row_bytes;
		uint64_t plane = p.plane + row * p.row_stride + within;
		uint32_t run = static_cast<uint32_t>(min(static_cast<uint64_t>(bytes - done), p.row_bytes - within));

		if (to_device)
			bulk_out(plane, buffer + done, run);
		else
			bulk_in(buffer + done, plane, run, barrier);
		done += run;
	}
}

/* Bytes @at..@at + @bytes - 1 of a piece through @buffer, which is free again afterwards. */
template <bool to_device>
static __device__ __forceinline__ void bulk_chunk(const piece &p, uint64_t at, uint32_t bytes, uint32_t buffer, uint32_t barrier,
	uint32_t parity)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
	if (to_device)
		bulk_in(buffer, p.value + at, bytes, barrier);
	else
		bulk_rows<false>(p, at, bytes, buffer, barrier);
	wait_in(barrier, parity);
	if (to_device)
		bulk_rows<true>(p, at, bytes, buffer, barrier);
	else
		bulk_out(p.value + at, buffer, bytes);
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
	asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Chunk @number, if there is one. */
template <bool to_device>
static __device__ __forceinline__ void bulk_turn(const move_args &a, uint64_t number, uint64_t total, uint32_t buffer, uint32_t barrier,
	uint32_t &parity)
{
	if (number >= total)
		return;
	piece p = find_piece(a, number / a.chunks);
	uint64_t at = number % a.chunks * BULK_CHUNK;

	if (at >= p.bytes)
		return;
	bulk_chunk<to_device>(p, at, static_cast<uint32_t>(min(p.bytes - at, static_cast<uint64_t>(BULK_CHUNK))), buffer, barrier, parity);
	parity ^= 1;
}

/* Each lane of the one warp of a block has a buffer, and carries chunks of its own through it. Lanes share nothing; but what moves them
 * are instructions of the warp, which one lane issues for another, and racecheck takes that for sharing where the warp does not meet
 * between two turns. */
template <bool to_device> static __device__ void bulk(const move_args &a)
{
	extern __shared__ __align__(128) unsigned char shared[];
	uint32_t buffer = shared_address(shared) + threadIdx.x * BULK_CHUNK;
	uint32_t barrier = shared_address(shared) + BULK_LANES * BULK_CHUNK + threadIdx.x * 8, parity = 0;
	uint64_t pieces = static_cast<uint64_t>(a.column_count) * a.row_count, total = pieces * a.chunks;

	asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	__syncwarp();
	for (uint64_t first = static_cast<uint64_t>(blockIdx.x) * BULK_LANES; first < total; first += static_cast<uint64_t>(gridDim.x) * BULK_LANES) {
		bulk_turn<to_device>(a, first + threadIdx.x, total, buffer, barrier, parity);
		__syncwarp();
	}
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#else

/* Never launched there. */
template <bool to_device> static __device__ void bulk(const move_args &a)
{
	__trap();
}

#endif

extern "C" __global__ void __launch_bounds__(BULK_LANES) pfs_bulk_scatter(const __grid_constant__ move_args a)
{
	bulk<true>(a);
}

extern "C" __global__ void __launch_bounds__(BULK_LANES) pfs_bulk_gather(const __grid_constant__ move_args a)
{
	bulk<false>(a);
}
