# SPDX-License-Identifier: Apache-2.0
"""Record files, read by a reader that knows docs/on-disk-format.md alone."""
import os
import random
import shutil
import subprocess

import pytest

import record_reader
from record_reader import Damaged, Foreign, Record

ALIASES = {1: (0, 0, 2, 0, 4, 5, 6, 5, 5), 0: tuple(range(9))}
PAYLOAD = (5000,) * 4 + (77,) + (4096,) * 4
PARTS = [(5, 1, 1), (5, 1, 0), (5, 0, 1), (0, 1, 1), (0, 1, 0), (1, 0, 0), (200, 1, 1)]


@pytest.fixture
def write(program, tmp_path):
    def make(pages, row, aliases):
        writer = program("tests/scenario/write_record")
        answer = subprocess.run([writer, str(tmp_path), str(pages), str(row), str(aliases)], capture_output=True, text=True,
                                check=True)
        return os.path.join(tmp_path, answer.stdout.strip())
    return make


def value(pages, page, column, aliases):
    source = ALIASES[aliases][column]
    if page is not None and ((column == 4 and page % 2 == 0) or (page == 1 and source == 0)):
        return None
    return bytes([(source << 4 | (pages if page is None else page)) % 251]) * PAYLOAD[column]


def holds(record, pages, aliases):
    for p in range(record.pages):
        assert record.keys[p] == bytes([(p + 1) % 256]) * 32
        for c in range(5):
            assert record.value(p, c) == value(pages, p, c, aliases), (p, c)
    for c in range(len(record.row_sums)):
        assert record.value(None, 5 + c) == value(pages, None, 5 + c, aliases), c


def shortened(path, length, consumed, key):
    """A copy of that length and name."""
    to = os.path.join(os.path.dirname(path), "short", f"{consumed:016x}-{key.hex()}.rec")
    os.makedirs(os.path.dirname(to), exist_ok=True)
    shutil.copy(path, to)
    os.truncate(to, length)
    return to


def test_checksums_are_looked_at():
    if record_reader.UNCHECKED:
        pytest.skip(record_reader.UNCHECKED)


@pytest.mark.parametrize("pages,row,aliases", PARTS)
def test_whole(write, pages, row, aliases):
    record = Record(write(pages, row, aliases))
    assert (record.pages, record.row, len(record.columns)) == (pages, bool(row), 9)
    assert [c["alias"] for c in record.columns] == list(ALIASES[aliases])
    assert record.header["generation"] == 3 and record.header["nonce"] == 4 and record.header["created"] == 5
    holds(record, pages, aliases)
    assert record.check_values() == sum(value(pages, p, c, aliases) is not None for p in range(pages) for c in range(5)) + (
        4 if row else 0)


def test_shorter(write):
    path = write(5, 1, 1)
    whole = Record(path)
    stride, begin = whole.header["page_stride"], whole.header["page_offset"]
    for named, length, pages, row in [(5, begin + 5 * stride, 5, False), (5, whole.length - 1, 5, False),
                                      (3, begin + 3 * stride, 3, False), (3, whole.length, 3, False),
                                      (5, begin + 3 * stride + 1, 3, False), (5, whole.length + 4096, 5, True)]:
        record = Record(shortened(path, length, 128 + 64 * named, whole.keys[named - 1]))
        assert (record.pages, record.row) == (pages, row)
        holds(record, 5, 1)
    for named, length, key in [(3, begin - 1, 2), (0, whole.length, 0), (6, whole.length, 4), (3, whole.length, 1)]:
        with pytest.raises(Damaged):
            Record(shortened(path, length, 128 + 64 * named, whole.keys[key]))


def test_damaged(write):
    """A flipped bit is told apart wherever it counts: before the values always, in a value that is there too."""
    if record_reader.UNCHECKED:
        pytest.skip(record_reader.UNCHECKED)
    path = write(5, 1, 1)
    whole = Record(path)
    h, seed = whole.header, random.randrange(2 ** 32)
    print("seed", seed)
    pick = random.Random(seed)
    value_at = whole.columns[2]["offset"] + 3 * h["page_stride"]
    for at in [pick.randrange(h["page_offset"]) for _ in range(200)] + [pick.randrange(value_at, value_at + 8192)]:
        with open(path, "r+b") as f:
            f.seek(at)
            was = f.read(1)
            f.seek(at)
            f.write(bytes([was[0] ^ 1 << pick.randrange(8)]))
        with pytest.raises(Foreign if at < 12 else Damaged):
            Record(path).check_values()
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(was)
    assert record_reader.main([path]) == 0
