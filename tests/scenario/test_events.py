# SPDX-License-Identifier: Apache-2.0
"""The root file `events`: what is told, in which order, to whom; and readers that wait, dawdle, leave or are too many."""
import errno
import json
import os
import select
import signal
import subprocess
import time

import pytest

from mounted import PLAIN_LAYOUT, STATE_LAYOUT, wait_for
from peers import value_of
from raw import NOROOM, OK, Client, errno_of, key, name_of

KEPT = 65536
SMALL = dict(PLAIN_LAYOUT, memory={"floor": 16 << 20})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


class Reader:
    """An open of the file, which never waits."""

    def __init__(self, d, flags=0):
        self.fd = os.open(d.path("events"), os.O_RDONLY | os.O_NONBLOCK | flags)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        os.close(self.fd)

    def lines(self, size=1 << 16):
        """What is there, every line parsed and every read whole."""
        found = []
        while True:
            try:
                text = os.read(self.fd, size)
            except BlockingIOError:
                return found
            assert text.endswith(b"\n") and len(text) <= size
            found += [json.loads(line) for line in text.splitlines()]

    def until(self, name, seconds=10, **fields):
        found = []

        def there():
            found.extend(self.lines())
            return any(e["event"] == name and all(e[f] == v for f, v in fields.items()) for e in found)
        wait_for(there, seconds, f"the event {name}")
        return found


def quiet_namespace(d, slower, name="x", **more):
    """One whose grants have all been told: nothing happens there by itself any more."""
    with Reader(d) as r:
        d.namespace(name, **more)
        found = []

        def granted():
            found.extend(r.lines())
            return sum(e["bytes"] for e in found if e["event"] == "grant" and e["ns"] == name) == 16 << 20
        wait_for(granted, 10 * slower, "the grants of the floor")


def put_singles(c, plan, first, count):
    """Records of one page each; their bytes do not matter."""
    c.put_start(plan, [(None, 64, [key(first + i)]) for i in range(count)])
    c.put_end("PUT_COMMIT", plan, groups=count)


def test_order_and_fields(daemon, slower):
    d = daemon()
    with Reader(d) as r:
        d.namespace()
        keys = [key(1, i) for i in range(5)]
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            c.put(1, None, 192, keys[:3], map(value_of, keys[:3]))
            c.put(2, keys[2], 320, keys[3:], map(value_of, keys[3:]))
        found = r.until("session_ended", 10 * slower)
        os.rmdir(d.path("ns/x/records", name_of(320, keys[4])))
        wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 10 * slower, "the removal")
        found += r.until("namespace_removed", 10 * slower)
    assert [e["seq"] for e in found] == list(range(1, len(found) + 1))
    assert all(a["time"] <= b["time"] for a, b in zip(found, found[1:]))
    assert abs(found[-1]["time"] - time.time()) < 60
    assert {e["ns"] for e in found} == {"x"}
    told = [e for e in found if e["event"] != "grant"]
    assert [e["event"] for e in told] == ["namespace_created", "session_attached", "stored", "stored",
                                          "session_ended", "evicted", "namespace_removed"]
    attached, first, second, ended, evicted = told[1:6]
    assert attached["pid"] == os.getpid() and attached["session"] == ended["session"]
    assert (first["record"], first["pages"], first["row"]) == (name_of(192, keys[2]), 3, 0)
    assert (second["record"], second["pages"]) == (name_of(320, keys[4]), 2)
    assert (evicted["record"], evicted["pages"], evicted["why"]) == (name_of(320, keys[4]), 2, "hand")
    grant, = {(e["event"], e["bytes"], e["class"], e["share"]) for e in found if e["event"] == "grant"}
    assert grant == ("grant", 2 << 20, 0, 0)


def test_eviction_tells_every_page_that_went(daemon):
    d = daemon("--memory", "16M")
    d.namespace(layout=SMALL)
    with Reader(d) as r, Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n in range(40):
            keys = [key(n + 1, i) for i in range(100)]
            c.put(n + 1, None, 6400, keys, [])
        found = r.lines()
        there = len(os.listdir(d.path("ns/x/records")))
        pages = int(d.stats()["pages"])
    by = {name: [e for e in found if e["event"] == name] for name in ("stored", "trimmed", "evicted")}
    assert len(by["stored"]) == 40 and by["trimmed"] and by["evicted"]
    assert {e["why"] for e in by["trimmed"] + by["evicted"]} == {"room"}
    assert len(by["stored"]) - len(by["evicted"]) == there
    assert 4000 - sum(e["pages"] for e in by["trimmed"] + by["evicted"]) == pages


