/* SPDX-License-Identifier: Apache-2.0
 *
 * A fuzz target: what a fuzzer calls, libFuzzer or the small one of driver.c, which needs no compiler's help.
 *
 * A target aborts when an invariant is broken. What one input did is gone before the next, so that an input alone
 * brings a failure back (--replay).
 */
#ifndef PREFIXFS_TESTS_FUZZ_FUZZ_H
#define PREFIXFS_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#define FUZZ_INPUT_MAX 4096u /* bytes; longer ones are not tried */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Called once before. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Input number @n to begin with, at most FUZZ_INPUT_MAX bytes; how many, 0: there are no more. */
size_t fuzz_seed(unsigned n, uint8_t *to);

#endif
