/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/record_name.h"

#include <string.h>

static const char digits[] = "0123456789abcdef";

void hex_print(const uint8_t *from, size_t bytes, char *to)
{
	for (size_t i = 0; i < bytes; i++) {
		*to++ = digits[from[i] >> 4];
		*to++ = digits[from[i] & 15];
	}
	*to = 0;
}

void record_name(uint64_t consumed, const struct key *endpoint, char to[RECORD_NAME_BYTES + 1])
{
	for (int i = 15; i >= 0; i--, consumed >>= 4)
		to[i] = digits[consumed & 15];
	to[16] = '-';
	hex_print(endpoint->bytes, sizeof(endpoint->bytes), to + 17);
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hex_parse(const char *from, size_t bytes, uint8_t *to)
{
	for (size_t i = 0; i < bytes; i++) {
		int high = digit(from[2 * i]), low = digit(from[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		to[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

bool record_name_parse(const char *name, uint64_t *consumed, struct key *endpoint)
{
	if (strlen(name) != RECORD_NAME_BYTES || name[16] != '-')
		return false;
	*consumed = 0;
	for (unsigned i = 0; i < 16; i++) {
		int d = digit(name[i]);

		if (d < 0)
			return false;
		*consumed = *consumed << 4 | (unsigned)d;
	}
	return hex_parse(name + 17, sizeof(endpoint->bytes), endpoint->bytes);
}
