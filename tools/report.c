/* SPDX-License-Identifier: Apache-2.0
 *
 * The page itself: its head, its tables, and how it comes into being.
 */
#include "tools/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/client/prefixfs.h"
#include "tools/cli.h"
#include "tools/host.h"
#include "tools/report_plot.h"

/* The colours are those of Okabe and Ito, which people of every colour vision tell apart; lines differ in their dashes too. */
static const char style[] =
	":root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1a1d21;--soft:#59626d;--rule:#dfe3e8;"
	"--measured:#0072b2;--window:#56b4e9;--lru:#d55e00;--optimum:#008a63;--evicted:#b5568c;--refused:#c98500;--own:#59626d}\n"
	"@media (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1d2126;--ink:#e8eaed;--soft:#a4adb8;"
	"--rule:#343a42;--measured:#56b4e9;--window:#2d7fb0;--lru:#f0883e;--optimum:#3ecf9f;--evicted:#dd8fba;--refused:#e9b03a;--own:#a4adb8}}\n"
	"*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);"
	"font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Noto Sans\",\"DejaVu Sans\",sans-serif}\n"
	"main{max-width:1180px;margin:0 auto;padding:28px 24px 48px}h1{font-size:28px;line-height:1.2;margin:0 0 4px;"
	"overflow-wrap:anywhere}h2{font-size:18px;margin:0 0 10px}.under{color:var(--soft);margin:0 0 22px}\n"
	".tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin:0 0 24px;padding:0;"
	"list-style:none}.tiles li{background:var(--card);border-radius:8px;padding:12px 16px}"
	".tiles b{display:block;font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}"
	".tiles span{color:var(--soft);font-size:14px}.tiles .bad b{color:var(--lru)}\n"
	".grid,.pair{display:grid;grid-template-columns:1fr 1fr;gap:22px;align-items:stretch}.wide{grid-column:1/-1}"
	"figure,section{margin:0;border:1px solid var(--rule);border-radius:8px;padding:16px 18px}"
	"figcaption{color:var(--soft);font-size:14px;margin-top:8px}svg{display:block;width:100%;height:auto}\n"
	"text{font-size:12px;fill:var(--ink)}.tick{fill:var(--soft);font-variant-numeric:tabular-nums}"
	".title{fill:var(--soft)}.note,.head{font-weight:600}.note{paint-order:stroke;stroke:var(--paper);"
	"stroke-width:4px;stroke-linejoin:round}\n"
	".grid line.grid,svg .grid{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--soft);fill:none}"
	".line{fill:none;stroke-width:2;stroke-linejoin:round}.line.measured{stroke:var(--measured);stroke-width:3}"
	".line.window{stroke:var(--window);stroke-width:1.25}.line.lru{stroke:var(--lru);stroke-dasharray:7 4}"
	"#capacity .line.lru{stroke-dasharray:none}.line.optimum{stroke:var(--optimum);stroke-dasharray:2 3}"
	".line.own,.line.limit{stroke:var(--own);stroke-width:1.25}.line.limit{stroke-dasharray:1 3}"
	".line.p50{stroke:var(--ink);stroke-width:1.5}.line.p99{stroke:var(--lru);stroke-width:1.5;stroke-dasharray:5 3}\n"
	".bar,.area{fill:var(--measured)}.area{fill-opacity:.85}.area.lru{fill:var(--lru)}"
	".area.evicted{fill:var(--evicted)}.bar.refused{fill:var(--refused)}.dot{fill:var(--measured);stroke:var(--paper);stroke-width:2}\n"
	"table{border-collapse:collapse;width:100%;font-size:14px}td,th{padding:4px 12px 4px 0;vertical-align:top;"
	"border-bottom:1px solid var(--rule);text-align:left;font-weight:400;overflow-wrap:anywhere}"
	"th{color:var(--soft);width:42%}td{font-variant-numeric:tabular-nums}tr:last-child>*{border-bottom:0}\n"
	".columns{columns:2;column-gap:36px}.columns tr{break-inside:avoid}"
	"@media (max-width:860px){.grid,.pair{grid-template-columns:1fr}.tiles{grid-template-columns:1fr 1fr}.columns{columns:1}main{padding:16px}}\n"
	"@media print{:root{--paper:#fff;--card:#f6f7f9;--ink:#000;--soft:#444;--rule:#ccc;--measured:#0072b2;"
	"--window:#56b4e9;--lru:#d55e00;--optimum:#008a63;--evicted:#b5568c;--refused:#c98500;--own:#444}body{font-size:11pt;-webkit-print-color-adjust:exact;"
	"print-color-adjust:exact}main{max-width:none;padding:0}figure,section{break-inside:avoid}"
	".tiles{grid-template-columns:repeat(4,1fr)}}\n";

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

