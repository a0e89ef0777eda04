# SPDX-License-Identifier: Apache-2.0
"""The serving process dies under load, at any point: it comes back, clients go on by themselves, nothing is left behind."""
import ctypes
import errno
import glob
import json
import os
import random
import signal
import subprocess
import time

import pytest

from mounted import alive, mounts_at, wait_for
from peers import transient, value_of
from raw import NONE64, Client, errno_of, key

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SESSIONS = os.path.join(ROOT, "tests", "data", "coding_sessions.jsonl")
LAYOUT = {"version": 1, "identity": {"model": "test/restart"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 8192}]}]}


def left_over(d):
    """What the daemon's end must not leave; each is a list that must be empty."""
    return {"mounts": mounts_at(d.mount), "shm": [n for n in os.listdir("/dev/shm") if "prefixfs" in n and n not in d.shm_before],
            "processes": [p for p in d.pids if alive(p)], "run": glob.glob(d.run + "/*/*sock*")}


def named_memory(pid):
    """Memory that a process has mapped or open under /dev/shm, which nobody would remove after its death."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        found = [line for line in f if "/dev/shm/" in line]
    for fd in os.listdir(f"/proc/{pid}/fd"):
        found += [link for link in [os.readlink(f"/proc/{pid}/fd/{fd}")] if link.startswith("/dev/shm")]
    return found


def kill_at_random(d, times, slower, alive_meanwhile):
    """Kills anywhere in the load: after some number of commits since the last death, not after some time."""
    for n in range(times):
        pid = d.serving()
        commits = random.randint(1, 4000)
        wait_for(lambda: not alive_meanwhile() or int(d.stats("a")["values_committed"]) >= commits, 20 * slower, "the load",
                 pause=0.002)
        if not alive_meanwhile():
            return n
        os.kill(pid, signal.SIGKILL)
        d.wait_ready(times=n + 2)
        d.serving()
    return times


@pytest.mark.concurrency
@pytest.mark.limit(180)
def test_load_goes_on_through_deaths_at_random_points(daemon, program, slower):
    d = daemon("--deaths=1000", "--memory", "64M")
    d.namespace("a", layout=LAYOUT)
    prefixfs = program("prefixfs")
    with subprocess.Popen([prefixfs, "replay", SESSIONS, "--mount", d.mount, "--ns", "a", "--clients", "3", "--order",
                           "free", "--group-pages", "64", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as replay:
        try:
            deaths = kill_at_random(d, 5, slower, lambda: replay.poll() is None)
            assert deaths > 0, "the load was over before the first death"
            out, said = replay.communicate(timeout=90 * slower)
        finally:
            replay.kill()
    assert replay.returncode == 0, said
    r = json.loads(out)
    # A death that follows another before a client's next call costs it one attachment for both.
    assert r["wrong_values"] == 0 and 0 < r["reattached"] <= 3 * deaths, r
    assert r["verified_values"] > 0
    wait_for(lambda: not transient(d.stats("a")), 10 * slower, "the base")
    health = d.read("health")
    assert f"restarts: {deaths}" in health and "last exit: signal 9" in health
    with open(os.path.join(d.folder(), "last_exit"), encoding="utf-8") as f:
        reason = f.read()
    assert reason.startswith("reason: signal 9") and f"restarts: {deaths - 1}" in reason, reason
    assert named_memory(d.serving()) == named_memory(d.process.pid) == []
    status, seconds = d.stop()
    assert status == 0 and seconds < 1 * slower
    wait_for(lambda: not any(left_over(d).values()), 5 * slower, f"the end of {left_over(d)}")


def test_a_death_between_any_two_calls_of_a_plan(daemon, peer, slower):
    """A client without the library: its plans are gone with an errno that says so, what it committed is there, and what it may touch is kept until it says that it is done."""
    d = daemon("--deaths=1000")
    d.namespace(layout=LAYOUT)
    for n, point in enumerate(("attached", "prepared", "committed", "handle", "get plan")):
        k, me = key(1, n), (ctypes.c_uint8 * 16)(n + 1)
        with Client(d.path("ns/x/ctl"), client_id=me) as c:
            c.acknowledge()
            if point != "attached":
                c.put_start(1, [(None, 64, [k])])
                offset = c.put_answers[0]
                assert offset < NONE64 - 15
                c.segment[offset:offset + 8192] = value_of(k)
            if point in ("committed", "handle", "get plan"):
                c.put_end("PUT_COMMIT", 1)
            if point in ("handle", "get plan"):
                c.get_start(2, [k])
            if point == "get plan":
                c.get_transfer(2, 3, 64)
            os.kill(d.serving(), signal.SIGKILL)
            d.wait_ready(times=n + 2)
            d.serving()
            for call, fields in (("PUT_COMMIT", dict(plan=1, groups=1)), ("GET_TRANSFER", dict(handle=2, plan=3)),
                                 ("RELEASE", dict(count=1)), ("PROBE", dict(keys=1))):
                assert errno_of(c.call, call, **fields) in (errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE), call
            if point != "attached":  # its mapping stays readable: nobody else's bytes, no fault
                assert bytes(c.segment[offset:offset + 8192]) == value_of(k)
            with Client(d.path("ns/x/ctl"), client_id=me) as again:
                there = point not in ("attached", "prepared")
                assert again.probe([k]).hits == there
                again.acknowledge()
                if there:
                    again.call("SETTLE", session=c.attached.session)
                    continue
                again.put_start(1, [(None, 64, [k])])
                mine = again.put_answers[0]
                again.segment[mine:mine + 8192] = b"new!" * 2048
                if point != "attached":
                    assert bytes(c.segment[offset:offset + 8192]) == value_of(k)
                again.put_end("PUT_ABORT", 1)
                if point != "attached":
                    again.call("SETTLE", session=c.attached.session)
        wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")


def holder(peer, ctl):
    with Client(ctl) as c:
        c.acknowledge()
        c.put_start(1, [(None, 64, [key(3, os.getpid())])])
        c.get_start(1, [key(2, 0)])
        peer.tell("there")
        peer.listen()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_is_quick_and_whole_while_many_hold_it(daemon, peer, program, slower, number):
    d = daemon()
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(2, 0)], [value_of(key(2, 0))])
    held = [peer(holder, d.path("ns/x/ctl")) for _ in range(5)]
    for p in held:
        assert p.hear() == "there"
    d.serving()
    load = subprocess.Popen([program("prefixfs"), "replay", SESSIONS, "--mount", d.mount, "--ns", "x", "--clients", "2",
                             "--order", "free"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: int(d.stats()["sessions"]) == 7, 20 * slower, "the load")
        status, seconds = d.stop(number)
        assert status == 0 and seconds < 1 * slower
        assert not any(left_over(d).values()), left_over(d)
    finally:
        load.kill()
        load.wait()
