# SPDX-License-Identifier: Apache-2.0
"""The serving process dies, or is stopped, at each named point of what is done in memory and of adoption (`crash_at`, docs/hacking.md, "Tests"):
what was committed is there with its bytes, what was not says so, and no slot that an engine may touch is given to another one."""
import contextlib
import errno
import itertools
import json
import os
import re
import signal
import struct
import subprocess

import pytest

import engine
from engine import LAYOUT, LOST, PAGES, SIZES, Engine
from mounted import alive, mounts_at, stopped, wait_for
from peers import transient, value_of
from raw import COMMITTED, OK, Client, errno_of, key
from test_memory import cgroup

MEMORY = "--memory=16M"
CHAIN = 64    # pages of what fills memory
FILLS = 32    # chains: half as much again as memory has, so it goes round


@pytest.fixture
def survives(daemon):
    def make(*options):
        d = daemon("--deaths=1000", MEMORY, "--hugepages=never", *options)
        if "after a death: the mount stays" not in d.read("health"):
            pytest.skip("this kernel does not send requests again: Linux 6.9 does")
        return d
    return make


# ---- what fills memory -------------------------------------------------------------------------------------------------


class Filler(Client):
    numbers = itertools.count(1000)

    def __init__(self, d):
        super().__init__(d.path("ns/x/ctl"))
        self.acknowledge()
        self.d, self.number, self.chains, self.plan = d, next(self.numbers), 0, 0

    def keys(self, chain):
        return [key(self.number, chain, i) for i in range(CHAIN)]

    def put_chain(self):
        keys = self.keys(self.chains + 1)
        self.acknowledge()
        self.plan += 1
        self.put_start(self.plan, [(None, 64 * CHAIN, keys)], class_mask=3, answers=2 * CHAIN)
        if self.put_status != [OK]:
            return False
        for i, offset in enumerate(self.put_answers):
            size = SIZES[i >= CHAIN]
            self.segment[offset:offset + size] = value_of(keys[i % CHAIN], size)
        self.put_end("PUT_COMMIT", self.plan)
        assert self.put_status == [COMMITTED]
        self.chains += 1
        return True

    def fill(self):
        for _ in range(FILLS):
            wait_for(self.put_chain, 10 * self.d.slower, "room")

    def check(self):
        """What is there has its bytes; at least a third of memory is."""
        pages = 0
        for chain in range(1, self.chains + 1):
            keys, handle = self.keys(chain), 1000 + chain
            found = self.get_start(handle, keys, class_mask=3)
            n = found.transferable_len // 64
            if n:
                delivered = self.get_transfer(handle, handle, 64 * n, class_mask=3, deadline_ms=60000).delivered_len // 64
                for i, offset in enumerate(struct.unpack_from(f"<{2 * n}Q", self.buffer, 4 << 20)):
                    size = SIZES[i >= n]
                    if i % n < delivered:  # memory may be too small for all of it
                        assert self.segment[offset:offset + size] == value_of(keys[i % n], size), (chain, i, offset)
                if delivered:
                    self.release([handle])
                n = delivered
            elif found.handle_live:
                self.call("GET_CANCEL", handle=handle)
            pages += n
        assert pages * sum(SIZES) > 16 << 20 >> 2, pages


# ---- engines -----------------------------------------------------------------------------------------------------------


def tell(engines, what, slower):
    """What each of them has then: chains, slots of before that it may write to, values of before that it reads, its sessions."""
    have = []
    for e in engines:
        e.say(what)
    for e in engines:
        heard = e.hear(30 * slower)
        while heard == "loaded":
            heard = e.hear(30 * slower)
        assert heard[0] == what
        have.append(heard[1:])
    return have


def take_stock(d, engines, rules):
    """After the deaths that there are to be."""
    wait_for(lambda: died(d, rules), 30 * d.slower, "the deaths")
    return tell(engines, "take_stock", d.slower)


