/* SPDX-License-Identifier: Apache-2.0
 *
 * The sentence that goes with an errno.
 *
 * Every function that can refuse a caller takes a `struct why *`, writes one sentence into it that names the thing, the
 * value and the limit, and returns the negative errno. Expected answers that the caller must handle are positive
 * MODULE_E_* numbers instead and leave it alone. Not thread-safe: a struct why belongs to one request.
 */
#ifndef PREFIXFS_STORE_BASE_WHY_H
#define PREFIXFS_STORE_BASE_WHY_H

struct why {
	int error;      /* positive errno of the sentence, 0 = none yet */
	char text[480]; /* NUL-terminated; a longer sentence ends in "..." */
};

#define WHY_INIT { 0, "" }

/* Writes the sentence and returns -error, which must be positive. @why may be NULL. Keeps errno. */
int why_set(struct why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "<format>: " before the sentence that is there; for callers that know the larger thing's name. */
void why_prefix(struct why *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
