/* SPDX-License-Identifier: Apache-2.0
 *
 * What `prefixfs bench disk` needs from inside the daemon's program, since it may not link it: the speed of checksums, and a
 * folder full of record files without content. Not for operators; docs/benchmarks.md, "Disk", says what is measured with it.
 */
#ifndef PREFIXFS_FS_BENCH_H
#define PREFIXFS_FS_BENCH_H

/* prefixfsd --bench-checksum: prints {"value_bytes", "bytes", "ns"} of checksums of values, one thread, the median of passes
 * over more memory than caches hold. The exit status. */
int bench_checksum_main(int argc, char **argv);

/* prefixfsd --bench-records FOLDER RECORDS PAGES: fills the one namespace of a disk tier's folder that no daemon has with RECORDS
 * files of PAGES pages each, in chains of 16 records: real headers and key segments, real names and rows of the catalogue;
 * values are zeros, holes in the files, with their real checksums. Prints {"made": N} now and then, and at the end {"files",
 * "file_bytes", "ns", "keys": [...]}, the keys of the last chain. RECORDS is a multiple of 16. The exit status. */
int bench_records_main(int argc, char **argv);

#endif