def nobody_else_has_them(d, engines):
    """While what memory has goes round, engines write to slots of before and read others of before."""
    tell(engines, "scribble", d.slower)
    with Filler(d) as filler:
        filler.fill()
        tell(engines, "scribble", d.slower)
        filler.check()


def kept(d):
    stats = d.stats()
    return int(stats["remnants"]), int(stats["remnant_slots"])


def kept_for(d, sessions):
    return any(f"kept for session {n} of before" in d.read("health") for n in sessions)


def all_is_over(d, engines):
    """One engine settles, the others end: nothing is held any more."""
    tell(engines[:1], "settle", d.slower)
    for e in engines[1:]:
        e.end()
    wait_for(lambda: kept(d) == (0, 0), 20 * d.slower, "the end of what is kept")
    engines[0].end()
    wait_for(lambda: transient(d.stats()) == {} and d.stats()["slots_owed"] == "0", 20 * d.slower, "the end of all")
    with Filler(d) as filler:  # all slots are to be had
        filler.fill()
        filler.check()
    assert "is made again" not in d.log() and "mounted anew" not in d.log()
    assert d.stop()[0] == 0


def words_of(rules):
    return [f"killed at {rule.split(':')[0]}" for rule in rules.split(",") if rule]


def died(d, rules):
    return re.findall(r"^killed at .*$", d.log(), re.M) == words_of(rules)


def begin(survives, peer, rules, *options, count=2, most=5):
    d = survives(f"--crash-at={rules}", *options)
    d.namespace(layout=LAYOUT)
    return d, [peer(engine.engine, d.path("ns/x/ctl"), 1 + n, most) for n in range(count)]


def loaded(engines, slower):
    for e in engines:
        assert e.hear(60 * slower) == "loaded"


def end_unserved(engines, serving, slower):
    """Between two requests, and with nobody serving: one that waits for an answer would only end with that."""
    for e in engines:
        e.kill(signal.SIGSTOP)
    for e in engines:
        wait_for(lambda e=e: stopped(e.pid), 20 * slower, "the stop")
    os.kill(serving, signal.SIGSTOP)
    for e in engines:
        e.end()


# ---- deaths ------------------------------------------------------------------------------------------------------------


AMID = ["put_group:9", "put_word:60", "put_entry:61", "put_sealed:62", "put_answer:7", "commit_begin:6", "commit_word:9", "commit_word:10",
        "commit_value:33", "commit_settled:5", "commit_answer:4", "abort_begin:5", "abort_word:6", "abort_value:27", "abort_answer:4",
        "get_word:3", "get_offsets:5", "get_offsets:6", "release_word:3", "attach_kept:2"]
AMID_TWICE = ["put_word:60,put_sealed:62", "commit_word:9,commit_value:33", "get_offsets:5,abort_value:27", "attach_kept:1,attach_kept:2"]


@pytest.mark.parametrize("rules", AMID + AMID_TWICE)
def test_killed_amid_a_load(survives, peer, slower, rules):
    d, engines = begin(survives, peer, rules)
    take_stock(d, engines, rules)
    nobody_else_has_them(d, engines)
    all_is_over(d, engines)


@pytest.mark.parametrize("rules", ["put_sealed:62", "commit_value:33", "get_word:5", "get_offsets:5", "release_word:33", ",adopt_disk",
                                   ",adopt_disk,adopt_seats", "release_word:33,adopt_disk,resent"])
def test_killed_with_a_disk(survives, peer, slower, folder, rules):
    d, engines = begin(survives, peer, rules, "--disk", folder, "--disk-bytes=256M")
    if rules[0] == ",":
        loaded(engines, slower)
        os.kill(d.serving(), signal.SIGKILL)
    take_stock(d, engines, rules)
    nobody_else_has_them(d, engines)
    all_is_over(d, engines)


ADOPTING = [f",adopt_{step}" for step in ("header", "grants", "index", "slots", "seats", "outcomes", "disk", "budget", "all")] + [
    ",resent", ",adopt_index,adopt_index", ",adopt_seats,adopt_grants", ",adopt_budget,adopt_outcomes", ",adopt_slots,resent,adopt_all"]
