# SPDX-License-Identifier: Apache-2.0
"""Slots of a put plan whose session is gone, while something may still be writing there: nobody gets them before the
process that attached is gone."""
import concurrent.futures
import contextlib
import errno
import os
import select
import signal
import struct
import threading

import pytest

from mounted import wait_for
from peers import LIBC, PR_SET_PDEATHSIG, transient, value_of
from raw import NONE64, NOROOM, U8, Client, Refused, errno_of, key, show_token
from test_survive import kill_and_wait, survives  # pylint: disable=unused-import
from test_upgrade import upgrade  # pylint: disable=unused-import

LAYOUT = {"version": 1, "identity": {"model": "test/quarantine"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 65536}]}]}
SIZE = 65536
SLOTS = (16 << 20) // SIZE
HELD = 40
SYS_pidfd_open = 434


def readable(pidfd):
    return bool(select.select([pidfd], [], [], 0)[0])


def writer(peer, c, offsets):
    """Inherits its parent's mapping and writes, as long as that lives, what no value may be."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(c.fd)
    while True:
        for offset in offsets:
            c.segment[offset:offset + SIZE] = b"\xee" * SIZE
        peer.tell("wrote")
        for _ in range(1 << 30):
            for offset in offsets:
                c.segment[offset:offset + 64] = b"\xee" * 64
                c.segment[offset + SIZE - 64:offset + SIZE] = b"\xee" * 64


def attacher(peer, ctl):
    """Takes slots, leaves a child writing there, closes ctl and lives on."""
    c = Client(ctl)
    c.acknowledge()
    c.put_start(1, [(None, HELD * 64, [key(1, i) for i in range(HELD)])])
    offsets = c.put_answers
    assert len(offsets) == HELD and max(offsets) < NONE64 - 15
    peer.tell(offsets)
    if os.fork() == 0:
        try:
            writer(peer, c, offsets)
        finally:
            os._exit(1)
    assert peer.listen() == "close"
    os.close(c.fd)  # the session ends here; the mapping stays
    peer.tell("closed")
    if peer.listen() == "attach again":  # one process, two sessions, one after another
        again = Client(ctl)
        peer.tell(again.attached.session)
        peer.listen()
        again.close()
        peer.tell("closed again")
    peer.listen()


def fill(clients, first):
    """Takes every slot that can be had, page by page, each client as much as it may hold (half of the memory). What it
    takes is not committed, so nothing of it can be evicted. (client, plan, offset) of each."""
    taken = []
    for c in clients:
        while True:
            n = first + len(taken)
            c.put_start(n, [(None, 64, [key(first, n)])])
            if c.put_status == [NOROOM]:
                break
            taken.append((c, n, c.put_answers[0]))
    return taken


def put_and_check(c, offsets):
    for offset in offsets:
        c.segment[offset:offset + SIZE] = value_of(struct.pack("<Q", offset) * 4, SIZE)
    return lambda: all(bytes(c.segment[o:o + SIZE]) == value_of(struct.pack("<Q", o) * 4, SIZE) for o in offsets)


@pytest.mark.parametrize("again", [False, True])
def test_a_slot_rests_until_the_attaching_process_is_gone(daemon, peer, slower, again):
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    p = peer(attacher, d.path("ns/x/ctl"))
    held = set(p.hear())
    assert p.hear() == "wrote"
    pidfd = LIBC.syscall(SYS_pidfd_open, p.pid, 0)
    p.say("close")
    assert p.hear() == "closed"
    wait_for(lambda: int(d.stats()["slots_quarantined"]) == HELD, 10 * slower, "the quarantine")
    if again:
        p.say("attach again")
        session = p.hear()
        assert str(session) in os.listdir(d.path("sessions"))
    with Client(d.path("ns/x/ctl")) as a, Client(d.path("ns/x/ctl")) as b:
        a.acknowledge()
        b.acknowledge()
        assert a.probe([key(1, i) for i in range(HELD)]).hits == 0  # the names are free at once
        taken = fill([a, b], 1000)
        got = [offset for _, _, offset in taken]
        assert len(got) == len(set(got)) == SLOTS - HELD
        assert not held & set(got)
        intact = put_and_check(a, got)
        b.put_start(1 << 40, [(None, 64, [key(1, 0)])])  # the very key that is lost: it gets no such slot either
        assert b.put_status == [NOROOM]
        for c, plan, _ in taken:
            c.put_end("PUT_COMMIT", plan)
        assert intact()
        # with eviction in play, too: each value that goes makes room for one, and never in the quarantine
        for n in range(2 * SLOTS):
            a.put_start(10000 + n, [(None, 64, [key(10000, n)])])
            assert a.put_status == [0] and a.put_answers[0] not in held
            a.put_end("PUT_COMMIT", 10000 + n)
        if again:
            p.say("close")
            assert p.hear() == "closed again"
            wait_for(lambda: len(os.listdir(d.path("sessions"))) == 2, 10 * slower, "the end of the second session")
        assert d.stats()["slots_quarantined"] == str(HELD)
        assert not readable(pidfd)
        p.kill()
        wait_for(lambda: readable(pidfd), 10 * slower, "the end of the process")
        wait_for(lambda: d.stats()["slots_quarantined"] == "0", 10 * slower, "the end of the quarantine")
        taken = fill([a, b], 20000)
        got = [offset for _, _, offset in taken]
        assert len(got) == len(set(got)) == SLOTS
        assert held <= set(got)
        for c, plan, _ in taken:
            c.put_end("PUT_ABORT", plan)
    os.close(pidfd)
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")


def test_slots_of_an_aborted_plan_do_not_rest(daemon, slower):
    """PUT_ABORT asserts that writing has stopped: those slots are had again at once, by anyone."""
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    with Client(d.path("ns/x/ctl")) as a, Client(d.path("ns/x/ctl")) as b, Client(d.path("ns/x/ctl")) as c:
        for each in (a, b, c):
            each.acknowledge()
        taken = fill([a, b], 1000)
        assert len(taken) == SLOTS
        c.put_start(1, [(None, 64, [key(1, 0)])])
        assert c.put_status == [NOROOM]
        a.put_end("PUT_ABORT", taken[3][1])
        c.put_start(2, [(None, 64, [key(1, 0)])])
        assert c.put_answers == [taken[3][2]]


def test_what_was_committed_before_the_end_does_not_rest(daemon, peer, slower):
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))

    def half(p, ctl):
        c = Client(ctl)
        c.acknowledge()
        groups = [(None, 64, [key(1, i)]) for i in range(10)]
        c.put_start(1, groups)
        for i, offset in enumerate(c.put_answers):
            c.segment[offset:offset + SIZE] = value_of(key(1, i), SIZE)
        c.put_end("PUT_COMMIT", 1, groups=5)
        offsets = c.put_answers
        os.close(c.fd)
        p.tell(offsets)
        p.listen()

    p = peer(half, d.path("ns/x/ctl"))
    offsets = p.hear()
    wait_for(lambda: d.stats()["slots_quarantined"] == "5", 10 * slower, "the quarantine")
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        assert c.probe([key(1, i) for i in range(10)]).hits == 5
        for i in range(5):
            c.get_start(10 + i, [key(1, i)])
            c.get_transfer(10 + i, 20 + i, 64)
            assert c.offsets == [offsets[i]]
            assert bytes(c.segment[offsets[i]:offsets[i] + SIZE]) == value_of(key(1, i), SIZE)
        c.release([20 + i for i in range(5)])
        # pinned or not, what was committed may go; the rest may not
        for n in range(2 * SLOTS):
            c.put_start(100 + n, [(None, 64, [key(2, n)])])
            assert c.put_answers[0] not in offsets[5:]
            c.put_end("PUT_COMMIT", 100 + n)
        p.kill()
        wait_for(lambda: d.stats()["slots_quarantined"] == "0", 10 * slower, "the end of the quarantine")


def test_a_session_whose_attaching_process_is_gone_is_over(daemon, peer, slower):
    """Another process showed the token than the one that opened ctl: it is that one's life that counts."""
    d = daemon("--memory", "16M")
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        p = peer(lambda p: (c.attach(), c.acknowledge(), c.put_start(1, [(None, 64, [key(1, 0)])]), p.tell("there"),
                            p.listen()))
        assert p.hear() == "there"
        assert d.stats()["slots_prepared"] == "1"
        p.kill()
        p.wait()
        wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")
        with pytest.raises(Refused) as e:
            c.seq = 1000
            c.call("PROBE", keys_offset=0, hits_offset=NONE64, keys=1)
        assert e.value.errno == 108 and "ended" in e.value.text  # ESHUTDOWN


