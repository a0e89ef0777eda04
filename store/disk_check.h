/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the offline check share. Private to store/.
 *
 *   disk_check.c            the directory, its namespaces, progress, findings
 *   disk_check_odd.c        a folder's names: left-overs, files in the wrong folder
 *   disk_check_files.c      every record file: listed, looked at, judged; groups
 *   disk_check_values.c     values read and compared with their checksums
 *   disk_check_repair.c     files removed, cut, renamed
 *   disk_check_catalogue.c  rows compared, put right, made anew
 *
 * A namespace goes through these in steps: all of it is looked at before any of its record files is changed, so a check that is
 * stopped has repaired whole namespaces, and left-overs. Nobody else has the directory: names are changed here without the engine's
 * names thread, when no job is under way.
 *
 * A file is judged by what was read twice: damage that a second read does not show was the reading's, and a file that cannot be
 * read is not said to be damaged. One thread; only what says (lock) is shared with the engine's.
 */
#ifndef PREFIXFS_STORE_DISK_CHECK_H
#define PREFIXFS_STORE_DISK_CHECK_H

#include "index/catalogue.h"
#include "store/base/lock.h"
#include "store/disk.h"
#include "store/host.h"

#define CHECK_NS 100000000ull /* between two calls of progress */
#define CHECK_FOLDERS 256u
#define CHECK_PATH_BYTES (RECORD_FILE_NAME_BYTES + 8u) /* "<two hex>/<name>" */

struct check {
	const struct disk_check_options *options;
	struct disk_check_report *report;
	bool (*progress)(void *context, uint64_t done, uint64_t goal);
	void (*finding)(void *context, const char *file, const char *what);
	void *context;
	struct disk *disk;
	const char *path;
	uint64_t done, goal; /* bytes, or files when values are not read */
	uint64_t told_ns;
	bool stopped;
};

enum check_state {
	CHECK_GOOD,       /* as it is, or it will be once it is `changed` */
	CHECK_DAMAGED,    /* nothing of it is of use: it goes */
	CHECK_FOREIGN,    /* never touched */
	CHECK_UNREADABLE, /* nothing is known of it: left alone */
	CHECK_GONE,       /* was removed, or is not there */
};

struct check_file {
	uint64_t consumed;   /* of its name, as it was found */
	struct key endpoint;
	uint64_t bytes;
	int64_t mtime_s;
	enum check_state state;
	/* of GOOD and DAMAGED ones whose header and keys are right */
	bool whole_head;
	uint64_t start, nonce, whole_id;
	uint32_t whole_count, file_pages;
	uint64_t keys_hash, absent_hash; /* of what its name says is there */
	uint32_t pages;                  /* of the name */
	bool row;
	/* what it is to be */
	bool changed;
	bool lost; /* pages or its row, of what its name says */
	uint64_t new_consumed, new_bytes;
	struct key new_endpoint;
	/* its row in the catalogue; 0: none */
	uint64_t row_id;
	bool row_pinned, row_wrong;
};

struct check_space {
	struct check *check;
	const char *folder; /* name */
	struct layout *layout;
	struct disk_dir *dir;
	uint64_t *slot_bytes; /* [page columns], [row columns] */
	struct check_file *files;
	uint32_t count, capacity;
	uint32_t *table; /* hash of names -> number + 1 */
	uint32_t mask;
	bool blind;      /* a file could not be looked at: what is missing may be there */
	bool no_memory;
};

/* ---- disk_check.c --------------------------------------------------------------------------------------------------- */

/* One sentence about @file, which lies in @space's folder; @space NULL: in the directory. */
void check_tell(struct check *check, const struct check_space *space, const char *file, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* Calls progress when it is due; false: the check is to stop. Blocks as long as that does. */
bool check_go_on(struct check *check);

/* ---- disk_check_odd.c ----------------------------------------------------------------------------------------------- */

/* Record files of the folder @fd, which are where they belong, are added to *files and *bytes. */
void check_survey(int fd, uint64_t *files, uint64_t *bytes);
/* One that disk_is_unmade: nothing of a namespace is in it. */
void check_unmade(struct check *check, const char *folder);
/* Before the folder is opened: temporary files, folders that a reset left, files in another folder than their key's. */
int check_oddities(struct check_space *space, int fd, struct why *why);

/* ---- disk_check_files.c --------------------------------------------------------------------------------------------- */

/* Everything is looked at and judged; report and findings have it. EINTR: stopped. */
int check_files(struct check_space *space, struct why *why);
struct check_file *check_find(const struct check_space *space, uint64_t consumed, const struct key *endpoint);
void check_path_of(char to[CHECK_PATH_BYTES], uint64_t consumed, const struct key *endpoint);
uint64_t check_keys_hash(const struct key *keys, uint32_t pages);
/* One more absent value; begin with 0. */
uint64_t check_absent_hash(uint64_t hash, uint32_t page, uint32_t column);

enum check_head { CHECK_HEAD_GOOD, CHECK_HEAD_BAD, CHECK_HEAD_KEYS_BAD, CHECK_HEAD_FOREIGN, CHECK_HEAD_UNREADABLE };
/* Header and keys of the file at @path below @fd, whatever its name says. GOOD: @info is as of disk_file_look, with the pages
 * and the row that its length says; its segment is the caller's. Else @why says what is wrong. */
enum check_head check_read_head(const struct check_space *space, int fd, const char *path, struct disk_file_info *info, struct why *why);

/* ---- disk_check_values.c -------------------------------------------------------------------------------------------- */

struct check_values;

/* A file whose values are being read. */
struct check_work {
	struct check_file *file;
	struct disk_file_info info; /* whose segment is freed when it has ended */
	const struct key *keys;
	const uint64_t *sums;
	uint32_t jobs;          /* under way */
	bool given;             /* all of them were */
	uint32_t bad_page;      /* the first; UINT32_MAX: none is */
	bool bad_row;
	bool unreadable;        /* some could not be read */
	uint64_t bad, told;     /* values; bytes that progress knows */
};

int check_values_new(struct check_space *space, void (*ended)(struct check_space *space, struct check_work *work),
		     struct check_values **ret, struct why *why);
void check_values_free(struct check_values **values); /* cancels and waits for what is under way */
/* Reads all values of @work, which is its own from here on: ended() is told by a later call of these two, in the caller's thread, and
 * then it is freed. Blocks while too much is under way. Nothing is told any more once the check is stopped. */
void check_values_read(struct check_values *values, struct check_work *work);
void check_values_finish(struct check_values *values);
void check_work_free(struct check_work *work);

/* ---- disk_check_repair.c -------------------------------------------------------------------------------------------- */

/* Does to the files what they were judged to need. */
void check_repair(struct check_space *space);

/* ---- disk_check_catalogue.c ----------------------------------------------------------------------------------------- */

/* Compares the catalogue with the files, has these repaired in between when that is asked for, and puts rows right. */
int check_catalogue(struct check_space *space, struct why *why);

#endif
