/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/client/prefixfs.h"

int complain(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fputs("prefixfs: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return 1;
}

int complain_client(const char *what)
{
	char text[512];

	pfs_last_error(text, sizeof(text));
	return complain("%s: %s", what, text);
}

int usage_error(const struct command *command, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "prefixfs %s: ", command->name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "; see prefixfs %s --help\n", command->name);
	return EXIT_USAGE;
}

/* ---- options ---------------------------------------------------------------------------------------------------- */

static void print_help(const struct command *command, const struct option_row *rows)
{
	printf("prefixfs %s %s\n\n%s\n", command->name, command->arguments, command->summary);
	if (command->more)
		printf("%s\n", command->more);
	printf("\n");
	for (const struct option_row *o = rows; o && o->name; o++) {
		char left[64];

		snprintf(left, sizeof(left), "--%s%s%s", o->name, o->argument ? " " : "",
			o->argument ? o->argument : "");
		printf("  %-26s %s\n", left, o->help);
	}
	printf("  %-26s %s\n\nExit status: 0 done, 1 it failed, 2 wrong usage.\n", "--help", "this text");
}

bool bytes_parse(const char *text, uint64_t *ret)
{
	static const char units[] = "KMGT";
	unsigned long long value;
	const char *unit;
	unsigned shift = 0;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno)
		return false;
	if (*end) {
		unit = strchr(units, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
		if (!unit || end[1])
			return false;
		shift = 10 * (unsigned)(unit - units + 1);
	}
	if (value > UINT64_MAX >> shift)
		return false;
	*ret = (uint64_t)value << shift;
	return true;
}

static int set_number(const struct command *command, const struct option_row *o, const char *text)
{
	uint64_t value;
	char *end;

	if (o->kind == OPTION_BYTES) {
		if (!bytes_parse(text, &value))
			return usage_error(command, "--%s is '%s', not a size like 512M", o->name, text);
	} else if (o->kind == OPTION_OCTAL) {
		errno = 0;
		value = strtoull(text, &end, 8);
		if (*text < '0' || *text > '7' || *end || errno)
			return usage_error(command, "--%s is '%s', not octal digits like 0755", o->name, text);
		if (value < o->min || value > o->max)
			return usage_error(command, "--%s is %s, %llo..%llo are possible", o->name, text,
				(unsigned long long)o->min, (unsigned long long)o->max);
	} else {
		errno = 0;
		value = strtoull(text, &end, 10);
		if (*text < '0' || *text > '9' || *end || errno)
			return usage_error(command, "--%s is '%s', not a number", o->name, text);
	}
	if (value < o->min || (o->max && value > o->max))
		return usage_error(command, "--%s is %s, %llu..%llu are possible", o->name, text,
			(unsigned long long)o->min, (unsigned long long)(o->max ? o->max : UINT64_MAX));
	*(uint64_t *)o->to = value;
	return 0;
}

void options_read(const struct command *command, const struct option_row *rows, int *argc, char **argv)
{
	int left = 0;

	for (int i = 0; i < *argc; i++) {
		const struct option_row *o = rows;
		const char *name = argv[i] + 2, *equals;
		size_t length;

		if (!strcmp(argv[i], "--")) {
			while (++i < *argc)
				argv[left++] = argv[i];
			break;
		}
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			print_help(command, rows);
			exit(0);
		}
		if (argv[i][0] != '-' || argv[i][1] == '\0') {
			argv[left++] = argv[i];
			continue;
		}
		if (argv[i][1] != '-')
			exit(usage_error(command, "unknown option '%s'", argv[i]));
		equals = strchr(name, '=');
		length = equals ? (size_t)(equals - name) : strlen(name);
		while (o && o->name && (strlen(o->name) != length || memcmp(o->name, name, length)))
			o++;
		if (!o || !o->name)
			exit(usage_error(command, "unknown option '%s'", argv[i]));
		if (o->kind == OPTION_FLAG) {
			if (equals)
				exit(usage_error(command, "--%s takes no value", o->name));
			*(bool *)o->to = true;
			continue;
		}
		if (!equals && ++i == *argc)
			exit(usage_error(command, "--%s needs a value: %s", o->name, o->argument));
		if (o->kind == OPTION_TEXT)
			*(const char **)o->to = equals ? equals + 1 : argv[i];
		else if (set_number(command, o, equals ? equals + 1 : argv[i]))
			exit(EXIT_USAGE);
	}
	*argc = left;
}

int command_dispatch(const char *program, const char *about, const struct command *table, int argc, char **argv)
{
	const char *name = argc > 0 ? argv[0] : "--help";

	if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
		FILE *to = argc > 0 ? stdout : stderr;

		fprintf(to, "%s COMMAND ...\n\n%s\n\n", program, about);
		for (const struct command *c = table; c->name; c++) {
			const char *last = strrchr(c->name, ' ');

			fprintf(to, "  %-10s %s\n", last ? last + 1 : c->name, c->summary);
		}
		fprintf(to, "\nEach command has --help. Exit status: 0 done, 1 it failed, 2 wrong usage.\n");
		return argc > 0 ? 0 : EXIT_USAGE;
	}
	for (const struct command *c = table; c->name; c++) {
		const char *last = strrchr(c->name, ' ');

		if (!strcmp(name, last ? last + 1 : c->name))
			return c->run(c, argc - 1, argv + 1);
	}
	fprintf(stderr, "%s: there is no command '%s'; see %s --help\n", program, name, program);
	return EXIT_USAGE;
}
