# SPDX-License-Identifier: Apache-2.0
"""Values leave while others read, write and remove: whoever reads gets the bytes of the key, whole, or hears that they
are gone."""
import errno
import os
import random
import shutil
import struct
import subprocess
import time

import pytest

from mounted import wait_for
from peers import transient, value_of, victims_add_up
from raw import COMMITTED, NONE64, NOROOM, OK, Client, Refused, key, name_of

SIZE = 8192
LAYOUT = {"version": 1, "identity": {"model": "test/eviction"}, "world": 1, "page_tokens": 64,
          "memory": {"floor": 16 << 20},
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": SIZE}]}]}
SLOTS = (16 << 20) // SIZE


def page(chain, index):
    return key(chain, index)


def expected_of(name):
    """What `pages` of a record that begins its chain must hold, by its name alone: a chain's keys tell their number."""
    consumed, endpoint = name.split("-")
    chain, index = struct.unpack_from("<QQ", bytes.fromhex(endpoint))
    assert int(consumed, 16) == 64 * (index + 1)
    return b"".join(value_of(page(chain, i), SIZE) for i in range(index + 1))


def put_chain(c, plan, chain, pages):
    """Whole or not at all; True when it is there."""
    keys = [page(chain, i) for i in range(pages)]
    c.put_start(plan, [(None, 64 * pages, keys)])
    if c.put_status == [NOROOM]:
        c.acknowledge()
        return False
    for k, offset in zip(keys, c.put_answers):
        if offset < NONE64 - 15:
            c.segment[offset:offset + SIZE] = value_of(k, SIZE)
    c.put_end("PUT_COMMIT", plan)
    return c.put_status == [COMMITTED]


# ---- cat and eviction ------------------------------------------------------------------------------------------------

def evictor(peer, ctl, first, pages):
    """Puts chain after chain into a namespace that holds a few: the others are trimmed from their ends, page by page."""
    with Client(ctl) as c:
        c.acknowledge()
        peer.tell("there")
        n = 0
        while True:
            n += 1
            put_chain(c, n, first + n, random.randint(1, pages))


def reader(peer, records, seconds):
    """Reads whatever is there, in pieces, as cat does."""
    whole = gone = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or not (whole and gone):
        names = os.listdir(records)
        random.shuffle(names)
        for name in names[:8]:
            try:
                fd = os.open(os.path.join(records, name, "pages"), os.O_RDONLY)
            except OSError as e:
                assert e.errno == errno.ENOENT, e
                gone += 1
                continue
            got, piece = b"", random.choice((4096, 65536, 131072, 1 << 20))
            try:
                while data := os.read(fd, piece):
                    got += data
            except OSError as e:
                assert e.errno == errno.ENOENT, e
                gone += 1
                got = None
            os.close(fd)
            if got is not None:
                expected = expected_of(name)
                assert len(got) == len(expected), f"{name}: {len(got)} bytes of {len(expected)}"
                assert got == expected, f"{name}: wrong bytes"
                whole += 1
    peer.tell([whole, gone])


@pytest.mark.concurrency
def test_reading_a_record_that_is_evicted_is_whole_or_enoent(daemon, peer, slower):
    d = daemon("--memory", "16M")
    d.namespace(layout=LAYOUT)
    writers = [peer(evictor, d.path("ns/x/ctl"), (i + 1) << 32, 400) for i in range(2)]
    for w in writers:
        assert w.hear() == "there"
    readers = [peer(reader, d.path("ns/x/records"), 5) for _ in range(2)]
    for r in readers:
        whole, gone = r.hear(60 * slower)
        assert whole > 0 and gone > 0, (whole, gone)
    assert int(d.stats()["values_evicted"]) > SLOTS
    for w in writers:
        w.end()
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")


def test_a_record_that_loses_its_last_page_is_another(daemon):
    """Who has it open reads what he opened or hears that it is gone; its shorter rest has a name and a number of its own."""
    d = daemon("--memory", "16M")
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        assert put_chain(c, 1, 1, 100)
        record = d.path("ns/x/records", name_of(6400, page(1, 99)))
        number = os.stat(record).st_ino
        with open(os.path.join(record, "pages"), "rb", buffering=0) as f:
            assert f.read(SIZE) == value_of(page(1, 0), SIZE)
            chain = 2
            while c.probe([page(1, 99)]).hits:
                put_chain(c, chain, chain, 100)
                chain += 1
            assert 0 < c.probe([page(1, i) for i in range(100)]).hits < 100
            with pytest.raises(FileNotFoundError):
                f.read(SIZE)
            with pytest.raises(FileNotFoundError):
                os.pread(f.fileno(), SIZE, 99 * SIZE)
        rest, = (n for n in os.listdir(d.path("ns/x/records")) if expected_of(n)[:32] == page(1, 0))
        assert os.stat(d.path("ns/x/records", rest)).st_ino != number
        with open(d.path("ns/x/records", rest, "pages"), "rb") as f:
            assert f.read() == expected_of(rest)


def test_cat_of_records_that_leave(daemon, peer, slower):
    """The program that people use: status 0 and every byte, or status 1 and one sentence."""
    d = daemon("--memory", "16M")
    d.namespace(layout=LAYOUT)
    w = peer(evictor, d.path("ns/x/ctl"), 1 << 32, 400)
    assert w.hear() == "there"
    whole = gone = 0
    end = time.monotonic() + 4
    while time.monotonic() < end or not whole:
        for name in random.sample(sorted(names := os.listdir(d.path("ns/x/records"))), min(4, len(names))):
            r = subprocess.run(["cat", d.path("ns/x/records", name, "pages")], capture_output=True, check=False)
            expected = expected_of(name)
            if r.returncode == 0:
                assert (len(r.stdout), r.stderr) == (len(expected), b"")
                assert r.stdout == expected
                whole += 1
            else:
                assert b"No such file or directory" in r.stderr, r.stderr
                assert expected.startswith(r.stdout)
                gone += 1
    w.end()
    assert whole > 0 and whole + gone > 10


# ---- everything at once ---------------------------------------------------------------------------------------------

CHAINS, PAGES = 200, 60  # some six times what fits


def worker(peer, ctl, seconds, seed):
    """Looks a chain up, checks what is there, puts what is missing: an engine in small."""
    r = random.Random(seed)
    counts = dict(verified=0, wrong=0, put=0, noroom=0, aborted=0)
    end = time.monotonic() + seconds
    with Client(ctl) as c:
        c.acknowledge()
        turn = 0
        while time.monotonic() < end:
            turn += 1
            chain, pages = 1 + min(r.randrange(CHAINS), r.randrange(CHAINS)), r.randint(1, PAGES)
            keys = [page(chain, i) for i in range(pages)]
            hit = fetch(c, turn, keys, counts, r)
            if hit < pages:
                store(c, turn, keys, hit, counts, r)
            if turn % 50 == 0:
                c.acknowledge()
    peer.tell(counts)


def fetch(c, turn, keys, counts, r):
    found = c.get_start(turn, keys)
    hit = found.raw_prefix_hit_len // 64
    if not found.handle_live:
        return hit
    at, plans = 0, []
    while at < found.transferable_len:
        to = min(found.transferable_len, at + 64 * r.randint(1, len(keys)))
        try:
            c.get_transfer(turn, (turn << 16) + at, found.transferable_len, start=at, to=to)
        except Refused as e:
            assert e.errno == errno.ENXIO, e  # a range that came meanwhile
            c.acknowledge()
            continue
        plans.append((turn << 16) + at)
        for i, offset in enumerate(c.offsets):
            good = bytes(c.segment[offset:offset + SIZE]) == value_of(keys[at // 64 + i], SIZE)
            counts["verified"] += 1
            counts["wrong"] += not good
        at = to
        if at < found.transferable_len and r.random() < 0.1:
            c.call("GET_CANCEL", handle=turn)
            break
    c.release(plans)
    return hit


def store(c, turn, keys, hit, counts, r):
    groups, at = [], hit
    while at < len(keys):
        n = r.randint(1, len(keys) - at)
        groups.append((keys[at - 1] if at else None, 64 * (at + n), keys[at:at + n]))
        at += n
    plan = turn << 40
    c.put_start(plan, groups)
    at = 0
    for g, status in zip(groups, c.put_status):
        for k, offset in zip(g[2], c.put_answers[at:at + len(g[2])]):
            if status == OK and offset < NONE64 - 15:
                c.segment[offset:offset + SIZE] = value_of(k, SIZE)
        at += len(g[2])
        counts["noroom"] += status == NOROOM
    if not any(s == OK for s in c.put_status):
        return
    if r.random() < 0.1:
        c.put_end("PUT_ABORT", plan, groups=len(groups))
        counts["aborted"] += 1
        return
    c.put_end("PUT_COMMIT", plan, groups=len(groups))
    counts["put"] += sum(s == COMMITTED for s in c.put_status)


def cat(peer, records, seconds):
    """Every page that a record shows is some key's value, whole."""
    counts = dict(read=0, wrong=0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        names = os.listdir(records)
        for name in random.sample(names, min(5, len(names))):
            chain, last = struct.unpack_from("<QQ", bytes.fromhex(name.split("-")[1]))
            try:
                with open(os.path.join(records, name, "pages"), "rb") as f:
                    data = f.read()
            except OSError as e:
                assert e.errno in (errno.ENOENT, errno.ENODATA), e
                continue
            n = len(data) // SIZE
            assert len(data) == n * SIZE and n > 0
            counts["read"] += 1
            counts["wrong"] += data != b"".join(value_of(page(chain, i), SIZE) for i in range(last + 1 - n, last + 1))
    peer.tell(counts)


def remove(peer, records, seconds):
    """rm -r, of whatever; what is in use or has children says so."""
    removed = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        names = os.listdir(records)
        for name in random.sample(names, min(5, len(names))):
            try:
                shutil.rmtree(os.path.join(records, name))
                removed += 1
            except OSError as e:
                # Without an errno: rmtree found another record behind the name than a moment ago.
                assert e.errno in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY, None), e
    peer.tell({"removed": removed})


@pytest.mark.concurrency
@pytest.mark.limit(180)
def test_many_clients_over_too_little_memory(daemon, peer, slower):
    seconds = 20
    d = daemon("--memory", "16M")
    d.namespace(layout=LAYOUT)
    records = d.path("ns/x/records")
    workers = [peer(worker, d.path("ns/x/ctl"), seconds, n) for n in range(4)]
    others = [peer(cat, records, seconds), peer(remove, records, seconds)]
    totals = {}
    for p in workers + others:
        for name, n in p.hear(seconds + 60 * slower).items():
            totals[name] = totals.get(name, 0) + n
        assert p.wait() == 0
    assert totals["wrong"] == 0, totals
    for name in ("verified", "put", "aborted", "read", "removed"):
        assert totals[name] > 0, totals
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")
    s = d.stats()
    assert victims_add_up(s), s
    assert int(s["values_evicted"]) > SLOTS and s["read_errors"] == "0"
    assert int(s["victims_pending"]) == 0
    assert int(s["slots"]) - int(s["slots_free"]) == int(s["pages"]) <= SLOTS
    # what is left is what it says: every record, whole
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for chain in range(1, CHAINS + 1):
            counts = dict(verified=0, wrong=0)
            fetch(c, chain, [page(chain, i) for i in range(PAGES)], counts, random.Random(1))
            assert counts["wrong"] == 0
    assert "restarts: 0" in d.read("health")
