# SPDX-License-Identifier: Apache-2.0
"""Slots of a put plan whose session is gone, while something may still be writing there: nobody gets them before the
process that attached is gone."""
import os
import select
import signal
import struct

import pytest

from mounted import wait_for
from peers import LIBC, PR_SET_PDEATHSIG, transient, value_of
from raw import NONE64, NOROOM, Client, Refused, key

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
