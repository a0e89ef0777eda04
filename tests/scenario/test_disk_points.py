# SPDX-License-Identifier: Apache-2.0
"""The serving process kills itself at a named point, amid puts, gets, drains, removals and resets (`disk_fault`, docs/disk.md, "Faults"): what
it had reported as done is so after a restart, every byte is right, nothing is left lying about, and the tier works again."""
import errno
import json
import os
import random
import re
import signal
import subprocess

import pytest

import disk
from mounted import PLAIN_LAYOUT, STATE_LAYOUT, wait_for
from peers import value_of
from raw import COMMITTED, GROUP_ROW_ONLY, NONE64, NOROOM, errno_of

ROUNDS = 40      # of the load, before it is said that nothing dies
FIRST = 1000     # number of the first chain that is not the other clients'
OTHERS = 120     # chains of theirs
ROW_PAGES = 4    # of a chain with a row
KEPT_PAGES = 8   # of one whose end was removed
SIZES = (8192, 4992)  # bytes that are written of a page's and of a row's value

SPACES = {"x": PLAIN_LAYOUT, "s": STATE_LAYOUT, "y": dict(PLAIN_LAYOUT, identity={"model": "test/removed"})}


class Model:
    """A load on three namespaces, one step after the other, and what has to be true after a death at any time: what a step may change
    is let go before it, what it has changed is kept after it."""

    def __init__(self, d, dice):
        self.d, self.dice = d, dice
        self.chain = FIRST
        self.there = set()   # namespaces
        self.gone = set()
        self.drained = {name: {} for name in SPACES}  # chain -> pages; of s: whether with its row
        self.put = {name: {} for name in SPACES}      # the same, of what is not drained
        self.hidden = []     # chains of x that a reset hid
        self.engines = {}

    # ---- namespaces

    def make(self, name):
        self.gone.discard(name)
        self.d.namespace(name, layout=SPACES[name])
        self.there.add(name)

    def remove(self, name):
        self.close(name)
        self.there.discard(name)
        self.drained[name], self.put[name] = {}, {}

        def refused():
            error = errno_of(os.rmdir, self.d.path("ns", name))
            if error not in (0, errno.EBUSY):  # our session ends a little after its descriptor
                raise OSError(error, "rmdir")
            return error
        wait_for(lambda: not refused(), 20 * self.d.slower, "the removal")
        self.gone.add(name)

    def engine(self, name):
        if name not in self.engines:
            self.engines[name] = disk.Engine(self.d.path("ns", name, "ctl"))
        return self.engines[name]

    def close(self, *names):
        for name in names or list(self.engines):
            if name in self.engines:
                self.engines.pop(name).c.close()

    # ---- steps

    def put_chain(self, name):
        """False: there is no room now."""
        e = self.engine(name)
        self.chain += 1
        before = e.seen["puts"]
        e.c.acknowledge()
        e.put(self.chain)
        if e.seen["puts"] > before:
            self.put[name][self.chain] = disk.PAGES
        return self.chain in self.put[name]

    def put_when_room(self, name):
        wait_for(lambda: self.put_chain(name), 20 * self.d.slower, "room for a chain")

    def put_pages(self):
        self.chain += 1
        keys = disk.chain_keys(self.chain)[:ROW_PAGES]
        if self.put_group((None, disk.TOKENS * ROW_PAGES, keys), 1):
            self.put["s"][self.chain] = False

    def put_row(self, chain):
        """On its pages, whose file has to be written anew."""
        keys = disk.chain_keys(chain)[:ROW_PAGES]
        group = (keys[-2], disk.TOKENS * ROW_PAGES, keys[-1:], {"flags": GROUP_ROW_ONLY, "class_mask": 2})
        if self.put_group(group, 2):
            self.put["s"][chain] = True

    def put_group(self, group, mask):
        e = self.engine("s")
        e.c.acknowledge()
        plan = e.next()
        e.c.put_start(plan, [group], class_mask=mask)
        if e.c.put_status == [NOROOM]:
            return False
        for k, offset in zip(group[2], e.c.put_answers):
            if offset < NONE64 - 15:
                size = SIZES[mask - 1]
                e.c.segment[offset:offset + size] = value_of(k, size)
        e.c.put_end("PUT_COMMIT", plan)
        assert e.c.put_status == [COMMITTED], e.c.put_status
        return True

    def drain(self, name):
        assert self.engine(name).c.call("DRAIN").disk == 1
        self.drained[name].update(self.put[name])
        self.put[name] = {}

    def cut(self, name):
        """The end of one that is on disk: its file is renamed and cut."""
        chain = self.dice.choice(list(self.drained[name]))
        self.drained[name][chain] = KEPT_PAGES
        self.engine(name).c.remove(disk.chain_keys(chain)[KEPT_PAGES:])

    def drop(self, name):
        chain = self.dice.choice(list(self.drained[name]))
        del self.drained[name][chain]
        self.engine(name).c.remove(disk.chain_keys(chain))

    def get(self, name):
        self.engine(name).get(self.dice.choice(list(self.drained[name])))

    def reset(self, name):
        old = list(self.drained[name]) + list(self.put[name])
        self.drained[name], self.put[name] = {}, {}
        self.engine(name).c.reset()
        self.hidden += old

    def round(self, n):
        for _ in range(10):
            self.put_when_room("x")
        for chain in [c for c, row in self.drained["s"].items() if not row][:2]:
            self.put_row(chain)
        self.put_pages()
        self.drain("x")
        self.drain("s")
        for _ in range(3):
            self.get("x")
            self.cut("x")
        self.drop("x")
        if n % 3 == 1:
            self.make("y")
            self.put_chain("y")  # if x, which has sessions, has left it memory
            self.drain("y")
        if n % 3 == 2:
            self.put_chain("y")
            self.remove("y")
        if n % 4 == 3:
            self.put_chain("x")
            self.reset("x")

    # ---- afterwards

    def check(self):
        """After a restart: all that is to be there is, with its bytes, and nothing that is not to."""
        self.close()
        names = set(os.listdir(self.d.path("ns")))
        assert self.there <= names and not self.gone & names, (self.there, self.gone, names)
        for name in sorted(self.there - {"s"}):
            e = self.engine(name)
            for chain in list(self.drained[name]) + list(self.put[name]):
                e.get(chain)
                there = e.c.probe(disk.chain_keys(chain)).prefix
                assert there >= self.drained[name].get(chain, 0), (name, chain, there, self.drained[name])
        for chain in self.hidden:
            assert self.engine("x").c.probe(disk.chain_keys(chain)).hits == 0, chain
        for chain in [c for c, row in self.drained["s"].items() if row]:  # without one a restart lets pages go
            self.check_row(chain)
        self.close()

    def check_row(self, chain):
        c, keys = self.engine("s").c, disk.chain_keys(chain)[:ROW_PAGES]
        handle, plan = self.engine("s").next(), self.engine("s").next()
        c.acknowledge()
        boundary = c.get_start(handle, keys, class_mask=3).transferable_len
        assert boundary == disk.TOKENS * ROW_PAGES, (chain, boundary)
        r = c.get_transfer(handle, plan, boundary, deadline_ms=60000)
        assert r.delivered_len == boundary and r.values == ROW_PAGES + 1, (chain, r.delivered_len, r.values)
        for i, offset in enumerate(c.offsets):
            size, k = SIZES[i == ROW_PAGES], keys[min(i, ROW_PAGES - 1)]
            assert bytes(c.segment[offset:offset + size]) == value_of(k, size), (chain, i)
        c.release([plan])


