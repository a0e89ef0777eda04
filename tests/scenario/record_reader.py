#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a record file as docs/on-disk-format.md describes it, and refuses what contradicts that page.

record_reader.py FILE...   prints what each file has; exit status 1 if one of them is damaged
"""
import ctypes
import os
import re
import struct
import sys

HEADER = struct.Struct("<8sII32s16s32s32sQQQqQIIIIIIQQQQQQI12s")
FIELDS = ("magic version header_bytes identity fingerprint endpoint parent start generation nonce created group group_count "
          "flags pages page_tokens page_columns row_columns keys_bytes page_offset page_stride row_offset row_bytes "
          "file_bytes column_bytes reserved").split()
COLUMN = struct.Struct("<HHHHQQQII")
COLUMN_FIELDS = "class share alias reserved slot payload offset values every".split()
NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{64})\.rec")
ROOT, WHOLE, ROW = 1, 2, 4

try:
    XXHASH = ctypes.CDLL("libxxhash.so.0")
    XXHASH.XXH3_64bits.restype = ctypes.c_uint64
    XXHASH.XXH3_64bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    UNCHECKED = None
except (OSError, AttributeError) as e:
    XXHASH, UNCHECKED = None, f"checksums are not checked: {e}"


class Damaged(Exception):
    pass


class Foreign(Exception):
    """Another writer's, or of a newer version."""


def must(true, what):
    if not true:
        raise Damaged(what)


def align(x):
    return (x + 4095) // 4096 * 4096


def good_sum(data, want):
    return XXHASH is None or (XXHASH.XXH3_64bits(data, len(data)) or 1) == want


def sealed(data):
    return good_sum(data[:-8], int.from_bytes(data[-8:], "little"))


