/* SPDX-License-Identifier: Apache-2.0
 *
 * Work to run beside copies, as an engine's would: bound by memory, or by matrix products. And what goes on for long, or goes wrong.
 */
#include <cuda_bf16.h>
#include <mma.h>
#include <stdint.h>

/* Reads and writes @words of 16 bytes. */
extern "C" __global__ void __launch_bounds__(512) lab_memory(uint4 *to, const uint4 *from, uint64_t words)
{
	uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;

	for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step) {
		uint4 w = from[i];

		w.x += 1;
		to[i] = w;
	}
}

/* Tiles of 64 x 64 of @n x @n: a warp computes 32 x 32, four warps a block. Far from the best product there is, but its
 * time is that of the tensor cores and the caches. */
extern "C" __global__ void __launch_bounds__(128) lab_matrix(float *c, const __nv_bfloat16 *a, const __nv_bfloat16 *b, uint32_t n)
{
	using namespace nvcuda;
	uint32_t warp = threadIdx.x / 32, row = blockIdx.y * 64 + warp / 2 * 32, column = blockIdx.x * 64 + warp % 2 * 32;
	wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];

	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			wmma::fill_fragment(sum[i][j], 0.0f);
	for (uint32_t k = 0; k < n; k += 16) {
		wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> x[2];
		wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> y[2];

		for (int i = 0; i < 2; i++) {
			wmma::load_matrix_sync(x[i], a + static_cast<uint64_t>(row + i * 16) * n + k, n);
			wmma::load_matrix_sync(y[i], b + static_cast<uint64_t>(column + i * 16) * n + k, n);
		}
		for (int i = 0; i < 2; i++)
			for (int j = 0; j < 2; j++)
				wmma::mma_sync(sum[i][j], x[i], y[j], sum[i][j]);
	}
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			wmma::store_matrix_sync(c + static_cast<uint64_t>(row + i * 16) * n + column + j * 16, sum[i][j], n, wmma::mem_row_major);
}

/* One thread that looks at the clock until @ns have passed. */
extern "C" __global__ void __launch_bounds__(1) lab_hold(uint64_t ns)
{
	uint64_t begin, now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
	do {
		__nanosleep(1000);
		asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
	} while (now - begin < ns);
}

/* One thread that writes to memory of the host, again and again, until @ns have passed. */
extern "C" __global__ void __launch_bounds__(1) lab_scribble(volatile uint64_t *to, uint64_t ns)
{
	uint64_t begin, now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
	do {
		asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
		*to = now;
		__threadfence_system();
	} while (now - begin < ns);
}

extern "C" __global__ void lab_trap()
{
	__trap();
}