# ---- a daemon that dies, and one after it ------------------------------------------------------------------------------


def begun(daemon, folder, *options):
    """One that is not started again when its serving process has died."""
    return daemon("--disk", folder, "--disk-bytes", "1G", "--memory", "24M", "--deaths=1", *options)


def drive(model, rounds):
    """Until something dies, or so many rounds are over."""
    try:
        for name in "xs":
            model.make(name)
        for n in range(rounds):
            model.round(n)
    except OSError as e:
        if e.errno not in disk.GONE:
            raise


def died(d, *words):
    """The end of the daemon, which must have been that of the point and no other; words: all deaths so far."""
    d.give_up(20)
    assert re.findall(r"^killed .*$", d.log(), re.M) == list(words), d.log()[-2000:]


def start_anew(d, *options, starts):
    d.options = [o for o in d.options if not o.startswith("--disk-fault=")] + list(options)
    d.start(wait=False)
    if starts:
        d.wait_ready(starts)


def fsck(program, folder):
    r = subprocess.run([program("prefixfs"), "fsck", folder, "--values", "--json"], capture_output=True, text=True, check=False)
    return r, json.loads(r.stdout.splitlines()[-1])


def check_folder(program, folder):
    """As a death has left it: what is there is good, if not all of it is where it belongs."""
    r, found = fsck(program, folder)
    bad = {name: found[name] for name in ("bad_headers", "bad_keys", "bad_values", "wrong_names", "broken_groups", "unreadable", "foreign")}
    assert not any(bad.values()), (bad, r.stdout)


