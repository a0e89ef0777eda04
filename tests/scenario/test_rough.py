# SPDX-License-Identifier: Apache-2.0
"""Rough hands: what people and their tools do to a mount that is under load. Each gets the errno that a file system of
Linux gives, nothing blocks, nothing is half removed, and the load does not notice."""
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest

from mounted import PLAIN_LAYOUT, alive, wait_for
from peers import value_of
from raw import Client, errno_of, key, name_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACE = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")
LAYOUT = dict(PLAIN_LAYOUT, memory={"floor": 16 << 20},
              classes=[{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 4096}]}])


class Load:
    """`prefixfs replay` into ns/load, again and again; every byte that it gets is checked."""

    def __init__(self, d, replay, folder):
        layout = os.path.join(folder, "layout.json")
        with open(layout, "w", encoding="utf-8") as f:
            json.dump(LAYOUT, f)
        self.d, self.runs, self.wrong, self.over, self.process = d, 0, [], False, None
        self.command = [replay, "replay", TRACE, "--mount", d.mount, "--ns", "load", "--clients", "2", "--order", "free",
                        "--json"]
        self.first = ["--layout", layout]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        wait_for(lambda: os.path.exists(d.path("ns/load/records")) and len(os.listdir(d.path("ns/load/records"))) > 20,
                 60 * d.slower, "the load", pause=0.05)

    def run(self):
        while not self.over:
            self.process = subprocess.Popen(self.command + self.first, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                            text=True)
            out, err = self.process.communicate()
            self.first = []
            self.runs += 1
            if self.over:
                break
            if self.process.returncode or json.loads(out)["wrong_values"]:
                self.wrong.append((self.process.returncode, out, err))
                break

    def end(self):
        self.over = True
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.thread.join()
        assert not self.wrong, self.wrong


@pytest.fixture
def load(daemon, program, tmp_path):
    d = daemon("--memory", "48M")
    replay = program("prefixfs")
    d.namespace("x", layout=dict(PLAIN_LAYOUT, memory={"floor": 8 << 20}))
    made = Load(d, replay, str(tmp_path))
    yield made
    made.end()
    assert alive(d.serving()) and "restarts: 0" in d.read("health")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ, LC_ALL="C"),
                          **more)


def filled(d, count=40):
    """ns/x with a few chains of which the bytes are known; name -> bytes."""
    expected = {}
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n in range(count):
            keys = [key(n, i) for i in range(3)]
            c.put(n + 1, None, 192, keys, [value_of(k) for k in keys])
            expected[name_of(192, keys[-1])] = b"".join(value_of(k) for k in keys)
    return expected


def only(stderr, *allowed):
    """Each complaint of a tool is one of these."""
    for line in stderr.splitlines():
        assert any(a in line for a in allowed), line


def test_names_that_cannot_be(load):
    d = load.d
    folders = ["", "ns", "sessions", "ns/load", "ns/load/records", "ns/load/checkpoints", "ns/load/pages",
               "ns/load/records/" + os.listdir(d.path("ns/load/records"))[0]]
    for folder in folders:
        for name in (b"x" * 255, b"\xff\xfe" * 40, b"\xff" * 81, b"*", b" ", b"\n", b"0" * 16 + b"-" + b"Z" * 64, b"-1", b"0"):
            path = os.path.join(d.path(folder).encode(), name)
            assert errno_of(os.lstat, path) == errno.ENOENT, path
            assert errno_of(os.open, path, os.O_RDONLY) == errno.ENOENT, path
            assert errno_of(os.unlink, path) == errno.ENOENT, path
            assert errno_of(os.rmdir, path) == errno.ENOENT, path
        long = errno_of(os.lstat, os.path.join(d.path(folder), "x" * 256))
        assert long == errno.ENAMETOOLONG or not os.path.exists(d.path(folder)), folder  # a record may have been evicted


