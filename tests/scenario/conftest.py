# SPDX-License-Identifier: Apache-2.0
"""What every scenario may use. Scenarios run against the build folder that PREFIXFS_BUILD names.

build        path of the build folder
program(n)   path of a program there; the test is skipped where it is not built
library(n)   a shared library there, loaded; skipped also where a sanitizer watches it, which has to be in a process first
slower       what to multiply patience with: sanitizers take their time
mountable    the test is skipped where nothing can be mounted
daemon(...)  a Daemon (mounted.py) with these options, ready; it is taken down at the end, whatever happened
peer(f, ...) a Peer (peers.py): f(peer, ...) in a process of its own, which is killed at the end
on_hang(f)   f() is called from another thread when the test hangs: kill there what the test waits for, for a call that
             is stuck in a mount ends only when the daemon dies

A test has 120 s (times slower), or what @pytest.mark.limit(seconds) says.
@pytest.mark.concurrency: runs under the thread sanitizer as well.
"""
import ctypes
import os
import signal
import threading
import time

import pytest

import disk
import mounted
import peers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLOWER = float(os.environ.get("PREFIXFS_SLOWER", "1"))


def pytest_configure(config):
    config.addinivalue_line("markers", "concurrency: runs under the thread sanitizer as well")
    config.addinivalue_line("markers", "limit(seconds): time that the test has, instead of 120 s")


@pytest.fixture
def build():
    return os.path.abspath(os.environ.get("PREFIXFS_BUILD", os.path.join(ROOT, "build")))


@pytest.fixture
def slower():
    return SLOWER


@pytest.fixture
def program(build):
    def find(name):
        path = os.path.join(build, name)
        if not os.access(path, os.X_OK):
            pytest.skip(f"{path} is not built")
        return path
    return find


@pytest.fixture
def library(program):
    def load(name):
        path = program(name)
        with open(path, "rb") as f:
            text = f.read()
        if b"__asan_init" in text or b"__tsan_init" in text:
            pytest.skip("Python cannot load a library that a sanitizer watches")
        return ctypes.CDLL(path)
    return load


@pytest.fixture
def mountable():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse cannot be used here")


@pytest.fixture
def on_hang(request):
    return request.node.hang_callbacks.append


@pytest.fixture(autouse=True)
def limit(request):
    marker = request.node.get_closest_marker("limit")
    seconds = (marker.args[0] if marker else 120) * SLOWER
    callbacks = request.node.hang_callbacks = []

    def too_long(signum, frame):
        pytest.fail(f"the test took more than {seconds:.0f} s")

    def stuck():
        for callback in callbacks:
            callback()

    old = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    timer = threading.Timer(seconds + 10, stuck)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture
def daemon(program, mountable, slower, on_hang):
    made = []

    def make(*options, **more):
        d = mounted.Daemon.__new__(mounted.Daemon)
        made.append(d)
        on_hang(d.kill_all)
        d.__init__(program("prefixfsd"), slower, options, **more)
        return d

    yield make
    for d in made:
        d.clean_up()


@pytest.fixture
def peer(daemon):
    made = []

    def make(body, *arguments):
        p = peers.Peer(body, *arguments)
        made.append(p)
        return p

    yield make
    for p in made:
        p.end()


@pytest.fixture
def folder(tmp_path, build):
    """For record files; gone with the test."""
    path = disk.folder(tmp_path, build)
    yield path
    disk.remove(path)


@pytest.fixture
def seed():
    """Of what is decided by chance; PREFIXFS_TEST_SEED repeats it."""
    seed = int(os.environ.get("PREFIXFS_TEST_SEED", time.time_ns() % 1000000))
    print(f"PREFIXFS_TEST_SEED={seed}")
    return seed