TORN = ["put_sealed:62,adopt_slots", "commit_word:9,adopt_index", "commit_value:33,adopt_seats,adopt_index", "abort_value:27,adopt_outcomes",
        "get_offsets:5,adopt_grants,resent"]


@pytest.mark.parametrize("rules", ADOPTING + TORN)
def test_killed_while_it_adopts(survives, peer, slower, rules):
    d, engines = begin(survives, peer, rules)
    if rules[0] == ",":
        loaded(engines, slower)
        os.kill(d.serving(), signal.SIGKILL)
    stock = take_stock(d, engines, rules)
    assert all(all(have) for have in stock) or rules[0] != ","
    nobody_else_has_them(d, engines)
    all_is_over(d, engines)


@pytest.mark.parametrize("rules", [",settle_leaving", ",settle_slot:3", ",settle_free", ",settle_slot:3,settle_slot:3", ",settle_leaving,adopt_seats"])
@pytest.mark.parametrize("who", ["client", "process"])
def test_killed_while_it_settles(survives, peer, slower, rules, who):
    """What a client asks for, or what a process left that ended while nobody served."""
    d, engines = begin(survives, peer, rules, count=3)
    loaded(engines, slower)
    serving = d.serving()
    if who == "process":
        end_unserved(engines[2:], serving, slower)
    os.kill(serving, signal.SIGKILL)
    if who == "client":
        assert kept_for(d, tell(engines[2:], "take_stock", slower)[0][3])
        sessions = tell(engines[2:], "settle", slower)[0][3]
        engines[2].end()
    others = [s for have in take_stock(d, engines[:2], rules) for s in have[3]]
    if who == "client":
        wait_for(lambda: not kept_for(d, sessions), 20 * slower, "the end of what was settled")
    else:
        wait_for(lambda: kept(d)[0] == 2, 20 * slower, "the end of what was settled")
    assert kept_for(d, others)
    nobody_else_has_them(d, engines[:2])
    all_is_over(d, engines[:2])


# ---- namespaces --------------------------------------------------------------------------------------------------------


def make(d, name):
    """As `prefixfs ns create` does it: a pending namespace is lost with its process."""
    def made():
        if not os.path.isdir(d.path("ns", name)):
            os.mkdir(d.path("ns", name))
        try:
            with open(d.path("ns", name, "layout"), "w", encoding="utf-8") as f:
                f.write(json.dumps(LAYOUT))
        except OSError as e:
            assert e.errno == errno.ESTALE, e
            return False
        return True
    wait_for(made, 20 * d.slower, "the namespace")


def put_and_get(d, name, number):
    e = Engine(d.path("ns", name, "ctl"), number)
    e.attach()
    for _ in range(3):
        e.round()
    return e


def look_again(d, e):
    os.kill(d.serving(), signal.SIGKILL)
    e.through(e.take_stock)
    e.settle()


@pytest.mark.parametrize("rules", ["space_made", "space_segment", "space_tables", "space_made,space_segment,space_tables"])
def test_killed_while_a_namespace_is_made(survives, rules):
    d = survives(f"--crash-at={rules}")
    make(d, "x")
    wait_for(lambda: died(d, rules), 20 * d.slower, "the deaths")
    with contextlib.closing(put_and_get(d, "x", 1)) as e:
        look_again(d, e)
        assert os.listdir(d.path("ns")) == ["x"]
    wait_for(lambda: transient(d.stats()) == {}, 20 * d.slower, "the end of the sessions")
    os.rmdir(d.path("ns/x"))


@pytest.mark.parametrize("rules", ["space_made", "space_segment,space_made"])
def test_the_command_makes_a_namespace_through_deaths(survives, program, rules):
    d = survives(f"--crash-at={rules}")
    r = subprocess.run([program("prefixfs"), "ns", "create", "x", "--mount", d.mount, "--layout", "/dev/stdin"], input=json.dumps(LAYOUT),
                       capture_output=True, text=True, timeout=60 * d.slower, check=False)
    assert (r.returncode, r.stderr) == (0, "")
    assert died(d, rules) and os.path.exists(d.path("ns/x/ctl"))


