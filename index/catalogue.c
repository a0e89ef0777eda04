/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue's database: the one file that knows sqlite. docs/catalogue.md has the schema and why it is so.
 *
 * Life of a database file:
 *
 *   none, or without a table     made, open = 1                                      fresh
 *   damaged, another's           renamed to <path>.damaged, made                     fresh
 *   open = 0, behind = 0         open = 1                                            as it was closed
 *   open = 1 or behind = 1       open = 1, behind = 1                                behind
 *   closed                       open = 0, behind = what was dropped since
 *
 * The two marks are synced (synchronous = FULL); all else is not (NORMAL): the journal is written in order, so what a crash of
 * the host leaves is a prefix, and the mark that it is open lies before all of it.
 *
 * The database is never mapped (a read error would be SIGBUS) and its file is never opened here but through sqlite: closing
 * another descriptor of it would drop sqlite's locks.
 *
 * The journal's index, -shm, is mapped, since others may read meanwhile: where the file system takes no write any more (the file
 * was made immutable, the disk is gone) touching it is SIGBUS. So all of sqlite that may touch it runs under a guard, and a database
 * that was left in the middle is lost: nothing calls sqlite with it again, it stays as it is until the process ends, and the mark
 * that it is open lets the next one know.
 */
#include "index/catalogue_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/cleanup.h"
#include "store/base/guard.h"
#include "store/base/killpoint.h"

#define APPLICATION 0x50465343 /* "PFSC" */
#define VERSION 1
#define BUSY_MS 100            /* that one statement waits for somebody else's */
#define PAGE_BYTES 8192
#define CHECKPOINT_PAGES 2048  /* of journal: from there on a commit moves them to the database */
#define JOURNAL_KEPT (32u << 20)
#define ADVICE_BYTES (128 << 10) /* what the kernel reads ahead unless it is told otherwise */
#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x

static const char schema[] =
	"BEGIN IMMEDIATE;"
	"CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;"
	"CREATE TABLE records ("
	" id INTEGER PRIMARY KEY, nonce INTEGER NOT NULL, endpoint BLOB NOT NULL, parent BLOB, start INTEGER NOT NULL,"
	" consumed INTEGER NOT NULL, pages INTEGER NOT NULL, file_pages INTEGER NOT NULL, file_bytes INTEGER NOT NULL,"
	" flags INTEGER NOT NULL,"
	" generation INTEGER NOT NULL, created INTEGER NOT NULL, written INTEGER NOT NULL, whole_id INTEGER NOT NULL,"
	" whole_count INTEGER NOT NULL, alias BLOB, absent BLOB, keys BLOB NOT NULL);"
	"CREATE VIEW records_hex AS SELECT id, lower(hex(endpoint)) AS endpoint,"
	" CASE WHEN parent IS NOT NULL THEN lower(hex(parent)) END AS parent, start, consumed, pages,"
	" file_pages, file_bytes, (flags & 1) != 0 AS root, (flags & 2) != 0 AS whole, (flags & 4) != 0 AS has_row, (flags & 256) != 0 AS pinned,"
	" generation, created, written, printf('%016x', nonce) AS nonce, printf('%016x', whole_id) AS whole_id, whole_count,"
	" printf('%s/%016x-%s.rec', lower(hex(substr(endpoint, 1, 1))), consumed, lower(hex(endpoint))) AS file FROM records;"
	"PRAGMA application_id = " TEXT(APPLICATION) ";"
	"PRAGMA user_version = " TEXT(VERSION) ";";

enum statement { ADD, REMOVE, TRIM, PIN, CLEAR, META, BEGIN, COMMIT, ROLLBACK, STATEMENTS };

static const char *const statements[STATEMENTS] = {
	[ADD] = "INSERT OR REPLACE INTO records (id, nonce, endpoint, parent, start, consumed, pages, file_bytes, flags, generation,"
		" created, written, whole_id, whole_count, alias, absent, keys, file_pages)"
		" VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
	[REMOVE] = "DELETE FROM records WHERE id = ?1",
	/* Fewer pages take the row with them: it lies behind them in the file. substr() of an empty blob is NULL. */
	[TRIM] = "UPDATE records SET flags = CASE WHEN ?5 AND ?2 = pages THEN flags ELSE flags & ~4 END, pages = ?2, consumed = ?3,"
		 " endpoint = ?4, file_bytes = ?6, keys = CASE WHEN ?2 = pages THEN keys ELSE substr(keys, 1, 32 * ?2) END WHERE id = ?1 AND pages >= ?2",
	[PIN] = "UPDATE records SET flags = CASE WHEN ?2 THEN flags | 256 ELSE flags & ~256 END WHERE id = ?1",
	[CLEAR] = "DELETE FROM records",
	[META] = "INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)",
	[BEGIN] = "BEGIN IMMEDIATE",
	[COMMIT] = "COMMIT",
	[ROLLBACK] = "ROLLBACK",
};
_Static_assert(CATALOGUE_ROOT == 1 && CATALOGUE_WHOLE == 2 && CATALOGUE_ROW == 4 && CATALOGUE_PINNED == 256, "as the SQL has them");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "alias is stored as it lies in memory");

