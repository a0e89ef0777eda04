# SPDX-License-Identifier: Apache-2.0
"""Several namespaces and sizes under one budget: who needs memory gets it from who does not, and no byte is another's."""
import ctypes
import errno
import os
import re

import pytest

from mounted import wait_for
from peers import transient, value_of, victims_add_up
from raw import COMMITTED, GROUP_ROW_ONLY, NONE64, NOROOM, OK, Client, Refused, key

MiB = 1 << 20
PAGE, ROW, SMALL = 8192, 20480, 4096


def layout(name, floor, *classes):
    return {"version": 1, "identity": {"model": "test/" + name}, "world": 1, "page_tokens": 64, "memory": {"floor": floor},
            "classes": [{"name": c, "kind": kind, "planes": [{"name": "p", "bytes": size}]} for c, kind, size in classes]}


def budget(d):
    """The tiers file: its first line, and each namespace's, as numbers."""
    lines = d.read("tiers").splitlines()
    fields = lambda line: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", line)}
    return fields(lines[0]), {line.split()[1]: fields(line) for line in lines if line.startswith("namespace ")}


def put_pages(c, plan, chain, pages, size):
    """True when it is there; what got no room acknowledges what there is."""
    keys = [key(chain, i) for i in range(pages)]
    c.put_start(plan, [(None, 64 * pages, keys)])
    if c.put_status == [NOROOM]:
        c.acknowledge()
        return False
    for k, offset in zip(keys, c.put_answers):
        if offset < NONE64 - 15:
            c.segment[offset:offset + size] = value_of(k, size)
    c.put_end("PUT_COMMIT", plan)
    return c.put_status == [COMMITTED]


def put_rows(c, plan, first, count):
    keys = [key(900, first + i) for i in range(count)]
    c.put_start(plan, [(None, 63, [k], {"flags": GROUP_ROW_ONLY, "class_mask": 2}) for k in keys], class_mask=2)
    refused = NOROOM in c.put_status
    for k, status, offset in zip(keys, c.put_status, c.put_answers):
        if status == OK and offset < NONE64 - 15:
            c.segment[offset:offset + ROW] = value_of(k, ROW)
    if OK in c.put_status:
        c.put_end("PUT_COMMIT", plan, groups=count)
    if refused:
        c.acknowledge()
    return not refused


def pages_there(c, plan, chain, pages, size):
    """Leading pages that hit; their bytes are compared."""
    found = c.get_start(plan, [key(chain, i) for i in range(pages)], class_mask=1)
    if not found.handle_live:
        return 0
    if found.missing:
        c.acknowledge()
    c.get_transfer(plan, plan, found.transferable_len)
    for i, offset in enumerate(c.offsets):
        assert c.segment[offset:offset + size] == value_of(key(chain, i), size), (chain, i)
    c.release([plan])
    return len(c.offsets)


# ---- two namespaces ----------------------------------------------------------------------------------------------------

def first_engine(peer, ctl):
    """Takes all that there is, then reads until it is told to go."""
    with Client(ctl) as c:
        c.acknowledge()
        plan = chain = 0
        while True:
            plan += 1
            if put_pages(c, plan, chain + 1, 64, PAGE):
                chain += 1
            if int(c.stats()["granted_bytes"]) >= 64 * MiB:
                break
        peer.tell(chain)
        peer.listen()


def second_engine(peer, ctl):
    with Client(ctl) as c:
        c.acknowledge()
        plan = chain = 0
        assert not put_pages(c, 1, 1, 64, SMALL)
        peer.tell("refused")
        peer.listen()
        plan = 1
        while int(c.stats()["granted_bytes"]) < 24 * MiB:
            plan += 1
            if put_pages(c, plan, chain + 1, 64, SMALL):
                chain += 1
        for i in range(max(1, chain - 40), chain + 1):
            plan += 1
            assert pages_there(c, plan, i, 64, SMALL) == 64
        peer.tell(chain)
        peer.listen()


@pytest.mark.concurrency
def test_an_engine_that_comes_later_gets_its_floor_when_the_first_one_goes(daemon, peer, slower):
    d = daemon("--memory", "64M")
    d.namespace("a", layout("a", 16 * MiB, ("kv", "dense", PAGE)))
    a = peer(first_engine, d.path("ns/a/ctl"))
    newest = a.hear(60 * slower)
    host, of = budget(d)
    assert host["granted"] == 64 * MiB and host["free"] == 0 and host["owed"] == 0
    assert of["a"]["surplus"] == 48 * MiB and of["a"]["may_take"] == 0

    d.namespace("b", layout("b", 24 * MiB, ("ix", "dense", SMALL)))  # not refused: it is owed
    host, of = budget(d)
    assert host["floors"] == 40 * MiB and host["owed"] == 24 * MiB and host["granted"] == 64 * MiB
    assert of["b"]["granted"] == 0 and of["b"]["may_take"] == 24 * MiB
    os.mkdir(d.path("ns/c"))
    with pytest.raises(OSError):
        with open(d.path("ns/c/layout"), "w", encoding="utf-8") as f:
            f.write(str(layout("c", 25 * MiB, ("kv", "dense", PAGE))).replace("'", '"'))
    text = d.read("ns/c/layout.error")
    assert str(25 * MiB) in text and str(40 * MiB) in text and str(64 * MiB) in text
    os.rmdir(d.path("ns/c"))

    b = peer(second_engine, d.path("ns/b/ctl"))
    assert b.hear(30 * slower) == "refused"
    resident = int(d.stats("a")["resident_bytes"])
    assert budget(d)[1]["a"]["granted"] == 64 * MiB  # its engine is there: nothing is punched
    a.say("go")
    wait_for(lambda: not budget(d)[1]["a"]["sessions"], 10 * slower, "the end of the first engine")
    b.say("on")
    b.hear(60 * slower)
    host, of = budget(d)
    assert of["b"]["granted"] == 24 * MiB and of["a"]["granted"] == 40 * MiB and host["owed"] == 0
    assert int(d.stats("a")["grants_returned"]) == 12
    assert int(d.stats("a")["resident_bytes"]) <= resident - 24 * MiB

    # What is left is what was put last, byte for byte.
    with Client(d.path("ns/a/ctl")) as c:
        c.acknowledge()
        assert pages_there(c, 1 << 40, newest, 64, PAGE) == 64
        assert pages_there(c, (1 << 40) + 1, 1, 64, PAGE) == 0
    b.say("go")
    wait_for(lambda: not transient(d.stats("a")) and not transient(d.stats("b")), 10 * slower, "the ends of sessions")
    assert victims_add_up(d.stats("a")) and victims_add_up(d.stats("b"))


