# SPDX-License-Identifier: Apache-2.0
"""Folders for record files, whether this build has a disk tier, and a load on one."""
import errno
import os
import random
import re
import select
import shutil
import struct
import tempfile
import time

import pytest

from peers import value_of
from raw import COMMITTED, NONE64, NOROOM, OK, Client, Refused, key

NO_DISK = {"tmpfs", "ramfs", "overlay", "fuse", "9p"}  # no O_DIRECT, or not what a disk does


def file_system(path):
    """The type of the file system that @path lies on."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        rows = [(line.split()[4], line.split(" - ")[1].split()[0]) for line in f]
    path = os.path.realpath(path) + "/"
    return max((row for row in rows if path.startswith(row[0].rstrip("/") + "/")), key=lambda row: len(row[0]))[1]


def folder(tmp_path, build):
    """A new folder on a real file system: the test's own, or one in the build folder that the caller removes."""
    if file_system(tmp_path) not in NO_DISK:
        path = str(tmp_path / "disk")
        os.mkdir(path)
        return path
    if file_system(build) not in NO_DISK:
        return tempfile.mkdtemp(prefix="disk-", dir=build)
    pytest.skip("neither the scratch nor the build folder lies on a real file system")
    return None


def remove(path):
    shutil.rmtree(path, ignore_errors=True)


def tier(d):
    """The figures of the line `disk` of `tiers`; None: it has none."""
    found = re.search(r"^disk (.*)$", d.read("tiers"), re.M)
    return dict(word.split("=", 1) for word in found[1].split(" ")) if found else None


# ---- a load, in processes of its own -----------------------------------------------------------------------------------

BYTES, PAGES, TOKENS = 8192, 16, 64  # of mounted.PLAIN_LAYOUT; of a chain
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE, errno.ENODEV, errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET,
        errno.EIO)


def chain_keys(chain):
    return [key(chain, i) for i in range(PAGES)]


class Engine:
    """Puts chains and gets them, checks every byte, and knows no errors but misses, NOROOM and puts that a RESET overtook."""

    def __init__(self, ctl):
        self.c, self.plan = Client(ctl), 0
        self.seen = {"puts": 0, "noroom": 0, "hits": 0, "misses": 0, "short": 0, "stale": 0, "slowest_put": 0.0}
        self.c.acknowledge()

    def next(self):
        self.plan += 1
        return self.plan

    def put(self, chain):
        try:
            self.try_put(chain)
        except Refused as e:
            if e.errno != errno.ESTALE or "was reset" not in e.text:
                raise
            self.seen["stale"] += 1

    def try_put(self, chain):
        plan, keys, began = self.next(), chain_keys(chain), time.monotonic()
        self.c.put_start(plan, [(None, TOKENS * PAGES, keys)])
        self.seen["slowest_put"] = max(self.seen["slowest_put"], time.monotonic() - began)
        if self.c.put_status != [OK]:
            assert self.c.put_status == [NOROOM], self.c.put_status
            self.seen["noroom"] += 1
            return
        for k, offset in zip(keys, self.c.put_answers):
            if offset < NONE64 - 15:
                self.c.segment[offset:offset + BYTES] = value_of(k, BYTES)
        self.c.put_end("PUT_COMMIT", plan)
        assert self.c.put_status == [COMMITTED], self.c.put_status
        self.seen["puts"] += 1

    def transfer(self, handle, plan, boundary):
        """What is read from the disk may land in a range that is new since the look-up."""
        while True:
            try:
                return self.c.get_transfer(handle, plan, boundary, deadline_ms=60000)
            except Refused as e:
                if e.errno != errno.ENXIO:
                    raise
                self.c.acknowledge()

    def get(self, chain):
        handle, plan, keys = self.next(), self.next(), chain_keys(chain)
        self.c.acknowledge()
        boundary = self.c.get_start(handle, keys).transferable_len
        if not boundary:
            self.seen["misses"] += 1
            return False
        r = self.transfer(handle, plan, boundary)
        for k, offset in zip(keys, self.c.offsets):
            there = bytes(self.c.segment[offset:offset + BYTES])
            assert there == value_of(k, BYTES), f"chain {chain}: other bytes under {k.hex()}: {there[:64].hex()}"
        if r.values:
            self.c.release([plan])
        if not r.handle_ended:
            self.c.call("GET_CANCEL", handle=handle)
        self.seen["hits" if r.delivered_len == TOKENS * PAGES else "short"] += 1
        return True


def load(peer, ctl, chains, seed, deaths=False):
    """For a Peer: random chains until it is told to stop, then what it saw. @deaths: the daemon may die, and is waited for."""
    dice, engine, seen = random.Random(seed), None, {}
    while not select.select([peer.ear], [], [], 0)[0]:
        try:
            if engine is None:
                engine = Engine(ctl)
            chain = int(chains * dice.random() ** 3)  # some again and again, and ever new ones
            if dice.random() < 0.2 or not engine.get(chain):
                engine.put(chain)
        except OSError as e:
            if not deaths or e.errno not in GONE:
                raise
            seen = add(seen, engine)
            engine = None
            time.sleep(0.02)
    peer.tell(add(seen, engine))


def add(seen, engine):
    if engine is None:
        return seen
    engine.c.close()
    return {name: max(seen.get(name, 0), n) if name == "slowest_put" else seen.get(name, 0) + n for name, n in engine.seen.items()}


def stopped(peers):
    """Ends the load; what all saw together."""
    for p in peers:
        p.say("stop")
    seen = [p.hear(90) for p in peers]
    for p in peers:
        assert p.wait() == 0
    return {name: max(s.get(name, 0) for s in seen) if name == "slowest_put" else sum(s.get(name, 0) for s in seen)
            for name in ("puts", "noroom", "hits", "misses", "short", "stale", "slowest_put")}


def files(folder, ending=".rec"):
    return sorted(os.path.join(where, n) for where, _, names in os.walk(folder) for n in names if n.endswith(ending))


def check_records(d, ns="x", may_fail=()):
    """Reads every record through the mount: the right bytes, or an error of @may_fail. How many could be read."""
    good = 0
    for name in os.listdir(d.path("ns", ns, "records")):
        consumed, endpoint = int(name.split("-")[0], 16), bytes.fromhex(name.split("-")[1])
        chain, last = struct.unpack_from("<QQ", endpoint)
        assert endpoint == key(chain, last) and consumed == TOKENS * (last + 1), name
        try:
            with open(d.path("ns", ns, "records", name, "pages"), "rb") as f:
                there = f.read()
        except OSError as e:
            gone = e.errno == errno.ENOENT and not os.path.exists(d.path("ns", ns, "records", name))  # for the limit's sake
            if e.errno not in may_fail and not gone:
                raise
            continue
        n = len(there) // BYTES
        assert there == b"".join(value_of(key(chain, i), BYTES) for i in range(last + 1 - n, last + 1)), name
        good += 1
    return good