void report_figure(FILE *out, const char *id, const char *title, bool wide)
{
	fprintf(out, "<figure id=\"%s\"%s>\n<h2>%s</h2>\n", id, wide ? " class=\"wide\"" : "", title);
}

void report_figure_end(FILE *out, const char *format, ...)
{
	char text[2048];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fputs("<figcaption>", out);
	fputs(text, out);
	fputs("</figcaption>\n</figure>\n", out);
}

static void tile(FILE *out, const char *value, const char *name, bool bad)
{
	fprintf(out, "<li%s><b>%s</b><span>%s</span></li>\n", bad ? " class=\"bad\"" : "", value, name);
}

static void row(FILE *out, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void row(FILE *out, const char *name, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(out, "<tr><th scope=\"row\">%s</th><td>", name);
	html_text(out, text);
	fputs("</td></tr>\n", out);
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static double part(uint64_t some, uint64_t all)
{
	return all ? (double)some / (double)all : 0;
}

/* ---- what stands at the top ------------------------------------------------------------------------------------- */

static void tiles(FILE *out, const struct report *r)
{
	uint64_t optimum = r->capacity_pages ? reuse_optimum(&r->reuse, r->capacity_pages, NULL) : 0;
	const json_t *evicted = json_object_get(r->result, "evicted_values");
	json_int_t from_disk = json_integer_value(json_object_get(r->result, "bytes_from_disk"));
	char text[PLOT_TEXT];

	fputs("<ul class=\"tiles\">\n", out);
	snprintf(text, sizeof(text), "%.2f %%", 100 * part(r->sum->hits, r->sum->references));
	tile(out, text, "hit ratio", false);
	if (optimum) {
		snprintf(text, sizeof(text), "%.1f %%", 100 * part(r->sum->hits, optimum));
		tile(out, text, "of the hits possible in hindsight", false);
	}
	count_text(text, r->sum->requests);
	tile(out, text, "requests", false);
	unit_text(text, UNIT_BYTES, (double)r->sum->bytes_got);
	tile(out, text, "fetched and checked", false);
	if (from_disk > 0) {
		unit_text(text, UNIT_BYTES, (double)from_disk);
		tile(out, text, "read back from disk", false);
	}
	unit_text(text, UNIT_BYTES, (double)r->sum->bytes_put);
	tile(out, text, "put", false);
	if (evicted) {
		count_text(text, (uint64_t)json_integer_value(evicted));
		tile(out, text, "values evicted", false);
	}
	count_text(text, r->sum->wrong);
	tile(out, text, "values with wrong bytes", r->sum->wrong > 0);
	unit_text(text, UNIT_SECONDS, r->seconds);
	tile(out, text, "duration", false);
	fputs("</ul>\n", out);
}

static void describe_classes(FILE *out, const struct layout_view *layout)
{
	char bytes[PLOT_TEXT];

	for (uint32_t c = 0; c < layout->classes; c++) {
		const struct layout_class *class = &layout->class[c];
		char name[80];

		snprintf(name, sizeof(name), "class %u", c);
		count_text(bytes, class->payload_bytes);
		row(out, name, "%s: %s, %u planes, %s bytes a value of %llu tokens", class->name, class->kind,
			class->planes, bytes, (unsigned long long)class->every);
	}
}

static void setup(FILE *out, const struct report *r)
{
	static const char *const orders[] = {
		"strict: each request looked up when all before it were committed",
		"lookups: each request looked up when all before it were looked up",
		"free: clients do not wait for each other",
	};
	char text[PLOT_TEXT], more[PLOT_TEXT], date[64];
	struct tm local;

	localtime_r(&r->began, &local);
	strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S %z", &local);
	fputs("<section id=\"setup\">\n<h2>What was replayed</h2>\n<table>\n", out);
	row(out, "trace", "%s", r->trace_name);
	count_text(text, r->trace->count);
	row(out, "requests, sessions", "%s, %u", text, r->trace->sessions);
	count_text(text, r->reuse.references);
	count_text(more, r->reuse.distinct);
	row(out, "pages asked for, different ones", "%s, %s", text, more);
	row(out, "begun", "%s", date);
	row(out, "clients, order", "%u, %s", r->options->clients, orders[r->options->order]);
	if (r->options->group_pages)
		row(out, "pages of a put group", "%u", r->options->group_pages);
	if (r->options->planes)
		row(out, "values", "pass through planes of the client's own");
	row(out, "prefixfs", "%s", pfs_version());
	fputs("</table>\n</section>\n<section id=\"namespace\">\n<h2>Where</h2>\n<table>\n", out);
	row(out, "namespace", "%s", r->ns);
	row(out, "ranks, tokens of a page", "%llu, %llu", (unsigned long long)r->layout->world,
		(unsigned long long)r->layout->page_tokens);
	describe_classes(out, r->layout);
	if (r->watch->budget_bytes) {
		unit_text(text, UNIT_BYTES, (double)r->watch->budget_bytes);
		row(out, "budget", "%s (%llu bytes)", text, (unsigned long long)r->watch->budget_bytes);
	}
	if (r->capacity_pages) {
		count_text(text, r->capacity_pages);
		count_text(more, (uint64_t)r->page_bytes);
		row(out, "room for", "%s pages of %s bytes, padding and rows included, as at the end", text, more);
	}
	fputs("</table>\n</section>\n", out);
}

static void numbers(FILE *out, const struct report *r)
{
	const char *name;
	json_t *value;

	fputs("<section id=\"numbers\" class=\"wide\">\n<h2>All numbers</h2>\n<div class=\"columns\">\n<table>\n", out);
	json_object_foreach((json_t *)r->result, name, value)
	{
		char text[PLOT_TEXT];

		if (json_is_integer(value)) {
			count_text(text, (uint64_t)json_integer_value(value));
			row(out, name, "%s", text);
		} else if (json_is_real(value)) {
			row(out, name, "%.6g", json_real_value(value));
		}
	}
	fputs("</table>\n</div>\n</section>\n", out);
}

static int write_page(FILE *out, const struct report *r)
{
	int failed;

	fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
	      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
	      "<link rel=\"icon\" href=\"data:,\">\n<title>Replay of ",
		out);
	html_text(out, base_name(r->trace_name));
	fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n<h1>Replay of ", style);
	html_text(out, base_name(r->trace_name));
	fputs("</h1>\n<p class=\"under\">against the namespace ", out);
	html_text(out, r->ns);
	fputs(", every byte checked</p>\n", out);
	tiles(out, r);
	fputs("<div class=\"grid\">\n", out);
	setup(out, r);
	failed = report_hits(out, r) || report_capacity(out, r);
	report_latency(out, r);
	report_eviction(out, r);
	report_bytes(out, r);
	numbers(out, r);
	fputs("</div>\n</main>\n</body>\n</html>\n", out);
	return failed;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

/* The other name, in the same folder. -1 after a sentence. */
static int open_beside(const char *file, char beside[PATH_MAX])
{
	struct stat st;
	int fd;

	if (!stat(file, &st) && !S_ISREG(st.st_mode)) {
		complain("the report cannot be written to %s: %s", file,
			S_ISDIR(st.st_mode) ? "it is a folder" : "it is no ordinary file");
		return -1;
	}
	if (host_path(beside, "%s.%ld.part", file, (long)getpid()))
		return -1;
	fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		complain("the report cannot be written to %s: %s", file, strerror(errno));
	return fd;
}

int report_check(const char *file)
{
	char beside[PATH_MAX];
	int fd = open_beside(file, beside);

	if (fd < 0)
		return 1;
	close(fd);
	unlink(beside);
	return 0;
}

int report_write(struct report *r)
{
	const struct report_look *last = r->watch->count ? &r->watch->look[r->watch->count - 1] : NULL;
	char beside[PATH_MAX];
	int fd, failed;
	FILE *out;

	if (reuse_read(r->trace, &r->reuse))
		return complain("no memory for the report");
	if (last && last->pages > 0 && last->slot_bytes > 0) {
		r->page_bytes = (double)last->slot_bytes / (double)last->pages;
		r->capacity_pages = (uint64_t)((double)r->watch->budget_bytes / r->page_bytes);
	}
	fd = open_beside(r->file, beside);
	out = fd < 0 ? NULL : fdopen(fd, "we");
	if (!out) {
		reuse_free(&r->reuse);
		return 1;
	}
	failed = write_page(out, r);
	failed |= ferror(out);
	failed |= fclose(out);
	if (failed || rename(beside, r->file)) {
		failed = complain("the report could not be written to %s: %s", r->file, strerror(errno));
		unlink(beside);
	}
	reuse_free(&r->reuse);
	return failed;
}