def check_end(d, program, folder, clients):
    """The tier works again; then nobody wants anything any more, and all is as if nothing had died."""
    model = Model(d, random.Random(0))
    model.chain = 10 * FIRST
    model.there = set(os.listdir(d.path("ns")))
    for name in set(SPACES) - model.there:
        model.make(name)
    for _ in range(5):
        model.put_when_room("x")
    model.drain("x")
    model.close()
    if clients:
        disk.stopped(clients)
    for _ in range(5):
        model.put_when_room("y")  # nobody is in x any more
    model.drain("y")
    model.check()
    for name in SPACES:
        model.drain(name)
        assert d.stats(name)["loads_failed"] == "0", d.stats(name)
    model.close()
    records = {name: set(os.listdir(d.path("ns", name, "records"))) for name in SPACES}
    assert disk.check_records(d) == len(records["x"]) and disk.check_records(d, "y") == len(records["y"])
    names = sorted(n for there in records.values() for n in there)
    wait_for(lambda: sorted(os.path.basename(f)[:-4] for f in disk.files(folder)) == names and
             not disk.files(folder, ".tmp") and not [n for n in os.listdir(folder) if n.endswith(".gone")],
             10 * d.slower, "the end of what is not wanted any more")
    for name in SPACES:
        assert int(d.stats(name)["disk_files"]) == len(records[name])
    assert sum(int(d.stats(n)["disk_bytes"]) for n in SPACES) == sum(os.stat(f).st_size for f in disk.files(folder))
    assert d.stop(seconds=30)[0] == 0
    r, found = fsck(program, folder)
    assert r.returncode == 0 and found["files"] == len(names) and found["left_over"] == 0, r.stdout


AMID = [f"{op}:{how}:{n}" for op, n in [("create", 25), ("allocate", 25), ("write", 40), ("rename", 60), ("truncate", 7), ("unlink", 6)]
        for how in ("kill", "kill_after")] + [
    "open:kill:60", "read:kill:10", "sync:kill_after:30", "sync_dir:kill:40", "sync_dir:kill_after:40",
    "catalogue_begin:kill:6", "catalogue_commit:kill:6", "catalogue_done:kill:6",
    "write_named:kill:30", "write_known:kill:30", "demote:kill:20",
    "json_written:kill:1", "json_written:kill:3", "json_written:kill:4",
    "reset_begin:kill", "reset_noted:kill", "reset_clear:kill:100", "unlink:kill:80",
    "remove_begin:kill", "remove_renamed:kill", "remove_aside:kill", "remove_emptied:kill"]
AT_START = [  # a death amid the load, and one in the start after it
    ("write:kill_after:40", "adopt:kill:10"), ("truncate:kill:7", "restart_rows:kill"), ("write_named:kill:30", "restart_files:kill"),
    ("rename:kill_after:60", "restart_settled:kill"), ("catalogue_commit:kill:6", "catalogue_begin:kill"),
    ("reset_noted:kill", "rename:kill_after:10"), ("reset_clear:kill:200", "unlink:kill_after:2"), ("remove_aside:kill", "unlink:kill:2"),
    ("remove_emptied:kill", "remove_emptied:kill")]
WHEN = {"kill": "before", "kill_after": "after"}


def words_of(fault):
    op, how = fault.split(":")[:2]
    seam = op in ("create", "open", "allocate", "truncate", "sync", "sync_dir", "rename", "unlink", "read", "write")
    return f"killed {WHEN[how] if seam else 'at'} {op}"


def durability_of(fault):
    return "--durability=" + ("data" if fault.startswith("sync") else "none")


@pytest.mark.parametrize("fault", AMID)
def test_killed_amid_a_load(daemon, peer, program, folder, seed, fault):
    d = begun(daemon, folder, f"--disk-fault={fault}", durability_of(fault))
    model = Model(d, random.Random(seed))
    client = peer(waiting_load, d.path("ns/x/ctl"), seed)
    drive(model, ROUNDS)
    died(d, words_of(fault))
    check_folder(program, folder)
    start_anew(d, starts=2)
    model.check()
    check_end(d, program, folder, [client])


def waiting_load(peer, ctl, seed):
    disk.load(peer, ctl, OTHERS, seed, deaths=True)


@pytest.mark.parametrize("first, second", AT_START)
def test_killed_at_the_next_start(daemon, program, folder, seed, first, second):
    """The start after that finds what two have left."""
    d = begun(daemon, folder, f"--disk-fault={first}")
    model = Model(d, random.Random(seed))
    drive(model, ROUNDS)
    died(d, words_of(first))
    start_anew(d, f"--disk-fault={second}", starts=0)
    died(d, words_of(first), words_of(second))
    check_folder(program, folder)
    start_anew(d, starts=1 + d.log().count("info: serving "))
    model.check()
    check_end(d, program, folder, [])


def test_killed_at_the_end(daemon, program, folder, seed):
    """All is written down, and the catalogue still says that it is open."""
    d = begun(daemon, folder, "--disk-fault=catalogue_close:kill", "--drain=full")
    model = Model(d, random.Random(seed))
    drive(model, 2)
    model.put_chain("x")
    for name in model.put:
        model.drained[name].update(model.put[name])
    d.process.send_signal(signal.SIGTERM)
    died(d, "killed at catalogue_close")
    check_folder(program, folder)
    start_anew(d, starts=2)
    model.check()
    check_end(d, program, folder, [])
