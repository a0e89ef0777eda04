# SPDX-License-Identifier: Apache-2.0
"""A client dies at every point of a plan, in every way a process can: nothing of it stays but what it committed."""
import os
import random
import signal
import threading

import pytest

from mounted import stopped, wait_for
from peers import transient, value_of
from raw import COMMITTED, NONE64, WAIT_INFLIGHT, Client, key, name_of

# The least slot, 4 KiB: 60,000 of them fit.
LAYOUT = {"version": 1, "identity": {"model": "test/deaths"}, "world": 1, "page_tokens": 64,
          "memory": {"floor": 256 << 20},
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 4096}]}]}
SIZE = 4096
BATCH = 60000
KEPT = [key(1, i) for i in range(5)]      # committed by the test before
WANTED = key(2, 0)                        # the test's own, in flight
PREPARED = [[key(3, g, i) for i in range(3)] for g in range(4)]  # the client's put plan: four groups of three


def put_four_groups(c):
    c.put_start(7, [(None, 192, keys) for keys in PREPARED])
    assert all(a < NONE64 - 15 for a in c.put_answers), c.put_answers


def write(c):
    for keys, n in zip(PREPARED, range(0, 12, 3)):
        for k, offset in zip(keys, c.put_answers[n:]):
            c.segment[offset:offset + SIZE] = value_of(k, SIZE)


def client(peer, ctl, point):
    """Goes as far as @point, says so, and stays there."""
    c = Client(ctl, attach=False)
    if point == "open":
        return stay(peer, c)
    if point == "offered":
        c.ask_attach()
        return stay(peer, c)
    c.attach()
    c.acknowledge()
    if point == "prepared":
        put_four_groups(c)
    elif point == "writing":
        put_four_groups(c)
        return stay(peer, c, lambda: write(c))
    elif point == "partly committed":
        put_four_groups(c)
        write(c)
        c.put_end("PUT_COMMIT", 7, groups=2, first=1)
        assert c.put_status == [COMMITTED, COMMITTED]
    elif point == "handle":
        assert c.get_start(8, KEPT).transferable_len == 320
    elif point == "get plan":
        c.get_start(8, KEPT)
        assert c.get_transfer(8, 9, 320, to=128).handle_ended == 0
    elif point == "waiting":
        return stay(peer, c, lambda: c.get_start(8, [WANTED], flags=WAIT_INFLIGHT, deadline_ms=600000))
    elif point == "batch":
        return stay(peer, c, lambda: batch(c))
    return stay(peer, c)


def batch(c):
    """A large put plan, started and aborted, again and again."""
    keys = [key(4, i) for i in range(BATCH)]
    for plan in range(10, 1 << 30):
        c.put_start(plan, [(None, BATCH * 64, keys)])
        assert c.put_status == [0]
        c.put_end("PUT_ABORT", plan)


def stay(peer, c, work=None):
    """Waits for the word how to end, with @work going on meanwhile."""
    def again():
        try:
            while True:
                work()
        except BaseException as e:
            peer.tell({"failed": repr(e)})

    if work:
        threading.Thread(target=again, daemon=True).start()
    peer.tell("there")
    if peer.listen() == "fork":
        pid = os.fork()
        if pid == 0:  # it inherits everything: ctl, the mappings
            peer.rest()
        peer.tell(pid)
    os._exit(0)


def die_killed(peer):
    peer.kill()
    assert peer.wait() == -signal.SIGKILL


def die_by_exit(peer):
    peer.say("exit")
    assert peer.wait() == 0


def die_stopped(peer):
    peer.kill(signal.SIGSTOP)
    wait_for(lambda: stopped(peer.pid), 10, "the stop")
    die_killed(peer)


def die_with_a_child(peer):
    """The client's process goes; a child of it lives on with all that it had. Its pid."""
    peer.say("fork")
    pid = peer.hear()
    assert peer.wait() == 0
    return pid


POINTS = ("open", "offered", "attached", "prepared", "writing", "partly committed", "handle", "get plan", "waiting",
          "batch")
