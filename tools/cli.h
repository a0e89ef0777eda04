/* SPDX-License-Identifier: Apache-2.0
 *
 * What every subcommand of `prefixfs` uses: its options as a table, and its output as JSON or as aligned text.
 */
#ifndef PREFIXFS_TOOLS_CLI_H
#define PREFIXFS_TOOLS_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXIT_USAGE 2

enum option_kind {
	OPTION_FLAG,   /* bool, no argument */
	OPTION_TEXT,   /* const char * */
	OPTION_NUMBER, /* uint64_t within min..max */
	OPTION_OCTAL,  /* uint64_t within min..max, in octal digits */
	OPTION_BYTES,  /* uint64_t within min..max, with an optional K, M, G or T (1024s) */
};

struct option_row {
	const char *name; /* without the dashes */
	enum option_kind kind;
	void *to; /* keeps its value when the option is not given */
	const char *argument, *help;
	uint64_t min, max; /* max 0: no limit */
};

struct command {
	const char *name, *arguments, *summary;
	const char *more; /* further lines for --help, or NULL */
	/* @argc and @argv without the command's own name. The program's exit status. */
	int (*run)(const struct command *self, int argc, char **argv);
};

/* Reads options and leaves the rest, in order, in argv[0..*argc-1]. --help prints and exits with 0; a wrong option prints a
 * sentence and exits with EXIT_USAGE. @rows ends with a row without a name; may be NULL. Options may stand anywhere;
 * after "--" nothing is one. */
void options_read(const struct command *command, const struct option_row *rows, int *argc, char **argv);
/* "12", "4K", "1G". False when it is none. */
bool bytes_parse(const char *text, uint64_t *ret);
/* As options_read would say it: a sentence on stderr; the status is EXIT_USAGE. */
int usage_error(const struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A sentence on stderr, "prefixfs: ..."; returns 1. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with what libprefixfs has to say about its last failed call. */
int complain_client(const char *what);

/* Finds @name in a table that ends with an empty row and runs it. */
int command_dispatch(const char *program, const char *about, const struct command *table, int argc, char **argv);

/* ---- output ----------------------------------------------------------------------------------------------------- */

/* One JSON object on a line, or its members as aligned "name  value" lines. Takes the reference. */
void show_object(json_t *object, bool json);
/* Objects with the same members: one JSON object a line, or an aligned table with a head. Takes the reference. */
void show_list(json_t *array, bool json);

/* A bar on stderr for what takes longer than a second; nothing where that is no terminal. */
struct progress {
	const char *what;
	uint64_t goal, start_ns, shown_ns;
	bool wanted;
};
void progress_start(struct progress *progress, const char *what, uint64_t goal);
void progress_show(struct progress *progress, uint64_t done);
void progress_end(struct progress *progress);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_ns(void);

#endif