def test_writing_where_nothing_can_be_written(load):
    d = load.d
    filled(d, 2)
    record = d.path("ns/x/records", os.listdir(d.path("ns/x/records"))[0])
    files = [d.path(f) for f in ("README", "version", "config", "health", "tiers", "ns/x/layout", "ns/x/segment",
                                 "ns/x/stats")] + [os.path.join(record, "header"), os.path.join(record, "pages")]
    for path in files:
        assert errno_of(os.open, path, os.O_WRONLY) == errno.EPERM, path
        assert errno_of(os.open, path, os.O_RDWR) == errno.EPERM, path
        assert errno_of(os.open, path, os.O_RDONLY | os.O_TRUNC) == errno.EPERM, path
        assert errno_of(os.truncate, path, 0) in (errno.EPERM, errno.EEXIST), path
        assert errno_of(os.chmod, path, 0o777) == errno.EPERM, path
        assert errno_of(os.chown, path, 1, 1) == errno.EPERM, path
        assert errno_of(os.link, path, path + "2") == errno.EROFS, path
        assert errno_of(os.mkdir, path) == errno.EEXIST, path
        assert errno_of(os.listdir, path) == errno.ENOTDIR, path
        assert errno_of(os.lstat, os.path.join(path, "below")) == errno.ENOTDIR, path
        fd = os.open(path, os.O_RDONLY)
        assert errno_of(os.write, fd, b"x") == errno.EBADF
        assert errno_of(os.ftruncate, fd, 0) == errno.EINVAL
        os.lseek(fd, 1 << 62, os.SEEK_SET)
        assert os.read(fd, 10) == b""
        os.close(fd)
    for folder in (d.mount, d.path("ns/x"), d.path("ns/x/records"), d.path("sessions"), record):
        assert errno_of(os.open, os.path.join(folder, "new"), os.O_CREAT | os.O_WRONLY) == errno.EROFS, folder
        assert errno_of(os.open, folder, os.O_WRONLY) == errno.EISDIR, folder


@pytest.mark.concurrency
def test_lookups_of_what_is_being_evicted(load):
    """Every read is whole and right or says that it is gone."""
    d, outcomes, failures = load.d, {}, []

    def reader(seed):
        dice = random.Random(seed)
        end = time.monotonic() + 4
        try:
            while time.monotonic() < end:
                names = os.listdir(d.path("ns/load/records"))
                for name in dice.sample(names, min(40, len(names))):
                    folder = d.path("ns/load", dice.choice(["records", "checkpoints"]), name)
                    try:
                        with open(os.path.join(folder, "header"), encoding="ascii") as f:
                            assert f"key: {name[17:]}\n" in f.read()
                        with open(os.path.join(folder, "pages"), "rb", buffering=0) as f:
                            size = os.fstat(f.fileno()).st_size
                            assert len(f.read()) == size
                        outcome = 0
                    except OSError as e:
                        outcome = e.errno
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1
        except BaseException as e:
            failures.append(repr(e))

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    assert outcomes.get(0, 0) > 10 and set(outcomes) <= {0, errno.ENOENT, errno.ENODATA}, outcomes


def test_cp_tar_and_rsync_take_what_is_there(load, tmp_path):
    d = load.d
    expected = filled(d)
    r = run("cp", "-r", d.path("ns/x/records"), str(tmp_path / "cp"))
    assert r.returncode == 0 and not r.stderr, r
    for name, content in expected.items():
        assert (tmp_path / "cp" / name / "pages").read_bytes() == content
    r = run("cp", "-rL", d.path("ns/x/checkpoints"), str(tmp_path / "cpl"))
    assert r.returncode == 0 and set(os.listdir(tmp_path / "cpl")) == set(expected), r
    r = run("tar", "-cf", str(tmp_path / "t.tar"), "-C", d.path("ns/x"), "records", "checkpoints")
    assert r.returncode in (0, 1), r  # 1: a file changed as it was read: small texts have size 0
    only(r.stderr, "file changed as we read it")
    r = run("tar", "-xf", str(tmp_path / "t.tar"), "-C", str(tmp_path))
    assert r.returncode == 0, r
    for name, content in expected.items():
        assert (tmp_path / "records" / name / "pages").read_bytes() == content
        assert os.readlink(tmp_path / "checkpoints" / name) == "../records/" + name
    # of what goes meanwhile they say so, and go on
    for command in (["cp", "-r", d.path("ns/load/records"), str(tmp_path / "load")],
                    ["tar", "-cf", str(tmp_path / "l.tar"), "-C", d.path("ns/load"), "records"],
                    ["du", "-s", d.mount], ["find", d.mount, "-size", "+0", "-type", "f"], ["ls", "-lR", d.mount]):
        r = run(*command)
        only(r.stderr, "No such file", "No data available", "file changed as we read it", "File removed before we read it",
             "error exit delayed", "Exiting with failure status", "No such process", "File shrank")


def test_rsync(load, tmp_path):
    if not shutil.which("rsync"):
        pytest.skip("rsync is not installed")
    d = load.d
    expected = filled(d)
    r = run("rsync", "-rl", d.path("ns/x/records"), d.path("ns/x/checkpoints"), str(tmp_path))
    assert r.returncode == 0, r
    for name, content in expected.items():
        assert (tmp_path / "records" / name / "pages").read_bytes() == content
        assert os.readlink(tmp_path / "checkpoints" / name) == "../records/" + name
    r = run("rsync", "-rlI", str(tmp_path / "records"), d.path("ns/x/"))  # the other way nothing goes
    assert r.returncode != 0
    assert set(os.listdir(d.path("ns/x/records"))) == set(expected)