WAYS = {"killed": die_killed, "exit": die_by_exit, "stopped": die_stopped, "forked": die_with_a_child}


def wait_until_held(d, expected, seconds):
    try:
        wait_for(lambda: transient(d.stats()) == expected, seconds)
    except AssertionError:
        assert transient(d.stats()) == expected


def seen(d, c, expected):
    """Exactly these keys are there, for PROBE and under records/."""
    every = [*KEPT, WANTED, *(k for keys in PREPARED for k in keys)]
    r = c.probe(every)
    assert r.hits == len(expected)
    bits = int.from_bytes(c.buffer[4 << 20:(4 << 20) + 8], "little")
    assert {k for i, k in enumerate(every) if bits >> i & 1} == set(expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", POINTS)
def test_nothing_stays_of_a_dead_client(daemon, peer, slower, point, way):
    d = daemon("--memory", "512M", "--populate=false")
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 320, KEPT, [value_of(k, SIZE) for k in KEPT])
        c.put_start(2, [(None, 64, [WANTED])])
        before = transient(d.stats())
        assert before == {"sessions": 1, "put_plans": 1, "slots_prepared": 1, "groups_open": 2}  # one not acknowledged
        p = peer(client, d.path("ns/x/ctl"), point)
        assert p.hear() == "there"
        if point == "waiting":
            wait_for(lambda: d.stats()["waiting"] == "1", 10 * slower, "the wait")
        elif point == "batch":
            wait_for(lambda: int(d.stats()["put_new"]) > 5 + random.randrange(BATCH), 20 * slower, "the batch")
        left = WAYS[way](p)
        if left and point in ("open", "offered"):
            assert len(os.listdir(d.path("sessions"))) == 2  # nobody's process: it ends with its descriptor
            os.kill(left, signal.SIGKILL)
        wait_until_held(d, before, 10 * slower)
        if left and point not in ("open", "offered"):
            os.kill(left, signal.SIGKILL)
        wait_for(lambda: len(os.listdir(d.path("sessions"))) == 1, 10 * slower, "the end of its session")

        committed = [k for keys in PREPARED[1:3] for k in keys] if point == "partly committed" else []
        seen(d, c, KEPT + committed)
        names = {name_of(320, KEPT[-1])} | {name_of(192, keys[-1]) for keys in PREPARED[1:3] if committed}
        assert set(os.listdir(d.path("ns/x/records"))) == names
        for keys in [KEPT] + (PREPARED[1:3] if committed else []):
            with open(d.path("ns/x/records", name_of(64 * len(keys), keys[-1]), "pages"), "rb") as f:
                assert f.read() == b"".join(value_of(k, SIZE) for k in keys)
        c.put_end("PUT_COMMIT", 2)
        seen(d, c, KEPT + committed + [WANTED])
        # every slot can be had again: what is not committed is free
        s = d.stats()
        assert int(s["slots"]) - int(s["slots_free"]) == len(KEPT) + len(committed) + 1
    wait_until_held(d, {}, 10 * slower)


@pytest.mark.parametrize("way", ["killed", "exit"])
def test_a_large_plan_is_given_back_whole(daemon, peer, slower, way):
    """Its descriptor and its process end within microseconds of each other, while tens of thousands of slots go back."""
    d = daemon("--memory", "512M", "--populate=false")
    d.namespace(layout=LAYOUT)

    def large(p, ctl):
        c = Client(ctl)
        c.acknowledge()
        c.put_start(1, [(None, BATCH * 64, [key(4, i) for i in range(BATCH)])])
        assert c.put_status == [0]
        stay(p, c)

    for _ in range(6):
        p = peer(large, d.path("ns/x/ctl"))
        assert p.hear() == "there"
        assert d.stats()["slots_prepared"] == str(BATCH)
        WAYS[way](p)
        wait_until_held(d, {}, 10 * slower)
        assert d.stats()["slots_free"] == d.stats()["slots"]