# ---- two sizes ---------------------------------------------------------------------------------------------------------

class Library:
    """A session of libprefixfs that only acknowledges."""

    class Info(ctypes.Structure):
        _fields_ = [("session", ctypes.c_uint64), ("segment_bytes", ctypes.c_uint64), ("page_bytes", ctypes.c_uint64),
                    ("generation", ctypes.c_uint64), ("buffer_bytes", ctypes.c_uint64),
                    ("ranges_version", ctypes.c_uint64), ("segment", ctypes.c_void_p), ("reattached", ctypes.c_uint64),
                    ("rest", ctypes.c_uint8 * 4096)]

    def __init__(self, lib, path):
        self.lib = lib
        self.session = ctypes.c_void_p()
        options = ctypes.create_string_buffer(4096)
        self.lib.pfs_options_init(options)
        ctypes.c_uint32.from_buffer(options, 8).value = 0  # rank
        assert self.lib.pfs_open(path.encode(), options, ctypes.byref(self.session)) == 0

    def news(self):
        return self.lib.pfs_news(self.session, 0)

    def info(self):
        info = self.Info()
        assert self.lib.pfs_info(self.session, ctypes.byref(info)) == 0
        return info

    def close(self):
        self.lib.pfs_close(ctypes.byref(self.session))


@pytest.mark.limit(240)
def test_a_mix_that_shifts_gets_its_memory(daemon, library, slower):
    d = daemon("--memory", "32M")
    d.namespace("h", layout("h", 32 * MiB, ("kv", "dense", PAGE), ("st", "state", ROW)))
    library = Library(library("fs/client/libprefixfs.so"), d.path("ns/h"))
    plan, recut = 0, 0
    with Client(d.path("ns/h/ctl")) as c:
        c.acknowledge()
        before = {r.id: r for r in c.ranges()}
        for phase in range(3):
            rows, kind = phase % 2 == 0, "slots.st.0" if phase % 2 == 0 else "slots.kv.0"
            slots = int(c.stats()[kind])
            for turn in range(6000):
                plan += 1
                if rows:
                    put_rows(c, plan, 1000000 * phase + 2 * turn, 2)
                else:
                    put_pages(c, plan, 1000000 * phase + turn, 8, PAGE)
                if turn % 50 == 0:
                    assert library.news() in (0, -errno.ETIMEDOUT)
                if turn % 100 == 99 and int(c.stats()[kind]) > slots + (200 if rows else 400):
                    break
            stats = c.stats()
            assert int(stats[kind]) > slots, (phase, stats)
            assert int(stats["grants_recut"]) > recut
            recut = int(stats["grants_recut"])
            assert int(stats["granted_bytes"]) == 32 * MiB
            # and what is put now stays
            for i in range(20):
                plan += 1
                while not put_pages(c, plan, 5000 + 100 * phase + i, 8, PAGE):
                    plan += 1
            for i in range(20):
                plan += 1
                assert pages_there(c, plan, 5000 + 100 * phase + i, 8, PAGE) == 8
        after = {r.id: r for r in c.ranges()}
        assert any(after[i].generation > before[i].generation for i in after if i in before)
        for i in after:
            assert after[i].offset == before[i].offset and after[i].length == before[i].length
        library.news()
        assert library.info().ranges_version == c.call("SEGMENTS").version
        assert library.info().reattached == 0
        stats = c.stats()
        assert victims_add_up(stats)
    library.close()
    wait_for(lambda: not transient(d.stats("h")), 10 * slower, "the ends of sessions")


def test_a_node_that_the_host_lacks_is_refused(daemon):
    d = daemon("--memory", "16M")
    d.namespace("n", layout("n", 8 * MiB, ("kv", "dense", PAGE)))
    fd = os.open(d.path("ns/n/ctl"), os.O_RDWR)
    os.close(fd)
    with pytest.raises(Refused) as refused:
        with Client(d.path("ns/n/ctl"), node=1000):
            pass
    assert refused.value.errno == 22 and "node: 1000 is none of the host's nodes with memory" in str(refused.value)
    with Client(d.path("ns/n/ctl"), node=0) as c:
        c.acknowledge()
    assert "node=-1" in d.read("ns/n/segment")
