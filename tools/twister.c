/* SPDX-License-Identifier: Apache-2.0
 *
 * The Mersenne twister, seeded as Python seeds it: published hit ratios were computed with starts drawn there.
 */
#include "tools/trace.h"

#define N 624u
#define M 397u

static void init(struct twister *t, uint32_t seed)
{
	t->state[0] = seed;
	for (uint32_t i = 1; i < N; i++)
		t->state[i] = 1812433253u * (t->state[i - 1] ^ t->state[i - 1] >> 30) + i;
	t->at = N;
}

/* init_by_array of one word. */
void twister_seed(struct twister *t, uint32_t seed)
{
	uint32_t i = 1;

	init(t, 19650218u);
	for (uint32_t k = N; k > 0; k--) {
		t->state[i] = (t->state[i] ^ (t->state[i - 1] ^ t->state[i - 1] >> 30) * 1664525u) + seed;
		if (++i == N) {
			t->state[0] = t->state[N - 1];
			i = 1;
		}
	}
	for (uint32_t k = N - 1; k > 0; k--) {
		t->state[i] = (t->state[i] ^ (t->state[i - 1] ^ t->state[i - 1] >> 30) * 1566083941u) - i;
		if (++i == N) {
			t->state[0] = t->state[N - 1];
			i = 1;
		}
	}
	t->state[0] = 0x80000000u;
}

static uint32_t next(struct twister *t)
{
	uint32_t y;

	if (t->at == N) {
		for (uint32_t i = 0; i < N; i++) {
			y = (t->state[i] & 0x80000000u) | (t->state[(i + 1) % N] & 0x7fffffffu);
			t->state[i] = t->state[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
		}
		t->at = 0;
	}
	y = t->state[t->at++];
	y ^= y >> 11;
	y ^= y << 7 & 0x9d2c5680u;
	y ^= y << 15 & 0xefc60000u;
	return y ^ y >> 18;
}

double twister_next(struct twister *t)
{
	uint32_t a = next(t) >> 5, b = next(t) >> 6;

	return (a * 67108864.0 + b) / 9007199254740992.0;
}
