# SPDX-License-Identifier: Apache-2.0
"""checkpoints/: links to the records that one can resume from now, and to no others."""
import errno
import os
import time

import pytest

from mounted import PLAIN_LAYOUT, STATE_LAYOUT, wait_for
from raw import NONE64, Client, errno_of, key, name_of

TWO_CLASSES = dict(PLAIN_LAYOUT, classes=PLAIN_LAYOUT["classes"] + [
    {"name": "index", "kind": "dense", "every": 128, "planes": [{"name": "I", "bytes": 100}]}])


def put(c, plan, parent, consumed, keys, class_mask=1, flags=0):
    """Values without content; the answers."""
    c.put_start(plan, [(parent, consumed, keys, {"class_mask": class_mask, "flags": flags})], class_mask=class_mask,
                answers=len(keys))
    assert c.put_status == [0]
    c.put_end("PUT_COMMIT", plan)


def links(d, name="x"):
    folder = d.path("ns", name, "checkpoints")
    found = {e: os.readlink(os.path.join(folder, e)) for e in os.listdir(folder)}
    assert all(target == "../records/" + e for e, target in found.items())
    return set(found)


def test_a_chain_and_its_branches(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        assert links(d) == set()
        a, b = [key(1, i) for i in range(3)], [key(2, i) for i in range(2)]
        put(c, 1, a[-1], 320, b)  # its parent is not there yet
        assert links(d) == set()
        assert errno_of(os.readlink, d.path("ns/x/checkpoints", name_of(320, b[-1]))) == errno.ENOENT
        put(c, 2, None, 192, a)
        first, second = name_of(192, a[-1]), name_of(320, b[-1])
        assert links(d) == {first, second}
        link = d.path("ns/x/checkpoints", second)
        assert os.path.samefile(link, d.path("ns/x/records", second))
        assert os.lstat(link).st_size == len(os.readlink(link))
        with open(os.path.join(link, "header"), encoding="utf-8") as f:
            assert f"key: {b[-1].hex()}" in f.read()
        os.rmdir(d.path("ns/x/records", second))
        assert errno_of(os.lstat, link) == errno.ENOENT
        assert links(d) == {first}


def test_rows_make_checkpoints_where_there_are_states(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a, b = [key(1, i) for i in range(3)], [key(2, i) for i in range(2)]
        put(c, 1, None, 192, a)
        put(c, 2, a[-1], 320, b, class_mask=3)
        assert links(d) == {name_of(320, b[-1])}
        put(c, 3, a[0], 128, [a[1]], class_mask=2, flags=4)  # a row in the middle of the first record
        assert links(d) == {name_of(320, b[-1]), name_of(128, a[1])}
        put(c, 4, a[-1], 192 + 17, [key(9)], class_mask=2, flags=4)  # inside a page that is not full
        c.put_start(5, [(a[-1], 192 + 64, [key(10)], {"class_mask": 2, "flags": 4})], class_mask=2, answers=1)
        assert c.put_status == [7]  # NOPAGES: at the end of a page that nobody put
        assert links(d) == {name_of(320, b[-1]), name_of(128, a[1]), name_of(192 + 17, key(9))}


def test_every_class_has_a_say(daemon):
    """A class whose values span two pages: only where one ends can one resume; a page that lacks a class breaks it."""
    d = daemon()
    d.namespace(layout=TWO_CLASSES)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        whole, odd, lacking = ([key(n, i) for i in range(4)] for n in (1, 2, 3))
        put(c, 1, None, 256, whole, class_mask=3)
        put(c, 2, None, 192, odd[:3], class_mask=3)
        put(c, 3, None, 256, lacking, class_mask=1)
        assert links(d) == {name_of(256, whole[-1])}
        put(c, 4, None, 256, lacking, class_mask=2)  # now it comes
        assert links(d) == {name_of(256, whole[-1]), name_of(256, lacking[-1])}


def test_names_and_what_cannot_be_done(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a = [key(1, 0xabcdef)]
        put(c, 1, None, 64, a)
    name = name_of(64, a[0])
    folder = d.path("ns/x/checkpoints")
    for wrong in (name.upper(), name[:-1], name + "0", name_of(128, a[0]), "x", "." * 255, "\udcff" * 81):
        assert errno_of(os.lstat, os.path.join(folder, wrong)) == errno.ENOENT, wrong
    link = os.path.join(folder, name)
    assert errno_of(os.unlink, link) == errno.EPERM
    assert errno_of(os.rmdir, link) == errno.ENOTDIR
    assert errno_of(os.rmdir, folder) == errno.EPERM
    assert errno_of(os.unlink, os.path.join(folder, "none")) == errno.ENOENT
    assert errno_of(os.symlink, "x", os.path.join(folder, "new")) == errno.EROFS
    assert errno_of(os.mkdir, os.path.join(folder, "new")) == errno.EROFS
    assert errno_of(os.rename, link, os.path.join(folder, "new")) == errno.EROFS
    assert errno_of(open, os.path.join(folder, "new"), "w", encoding="ascii") == errno.EROFS
    assert errno_of(os.chmod, folder, 0o777) == errno.EPERM
    assert errno_of(os.chown, link, 1, 1, follow_symlinks=False) == errno.EPERM
    assert os.stat(folder).st_mode & 0o222 == 0
    assert links(d) == {name}


@pytest.mark.limit(240)
def test_a_long_chain_costs_its_length(daemon, slower):
    """20,000 records of one page in one chain: listed twice, and each looked at."""
    d = daemon("--memory", "256M")
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 200 << 20}))
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        parent, n = None, 20000
        for batch in range(n // 1000):
            groups = []
            for i in range(1000):
                k = key(batch * 1000 + i)
                groups.append((parent, (batch * 1000 + i + 1) * 64, [k]))
                parent = k
            c.put_start(batch + 1, groups)
            assert set(c.put_status) == {0}
            c.put_end("PUT_COMMIT", batch + 1, groups=1000)
        folder = d.path("ns/x/checkpoints")
        for _ in range(2):
            began = time.monotonic()
            assert len(os.listdir(folder)) == n
            print(f"listed in {time.monotonic() - began:.2f} s")
        began = time.monotonic()
        assert sum(e.is_symlink() and bool(os.lstat(e.path)) for e in os.scandir(folder)) == n
        print(f"looked at in {time.monotonic() - began:.2f} s")


@pytest.mark.concurrency
def test_listed_while_records_come_and_go(daemon, peer):
    """What is listed can be resolved, or is gone: never an error of another kind, never another's target."""
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 16 << 20}))

    def churn(p, ctl):
        with Client(ctl) as c:
            c.acknowledge()
            p.tell("there")
            plan = 0
            while True:
                plan += 1
                c.put_start(plan, [(None, 64 * 10, [key(plan, i) for i in range(10)])])
                if c.put_status == [0]:
                    c.put_end("PUT_COMMIT", plan)

    p = peer(churn, d.path("ns/x/ctl"))
    assert p.hear() == "there"
    wait_for(lambda: int(d.stats()["values_evicted"]) > 1000, 30, "eviction")
    folder, alive = d.path("ns/x/checkpoints"), 0
    end = time.monotonic() + 2
    while time.monotonic() < end:
        for name in os.listdir(folder):
            try:
                assert os.readlink(os.path.join(folder, name)) == "../records/" + name
                alive += 1
            except FileNotFoundError:
                pass
    assert alive > 0
    p.end()
    assert d.read("health").startswith("ok")