# ---- guards ------------------------------------------------------------------------------------------------------
#
# A process that writes for others, and goes on after their end, as a CUDA MPS server does: it is named at ATTACH.

def guarded(peer, ctl, guard):
    """Takes slots, under a guard."""
    c = Client(ctl, guard_pid=guard)
    c.acknowledge()
    c.put_start(1, [(None, HELD * 64, [key(1, i) for i in range(HELD)])])
    assert len(c.put_answers) == HELD and max(c.put_answers) < NONE64 - 15
    peer.tell([c.attached.session, c.put_answers])
    peer.rest()


def waiting(d):
    """Slots that wait for processes: of this serving process's sessions, and of those before it."""
    stats = d.stats()
    return int(stats["slots_quarantined"]) + int(stats["slots_owed"])


def pidfds(pid):
    """Descriptors of processes that it has; others come and go meanwhile."""
    n = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            n += os.readlink(f"/proc/{pid}/fd/{fd}").startswith(("anon_inode:[pidfd]", "pidfd:"))
    return n


def can_have(d):
    """Offsets of all slots that clients can have now."""
    with Client(d.path("ns/x/ctl")) as a, Client(d.path("ns/x/ctl")) as b:
        a.acknowledge()
        b.acknowledge()
        taken = fill([a, b], 1000)
        for c, plan, _ in taken:
            c.put_end("PUT_ABORT", plan)
    got = [offset for _, _, offset in taken]
    assert len(got) == len(set(got))
    return set(got)