def test_a_row_that_goes(daemon):
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(STATE_LAYOUT, memory={"floor": 16 << 20}))
    with Reader(d) as r, Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n in range(700):
            c.put_start(n + 1, [(None, 64, [key(n + 1)], {"class_mask": 3})], class_mask=3, answers=2)
            if c.put_status == [NOROOM]:  # memory has moved to the rows
                c.acknowledge()
            else:
                c.put_end("PUT_COMMIT", n + 1)
        found = r.lines()
    dropped = [e for e in found if e["event"] == "row_dropped"]
    assert dropped and {e["why"] for e in dropped} == {"room"}
    assert all(e["row"] == 1 for e in found if e["event"] == "stored")
    stored = {e["record"]: e["seq"] for e in found if e["event"] == "stored"}
    assert all(stored[e["record"]] < e["seq"] for e in dropped)


def test_a_row_that_comes_later(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Reader(d) as r, Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1)], [value_of(key(1))])
        c.put_start(2, [(None, 64, [key(1)], {"class_mask": 2, "flags": 4})], class_mask=2, answers=1)
        c.put_end("PUT_COMMIT", 2)
        stored = [(e["record"], e["pages"], e["row"]) for e in r.lines() if e["event"] == "stored"]
    assert stored == [(name_of(64, key(1)), 1, 0), (name_of(64, key(1)), 0, 1)]


def test_room_after_a_refusal(daemon, slower):
    d = daemon("--memory", "16M")
    d.namespace(layout=SMALL)
    with Reader(d) as r, Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for plan in range(1, 100):
            c.put_start(plan, [(None, 6400, [key(plan, i) for i in range(100)])])
            if c.put_status == [NOROOM]:
                break
        assert c.put_status == [NOROOM]
        assert not [e for e in r.lines() if e["event"] == "room"]
        c.put_end("PUT_ABORT", 1)
        r.until("room", 10 * slower)


def test_failed_reads_and_health(daemon, slower):
    d = daemon("--memory-fault", "read:EIO:1")
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 128, [key(1), key(2)], [value_of(key(1)), value_of(key(2))])
    with Reader(d, os.O_APPEND) as r:
        with open(d.path("ns/x/records", name_of(128, key(2)), "pages"), "rb") as f:
            assert errno_of(os.pread, f.fileno(), 10, 8192) == errno.EIO
        found = r.until("degraded", 10 * slower)
        corrupt = [e for e in found if e["event"] == "corrupt"]
        assert [(e["record"], e["page"]) for e in corrupt] == [(name_of(128, key(2)), 1)]
        assert found[-1]["text"] == "1 reads of namespace x failed"
        assert d.read("health").startswith("degraded: " + found[-1]["text"])
        wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 10 * slower, "the removal")
        found = r.until("recovered", 10 * slower)
        assert found[-1]["ns"] == "x"
    assert d.read("health").startswith("ok\n")


# ---- who sees what ------------------------------------------------------------------------------------------------------

def look_as(peer, path, uid, gid, groups):
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        text = b""
        try:
            while True:
                text += os.read(fd, 1 << 16)
        except BlockingIOError:
            peer.tell([[e["seq"], e.get("ns"), e["event"]] for e in map(json.loads, text.splitlines())])
        if not peer.listen():
            return


@needs_root
def test_each_user_gets_the_lines_of_namespaces_that_it_may_read(daemon, peer, slower):
    d = daemon()
    floor = {"memory": {"floor": 2 << 20}}
    for name, uid, gid, mode in (("mine", 4001, 1, 0o700), ("group", 1, 4100, 0o740), ("all", 1, 1, 0o704),
                                 ("root", 0, 0, 0o700)):
        d.namespace(name, dict(PLAIN_LAYOUT, **floor), mode=mode)
        os.chown(d.path("ns", name), uid, gid)
    everything = []
    with Reader(d) as r:
        wait_for(lambda: everything.extend(r.lines()) or sum(e["event"] == "grant" for e in everything) == 4,
                 10 * slower, "the grants of the floors")
    assert {e["ns"] for e in everything} == {"mine", "group", "all", "root"}
    seen = {}
    for who, groups in ((4001, []), (4002, [4100]), (4003, [])):
        p = peer(look_as, d.path("events"), who, who, groups)
        lines = p.hear()
        seen[who] = {ns for _, ns, _ in lines}
        assert [line[0] for line in lines] == [e["seq"] for e in everything if e["ns"] in seen[who]]
        if who == 4003:  # rights count when a line is read
            os.chmod(d.path("ns/root"), 0o704)
            os.chmod(d.path("ns/all"), 0o700)
            for name in ("root", "all"):
                os.rmdir(d.path("ns", name))
            p.say("again")
            assert [line[1:] for line in p.hear()] == [["root", "namespace_removed"]]
        p.end()
    assert seen == {4001: {"mine", "all"}, 4002: {"group", "all"}, 4003: {"all"}}