class Record:
    """keys, sums and row_sums are of the pages and the row that are there; header and columns are dicts by field."""

    def __init__(self, path):
        match = NAME.fullmatch(os.path.basename(path))
        must(match, "the name is none of a record file")
        self.path, self.consumed, self.key = path, int(match[1], 16), bytes.fromhex(match[2])
        self.length = os.stat(path).st_size
        with open(path, "rb") as self.file:
            self.read_header()
            self.read_columns()
            self.read_keys()
            self.read_extent()

    def at(self, offset, size):
        self.file.seek(offset)
        return self.file.read(size)

    def read_header(self):
        first = self.at(0, 4096)
        must(len(first) == 4096 and first[:8] != bytes(8), "no header")
        self.header = h = dict(zip(FIELDS, HEADER.unpack(first[:HEADER.size])))
        if h["magic"] != b"PFSREC01" or h["version"] != 1:
            raise Foreign(f"magic {h['magic']}, version {h['version']}")
        must(h["header_bytes"] % 4096 == 0 and 4096 <= h["header_bytes"] <= self.length, "header_bytes")
        self.head = self.at(0, h["header_bytes"])
        must(sealed(self.head), "the header's checksum is wrong")
        must(not h["flags"] & ~7 and not any(h["reserved"]) and h["column_bytes"] == 40, "flags or reserved bytes")
        must(h["pages"] <= 4096 and (h["pages"] or h["flags"] & ROW), "number of pages")
        must(1 <= h["page_tokens"] <= 65536 and not (h["pages"] and h["start"] % h["page_tokens"]), "start")
        must(h["start"] + h["pages"] * h["page_tokens"] < 2 ** 64, "start is too high")
        must(h["group_count"] if h["flags"] & WHOLE else not h["group_count"] and not h["group"], "group")
        must(not (h["flags"] & ROOT and any(h["parent"])), "a root has a parent")
        must(h["row_columns"] or not h["flags"] & ROW, "a row without columns")

    def read_columns(self):
        h = self.header
        count, end = h["page_columns"] + h["row_columns"], 256 + 40 * (h["page_columns"] + h["row_columns"])
        must(1 <= count <= 1024 and h["header_bytes"] == align(end + 8), "number of columns")
        must(not any(self.head[end:-8]), "bytes behind the columns")
        self.columns = [dict(zip(COLUMN_FIELDS, COLUMN.unpack_from(self.head, 256 + 40 * i))) for i in range(count)]
        must(h["keys_bytes"] == align(h["pages"] * (32 + 8 * h["page_columns"]) + 8 * h["row_columns"] + 8), "keys_bytes")
        must(h["page_offset"] == h["header_bytes"] + h["keys_bytes"], "page_offset")
        stride = self.check_columns(0, h["page_columns"], h["page_offset"], h["pages"])
        must(h["page_stride"] == stride, "page_stride")
        must(h["row_offset"] == h["page_offset"] + h["pages"] * stride, "row_offset")
        row = self.check_columns(h["page_columns"], count, h["row_offset"], 1 if h["flags"] & ROW else 0)
        must(h["row_bytes"] == (row if h["flags"] & ROW else 0), "row_bytes")
        must(h["file_bytes"] == h["row_offset"] + h["row_bytes"], "file_bytes")

    def check_columns(self, first, end, offset, values):
        """Bytes of the stored ones."""
        total = 0
        for i in range(first, end):
            c = self.columns[i]
            must(first <= c["alias"] <= i, f"column {i}: alias")
            target = self.columns[c["alias"]]
            must(target["alias"] == c["alias"] and target["slot"] == c["slot"], f"column {i}: alias of another size or alias")
            must(c["slot"] % 4096 == 0 and c["slot"] >= 4096 and 0 < c["payload"] <= c["slot"], f"column {i}: sizes")
            must(not c["reserved"] and c["values"] == values and c["every"], f"column {i}: values")
            want = offset + total if c["alias"] == i else target["offset"]
            must(c["offset"] == (want if values else 0), f"column {i}: offset")
            total += c["slot"] if c["alias"] == i else 0
        return total

    def read_keys(self):
        h = self.header
        must(self.length >= h["page_offset"], "shorter than header and keys")
        segment, n, width = self.at(h["header_bytes"], h["keys_bytes"]), h["pages"], h["page_columns"]
        must(sealed(segment), "the checksum of the keys is wrong")
        self.keys = [segment[32 * p:32 * p + 32] for p in range(n)]
        sums = struct.unpack_from(f"<{n * width + h['row_columns']}Q", segment, 32 * n)
        self.sums, self.row_sums = [sums[p * width:(p + 1) * width] for p in range(n)], sums[n * width:]
        must(not any(segment[32 * n + 8 * len(sums):-8]), "bytes behind the sums")
        must(not n or self.keys[-1] == h["endpoint"], "the last key is not the endpoint")
        for s, first in [(s, 0) for s in self.sums] + [(self.row_sums, width)]:
            for i, x in enumerate(s):
                must(x in (0, s[self.columns[first + i]["alias"] - first]), f"column {first + i}: sum of an alias")

    def read_extent(self):
        h = self.header
        named, rest = divmod(self.consumed - h["start"], h["page_tokens"])
        must(not rest and 0 <= named <= h["pages"] and (named or not h["pages"]), "the name's tokens")
        must(self.key == (self.keys[named - 1] if named else h["endpoint"]), "the name's key")
        there = (self.length - h["page_offset"]) // h["page_stride"] if h["page_stride"] else named
        self.pages = min(named, there)
        self.row = bool(h["flags"] & ROW) and named == h["pages"] and self.length >= h["file_bytes"]
        self.keys, self.sums = self.keys[:self.pages], self.sums[:self.pages]
        if not self.row:
            self.row_sums = ()

    def value(self, page, column):
        """Payload of @page (None: of the row) in @column, counted among all columns. None: absent."""
        c = self.columns[column]
        want = self.row_sums[column - self.header["page_columns"]] if page is None else self.sums[page][column]
        if not want:
            return None
        with open(self.path, "rb") as self.file:
            slot = self.at(c["offset"] + (page or 0) * self.header["page_stride"], c["slot"])
        must(len(slot) == c["slot"] and good_sum(slot, want), f"page {page}, column {column}: the value's checksum is wrong")
        must(not any(slot[c["payload"]:]), f"page {page}, column {column}: bytes behind the payload")
        return slot[:c["payload"]]

    def check_values(self):
        """How many there are, each read and checked."""
        width = self.header["page_columns"]
        places = [(p, c) for p in range(self.pages) for c in range(width)]
        places += [(None, width + c) for c in range(len(self.row_sums))]
        return sum(self.value(p, c) is not None for p, c in places)


def main(paths):
    status = 0
    if UNCHECKED:
        print(UNCHECKED, file=sys.stderr)
    for path in paths:
        try:
            record = Record(path)
            values = record.check_values()
        except (Damaged, Foreign, OSError) as e:
            print(f"{path}: {e or type(e).__name__}")
            status = 1
            continue
        print(f"{path}: {record.pages} of {record.header['pages']} pages from {record.header['start']} on, "
              f"{'a' if record.row else 'no'} row, {values} values")
        for key, sums in zip(record.keys, record.sums):
            print(f"  {key.hex()} {' '.join(f'{s:016x}' for s in sums)}")
        if record.row:
            print(f"  row {' '.join(f'{s:016x}' for s in record.row_sums)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