@pytest.mark.concurrency
@pytest.mark.parametrize("between", ["", "death", "upgrade"])
@pytest.mark.parametrize("first", ["client", "guard"])
def test_slots_rest_until_client_and_guard_are_gone(survives, upgrade, peer, slower, first, between):
    """Whichever ends last, and whoever serves by then."""
    d = survives("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    guard = peer(lambda p: p.rest())
    client = peer(guarded, d.path("ns/x/ctl"), guard.pid)
    session, held = client.hear()
    assert f"guard: {guard.pid}\n" in d.read("sessions", str(session))
    one, other = (client, guard) if first == "client" else (guard, client)
    one.end()
    if first == "client":
        wait_for(lambda: d.stats()["slots_quarantined"] == str(HELD), 10 * slower, "the quarantine")
        wait_for(lambda: not os.path.exists(d.path("sessions", str(session))), 10 * slower, "the end of the session")
    else:
        wait_for(lambda: "guard: none\n" in d.read("sessions", str(session)), 10 * slower, "the end of the guard")
        assert d.stats()["slots_prepared"] == str(HELD)  # it counts no more, and that is all
    if between == "death":
        kill_and_wait(d)
    elif between == "upgrade":
        assert upgrade(d)["status"] == 0
    if between:
        wait_for(lambda: d.stats()["slots_owed"] == str(HELD), 10 * slower, "the adoption")
    free = can_have(d)
    assert len(free) == SLOTS - HELD and not free & set(held)
    assert waiting(d) == (HELD if between or first == "client" else 0)
    other.end()
    wait_for(lambda: waiting(d) == 0 and not transient(d.stats()), 10 * slower, "the end of the quarantine")
    assert set(held) <= can_have(d)
    wait_for(lambda: pidfds(d.serving()) <= 1, 10 * slower, "the descriptors")  # of this very process


def test_client_and_guard_that_end_while_nobody_serves(survives, peer, slower):
    """Neither end was seen by a serving process: it is found when the namespace is adopted."""
    d = survives("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    guards = [peer(lambda p: p.rest()) for _ in range(2)]
    clients = [peer(guarded_few, d.path("ns/x/ctl"), g.pid, 10 * (i + 1)) for i, g in enumerate(guards)]
    for c in clients:
        c.hear()
    os.kill(d.process.pid, signal.SIGSTOP)  # the parent, so that nobody follows
    before = d.serving()
    os.kill(before, signal.SIGKILL)
    clients[0].end()
    guards[1].end()
    clients[1].end()
    os.kill(d.process.pid, signal.SIGCONT)
    wait_for(lambda: d.serving() != before, 20 * slower, "the next serving process")
    assert d.stats()["slots_owed"] == "10"
    guards[0].end()
    wait_for(lambda: waiting(d) == 0, 10 * slower, "the end of the quarantine")


def guarded_few(peer, ctl, guard, slots):
    c = Client(ctl, guard_pid=guard)
    c.acknowledge()
    c.put_start(1, [(None, slots * 64, [key(guard, i) for i in range(slots)])])
    peer.tell(c.attached.session)
    peer.rest()


def test_settled_slots_wait_for_no_guard(survives, peer, slower):
    """The client says itself that its GPU work has ended: it waits for that, whoever does the work."""
    d = survives("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    guard = peer(lambda p: p.rest())
    name = (U8 * 16)(*range(16))
    with Client(d.path("ns/x/ctl"), guard_pid=guard.pid, client_id=name) as c:
        c.acknowledge()
        c.put_start(1, [(None, HELD * 64, [key(1, i) for i in range(HELD)])])
        kill_and_wait(d)
        with Client(d.path("ns/x/ctl"), guard_pid=guard.pid, client_id=name) as again:
            assert d.stats()["slots_owed"] == str(HELD)
            again.call("SETTLE", session=c.attached.session)
            assert waiting(d) == 0
            assert f"guard: {guard.pid}\n" in d.read("sessions", str(again.attached.session))


def test_a_client_that_leaves_nothing_waits_for_no_guard(daemon, peer, slower):
    """A guard lives for days: neither slots nor descriptors of clients without open puts stay as long."""
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    guard = peer(lambda p: p.rest())
    client = peer(guarded, d.path("ns/x/ctl"), guard.pid)
    session, _ = client.hear()
    idle = [peer(lambda p: (Client(d.path("ns/x/ctl"), guard_pid=guard.pid), p.tell("there"), p.rest())) for _ in range(3)]
    for p in idle:
        assert p.hear() == "there"
    serving = d.serving()
    assert pidfds(serving) == 5
    wait_for(lambda: pidfds(d.process.pid) == 8, 10 * slower, "the parent's copies")
    for p in idle:
        p.end()
    wait_for(lambda: pidfds(serving) == 2 and pidfds(d.process.pid) == 2, 10 * slower, "the end of the idle ones")
    assert d.stats()["slots_prepared"] == str(HELD) and os.path.exists(d.path("sessions", str(session)))


def test_one_guard_of_many_sessions_is_one_descriptor(daemon, peer, slower):
    d = daemon()
    d.namespace()
    guard = peer(lambda p: p.rest())
    clients = [Client(d.path("ns/x/ctl"), guard_pid=guard.pid) for _ in range(40)]
    serving, parent = d.serving(), d.process.pid
    assert pidfds(serving) == 2  # and this process
    wait_for(lambda: pidfds(parent) == 80, 10 * slower, "the parent's copies")
    for c in clients:
        c.close()
    for _ in range(200):  # what nobody waits for any more is let go of, by and by
        Client(d.path("ns/x/ctl"), guard_pid=guard.pid).close()
    assert pidfds(serving) <= 2
    wait_for(lambda: pidfds(parent) <= 128, 10 * slower, "the parent's copies")
    guard.end()
    wait_for(lambda: pidfds(serving) <= 1, 10 * slower, "the end of the guard")


def test_a_process_may_guard_and_be_a_client(daemon, peer, slower):
    """One descriptor says both; the slots of its own wait for no one else."""
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    both = peer(guarded_few, d.path("ns/x/ctl"), 0, 10)
    both.hear()
    client = peer(guarded_few, d.path("ns/x/ctl"), both.pid, 20)
    client.hear()
    assert pidfds(d.serving()) == 2
    client.end()
    wait_for(lambda: d.stats()["slots_quarantined"] == "20", 10 * slower, "the quarantine")
    assert d.stats()["slots_prepared"] == "10"
    both.end()
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the end of the quarantine")


def test_guards_that_are_none_are_refused(daemon, peer, slower):
    d = daemon()
    d.namespace()
    gone = peer(lambda p: None)
    gone.wait()
    zombie = peer(lambda p: None)
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)

    def threaded(p):
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        p.tell(thread.native_id)
        p.rest()

    thread = peer(threaded).hear()
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        for pid in (gone.pid, zombie.pid, thread, 1 << 31, (1 << 32) - 1):
            with pytest.raises(Refused) as e:
                c.ask_attach(guard_pid=pid)
            assert e.value.errno == errno.ESRCH and str(pid) in e.value.text, pid
        assert errno_of(c.ask_attach, guard_pid=os.getppid(), reserved1=1) == errno.EINVAL
        for name, ask in (("main", c.ask_attach), ("other", in_thread(c.ask_attach))):  # it guards itself anyway
            with pytest.raises(Refused) as e:
                ask(guard_pid=os.getpid())
            assert e.value.errno == errno.EINVAL and f"guard_pid: {os.getpid()} " in e.value.text, name
        c.ask_attach(guard_pid=os.getppid())
        c.attach(guard_pid=0)  # the last ATTACH counts
        assert "guard: none\n" in d.read("sessions", str(c.attached.session))
        assert pidfds(d.serving()) == 1
    zombie.wait()


def in_thread(call):
    def run(**fields):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(call, **fields).result()
    return run


def test_whose_guard_is_itself_has_none(daemon, peer, slower):
    """Another one asked for it: what is left when the client ends is nobody's."""
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        def show(p):
            a = c.ask_attach(guard_pid=int(p.listen()))
            p.tell([a.socket_path.decode(), bytes(a.token).hex()])
            p.rest()

        def client(p):
            p.tell("there")
            path, token = p.listen().split()
            assert show_token(path, bytes.fromhex(token))[0] == 0
            p.tell("attached")
            p.rest()

        asks, shows = peer(show), peer(client)
        assert shows.hear() == "there"
        asks.say(str(shows.pid))
        shows.say(" ".join(asks.hear()))
        assert shows.hear() == "attached"
        assert pidfds(d.serving()) == 1 and d.stats()["sessions"] == "1"
        shows.end()
        wait_for(lambda: pidfds(d.serving()) == 0 and not transient(d.stats()), 10 * slower, "the base")


def test_a_guard_that_ends_before_the_token_is_shown_counts_for_nothing(daemon, peer, slower):
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(LAYOUT, memory={"floor": 16 << 20}))
    guard = peer(lambda p: p.rest())

    def late(p):
        with Client(d.path("ns/x/ctl"), attach=False) as c:
            a = c.ask_attach(guard_pid=guard.pid)
            p.tell("asked")
            p.listen()
            assert show_token(a.socket_path.decode(), bytes(a.token))[0] == 0
            p.tell(a.session)
            p.rest()

    p = peer(late)
    assert p.hear() == "asked"
    guard.end()
    p.say("go on")
    session = str(p.hear())
    wait_for(lambda: "guard: none\n" in d.read("sessions", session), 10 * slower, "the end of the guard")
    p.end()
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")