# ---- readers that dawdle ------------------------------------------------------------------------------------------------

def events_total(d):
    return int(next(line.split()[1] for line in d.read("metrics").splitlines()
                    if line.startswith("prefixfs_events_total ")))


def test_a_slow_reader_is_told_how_much_it_lost(daemon):
    d = daemon("--memory", "16M")
    with Reader(d) as slow:
        d.namespace(layout=SMALL)
        first = slow.lines()[-1]["seq"]
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            n = 0
            while events_total(d) < KEPT + 5000:
                put_singles(c, n + 1, n * 1000 + 1, 1000)
                n += 1
        total = events_total(d)
        gap, *rest = slow.lines()
        last = rest[-1]["seq"]
        assert total <= last <= events_total(d)
        assert (gap["event"], gap["seq"]) == ("gap", first + 1)
        assert rest[0]["seq"] == gap["seq"] + gap["lost"]
        assert [e["seq"] for e in rest] == list(range(last - len(rest) + 1, last + 1))
        assert "gap" not in {e["event"] for e in rest}
        if last == total:
            assert len(rest) == KEPT and gap["lost"] == total - KEPT - first
        with Reader(d) as late:  # begins with the oldest, which is no gap
            assert late.lines()[0]["seq"] >= total - KEPT + 1
    lost = next(line for line in d.read("metrics").splitlines() if line.startswith("prefixfs_events_lost_total "))
    assert int(lost.split()[1]) == gap["lost"]


def test_short_buffers_and_positions(daemon, slower):
    d = daemon()
    quiet_namespace(d, slower)
    with Reader(d) as r, Reader(d, os.O_APPEND) as end:
        assert errno_of(os.read, r.fd, 10) == errno.EINVAL
        line = os.read(r.fd, 100)
        assert json.loads(line)["seq"] == 1
        assert errno_of(os.read, end.fd, 4096) == errno.EAGAIN
        assert errno_of(os.lseek, r.fd, 0, os.SEEK_SET) == errno.ESPIPE
        assert errno_of(os.pread, r.fd, 100, 0) == errno.ESPIPE
        assert os.read(r.fd, 0) == b""
        before = r.lines()[-1]["seq"]
        with Client(d.path("ns/x/ctl")):
            assert [e["seq"] for e in end.lines()][0] == before + 1
    assert errno_of(os.open, d.path("events"), os.O_WRONLY) in (errno.EPERM, errno.EACCES)


def test_sixty_four_readers(daemon, slower):
    d = daemon()
    readers = [Reader(d) for _ in range(64)]
    assert errno_of(Reader, d) == errno.ENFILE
    os.close(readers.pop().fd)
    wait_for(lambda: readers.append(Reader(d)) is None if errno_of(os.stat, d.mount) == 0 else False, 5 * slower)
    d.namespace()
    for r in readers:
        assert r.lines()[0]["event"] == "namespace_created"
        os.close(r.fd)


# ---- readers that wait --------------------------------------------------------------------------------------------------

class Alarm(Exception):
    pass


def wait_at(peer, path, flags=os.O_APPEND):
    def ring(number, frame):
        raise Alarm

    signal.signal(signal.SIGUSR1, ring)
    fd = os.open(path, os.O_RDONLY | flags)
    peer.tell("open")
    try:
        while True:
            peer.tell(os.read(fd, 1 << 16).decode())
    except Alarm:
        peer.tell("interrupted")
    except OSError as e:
        peer.tell(errno.errorcode[e.errno])


def asleep(p):
    with open(f"/proc/{p.pid}/stat", encoding="ascii") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "S"


def waiting(d, peer, n, slower):
    """Readers that wait, asleep in read(2)."""
    made = [peer(wait_at, d.path("events")) for _ in range(n)]
    for p in made:
        assert p.hear() == "open"
    time.sleep(0.1 * slower)
    wait_for(lambda: all(asleep(p) for p in made), 5 * slower, "the wait")
    return made