@pytest.mark.parametrize("rules", ["rmdir_gone", "rmdir_forgotten", "rmdir_dropped", "rmdir_gone,rmdir_forgotten,rmdir_dropped"])
def test_killed_while_a_namespace_goes(survives, rules):
    """One of the same name is another one, and it is the one that is adopted."""
    d = survives(f"--crash-at={rules}")
    make(d, "x")
    make(d, "y")
    with contextlib.closing(put_and_get(d, "y", 1)) as other:
        with contextlib.closing(put_and_get(d, "x", 2)):
            pass
        wait_for(lambda: d.stats("x")["sessions"] == "0", 20 * d.slower, "the end of the session")
        for _ in rules.split(","):
            if os.path.isdir(d.path("ns/x")):  # or it was removed by the one before
                os.rmdir(d.path("ns/x"))
            assert not os.path.isdir(d.path("ns/x"))
            if not died(d, rules):
                make(d, "x")
        assert died(d, rules), d.log()
        make(d, "x")
        with contextlib.closing(put_and_get(d, "x", 3)) as e:
            assert e.c.probe(Engine("", 2).keys(1)).prefix == 0
            look_again(d, e)
            other.take_stock()


@pytest.mark.parametrize("rules", ["reset_begin", "reset_noted", "reset_tables", "reset_tables,adopt_index", "reset_begin,reset_tables"])
def test_killed_in_a_reset(survives, rules):
    """All of it is there or nothing, and what a reader has it keeps."""
    d = survives(f"--crash-at={rules}")
    make(d, "x")
    with contextlib.closing(put_and_get(d, "x", 1)) as e:
        reads = e.reads
        assert reads
        for n, rule in enumerate(r for r in rules.split(",") if r.startswith("reset")):
            assert errno_of(e.c.reset) in LOST
            e.attach()
            there = [e.c.probe(e.keys(chain)).prefix for chain in sorted(e.there)]
            assert there == [0 if rule == "reset_tables" else PAGES] * len(e.there), (n, rule, there)
        wait_for(lambda: died(d, rules), 20 * d.slower, "the deaths")
        e.check_bytes(reads)
        with Filler(d) as filler:
            filler.fill()
            e.check_bytes(reads)
            filler.check()
        e.settle()
        e.c.reset()
        wait_for(lambda: d.stats()["records"] == "0", 20 * d.slower, "the end of all records")
    wait_for(lambda: transient(d.stats()) == {}, 20 * d.slower, "the end of the sessions")


# ---- the connection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", ["init_kept", "init_written", "init_kept,init_written"])
def test_killed_before_the_connection_is_known(daemon, rules):
    """Nobody used that mount yet: it is made anew."""
    d = daemon("--deaths=1000", MEMORY, f"--crash-at={rules}", start=False)
    d.start(wait=False)
    wait_for(lambda: died(d, rules), 20 * d.slower, "the deaths")
    d.wait_ready(times=1)
    wait_for(lambda: d.read("health").startswith("ok"), 20 * d.slower, "the mount")
    make(d, "x")
    with contextlib.closing(put_and_get(d, "x", 1)) as e:
        look_again(d, e)
    assert len(mounts_at(d.mount)) == 1


# ---- one that is stopped -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", ["put_sealed:62", "commit_word:9", ",adopt_seats"])
def test_stopped_and_replaced(survives, peer, slower, rules):
    d = survives(f"--stop-at={rules}", "--watchdog-s=1")
    d.namespace(layout=LAYOUT)
    engines = [peer(engine.engine, d.path("ns/x/ctl"), 1 + n, 5) for n in range(2)]
    if rules[0] == ",":
        loaded(engines, slower)
        os.kill(d.serving(), signal.SIGKILL)
    wait_for(lambda: "for it was stopped; it is killed" in d.log(), 20 * slower, "the watchdog")
    assert re.findall(r"^stopped at .*$", d.log(), re.M) == [f"stopped at {r.split(':')[0]}" for r in rules.split(",") if r]
    tell(engines, "take_stock", slower)
    nobody_else_has_them(d, engines)
    all_is_over(d, engines)


