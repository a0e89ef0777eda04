# SPDX-License-Identifier: Apache-2.0
"""libprefixfs with many threads on one session, and through deaths of the daemon."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from mounted import stopped

LAYOUT = {"version": 1, "memory": {"floor": 4 << 20, "blobs": {"bytes": 4 << 20}}, "identity": {"model": "threads"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "p", "bytes": 4096}]}]}


def serving(mount):
    with open(os.path.join(mount, "health"), encoding="utf-8") as f:
        return int(next(text for text in f if text.startswith("serving: ")).split()[1])


@pytest.fixture
def mount(program, mountable, tmp_path, on_hang):
    program("prefixfsd")
    prefixfs, at = program("prefixfs"), tmp_path / "mnt"
    at.mkdir()
    run = tempfile.mkdtemp(prefix="prefixfs-")  # its path has a limit
    subprocess.run([prefixfs, "mount", str(at), "--memory=16M", f"--run-dir={run}"], check=True)
    pid = serving(at)
    on_hang(lambda: os.kill(pid, signal.SIGKILL))
    os.mkdir(at / "ns/t")
    (at / "ns/t/layout").write_text(json.dumps(LAYOUT))
    yield str(at)
    subprocess.run([prefixfs, "unmount", "--lazy", str(at)], check=False)
    shutil.rmtree(run, ignore_errors=True)


def sessions_end(mount, slower):
    until = time.monotonic() + 5 * slower
    while os.listdir(os.path.join(mount, "sessions")) and time.monotonic() < until:
        time.sleep(0.02)
    stats = dict(text.split() for text in open(os.path.join(mount, "ns/t/stats"), encoding="utf-8"))
    for name in ("sessions", "put_plans", "get_plans", "handles", "pins", "slots_prepared", "slots_quarantined"):
        assert stats[name] == "0", name


def test_what_is_done_by_hand(program, mount):
    out = subprocess.run([program("tests/scenario/client_manage"), mount + "/ns/t"], capture_output=True, text=True,
                         check=False)
    assert out.returncode == 0, out.stderr


def test_blobs(program, mount):
    out = subprocess.run([program("tests/scenario/client_blobs"), mount + "/ns/t"], capture_output=True, text=True,
                         check=False)
    assert out.returncode == 0, out.stderr


@pytest.mark.concurrency
def test_threads_share_a_session_and_a_small_call_buffer(program, mount, slower):
    out = subprocess.run([program("tests/scenario/client_threads"), mount + "/ns/t", "8", "400"], stdout=subprocess.PIPE,
                         text=True, check=False)
    result = json.loads(out.stdout)
    assert out.returncode == 0 and result["wrong"] == 0 and result["lost"] == 0 and result["reattached"] == 0
    assert result["verified"] > 1000 and result["put"] > 10 and result["aborted"] > 0
    sessions_end(mount, slower)


def test_a_session_opens_though_the_daemon_dies_meanwhile(program, mount, slower):
    """Between two requests of pfs_open: the client stops itself before the second one."""
    with subprocess.Popen([program("tests/scenario/client_threads"), mount + "/ns/t", "1", "20"], stdout=subprocess.PIPE,
                          text=True, env=dict(os.environ, STOP_BEFORE_IOCTL="2")) as opener:
        until = time.monotonic() + 10 * slower
        while not stopped(opener.pid) and time.monotonic() < until:
            time.sleep(0.01)
        was_stopped = stopped(opener.pid)
        os.kill(serving(mount), signal.SIGKILL)
        os.kill(opener.pid, signal.SIGCONT)
        result = json.loads(opener.communicate(timeout=40 * slower)[0])
    assert was_stopped and opener.returncode == 0 and result["wrong"] == 0 and result["put"] > 0


@pytest.mark.concurrency
def test_threads_live_through_deaths_of_the_daemon(program, mount, slower):
    with subprocess.Popen([program("tests/scenario/client_threads"), mount + "/ns/t", "6", "6000"],
                          stdout=subprocess.PIPE, text=True) as threads:
        for _ in range(3):
            time.sleep(0.3 * slower)
            if threads.poll() is None:
                try:
                    os.kill(serving(mount), signal.SIGKILL)
                except OSError:
                    pass  # it is being started again
        result = json.loads(threads.communicate()[0])
    assert threads.returncode == 0 and result["wrong"] == 0 and result["verified"] > 1000
    assert result["reattached"] > 0
    sessions_end(mount, slower)
