/* SPDX-License-Identifier: Apache-2.0
 *
 * What a namespace's record files are, kept in the persistent tables, so that adoption needs neither the catalogue nor a listing: one
 * row for each record number, and one bit for each slot that says that its value is in the file.
 *
 * A row is two lines, written in turn: the intact one with the later turn counts. So there is no moment between two descriptions of
 * a file at which there is none.
 *
 * A row describes what lies on the disk for certain, while struct record_file (store/tiering.h) describes what will lie there when the
 * jobs given have ended. So a row changes when a job has ended, and the two differ exactly by the jobs under way:
 *
 *   written, renamed           sealed, then the slots' bits                   the job's end, under the space lock
 *   trimmed, renamed           the other line, sealed                         the job's end
 *   has too much (STALE)       the other line, sealed                         when a value of it goes, in the same stay
 *   one of a WHOLE group       STALE, until all of it is written              the job's end; the end of the group's last one
 *   record gone, reset         both unsealed, the earlier first               with the record, before the removal is given
 *   record number reused       is of no file: unsealed                        as above
 *
 * At most one job that changes a record's file is under way, a write or a trim: so there is one name that the row does not know, not two.
 * And no file is written under a name that a row still has for a file that a trim is to rename: the trim that a successor gives again would
 * take the new file for the old one.
 *
 *   death between                      row       disk             what adoption does
 *   rename and seal                    none      the file         the record is dirty, is written anew under the same name
 *   trim given and ended               old       old or new name  gives the trim again, which finds the old name; or the new one, and then
 *                                                                 what its header says is the row
 *   unseal and unlink                  none      a file too many  reconcile (store/reconcile.h) removes it
 *   seal and the slots' bits           new       new              slots count as dirty: written once more
 *
 * Rows and bits are sections of the tables (tables.rows, tables.clean).
 *
 * Everything here runs under the space lock; nothing blocks or allocates.
 */
#ifndef PREFIXFS_INDEX_FILES_H
#define PREFIXFS_INDEX_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "index/tables.h"

#define FILES_ROW 1u     /* the file has the record's row */
#define FILES_ALIASED 2u /* some column is another's: which, its header says (TIERING_ALIAS_UNKNOWN after an adoption) */
#define FILES_STALE 4u   /* it has values that the index no longer has: it is to be written anew, or a start would find them again */

/* One cache line. */
struct file_row {
	struct key endpoint;  /* of its name */
	uint64_t id;          /* row of the catalogue */
	uint32_t blocks;      /* its length, in blocks of 4 KiB */
	uint32_t record_check; /* low bits of the record entry's check: a row of the number's former record is none */
	uint16_t pages;       /* that its name stands for */
	uint16_t file_pages;  /* that it was written with */
	uint16_t flags;       /* FILES_* */
	uint16_t turn;        /* of the two lines the later by signed difference counts */
	uint64_t check;       /* over all of it, the record's number and which of its lines it is; 0 = none */
};
_Static_assert(sizeof(struct file_row) == 64, "one cache line");

/* @row is what counts from here on; its turn, record_check and check are filled in here. The record is sealed. */
void files_set(struct tables *tables, uint32_t record, const struct file_row *row);
void files_clear(struct tables *tables, uint32_t record);
/* The row of @record, as it is until the next files_set or files_clear of it; NULL: none, or of another record that had the number. */
const struct file_row *files_get(const struct tables *tables, uint32_t record);

/* One store each. Set after files_set; cleared before the value changes, moves to a place, or the row goes: a slot whose bit is missing
 * is written once more, which is the worst that a death does to it. The bit of a slot without a value means nothing to a successor, who
 * takes it out: a value that is let go is free first. */
void files_set_clean(struct tables *tables, uint32_t slot, bool clean);
static inline bool files_is_clean(const struct tables *tables, uint32_t slot)
{
	return tables->clean[slot / 64] >> slot % 64 & 1;
}

#endif