def test_removing_by_find_and_rm(load):
    """find -delete and rm -rf evict records, one by one, whole; what stands by itself stays, and says so."""
    d = load.d
    expected = filled(d)
    with Client(d.path("ns/x/ctl")) as c:
        held = name_of(192, key(7, 2))
        c.get_start(1, [key(7, i) for i in range(3)])
        r = run("find", d.path("ns/x/records"), "-mindepth", "1", "-delete")
        assert r.returncode == 1
        only(r.stderr, "Device or resource busy", "Directory not empty")
        assert os.listdir(d.path("ns/x/records")) == [held]
        with open(d.path("ns/x/records", held, "pages"), "rb") as f:
            assert f.read() == expected[held]
        r = run("find", d.path("ns/x/checkpoints"), "-mindepth", "1", "-delete")
        assert r.returncode == 1
        only(r.stderr, "Operation not permitted")
        assert os.listdir(d.path("ns/x/checkpoints")) == [held]
        r = run("rm", "-rf", d.path("ns/x"))
        assert r.returncode == 1
        only(r.stderr, "Operation not permitted", "Device or resource busy", "Directory not empty")
        assert os.listdir(d.path("ns/x/records")) == [held]
        assert errno_of(os.rmdir, d.path("ns/x")) == errno.EBUSY
        c.call("GET_CANCEL", handle=1)
    r = run("rm", "-rf", d.path("ns/x"))
    assert r.returncode == 1
    only(r.stderr, "Operation not permitted")
    assert os.listdir(d.path("ns/x/records")) == [] and d.read("ns/x/layout")
    wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 5, "the removal")
    assert not os.path.exists(d.path("ns/x"))
    r = run("rm", "-rf", d.path("ns/load"))  # under a session and while records come
    assert r.returncode == 1 and os.path.exists(d.path("ns/load/ctl"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_user_sees_nothing(load):
    d = load.d
    expected = filled(d, 3)
    os.chmod(d.path("ns/x"), 0o750)
    name = next(iter(expected))
    other = {"user": 1234, "group": 1234, "extra_groups": []}
    script = "; ".join(f"{c} && echo LEAK" for c in (
        f"ls {d.path('ns/x')}", f"cat {d.path('ns/x/records', name, 'pages')}", f"ls {d.path('ns/x/checkpoints')}",
        f"cat {d.path('ns/x/pages', name[17:])}", f"readlink {d.path('ns/x/checkpoints', name)}",
        f"stat {d.path('ns/x/records', name)}", f"rm -rf {d.path('ns/x')}", f"mv {d.path('ns/x')} {d.path('ns/y')}",
        f"chmod 777 {d.path('ns/x')}", f"chown 1234 {d.path('ns/x')}", f"touch {d.path('ns/x')}"))
    r = run("sh", "-c", script, **other)
    assert "LEAK" not in r.stdout, r
    only(r.stderr, "Permission denied", "Operation not permitted", "Read-only file system")
    assert run("ls", d.path("ns"), **other).stdout.split() == ["load"]
    r = run("rm", "-rf", d.path("ns/load"), **other)
    assert r.returncode == 1
    with open(d.path("ns/x/records", name, "pages"), "rb") as f:
        assert f.read() == expected[name]


def test_who_copies_or_searches_all_of_it_does_not_wait_at_events(daemon, tmp_path, slower):
    """events is a stream without an end: listed as a link, which nobody follows who walks a tree."""
    d = daemon()
    d.namespace()
    assert os.readlink(d.path("events")) == ".events" and os.path.isfile(d.path("events"))
    assert "events" in os.listdir(d.mount) and ".events" not in os.listdir(d.mount)
    for command in (["cp", "-r", d.mount, str(tmp_path / "copy")], ["grep", "-r", "no such text", d.mount],
                    ["tar", "-cf", "/dev/null", "-C", d.mount, "."], ["find", d.mount, "-type", "f", "-exec", "cat", "{}", "+"]):
        out = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=30 * slower,
                             check=False)
        assert out.returncode in (0, 1), (command, out.stderr)
    assert os.readlink(tmp_path / "copy" / "events") == ".events"
    assert (tmp_path / "copy" / "ns" / "x" / "stats").stat().st_size > 0
