/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of the text face of ctl: from the bytes of write(2), however they are cut, to words.
 *
 * A line ends with '\n'; a '\r' before it is dropped. It has printable ASCII, blanks and tabs, and at most CTL_LINE_BYTES
 * bytes; words stand between blanks. An empty line and one that begins with '#' say nothing. No memory but the struct's own;
 * no locks; not thread-safe.
 */
#ifndef PREFIXFS_FS_CTL_LINE_H
#define PREFIXFS_FS_CTL_LINE_H

#include <stddef.h>

#include "store/base/why.h"

#define CTL_LINE_BYTES 4096u /* without the line's end */
#define CTL_LINE_WORDS 128u

struct ctl_line { /* all zero: nothing came yet */
	size_t bytes;                  /* of the unfinished line */
	char text[CTL_LINE_BYTES + 2]; /* and room for "\r" and a NUL */
};

enum { CTL_LINE_WHOLE = 1 };
/* Takes bytes up to the end of a line. CTL_LINE_WHOLE: a line is there, *taken bytes of @from belong to it; take it with
 * ctl_line_words. 0: all were taken and the line is unfinished. EMSGSIZE: it is too long; EINVAL: a byte that no line may
 * have. After an error nothing of the line is kept and *taken is not set. */
int ctl_line_take(struct ctl_line *line, const char *from, size_t bytes, size_t *taken, struct why *why);
/* The words of a whole line, at most CTL_LINE_WORDS: how many (0: it says nothing), or E2BIG. They lie in @line, which
 * is empty for the next one, until that begins. */
int ctl_line_words(struct ctl_line *line, char *words[CTL_LINE_WORDS], struct why *why);

#endif