def test_stopped_and_let_go_on(survives, peer, slower):
    """Nothing has happened to anybody."""
    d = survives("--stop-at=commit_word:9")
    d.namespace(layout=LAYOUT)
    engines = [peer(engine.engine, d.path("ns/x/ctl"), 1 + n, 5) for n in range(2)]
    wait_for(lambda: "stopped at commit_word" in d.log(), 20 * slower, "the stop")
    os.kill(d.serving(), signal.SIGCONT)
    loaded(engines, slower)
    for _, slots, reads, sessions in tell(engines, "take_stock", slower):
        assert slots == 0 and reads and len(sessions) == 1
    assert "restarts: 0" in d.read("health") and "died" not in d.log()


# ---- clients that end, that fork, that stay away -----------------------------------------------------------------------


def parent_of_two(peer, ctl):
    """Plans of before, and a child with the same client id, which has the old ctl open."""
    e = Engine(ctl, 1)
    e.attach()
    for _ in range(5):
        e.round()
    peer.tell(len(e.plans))
    peer.listen()
    e.take_stock()
    pid = os.fork()
    if pid == 0:
        child = Engine(ctl, 1)
        child.attach()
        refused = errno_of(child.c.call, "SETTLE", session=e.sessions[0]) == errno.EACCES
        child.plans, child.sessions = dict(e.plans), e.sessions + child.sessions
        child.there = e.there
        child.look()  # what became of the plans it may know, and all that is committed is its too
        os._exit(0 if refused else 1)
    peer.tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    while what := peer.listen():
        getattr(e, what)()
        peer.tell([what, 0, 0, 0, 0])


def test_a_child_does_not_settle_what_its_parent_had(survives, peer, slower):
    d = survives()
    make(d, "x")
    p = peer(parent_of_two, d.path("ns/x/ctl"))
    assert p.hear(30 * slower) == 2
    os.kill(d.serving(), signal.SIGKILL)
    p.say("dead")
    assert p.hear(30 * slower) == 0
    assert kept(d)[1] >= 2 * 2 * PAGES
    nobody_else_has_them(d, [p])
    all_is_over(d, [p])


def one_that_execs(peer, ctl):
    e = Engine(ctl, 1)
    e.attach()
    for _ in range(5):
        e.round()
    peer.tell([len(e.plans), e.sessions[0]])
    peer.listen()
    os.execv("/bin/sleep", ["sleep", "1000"])


def test_exec_ends_get_plans_and_no_put_plans(survives, peer, slower):
    """What another program of the process's may still be writing waits for its end."""
    d = survives()
    make(d, "x")
    p = peer(one_that_execs, d.path("ns/x/ctl"))
    plans, session = p.hear(30 * slower)
    os.kill(d.serving(), signal.SIGKILL)
    wait_for(lambda: kept(d) == (1, 2 * PAGES * plans + 2 * PAGES), 20 * slower, "adoption")
    p.say("exec")
    wait_for(lambda: kept(d) == (1, 2 * PAGES * plans), 20 * slower, "the end of the get plan")
    assert kept_for(d, [session])
    p.end()
    wait_for(lambda: kept(d) == (0, 0) and transient(d.stats()) == {}, 20 * slower, "the end of the put plans")


def one_that_stays_away(peer, ctl):
    """It works on the memory that it has, and asks nobody."""
    e = Engine(ctl, 1)
    e.attach()
    for _ in range(5):
        e.round()
    e.slots = [s for _, slots, _, _ in e.plans.values() for s in slots]
    peer.tell(len(e.slots))
    while peer.listen():
        e.scribble()
        peer.tell(["scribble", 0, 0, 0, 0])


