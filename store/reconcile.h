/* SPDX-License-Identifier: Apache-2.0
 *
 * After an adoption, behind the answers: the record directory and the catalogue are brought to what the tables say. Adoption reads
 * neither; this does, in the mover's thread, in bounded stays, and may be cut off and begun again.
 *
 *   listing     a file that no record's row names, and no write under way will bring, is removed (through the names thread, decided under
 *               the space lock, so that it never meets a new file of that name); one that a trim is to rename is waited for
 *               a row whose file is not there: its values on disk alone go as a failed load has them go, clean ones are dirty
 *   catalogue   a row whose id no record has is removed, one that says otherwise is mended; a record whose id has no row gets one, from
 *               index and file; then catalogue_mended. Until then the catalogue is behind, as after any death
 *
 * What was written since the adoption has larger ids and is looked at by neither: it keeps itself in order. Files of other writers, newer
 * versions and other namespaces are left alone, as at a restart; *.tmp that a death left go.
 */
#ifndef PREFIXFS_STORE_RECONCILE_H
#define PREFIXFS_STORE_RECONCILE_H

#include "store/tiering.h"

struct reconcile;

/* At the end of tiering_adopt, when rows and places are known. NULL: no memory; the catalogue stays behind and files too many stay until the
 * next restart. */
struct reconcile *reconcile_new(struct tiering *tiering);
/* One bounded piece, without the lock, from the mover; blocks for a folder's listing, 64 headers, or 4,096 rows. False: there is nothing to
 * do now, or no more. */
bool reconcile_step(struct reconcile *reconcile);
void reconcile_free(struct reconcile **reconcile); /* NULL is let pass */

struct reconcile_report {
	uint64_t files, files_removed, files_missing, rows_added, rows_removed, rows_mended;
	bool done;
};
/* Any thread, without the lock. */
void reconcile_report(const struct reconcile *reconcile, struct reconcile_report *ret);

#endif