@pytest.mark.concurrency
def test_waiting_readers_hold_nothing_up(daemon, peer, slower):
    d = daemon("--loop-threads", "1")
    quiet_namespace(d, slower)
    readers = waiting(d, peer, 8, slower)
    began = time.monotonic()
    assert d.read("health").startswith("ok")
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1)], [value_of(key(1))])
        assert time.monotonic() - began < 2 * slower
        for p in readers:
            lines = ""
            while "stored" not in lines:
                lines += p.hear()
            assert [json.loads(line)["event"] for line in lines.splitlines()] == ["session_attached", "stored"]


@pytest.mark.concurrency
def test_a_signal_interrupts(daemon, peer, slower):
    d = daemon()
    quiet_namespace(d, slower)
    for p in waiting(d, peer, 3, slower):
        began = time.monotonic()
        p.kill(signal.SIGUSR1)
        assert p.hear(10 * slower) == "interrupted"
        assert time.monotonic() - began < 1 * slower
        assert p.wait() == 0
    for p in waiting(d, peer, 3, slower):
        began = time.monotonic()
        p.kill()
        assert p.wait() == -signal.SIGKILL
        assert time.monotonic() - began < 1 * slower
    with Reader(d) as r:
        assert r.lines()


@pytest.mark.concurrency
@pytest.mark.parametrize("how", ["stop", "umount"])
def test_the_end_ends_readers(daemon, peer, slower, how):
    d = daemon()
    quiet_namespace(d, slower)
    readers = waiting(d, peer, 4, slower)
    began = time.monotonic()
    if how == "stop":
        d.process.send_signal(signal.SIGTERM)
    else:
        subprocess.run(["umount", "-l", d.mount], check=True)
    for p in readers:
        assert p.hear(10 * slower) in ("ENODEV", "ENOTCONN", "ECONNABORTED")
    assert time.monotonic() - began < 2 * slower
    d.process.wait(10 * slower)


@pytest.mark.concurrency
def test_poll(daemon, slower):
    d = daemon()
    quiet_namespace(d, slower)
    with Reader(d, os.O_APPEND) as r:
        poll = select.poll()
        poll.register(r.fd, select.POLLIN)
        assert poll.poll(100) == []
        child = os.fork()
        if not child:
            time.sleep(0.3)
            try:
                os.mkdir(d.path("ns/pending"))  # no event
                with Client(d.path("ns/x/ctl")):
                    pass
            finally:
                os._exit(0)
        began = time.monotonic()
        assert poll.poll(10000 * slower) == [(r.fd, select.POLLIN)]
        assert 0.2 < time.monotonic() - began < 5 * slower
        os.waitpid(child, 0)
        assert r.until("session_ended", 10 * slower)[0]["event"] == "session_attached"
        assert poll.poll(50) == []


@needs_root
def test_poll_passes_over_what_is_not_seen(daemon, peer, slower):
    d = daemon()
    quiet_namespace(d, slower, mode=0o700)

    def body(p):
        os.setgroups([])
        os.setgid(4001)
        os.setuid(4001)
        fd = os.open(d.path("events"), os.O_RDONLY | os.O_NONBLOCK)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        p.tell(len(poll.poll(500)))
        p.tell(len(poll.poll(10000 * slower)))
        p.tell(os.read(fd, 4096).decode())

    p = peer(body)
    with Client(d.path("ns/x/ctl")):
        assert p.hear() == 0
    d.namespace("y", mode=0o755)
    assert p.hear() == 1
    assert json.loads(p.hear().splitlines()[0])["ns"] == "y"


def counting(peer, path):
    fd = os.open(path, os.O_RDONLY | os.O_APPEND)
    peer.tell("open")
    reads = lines = 0
    while True:
        text = os.read(fd, 1 << 16)
        reads += 1
        lines += text.count(b"\n")
        if b"namespace_removed" in text:
            peer.tell([reads, lines])
            return


def test_wakeups_are_coalesced(daemon, peer, slower):
    d = daemon("--memory", "16M")
    d.namespace(layout=SMALL)
    p = peer(counting, d.path("events"))
    assert p.hear() == "open"
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n in range(30):
            put_singles(c, n + 1, n * 1000 + 1, 1000)
    wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 10 * slower, "the removal")
    reads, lines = p.hear()
    assert lines > 30000 and reads < lines / 20
