# SPDX-License-Identifier: Apache-2.0
"""pages/<key>: one page by its key, whatever record it stands in."""
import errno
import os
import time

import pytest

from mounted import PLAIN_LAYOUT, wait_for
from peers import value_of
from raw import Client, errno_of, key

SIZE = 8192


def put(c, plan, chain, pages, parent=None, before=0):
    keys = [key(chain, i) for i in range(pages)]
    c.put(plan, parent, 64 * (before + pages), keys, [value_of(k, SIZE) for k in keys])
    return keys


def test_a_page_is_found_and_read(daemon):
    d = daemon()
    d.namespace()
    folder = d.path("ns/x/pages")
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        keys = put(c, 1, 0xabcdef, 3)
    assert os.listdir(folder) == []
    for k in keys:
        path = os.path.join(folder, k.hex())
        st = os.stat(path)
        assert st.st_size == SIZE and st.st_mode & 0o777 == 0o444
        with open(path, "rb") as f:
            assert f.read() == value_of(k, SIZE)
            assert os.pread(f.fileno(), 40, SIZE - 20) == value_of(k, SIZE)[-20:]
            assert os.pread(f.fileno(), 40, SIZE) == b""
            assert os.pread(f.fileno(), 40, 1 << 40) == b""
        assert os.stat(path).st_ino == st.st_ino
    assert len({os.stat(os.path.join(folder, k.hex())).st_ino for k in keys}) == 3
    name = keys[0].hex()
    for wrong in (name.upper(), name[:-1], name + "0", key(5).hex(), "g" + name[1:], "x" * 255, "\udcfe" * 64, " " + name):
        assert errno_of(os.stat, os.path.join(folder, wrong)) == errno.ENOENT, wrong
    assert errno_of(os.stat, os.path.join(folder, "x" * 256)) == errno.ENAMETOOLONG
    path = os.path.join(folder, name)
    assert errno_of(os.unlink, path) == errno.EPERM
    assert errno_of(os.rmdir, path) == errno.ENOTDIR
    assert errno_of(os.rmdir, folder) == errno.EPERM
    assert errno_of(os.truncate, path, 0) == errno.EPERM
    assert errno_of(os.chmod, path, 0o777) == errno.EPERM
    assert errno_of(os.open, path, os.O_WRONLY) == errno.EPERM
    assert errno_of(os.open, os.path.join(folder, "new"), os.O_CREAT | os.O_WRONLY) == errno.EROFS
    assert errno_of(os.rename, path, os.path.join(folder, "new")) == errno.EROFS


def test_absent_values(daemon):
    d = daemon()
    d.namespace(layout=dict(PLAIN_LAYOUT, classes=PLAIN_LAYOUT["classes"] + [
        {"name": "index", "kind": "dense", "planes": [{"name": "I", "bytes": 100}]}]))
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 128, [key(1), key(2)], [b"a" * SIZE, b"b" * SIZE], class_mask=1)
    path = d.path("ns/x/pages", key(2).hex())
    assert os.stat(path).st_size == SIZE + 4096
    with open(path, "rb") as f:
        assert os.pread(f.fileno(), SIZE, 0) == b"b" * SIZE
        assert errno_of(os.pread, f.fileno(), 10, SIZE) == errno.ENODATA


def test_gone_and_back(daemon):
    """An open file is its key's: gone when no value is there, and the same when it was put again elsewhere."""
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a = put(c, 1, 1, 2)
        path = d.path("ns/x/pages", a[1].hex())
        with open(path, "rb", buffering=0) as f:
            assert f.read(SIZE) == value_of(a[1], SIZE)
            os.rmdir(d.path("ns/x/records", f"{128:016x}-{a[1].hex()}"))
            assert errno_of(os.pread, f.fileno(), SIZE, 0) == errno.ENOENT
            assert errno_of(os.stat, path) == errno.ENOENT
            put(c, 2, 3, 4)  # takes the slots
            assert errno_of(os.pread, f.fileno(), SIZE, 0) == errno.ENOENT
            put(c, 3, 1, 2)
            assert os.pread(f.fileno(), SIZE, 0) == value_of(a[1], SIZE)
    d.namespace("y")
    assert errno_of(os.stat, d.path("ns/y/pages", a[1].hex())) == errno.ENOENT


@pytest.mark.concurrency
def test_bytes_are_never_anothers(daemon, peer):
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 16 << 20}))

    def churn(p, ctl):
        with Client(ctl) as c:
            c.acknowledge()
            p.tell("there")
            plan = 0
            while True:
                plan += 1
                keys = [key(plan % 300, i) for i in range(16)]
                c.put_start(plan, [(None, 64 * 16, keys)])
                if c.put_status == [0]:
                    for k, offset in zip(keys, c.put_answers):
                        if offset < 1 << 60:
                            c.segment[offset:offset + SIZE] = value_of(k, SIZE)
                    c.put_end("PUT_COMMIT", plan)

    p = peer(churn, d.path("ns/x/ctl"))
    assert p.hear() == "there"
    wait_for(lambda: int(d.stats()["values_evicted"]) > 1000, 30, "eviction")
    read = gone = i = 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        i += 1
        k = key(i % 300, i % 16)
        try:
            with open(d.path("ns/x/pages", k.hex()), "rb", buffering=0) as f:
                assert f.read(2 * SIZE) == value_of(k, SIZE)
                read += 1
        except FileNotFoundError:
            gone += 1
    assert read > 10 and gone > 10
    p.end()
    wait_for(lambda: int(d.stats()["pins"]) == 0, 5, "the last pin")


def test_nodes_are_bounded(daemon):
    """The kernel is told to let pages go before there are too many of them."""
    d = daemon("--memory", "400M")
    size = 40000
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 390 << 20}))
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n in range(size // 1000):
            c.put_start(n + 1, [(None, 64, [key(n, i)]) for i in range(1000)])
            c.put_end("PUT_COMMIT", n + 1, groups=1000)
    folder = os.open(d.path("ns/x/pages"), os.O_RDONLY)
    for n in range(size // 1000):
        for i in range(1000):
            os.stat(key(n, i).hex(), dir_fd=folder)
    os.close(folder)

    def known():
        line = [l for l in d.read("health").splitlines() if l.startswith("pages known by key: ")][0]
        return int(line.split(": ")[1].split()[0])

    wait_for(lambda: known() <= 32768, 10, "the kernel's forgetting")