@pytest.mark.parametrize("stopped", [False, True])
def test_one_that_never_comes_back(survives, peer, slower, stopped):
    """Alive, its slots stay and all else moves, through more deaths too; then they are free with its end."""
    d = survives()
    make(d, "x")
    away = peer(one_that_stays_away, d.path("ns/x/ctl"))
    slots = away.hear(30 * slower)
    assert slots == 2 * 2 * PAGES
    for n in range(2):
        os.kill(d.serving(), signal.SIGKILL)
        wait_for(lambda n=n: f"restarts: {n + 1}" in d.read("health"), 20 * slower, "the next one")
        assert kept(d) == (1, slots + 2 * PAGES)
        if stopped:
            away.kill(signal.SIGSTOP)
            with Filler(d) as filler:
                filler.fill()
                filler.check()
            away.kill(signal.SIGCONT)
        nobody_else_has_them(d, [away])
        assert kept(d) == (1, slots + 2 * PAGES)
    away.kill()
    away.wait()
    wait_for(lambda: kept(d) == (0, 0) and transient(d.stats()) == {}, 20 * slower, "the end of what was kept")
    with Filler(d) as filler:
        filler.fill()
        filler.check()


def test_one_that_ends_while_nobody_serves(survives, peer, slower):
    d, engines = begin(survives, peer, "")
    loaded(engines, slower)
    serving = d.serving()
    end_unserved(engines, serving, slower)
    os.kill(serving, signal.SIGKILL)
    wait_for(lambda: d.serving() != serving, 20 * slower, "the next one")
    assert kept(d) == (0, 0) and d.stats()["slots_owed"] == "0"
    wait_for(lambda: transient(d.stats()) == {}, 20 * slower, "the end of all")
    with Filler(d) as filler:
        filler.fill()
        filler.check()


# ---- the parent --------------------------------------------------------------------------------------------------------


def test_the_parent_is_killed(survives, peer, slower):
    """Nothing of it is left; what asks has its answer at once, and another daemon is found."""
    d = survives()
    make(d, "x")
    engines = [Engine(d.path("ns/x/ctl"), 1 + n) for n in range(2)]
    with contextlib.ExitStack() as stack:
        for e in engines:
            e.attach()
            stack.callback(e.close)
            for _ in range(3):
                e.round()
        serving = d.serving()
        d.process.kill()
        d.process.wait()
        wait_for(lambda: not alive(serving), 5 * slower, "the end of the serving process")
        assert mounts_at(d.mount) == [] and errno_of(engines[0].c.probe, [key(1)]) in LOST
        for e in engines:
            e.check_bytes(e.reads)  # mapped, but nobody's
        d.start(wait=False)
        d.wait_ready(times=2)
        make(d, "x")
        with contextlib.closing(Engine(d.path("ns/x/ctl"), 3)) as other:
            other.attach()
            assert other.c.probe(engines[0].keys(1)).prefix == 0
            assert other.put() and other.get(1, PAGES)
    wait_for(lambda: transient(d.stats()) == {}, 20 * slower, "the end of the sessions")


# ---- no memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_full_while_it_adopts(survives, peer, slower):
    """A successor dies of it. What is in memory waits for more, in which it is found."""
    if os.environ.get("PREFIXFS_SANITIZER"):
        pytest.skip("a sanitizer's program does not fit so little memory, and is read from its file again and again")
    with cgroup(1 << 30) as (folder, limit):
        d = survives()
        make(d, "x")
        engines = [peer(engine.engine, d.path("ns/x/ctl"), 1 + n, 5) for n in range(2)]
        loaded(engines, slower)
        with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as f:
            f.write(str(d.process.pid))  # what it starts is there, too
        with open(limit, "w", encoding="ascii") as f:
            f.write(str(6 << 20))
        os.kill(d.serving(), signal.SIGKILL)
        wait_for(lambda: "killed by the kernel for want of memory" in d.log(), 30 * slower, "a death for want of memory")
        assert d.process.poll() is None
        with open(limit, "w", encoding="ascii") as f:
            f.write(str(1 << 30))
        have = tell(engines, "take_stock", slower)
        assert all(all(h) for h in have), have
        nobody_else_has_them(d, engines)
        all_is_over(d, engines)