struct catalogue_db {
	char *path, *wal;
	uint8_t identity[32], fingerprint[16];
	sqlite3 *sqlite; /* NULL only after it could not be made anew */
	sqlite3_stmt *statement[STATEMENTS];
	struct catalogue_db_state state;
	bool damaged;
	bool lost; /* left in the middle of a call of sqlite */
	struct catalogue_db *next_lost;
};

/* Those that were given back; what they hold is not to be freed, and is to be found by who looks for leaks. */
static struct catalogue_db *_Atomic all_lost;

/* ---- where the index cannot be touched ----------------------------------------------------------------------------- */

/* Calls @function(@context) with any byte guarded: of what may fault sqlite's index is all that this thread touches. */
static bool guarded(struct catalogue_db *db, void (*function)(void *context), void *context, struct why *why)
{
	if (!db->lost && !guard_run(function, context, NULL, SIZE_MAX))
		return true;
	db->lost = true;
	why_set(why, EIO, "the catalogue %s cannot be used any more: the index of its journal, %s-shm, cannot be written or read", db->path,
		db->path);
	return false;
}

static void keep_lost(struct catalogue_db *db)
{
	struct catalogue_db *first = atomic_load(&all_lost);

	do
		db->next_lost = first;
	while (!atomic_compare_exchange_weak(&all_lost, &first, db));
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

/* An errno for what sqlite answered; EINVAL: the file is damaged. */
static int errno_of(const struct catalogue_db *db, int result)
{
	int error = db->sqlite ? sqlite3_system_errno(db->sqlite) : 0;

	switch (result & 0xff) {
	case SQLITE_NOTADB:
	case SQLITE_CORRUPT:
		return EINVAL;
	case SQLITE_NOMEM:
		return ENOMEM;
	case SQLITE_FULL:
		return ENOSPC;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return EBUSY;
	case SQLITE_READONLY:
		return EROFS;
	case SQLITE_PERM:
	case SQLITE_AUTH:
		return EACCES;
	case SQLITE_INTERRUPT:
		return EINTR;
	case SQLITE_CANTOPEN:
	case SQLITE_IOERR:
		return error ? error : EIO;
	default:
		return EIO;
	}
}

static int db_why(const struct catalogue_db *db, struct why *why, int result, const char *what)
{
	int error = errno_of(db, result);

	if (db->sqlite && sqlite3_errcode(db->sqlite) == SQLITE_OK) { /* it opened it, but not as we need it: it has no words for that */
		error = access(db->path, R_OK | W_OK) ? errno : error;
		return why_set(why, error, "cannot %s the catalogue %s: %s", what, db->path, strerror(error));
	}
	const char *said = db->sqlite ? sqlite3_errmsg(db->sqlite) : sqlite3_errstr(result);

	if ((result & 0xff) == SQLITE_IOERR || (result & 0xff) == SQLITE_CANTOPEN)
		return why_set(why, error, "cannot %s the catalogue %s: %s (%s)", what, db->path, said, strerror(error));
	return why_set(why, error, "cannot %s the catalogue %s: %s", what, db->path, said);
}

/* ---- statements ---------------------------------------------------------------------------------------------------- */

static int run(struct catalogue_db *db, enum statement which)
{
	int result = sqlite3_step(db->statement[which]);

	sqlite3_reset(db->statement[which]);
	return result == SQLITE_DONE || result == SQLITE_ROW ? SQLITE_OK : result;
}

static int write_meta(struct catalogue_db *db, const char *name, int64_t value)
{
	sqlite3_bind_text(db->statement[META], 1, name, -1, SQLITE_STATIC);
	sqlite3_bind_int64(db->statement[META], 2, value);
	return run(db, META);
}

static int write_meta_blob(struct catalogue_db *db, const char *name, const uint8_t *value, int bytes)
{
	sqlite3_bind_text(db->statement[META], 1, name, -1, SQLITE_STATIC);
	sqlite3_bind_blob(db->statement[META], 2, value, bytes, SQLITE_STATIC);
	return run(db, META);
}

/* The first column of the first row of @sql. SQLITE_DONE: there is no row. */
static int ask(struct catalogue_db *db, const char *sql, int64_t *ret)
{
	sqlite3_stmt *s = NULL;
	int result = sqlite3_prepare_v2(db->sqlite, sql, -1, &s, NULL);

	if (result == SQLITE_OK)
		result = sqlite3_step(s);
	if (result == SQLITE_ROW)
		*ret = sqlite3_column_int64(s, 0);
	sqlite3_finalize(s);
	return result == SQLITE_ROW ? SQLITE_OK : result;
}

static int prepare(struct catalogue_db *db)
{
	int result = SQLITE_OK;

	for (unsigned i = 0; i < STATEMENTS && result == SQLITE_OK; i++)
		result = sqlite3_prepare_v3(db->sqlite, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &db->statement[i], NULL);
	return result;
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static void disconnect(struct catalogue_db *db)
{
	for (unsigned i = 0; i < STATEMENTS; i++) {
		sqlite3_finalize(db->statement[i]);
		db->statement[i] = NULL;
	}
	sqlite3_close(db->sqlite);
	db->sqlite = NULL;
}

/* All of it is about to be read, in pieces of a page and from its end, which the kernel does not foresee; and of one advice it
 * takes no more than it would have read ahead. Only before sqlite has it open: see the top. */
static void read_ahead(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return;
	if (fstat(fd, &st))
		st.st_size = 0;
	for (off_t at = 0; at < st.st_size; at += ADVICE_BYTES)
		posix_fadvise(fd, at, ADVICE_BYTES, POSIX_FADV_WILLNEED);
	close(fd);
}

/* What is no part of the file but of how it is used. */
static int connect_to(struct catalogue_db *db)
{
	read_ahead(db->path);
	int result = sqlite3_open_v2(db->path, &db->sqlite,
				     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);

	if (result != SQLITE_OK)
		return result;
	if (sqlite3_db_readonly(db->sqlite, "main") == 1)
		return SQLITE_READONLY;
	sqlite3_extended_result_codes(db->sqlite, 1);
	sqlite3_busy_timeout(db->sqlite, BUSY_MS);
	sqlite3_db_config(db->sqlite, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
	sqlite3_db_config(db->sqlite, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
	return sqlite3_exec(db->sqlite,
			    "PRAGMA page_size = " TEXT(PAGE_BYTES) "; PRAGMA mmap_size = 0; PRAGMA cell_size_check = ON;"
			    "PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF;",
			    NULL, NULL, NULL);
}

/* A write-ahead journal is kept in the file; a file system that cannot have one answers with another word. */
static int use_journal(struct catalogue_db *db, struct why *why)
{
	sqlite3_stmt *s = NULL;
	int result = sqlite3_prepare_v2(db->sqlite, "PRAGMA journal_mode = WAL", -1, &s, NULL);

	if (result == SQLITE_OK)
		result = sqlite3_step(s);
	if (result == SQLITE_ROW && strcmp((const char *)sqlite3_column_text(s, 0), "wal") != 0) {
		why_set(why, ENOTSUP, "the file system of %s cannot have sqlite's write-ahead journal", db->path);
		sqlite3_finalize(s);
		return -ENOTSUP;
	}
	sqlite3_finalize(s);
	if (result != SQLITE_ROW)
		return db_why(db, why, result, "open");
	sqlite3_wal_autocheckpoint(db->sqlite, CHECKPOINT_PAGES);
	char sql[80];

	snprintf(sql, sizeof(sql), "PRAGMA journal_size_limit = %u", JOURNAL_KEPT);
	sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
	return 0;
}

static void synchronous(struct catalogue_db *db, bool full)
{
	sqlite3_exec(db->sqlite, full ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
}

static int rolled_back(struct catalogue_db *db, struct why *why, int result, const char *what)
{
	int r = db_why(db, why, result, what);

	sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL);
	return r;
}

/* Tables in an empty file; one transaction, so that a death leaves the empty file or all of it. */
static int make(struct catalogue_db *db, struct why *why)
{
	synchronous(db, true);
	int result = sqlite3_exec(db->sqlite, schema, NULL, NULL, NULL);

	if (result == SQLITE_OK)
		result = prepare(db);
	if (result == SQLITE_OK)
		result = write_meta_blob(db, "identity", db->identity, sizeof(db->identity));
	if (result == SQLITE_OK)
		result = write_meta_blob(db, "fingerprint", db->fingerprint, sizeof(db->fingerprint));
	if (result == SQLITE_OK)
		result = write_meta(db, "open", 1);
	if (result == SQLITE_OK)
		result = write_meta(db, "behind", 0);
	if (result == SQLITE_OK)
		result = write_meta(db, "rows", 0);
	if (result == SQLITE_OK)
		result = run(db, COMMIT);
	if (result != SQLITE_OK)
		return rolled_back(db, why, result, "make");
	synchronous(db, false);
	db->state.rows = 0;
	db->state.next_id = 1;
	db->state.behind = false;
	return 0;
}

static bool meta_is(struct catalogue_db *db, const char *sql, const uint8_t *value, int bytes)
{
	sqlite3_stmt *s = NULL;
	bool is = sqlite3_prepare_v2(db->sqlite, sql, -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW &&
		  sqlite3_column_bytes(s, 0) == bytes && sqlite3_column_blob(s, 0) && !memcmp(sqlite3_column_blob(s, 0), value, (size_t)bytes);

	sqlite3_finalize(s);
	return is;
}

/* EINVAL: damaged or not ours, and the sentence says which. *empty: there is nothing in it, not even a table. */
static int check(struct catalogue_db *db, bool *empty, struct why *why)
{
	int64_t tables = 0, application = 0, version = 0;
	int result = ask(db, "SELECT count(*) FROM sqlite_schema", &tables);

	if (result == SQLITE_OK)
		result = ask(db, "PRAGMA application_id", &application);
	if (result == SQLITE_OK)
		result = ask(db, "PRAGMA user_version", &version);
	if (result != SQLITE_OK)
		return db_why(db, why, result, "open");
	*empty = tables == 0 && application == 0;
	if (*empty)
		return 0;
	if (application != APPLICATION)
		return why_set(why, EINVAL, "%s is a database of something else (application id %" PRId64 ")", db->path, application);
	if (version != VERSION)
		return why_set(why, EINVAL, "the catalogue %s has version %" PRId64 "; this is version %d", db->path, version, VERSION);
	result = prepare(db);
	if (result != SQLITE_OK)
		return (result & 0xff) == SQLITE_ERROR ? why_set(why, EINVAL, "the catalogue %s has another schema: %s", db->path,
								 sqlite3_errmsg(db->sqlite))
						       : db_why(db, why, result, "open");
	if (!meta_is(db, "SELECT value FROM meta WHERE name = 'identity'", db->identity, sizeof(db->identity)) ||
	    !meta_is(db, "SELECT value FROM meta WHERE name = 'fingerprint'", db->fingerprint, sizeof(db->fingerprint)))
		return why_set(why, EINVAL, "the catalogue %s is of another namespace", db->path);
	return 0;
}

/* Reads the marks and sets the one that it is open, synced: nothing that follows can outlive it. */
static int begin_use(struct catalogue_db *db, bool *behind, struct why *why)
{
	int64_t open = 1, was_behind = 1, rows = 0, largest = 0;
	int result = ask(db, "SELECT value FROM meta WHERE name = 'open'", &open);

	if (result == SQLITE_OK)
		result = ask(db, "SELECT value FROM meta WHERE name = 'behind'", &was_behind);
	if (result == SQLITE_OK)
		result = ask(db, "SELECT value FROM meta WHERE name = 'rows'", &rows);
	if (result == SQLITE_OK)
		result = ask(db, "SELECT max(id) FROM records", &largest);
	if (result == SQLITE_DONE)
		return why_set(why, EINVAL, "the catalogue %s lacks its marks", db->path);
	if (result != SQLITE_OK)
		return db_why(db, why, result, "open");
	if (largest < 0 || largest == INT64_MAX || rows < 0)
		return why_set(why, EINVAL, "the catalogue %s has row %" PRId64 " and %" PRId64 " rows", db->path, largest, rows);
	*behind = open || was_behind;
	synchronous(db, true);
	result = run(db, BEGIN);
	if (result == SQLITE_OK)
		result = write_meta(db, "open", 1);
	if (result == SQLITE_OK)
		result = write_meta(db, "behind", *behind);
	if (result == SQLITE_OK)
		result = run(db, COMMIT);
	if (result != SQLITE_OK)
		return rolled_back(db, why, result, "write to");
	synchronous(db, false);
	db->state.rows = (uint64_t)rows;
	db->state.next_id = (uint64_t)largest + 1;
	db->state.behind = *behind;
	return 0;
}

/* One attempt with what is there. EINVAL: it is to be set aside. */
static int open_there(struct catalogue_db *db, bool *fresh, bool *behind, struct why *why)
{
	bool empty = false;
	int result = connect_to(db);

	*fresh = *behind = false;
	if (result != SQLITE_OK)
		return db_why(db, why, result, "open");
	int r = check(db, &empty, why);

	if (!r)
		r = use_journal(db, why);
	if (r)
		return r;
	*fresh = empty;
	return empty ? make(db, why) : begin_use(db, behind, why);
}

/* Renames the database and its journal; what cannot be kept is removed, a new one must not find an old one's journal. */
static int set_aside(struct catalogue_db *db, struct why *why)
{
	static const char *const parts[] = {"-wal", "-shm", ""};

	disconnect(db);
	for (unsigned i = 0; i < 3; i++) {
		cleanup(freep) char *from = NULL, *to = NULL;

		if (asprintf(&from, "%s%s", db->path, parts[i]) < 0 || asprintf(&to, "%s.damaged%s", db->path, parts[i]) < 0)
			return why_set(why, ENOMEM, "no memory to rename the catalogue %s", db->path);
		/* A -shm is worth nothing, and an older damaged one's journal does not belong to this one. */
		unlink(to);
		if (i == 1 ? unlink(from) : rename(from, to)) {
			int error = errno;

			if (error != ENOENT)
				return why_set(why, error, "cannot rename the damaged catalogue %s: %s", from, strerror(error));
		}
	}
	return 0;
}

static int make_anew(struct catalogue_db *db, struct why *why)
{
	bool fresh, behind;
	int r = set_aside(db, why);

	if (!r)
		r = open_there(db, &fresh, &behind, why);
	return r;
}

static void measure(struct catalogue_db *db)
{
	static const int parts[] = {SQLITE_DBSTATUS_CACHE_USED, SQLITE_DBSTATUS_SCHEMA_USED, SQLITE_DBSTATUS_STMT_USED};
	struct stat st;

	db->state.wal_bytes = stat(db->wal, &st) ? 0 : (uint64_t)st.st_size;
	db->state.memory_bytes = sizeof(*db);
	if (!db->sqlite || db->lost)
		return;
	for (unsigned i = 0; i < 3; i++) {
		int now = 0, most = 0;

		if (sqlite3_db_status(db->sqlite, parts[i], &now, &most, 0) == SQLITE_OK)
			db->state.memory_bytes += (uint64_t)now;
	}
}

static void disconnect_guarded(void *context)
{
	disconnect(context);
}

static void db_free(struct catalogue_db *db)
{
	if (!guarded(db, disconnect_guarded, db, NULL)) {
		keep_lost(db);
		return;
	}
	free(db->path);
	free(db->wal);
	free(db);
}

struct opening {
	struct catalogue_db *db;
	bool fresh, behind;
	struct why why;
	int r;
};

static void open_guarded(void *context)
{
	struct opening *o = context;

	o->r = open_there(o->db, &o->fresh, &o->behind, &o->why);
	if (o->r == -EINVAL) {
		struct why why_anew = WHY_INIT;

		o->r = make_anew(o->db, &why_anew);
		if (o->r)
			o->why = why_anew;
		o->fresh = true;
		o->behind = false;
	}
}

int catalogue_db_open(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], struct catalogue_db **ret, bool *fresh,
		      bool *behind, struct why *why)
{
	struct catalogue_db *db = calloc(1, sizeof(*db));

	if (!db)
		return why_set(why, ENOMEM, "no memory for the catalogue %s", path);
	db->path = strdup(path);
	if (!db->path || asprintf(&db->wal, "%s-wal", path) < 0) {
		db->wal = NULL;
		db_free(db);
		return why_set(why, ENOMEM, "no memory for the catalogue %s", path);
	}
	memcpy(db->identity, identity, sizeof(db->identity));
	memcpy(db->fingerprint, fingerprint, sizeof(db->fingerprint));
	struct opening o = {.db = db, .why = WHY_INIT};

	if (!guarded(db, open_guarded, &o, &o.why))
		o.r = -EIO;
	if (why && o.why.error) /* of one that was made anew: what was wrong with the one before it */
		*why = o.why;
	if (o.r) {
		db_free(db);
		return o.r;
	}
	*fresh = o.fresh;
	*behind = o.behind;
	measure(db);
	*ret = db;
	return 0;
}

/* ---- loading ------------------------------------------------------------------------------------------------------- */

/* Arrays of one row: sqlite's are not aligned. */
struct arrays {
	struct key *keys;
	uint16_t *alias;
	uint32_t pages, alias_count; /* room */
};

static bool read_key(sqlite3_stmt *s, int column, struct key *ret)
{
	const void *bytes = sqlite3_column_blob(s, column);

	if (!bytes || sqlite3_column_bytes(s, column) != (int)sizeof(*ret))
		return false;
	memcpy(ret, bytes, sizeof(*ret));
	return true;
}

static bool make_room(struct arrays *a, uint32_t pages, uint32_t alias_count)
{
	if (pages > a->pages) {
		free(a->keys);
		a->keys = malloc((size_t)pages * 2 * sizeof(*a->keys));
		a->pages = a->keys ? pages * 2 : 0;
	}
	if (alias_count > a->alias_count) {
		free(a->alias);
		a->alias = malloc((size_t)alias_count * sizeof(*a->alias));
		a->alias_count = a->alias ? alias_count : 0;
	}
	return a->pages >= pages && a->alias_count >= alias_count;
}

/* The row that @s stands at. EINVAL: it says what no row says. */
static int read_row(sqlite3_stmt *s, struct arrays *a, struct catalogue_row *ret)
{
	int64_t pages = sqlite3_column_int64(s, 6), file_pages = sqlite3_column_int64(s, 17);
	uint32_t key_bytes = (uint32_t)sqlite3_column_bytes(s, 16), alias_bytes = (uint32_t)sqlite3_column_bytes(s, 14);

	memset(ret, 0, sizeof(*ret));
	ret->id = (uint64_t)sqlite3_column_int64(s, 0);
	ret->nonce = (uint64_t)sqlite3_column_int64(s, 1);
	if (!read_key(s, 2, &ret->endpoint) || (sqlite3_column_type(s, 3) != SQLITE_NULL && !read_key(s, 3, &ret->parent)))
		return -EINVAL;
	ret->start = (uint64_t)sqlite3_column_int64(s, 4);
	ret->consumed = (uint64_t)sqlite3_column_int64(s, 5);
	ret->file_bytes = (uint64_t)sqlite3_column_int64(s, 7);
	ret->flags = (uint32_t)sqlite3_column_int64(s, 8);
	ret->generation = (uint64_t)sqlite3_column_int64(s, 9);
	ret->created_s = sqlite3_column_int64(s, 10);
	ret->written_s = sqlite3_column_int64(s, 11);
	ret->whole_id = (uint64_t)sqlite3_column_int64(s, 12);
	ret->whole_count = (uint32_t)sqlite3_column_int64(s, 13);
	if (pages < 0 || (uint64_t)pages * sizeof(struct key) != key_bytes || alias_bytes % sizeof(uint16_t) || !ret->id ||
	    file_pages < pages || file_pages > UINT32_MAX)
		return -EINVAL;
	ret->pages = (uint32_t)pages;
	ret->file_pages = (uint32_t)file_pages;
	ret->alias_count = alias_bytes / (uint32_t)sizeof(uint16_t);
	if (!make_room(a, ret->pages, ret->alias_count))
		return -ENOMEM;
	if (key_bytes)
		memcpy(a->keys, sqlite3_column_blob(s, 16), key_bytes);
	if (alias_bytes)
		memcpy(a->alias, sqlite3_column_blob(s, 14), alias_bytes);
	ret->keys = a->keys;
	ret->alias = ret->alias_count ? a->alias : NULL;
	ret->absent_bytes = (uint32_t)sqlite3_column_bytes(s, 15);
	ret->absent = ret->absent_bytes ? sqlite3_column_blob(s, 15) : NULL;
	return 0;
}

/* The next row of @sql, which is prepared first; a row's arrays lie in sqlite's own memory. */
struct reading {
	struct catalogue_db *db;
	const char *sql;
	int64_t below;
	sqlite3_stmt *s;
	int result;
};

static void read_next(void *context)
{
	struct reading *reading = context;

	if (!reading->s) {
		reading->result = sqlite3_prepare_v2(reading->db->sqlite, reading->sql, -1, &reading->s, NULL);
		if (reading->result == SQLITE_OK)
			reading->result = sqlite3_bind_int64(reading->s, 1, reading->below);
	}
	if (reading->result == SQLITE_OK)
		reading->result = sqlite3_step(reading->s);
}

static void read_end(void *context)
{
	struct reading *reading = context;

	sqlite3_finalize(reading->s);
}

/* Those with ids below @below. Negative with a sentence; EINVAL: damaged. @row is called outside of the guard: it may do what it likes. */
static int load_rows(struct catalogue_db *db, int64_t below, bool (*row)(void *context, const struct catalogue_row *row), void *context,
		     struct why *why)
{
	struct reading reading = {
		.db = db,
		.below = below,
		.sql = "SELECT id, nonce, endpoint, parent, start, consumed, pages, file_bytes, flags, generation, created,"
		       " written, whole_id, whole_count, alias, absent, keys, file_pages FROM records WHERE id < ?1 ORDER BY id DESC",
	};
	struct arrays a = {0};
	struct catalogue_row r;
	uint64_t rows = 0;
	int error = 0;

	while (guarded(db, read_next, &reading, why) && reading.result == SQLITE_ROW) {
		reading.result = SQLITE_OK;
		error = read_row(reading.s, &a, &r);
		if (error)
			break;
		rows++;
		if (!row(context, &r))
			break;
	}
	if (db->lost)
		error = -EIO;
	else if (reading.result == SQLITE_DONE)
		db->state.rows = rows;
	else if (reading.result != SQLITE_OK)
		error = db_why(db, why, reading.result, "read");
	else if (error == -ENOMEM)
		why_set(why, ENOMEM, "no memory for row %" PRIu64 " of the catalogue %s", r.id, db->path);
	else if (error)
		why_set(why, -error, "the catalogue %s is damaged: row %" PRIu64 " has impossible columns", db->path, r.id);
	if (!guarded(db, read_end, &reading, why))
		error = -EIO;
	free(a.keys);
	free(a.alias);
	return error;
}

int catalogue_db_load(struct catalogue_db *db, bool (*row)(void *context, const struct catalogue_row *row), void *context,
		      struct why *why)
{
	int r = load_rows(db, INT64_MAX, row, context, why);

	if (r == -EINVAL) {
		struct why why_anew = WHY_INIT;

		r = make_anew(db, &why_anew) ? -EIO : -EBADMSG;
		if (r == -EIO) {
			db->damaged = true;
			if (why)
				*why = why_anew;
		}
	} else if (r && r != -ENOMEM) {
		r = -EIO;
	}
	if (r && why)
		why->error = -r;
	measure(db);
	return r;
}

/* Open to read alone, with the rows there or a sentence. */
static int look_into(struct catalogue_db *db, int64_t below, bool (*row)(void *context, const struct catalogue_row *row), void *context,
		     struct why *why)
{
	bool empty = false;
	int result = sqlite3_open_v2(db->path, &db->sqlite, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);

	if (result == SQLITE_OK) {
		sqlite3_extended_result_codes(db->sqlite, 1);
		sqlite3_busy_timeout(db->sqlite, BUSY_MS);
		result = sqlite3_exec(db->sqlite, "PRAGMA mmap_size = 0; PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY;", NULL,
				      NULL, NULL);
	}
	if (result != SQLITE_OK)
		return db_why(db, why, result, "open");
	int r = check(db, &empty, why);

	if (!r && empty)
		r = why_set(why, EINVAL, "the catalogue %s is empty", db->path);
	return r ? r : load_rows(db, below, row, context, why);
}

int catalogue_look(const char *path, const uint8_t identity[32], const uint8_t fingerprint[16], uint64_t below,
		   bool (*row)(void *context, const struct catalogue_row *row), void *context, struct why *why)
{
	struct catalogue_db *db = calloc(1, sizeof(*db));
	int r;

	if (access(path, F_OK)) {
		free(db);
		return why_set(why, errno, "the catalogue %s cannot be opened: %s", path, strerror(errno));
	}
	if (!db || !(db->path = strdup(path))) {
		free(db);
		return why_set(why, ENOMEM, "no memory for the catalogue %s", path);
	}
	memcpy(db->identity, identity, sizeof(db->identity));
	memcpy(db->fingerprint, fingerprint, sizeof(db->fingerprint));
	r = look_into(db, below < INT64_MAX ? (int64_t)below : INT64_MAX, row, context, why);
	db_free(db);
	return r;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void bind_blob(sqlite3_stmt *s, int column, const void *bytes, size_t length)
{
	if (length)
		sqlite3_bind_blob64(s, column, bytes, length, SQLITE_STATIC);
	else
		sqlite3_bind_null(s, column);
}

static int add(struct catalogue_db *db, const struct catalogue_row *r)
{
	static const struct key none;
	sqlite3_stmt *s = db->statement[ADD];

	sqlite3_bind_int64(s, 1, (int64_t)r->id);
	sqlite3_bind_int64(s, 2, (int64_t)r->nonce);
	bind_blob(s, 3, &r->endpoint, sizeof(r->endpoint));
	bind_blob(s, 4, &r->parent, memcmp(&r->parent, &none, sizeof(none)) ? sizeof(r->parent) : 0);
	sqlite3_bind_int64(s, 5, (int64_t)r->start);
	sqlite3_bind_int64(s, 6, (int64_t)r->consumed);
	sqlite3_bind_int64(s, 7, r->pages);
	sqlite3_bind_int64(s, 8, (int64_t)r->file_bytes);
	sqlite3_bind_int64(s, 9, r->flags);
	sqlite3_bind_int64(s, 10, (int64_t)r->generation);
	sqlite3_bind_int64(s, 11, r->created_s);
	sqlite3_bind_int64(s, 12, r->written_s);
	sqlite3_bind_int64(s, 13, (int64_t)r->whole_id);
	sqlite3_bind_int64(s, 14, r->whole_count);
	bind_blob(s, 15, r->alias, r->alias_count * sizeof(*r->alias));
	bind_blob(s, 16, r->absent, r->absent_bytes);
	sqlite3_bind_blob64(s, 17, r->pages ? (const void *)r->keys : "", r->pages * sizeof(*r->keys), SQLITE_STATIC);
	sqlite3_bind_int64(s, 18, r->file_pages);
	return run(db, ADD);
}

static int trim(struct catalogue_db *db, const struct catalogue_row *r)
{
	sqlite3_stmt *s = db->statement[TRIM];

	sqlite3_bind_int64(s, 1, (int64_t)r->id);
	sqlite3_bind_int64(s, 2, r->pages);
	sqlite3_bind_int64(s, 3, (int64_t)r->consumed);
	bind_blob(s, 4, &r->endpoint, sizeof(r->endpoint));
	sqlite3_bind_int(s, 5, (r->flags & CATALOGUE_ROW) != 0);
	sqlite3_bind_int64(s, 6, (int64_t)r->file_bytes);
	return run(db, TRIM);
}

/* @rows follows what it adds and removes. */
static int apply(struct catalogue_db *db, const struct change *change, uint64_t *rows)
{
	int result = SQLITE_ERROR;

	switch (change->kind) {
	case CHANGE_ADD:
		result = add(db, &change->row);
		*rows += 1;
		break;
	case CHANGE_REMOVE:
		sqlite3_bind_int64(db->statement[REMOVE], 1, (int64_t)change->row.id);
		result = run(db, REMOVE);
		if (result == SQLITE_OK && sqlite3_changes(db->sqlite) && *rows)
			*rows -= 1;
		break;
	case CHANGE_TRIM:
		result = trim(db, &change->row);
		break;
	case CHANGE_PIN:
		sqlite3_bind_int64(db->statement[PIN], 1, (int64_t)change->row.id);
		sqlite3_bind_int(db->statement[PIN], 2, (change->row.flags & CATALOGUE_PINNED) != 0);
		result = run(db, PIN);
		break;
	case CHANGE_CLEAR:
		result = run(db, CLEAR);
		*rows = 0;
		break;
	}
	return result;
}

/* Changes and marks in one transaction; an sqlite result, and nothing has happened unless it is SQLITE_OK. */
static int transact(struct catalogue_db *db, const struct change *first, bool behind, struct why *why)
{
	uint64_t rows = db->state.rows;

	killpoint(KILLPOINT_CATALOGUE_BEGIN);
	int result = run(db, BEGIN);

	for (const struct change *change = first; change && result == SQLITE_OK; change = change->next)
		result = apply(db, change, &rows);
	if (result == SQLITE_OK)
		result = write_meta(db, "rows", (int64_t)rows);
	if (result == SQLITE_OK)
		result = write_meta(db, "behind", behind);
	killpoint(KILLPOINT_CATALOGUE_COMMIT);
	if (result == SQLITE_OK)
		result = run(db, COMMIT);
	killpoint(KILLPOINT_CATALOGUE_DONE);
	if (result != SQLITE_OK) {
		db_why(db, why, result, "write to");
		/* Some errors have rolled it back already. */
		if (!sqlite3_get_autocommit(db->sqlite))
			run(db, ROLLBACK);
		return result;
	}
	db->state.rows = rows;
	db->state.behind = behind;
	return SQLITE_OK;
}

static enum catalogue_db_result result_of(struct catalogue_db *db, int result)
{
	switch (result & 0xff) {
	case SQLITE_OK:
		return CATALOGUE_DB_DONE;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return CATALOGUE_DB_BUSY;
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
		db->damaged = true;
		return CATALOGUE_DB_DAMAGED;
	default:
		return CATALOGUE_DB_FAILED;
	}
}

/* The journal begins anew only while nobody reads from it: over its limit that is tried before anything is written. */
static bool journal_fits(struct catalogue_db *db, uint64_t wal_most)
{
	measure(db);
	if (db->state.wal_bytes <= wal_most)
		return true;
	sqlite3_wal_checkpoint_v2(db->sqlite, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
	measure(db);
	return db->state.wal_bytes <= wal_most;
}

struct writing {
	struct catalogue_db *db;
	const struct change *first;
	bool behind;
	uint64_t wal_most;
	struct why *why;
	enum catalogue_db_result result;
};

static void write_guarded(void *context)
{
	struct writing *w = context;
	struct catalogue_db *db = w->db;

	if (journal_fits(db, w->wal_most)) {
		w->result = result_of(db, transact(db, w->first, w->behind, w->why));
		return;
	}
	why_set(w->why, EFBIG, "the journal of %s has %" PRIu64 " bytes, over %" PRIu64 ": somebody reads it for long", db->path,
		db->state.wal_bytes, w->wal_most);
	w->result = CATALOGUE_DB_JOURNAL;
	if (!db->state.behind)
		transact(db, NULL, true, NULL);
}

enum catalogue_db_result catalogue_db_write(struct catalogue_db *db, const struct change *first, bool behind, uint64_t wal_most,
					    struct why *why)
{
	struct writing w = {.db = db, .first = first, .behind = behind, .wal_most = wal_most, .why = why};

	if (db->damaged) {
		why_set(why, EINVAL, "the catalogue %s is damaged", db->path);
		return CATALOGUE_DB_DAMAGED;
	}
	if (!guarded(db, write_guarded, &w, why))
		w.result = CATALOGUE_DB_DAMAGED;
	measure(db);
	return w.result;
}

void catalogue_db_interrupt(struct catalogue_db *db)
{
	if (db->sqlite)
		sqlite3_interrupt(db->sqlite);
}

void catalogue_db_state(const struct catalogue_db *db, struct catalogue_db_state *ret)
{
	*ret = db->state;
}

/* ---- closing ------------------------------------------------------------------------------------------------------- */

static void mark_closed(struct catalogue_db *db, bool behind)
{
	killpoint(KILLPOINT_CATALOGUE_CLOSE);
	synchronous(db, true);
	int result = run(db, BEGIN);

	if (result == SQLITE_OK)
		result = write_meta(db, "behind", behind);
	if (result == SQLITE_OK)
		result = write_meta(db, "open", 0);
	if (result == SQLITE_OK)
		result = run(db, COMMIT);
	/* Without the mark the next one that opens it knows no better than after a death: it is behind. */
	if (result != SQLITE_OK && !sqlite3_get_autocommit(db->sqlite))
		run(db, ROLLBACK);
}

struct closing {
	struct catalogue_db *db;
	bool behind;
};

static void close_guarded(void *context)
{
	struct closing *closing = context;

	if (closing->db->damaged)
		set_aside(closing->db, NULL);
	else
		mark_closed(closing->db, closing->behind);
}

void catalogue_db_close(struct catalogue_db **pointer, bool behind)
{
	struct closing closing = {.db = *pointer, .behind = behind};

	*pointer = NULL;
	guarded(closing.db, close_guarded, &closing, NULL);
	db_free(closing.db);
}
