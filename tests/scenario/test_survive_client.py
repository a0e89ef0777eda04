# SPDX-License-Identifier: Apache-2.0
"""libprefixfs through deaths of the serving process: misses, and one line for each; what is in an engine's hands stays."""
import ctypes
import errno
import json
import os
import re
import signal
import subprocess
import time

import pytest

from mounted import wait_for

LAYOUT = {"version": 1, "memory": {"floor": 8 << 20}, "identity": {"model": "threads"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "p", "bytes": 4096}]}]}
DEATHS = 10


class Threads:
    """client_threads, with a get plan in its hands."""

    def __init__(self, program, d, threads, slower):
        self.slower, self.said, self.held = slower, os.path.join(d.base, "said"), 0
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen([program, d.path("ns/x"), str(threads), "0"], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=said, text=True)
        self.hold()

    def lines(self):
        with open(self.said, encoding="utf-8") as f:
            return f.read().splitlines()

    def hold(self):
        """Waits until it has one."""
        assert self.process.stdout.readline() == "held\n", self.lines()

    def release(self):
        """The plan is checked and released; another one is looked for. What happened so far."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        self.held += 1
        assert result["wrong"] == 0 and result["held"] == self.held
        return result

    def verified(self):
        result = self.release()
        self.hold()
        return result["verified"]

    def end(self):
        out, _ = self.process.communicate(timeout=60 * self.slower)
        result = json.loads(out)
        assert self.process.returncode == 0 and result["failed_threads"] == result["wrong"] == 0 and result["held"] == self.held + 1
        return result

    def mapped(self):
        """How many segments, and how many call buffers."""
        with open(f"/proc/{self.process.pid}/maps", encoding="utf-8") as f:
            names = re.findall(r"/memfd:(\S+)", f.read())
        buffers = names.count("prefixfs-call-buffer")
        return len(names) - buffers, buffers

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def settled(self, mapped, descriptors):
        """The threads let their plans of before go in their own time."""
        try:
            wait_for(lambda: self.mapped() == mapped and self.descriptors() == descriptors, 10 * self.slower)
        except AssertionError:
            assert (self.mapped(), self.descriptors()) == (mapped, descriptors)


def attached(d, threads, losses, remaps):
    """After each loss: the same segment, also for the plan in hand, and pages are found again."""
    wait_for(lambda: len(threads.lines()) >= losses, 30 * threads.slower, "attaching anew")
    d.wait_ready(times=losses + 1)
    assert threads.mapped()[0] == 1
    before = threads.release()
    threads.hold()
    assert before["reattached"] == losses and before["remapped"] == remaps
    wait_for(lambda: threads.verified() > before["verified"], 20 * threads.slower, "a hit")


def restart(d, threads, losses):
    """Another daemon, for one gives up when it dies too often. What is in hand is read while there is none."""
    assert d.stop()[0] == 0
    threads.release()
    d.start(wait=False)
    d.wait_ready(times=losses + 1)
    d.namespace(layout=LAYOUT)
    threads.hold()
    wait_for(lambda: len(threads.lines()) == losses, 5 * threads.slower, "its line")


@pytest.mark.concurrency
@pytest.mark.limit(300)
def test_threads_live_through_deaths(daemon, program, slower):
    d = daemon()
    d.namespace(layout=LAYOUT)
    threads = Threads(program("tests/scenario/client_threads"), d, 4, slower)
    losses, remaps = 0, 0
    try:
        assert threads.mapped() == (1, 1)
        descriptors = threads.descriptors()
        for death in range(DEATHS):
            if death in (4, 8):
                losses, remaps = losses + 1, remaps + 1
                restart(d, threads, losses)
            losses += 1
            os.kill(d.serving(), signal.SIGKILL)
            attached(d, threads, losses, remaps)
            threads.settled((1, 2), descriptors)  # the first connection's call buffer has the threads' keys
        result = threads.end()
        assert result["reattached"] == losses and len(threads.lines()) == losses == DEATHS + 2
        for line in threads.lines():
            assert re.fullmatch(rf"prefixfs: {d.path('ns/x/ctl')}: attached anew after \d+ ms; memory (kept|is new); \d+ plans lost", line)
        assert sum("memory is new" in line for line in threads.lines()) == remaps
    finally:
        threads.process.kill()
        threads.process.wait()
    wait_for(lambda: not os.listdir(d.path("sessions")), 5 * slower, "the end of the session")
    stats = d.stats()
    for name in ("sessions", "put_plans", "get_plans", "handles", "pins", "slots_prepared", "slots_quarantined"):
        assert stats[name] == "0", name


@pytest.mark.parametrize("rank, auto_ack", [(0, 1), (0, 0), (-1, 1)])
def test_a_death_is_news(daemon, program, slower, rank, auto_ack):
    """To an engine that sleeps on pfs_poll_fd, whether or not the library acknowledges ranges for it."""
    d = daemon()
    d.namespace(layout=LAYOUT)
    with subprocess.Popen([program("tests/scenario/client_news"), d.path("ns/x"), str(rank), str(auto_ack)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as engine:
        try:
            assert engine.stdout.readline() == "ready\n"
            os.kill(d.serving(), signal.SIGKILL)
            out, said = engine.communicate(timeout=40 * slower)
        finally:
            engine.kill()
    assert engine.returncode == 0 and out == "1\n", said
    assert said.count("\n") == 1 and "; 0 plans lost" in said


class Library:
    """libprefixfs in this process."""

    def __init__(self, lib):
        self.lib = lib
        self.session = ctypes.c_void_p()

    def open(self, path):
        return -self.lib.pfs_open(path.encode(), None, ctypes.byref(self.session))

    def probe(self):
        return -self.lib.pfs_probe(self.session, bytes(32), ctypes.c_uint32(1), None, None)

    def said(self):
        text = ctypes.create_string_buffer(512)
        self.lib.pfs_last_error(text, ctypes.c_size_t(512))
        return text.value.decode()

    def close(self):
        self.lib.pfs_close(ctypes.byref(self.session))


def test_nobody_waits_in_the_fallen_mount(daemon, program, library, slower):
    d = daemon("--deaths=1")
    d.namespace(layout=LAYOUT)
    library, other = (Library(library("fs/client/libprefixfs.so")) for _ in range(2))
    assert library.open(d.path("ns/x")) == 0 and library.probe() == 0
    os.kill(d.serving(), signal.SIGKILL)
    wait_for(d.falls, 30 * slower, "the fallen mount")
    begin = time.monotonic()
    fallen = f"the mount {d.mount} is fallen: {d.mount}/health says why, and prefixfs upgrade has it served again"
    assert (library.probe(), library.said()) == (errno.ENOTCONN, fallen)
    for _ in range(100):
        assert library.probe() == errno.ENOTCONN
    assert (other.open(d.path("ns/x")), other.said()) == (errno.EHOSTDOWN, fallen)
    assert time.monotonic() - begin < 5 * slower, "a deadline has 30 s"
    subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount], check=True, capture_output=True)
    wait_for(lambda: library.probe() == 0, 10 * slower, "attaching anew")
    library.close()


def test_there_is_no_mount(daemon, library):
    d = daemon(start=False)
    library = Library(library("fs/client/libprefixfs.so"))
    assert library.open(d.path("ns/x")) == errno.ENOENT
    assert library.said() == f"{d.path('ns/x')}: no prefixfs is mounted at {d.mount}"
