# SPDX-License-Identifier: Apache-2.0
"""prefixfs upgrade of a daemon that runs: another program serves, and the mount, the cache and clients' connections go on."""
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from mounted import alive, mounts_at, wait_for
from peers import value_of
from raw import Client, errno_of, key, name_of
from test_survive import LAYOUT, LOST, Load, kill, read_whole

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACE = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")
WAYS = {"--model": "Qwen3-8B", "--tp": "2", "--plane-divisor": "256"}


@pytest.fixture
def upgrade(program):
    """prefixfs upgrade --json: what it says, with `status`."""
    def ask(d, *words):
        r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount, "--json", *words], capture_output=True, text=True, check=False)
        assert r.stdout, r.stderr
        return dict(json.loads(r.stdout), status=r.returncode)
    return ask


@pytest.fixture
def other(program, tmp_path):
    """A program that is not what it should be (other_program.c)."""
    def make(how):
        path = tmp_path / how
        shutil.copy(program("tests/scenario/other_program"), path)
        with open(path, "ab") as f:
            f.write(f"\n{program('prefixfsd')} {how}".encode())
        return str(path)
    return make


@pytest.fixture
def renamed(program, tmp_path):
    """This very program, with another version's number."""
    version = subprocess.run([program("prefixfsd"), "--version"], capture_output=True, text=True, check=True).stdout.split()[1]

    def make(number):
        path = tmp_path / "prefixfsd"
        with open(program("prefixfsd"), "rb") as f:
            code = f.read()
        assert len(number) == len(version)
        path.write_bytes(code.replace(version.encode() + b"\0", number.encode() + b"\0"))
        path.chmod(0o755)
        return str(path)
    make.version = version
    return make


def stays(d):
    return "after a death: the mount stays" in d.read("health")


def files_of(pid):
    """Its descriptors, without those of clients' processes, which come and go."""
    names = (os.readlink(f"/proc/{pid}/fd/{fd}").split(" ")[0].split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd"))
    return sorted(n for n in names if n not in ("anon_inode", "pidfd"))


def put(d, n):
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(n, 0)], [value_of(key(n, 0))])


def resumed(d):
    """The events of that name that the present serving process told, the first of all."""
    fd = os.open(d.path("events"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        events = [json.loads(line) for line in os.read(fd, 1 << 20).splitlines()]
    finally:
        os.close(fd)
    assert events[0]["seq"] == 1 and events[0]["event"] == "resumed", events[:3]
    return [{k: v for k, v in e.items() if k not in ("seq", "time")} for e in events if e["event"] == "resumed"]


def found(d, n):
    return read_whole(d.path("ns/x/records", name_of(64, key(n, 0)), "pages")) == value_of(key(n, 0))


# ---- it does ----------------------------------------------------------------------------------------------------------------


def test_to_itself(daemon, upgrade, slower):
    d = daemon()
    d.namespace(layout=LAYOUT)
    put(d, 1)
    before, parents, serving = os.stat(d.mount), None, d.serving()
    for n in range(4):
        said = upgrade(d)
        assert (said["status"], said["upgraded"], said["errno"]) == (0, True, 0), said
        assert 0 < said["pause_ms"] < 1000 * slower
        assert d.serving() != serving and not alive(serving)
        serving = d.serving()
        assert f"upgrades: {n + 1}\n" in d.read("health") and "restarts: 0\n" in d.read("health")
        assert found(d, 1)
        parents = parents or files_of(d.process.pid)
        wait_for(lambda: files_of(d.process.pid) == parents, 10 * slower, "the parent's descriptors of before")
    after = os.stat(d.mount)
    if stays(d):
        assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino) and "mounted anew" not in d.log()
    assert not os.path.exists(os.path.join(d.folder(), "last_exit")) and not os.path.exists(os.path.join(d.folder(), "deaths"))
    assert d.stop()[0] == 0


def test_the_version_is_the_new_programs(daemon, upgrade, renamed, slower):
    number = "9" * (len(renamed.version) - 2) + ".9"
    d = daemon()
    d.namespace(layout=LAYOUT)
    put(d, 1)
    path = renamed(number)
    said = upgrade(d, path)
    assert said["status"] == 0 and said["text"].startswith(f"prefixfsd {number} serves, after a pause of "), said
    assert f"\nversion: {number}, " in d.read("health") and d.read("version").startswith(f"prefixfs {number}\n")
    assert d.logged(f"prefixfsd {number} may follow {renamed.version}")
    assert resumed(d) == [{"event": "resumed", "restarts": 0, "upgrades": 1, "version": number}]
    # Who follows it after a death is the same program, though its file is gone by then.
    os.unlink(path)
    serving = kill(d)
    wait_for(lambda: d.serving() != serving, 20 * slower, "the next one")
    assert f"\nversion: {number}, " in d.read("health") and found(d, 1)
    with open(os.path.join(d.folder(), "last_exit"), encoding="utf-8") as f:
        assert f"\nversion: {number}\n" in f.read()
    assert resumed(d) == [{"event": "resumed", "restarts": 1, "upgrades": 1, "version": number}]
    # Back is the same command: without a file it is what the daemon was started from.
    said = upgrade(d)
    assert said["status"] == 0 and said["text"].startswith(f"prefixfsd {renamed.version} serves"), said
    assert d.logged(f"prefixfsd {renamed.version} may follow {number}")
    assert f"\nversion: {renamed.version}, " in d.read("health") and found(d, 1)
    assert "upgrades: 2\n" in d.read("health") and "restarts: 1\n" in d.read("health")


@pytest.mark.limit(240)
def test_under_load(daemon, upgrade, program, slower, on_hang):
    d = daemon("--memory", "256M")
    if not stays(d):
        pytest.skip("this kernel does not send requests again: Linux 6.9 does")
    d.namespace(layout=LAYOUT)
    words = [word for pair in WAYS.items() for word in pair]
    replay = subprocess.Popen([program("prefixfs"), "replay", TRACE, "--mount", d.mount, "--ns", "a", "--one-rank", "--requests", "100",
                               "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    load = Load(lambda: os.stat(d.path("ns/x/layout")), lambda: os.listdir(d.path("ns")), lambda: os.listdir(d.path("ns/x/records")))
    done = 0
    try:
        wait_for(lambda: os.path.exists(d.path("ns/a/stats")) and int(d.stats("a")["values_committed"]) > 100, 60 * slower, "the replay")
        while done < 10 and replay.poll() is None:
            load.goes_on(20 * slower)
            said = upgrade(d)
            assert said["status"] == 0, said
            done += 1
        out, err = replay.communicate(timeout=120 * slower)
    finally:
        replay.kill()
        errors = load.end(20 * slower)
    assert replay.returncode == 0, err
    assert json.loads(out)["wrong_values"] == 0 and json.loads(out)["verified_values"] > 0
    assert done >= 2 and errors == {}, (done, errors)
    assert len(mounts_at(d.mount)) == 1 and "mounted anew" not in d.log() and "restarts: 0\n" in d.read("health")
    assert load.longest < 2 * slower
    assert d.stop()[0] == 0


def test_who_waits_and_who_holds(daemon, upgrade):
    """A client that goes on over an upgrade: its old ctl is stale, what it committed is there."""
    d = daemon()
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1, 0)], [value_of(key(1, 0))])
        assert upgrade(d)["status"] == 0
        assert errno_of(c.call, "PROBE", keys=1) in ((errno.ESTALE,) if stays(d) else LOST)
    assert found(d, 1)


def test_an_old_one_that_is_stopped(daemon, program, slower):
    d = daemon()
    d.namespace(layout=LAYOUT)
    put(d, 1)
    old = kill(d, signal.SIGSTOP)
    r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount], capture_output=True, text=True, timeout=30 * slower, check=False)
    assert (r.returncode, r.stderr) == (0, ""), r
    assert "the old one did not end what it ran within 100 ms and was killed\n" in r.stdout
    assert not alive(old) and found(d, 1)
    assert "restarts: 0\n" in d.read("health") and "upgrades: 1\n" in d.read("health")


def test_a_process_of_before_with_the_same_device(daemon, program, slower):
    """The kernel gives a device's number again, while a daemon that was unmounted may still write down what it held."""
    d = daemon()
    device = mounts_at(d.mount)[-1]
    for mount in ("/elsewhere", d.mount):
        words = ["python3", "-c", "import sys; print(flush=True); sys.stdin.read()", f"--serve=1,2,3,4,{device},0,0,", mount]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as before:
            assert before.stdout.readline() == b"\n"
            try:
                if mount == d.mount:  # whoever began last is meant: start one after it
                    old = d.serving()
                    kill(d)
                    wait_for(lambda: d.serving() != old, 20 * slower, "the next one")
                r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount], capture_output=True, text=True,
                                   timeout=30 * slower, check=False)
                assert (r.returncode, r.stderr) == (0, ""), r
            finally:
                before.kill()


def test_a_parent_that_is_stopped(daemon, program, slower):
    """With nobody who serves, the mount answers nothing, nor does the parent."""
    d = daemon("--deaths=1")
    os.kill(d.process.pid, signal.SIGSTOP)
    try:
        with open(f"/proc/{d.process.pid}/stat", encoding="ascii") as stat:
            wait_for(lambda: (stat.seek(0), stat.read())[1].rsplit(")", 1)[1].split()[0] == "T", 10 * slower, "its stop")
        for how in ("serves", "nobody"):
            if how == "nobody":
                kill(d)
                wait_for(lambda: not alive(d.serving()) and len(os.listdir(f"/proc/{d.serving()}/task")) == 1, 10 * slower, "its end")
            r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount], capture_output=True, text=True,
                               timeout=30 * slower, check=False)
            stopped = f"prefixfs: the daemon at {d.mount} is stopped: kill -CONT {d.process.pid} has its parent go on\n"
            assert (r.returncode, r.stderr) == (1, stopped)
    finally:
        os.kill(d.process.pid, signal.SIGCONT)


def test_from_the_fallen_mount(daemon, upgrade, slower):
    d = daemon("--deaths=1")
    d.namespace(layout=LAYOUT)
    put(d, 1)
    kill(d)
    wait_for(d.falls, 30 * slower, "the fallen mount")
    health = d.read("health")
    assert health.startswith(f"state: fallen\nparent: {d.process.pid}\nsocket: {d.folder()}/sock\nreason: "), health
    said = upgrade(d)
    assert said["status"] == 0, said
    assert d.read("health").startswith("ok\n") and found(d, 1)
    assert "the fallen mount ends" in d.log()
    put(d, 2)
    assert found(d, 2) and d.stop()[0] == 0


def test_what_commands_say_of_the_fallen_mount(daemon, program, slower):
    d = daemon("--deaths=1")
    d.namespace(layout=LAYOUT)
    kill(d)
    wait_for(d.falls, 30 * slower, "the fallen mount")
    fallen = f"prefixfs: the mount {d.mount} is fallen: {d.mount}/health says why, and prefixfs upgrade --mount {d.mount} has it served " \
             "again, with its cache\n"

    def says(*words):
        r = subprocess.run([program("prefixfs"), *words], capture_output=True, text=True, timeout=30 * slower, check=False)
        assert (r.returncode, r.stderr) == (1, fallen), r
        return r.stdout
    for words in (("ns", "list", "--mount"), ("stat", "x", "--mount"), ("version", "--mount"), ("mount", f"--run-dir={d.run}")):
        assert says(*words, d.mount) == ""
    known = json.loads(says("stat", "--json", "--mount", d.mount))
    assert (known["state"], known["parent"], known["reason"]) == ("fallen", d.process.pid, "signal 9 (Killed)")
    assert (known["sessions"], known["spaces"]) == (0, 1) and known["next"].startswith("giving up: ")
    assert set(known) <= {"state", "parent", "socket", "reason", "time", "pid", "version", "mount", "restarts", "served_s", "phase", "doing",
                          "sessions", "spaces", "next"}
    assert re.search(r"^spaces +1$", says("stat", "--mount", d.mount), re.M)


def test_it_is_remounted_where_that_is_allowed(daemon, upgrade):
    """Without resending the mount is made anew, and memory is adopted all the same."""
    d = daemon("--resend=no")
    d.namespace(layout=LAYOUT)
    put(d, 1)
    assert upgrade(d)["status"] == 0
    assert "is mounted anew: resend: no" in d.log() and len(mounts_at(d.mount)) == 1
    assert found(d, 1) and d.stop()[0] == 0


# ---- it is refused ----------------------------------------------------------------------------------------------------------


REFUSALS = [("hang", errno.ENOEXEC, "the program answered nothing within 300 ms when it was asked what it is"),
            ("nonsense", errno.ENOEXEC, "the program is no prefixfsd: what it says of itself makes no sense"),
            ("will", errno.EPROTO, "prefixfsd 9.9.9 speaks version 3 to its parent, this daemon 2: stop it and start the new one"),
            ("options", errno.EINVAL, "prefixfsd 9.9.9 does not take this daemon's options: there is no parameter 'colour'"),
            ("tables", errno.ENOTSUP, "prefixfsd 9.9.9 knows tables of version 1; those here have ")]


@pytest.mark.parametrize("how, error, text", REFUSALS)
def test_what_the_judge_refuses(daemon, upgrade, other, how, error, text, slower):
    d = daemon(*(["--upgrade-judge-ms=300"] if how == "hang" else []))
    d.namespace(layout=LAYOUT)
    put(d, 1)
    serving = d.serving()
    said = upgrade(d, other(how))
    assert (said["status"], said["errno"], said["upgraded"]) == (1, error, False) and text in said["text"], said
    assert d.serving() == serving and found(d, 1) and "upgrades: 0\n" in d.read("health")


def test_files_that_are_no_programs(daemon, program, tmp_path, slower):
    d = daemon()
    for name, content, mode in (("text", b"no program\n", 0o755), ("script", b"#!/bin/sh\n", 0o755), ("locked", b"\x7fELF", 0o644)):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for path, text in ((tmp_path / "text", "text: the file is no program that can be run here"),
                       (tmp_path / "script", "script is a script: it must be the program itself"),
                       (tmp_path / "locked", "locked may not be executed: its mode is 0644"),
                       (tmp_path / "folder", "folder is no regular file"),
                       (tmp_path / "fifo", "fifo is no regular file"),
                       ("/bin/true", "/bin/true: the program is no prefixfsd: what it says of itself makes no sense")):
        r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount, path], capture_output=True, text=True, timeout=20 * slower,
                           check=False)
        assert r.returncode == 1 and r.stderr.endswith(text + "\n") and r.stderr.count("\n") == 1, r
    r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount, ""], capture_output=True, text=True, check=False)
    assert (r.returncode, r.stderr) == (2, "prefixfs upgrade: the program's name is empty; see prefixfs upgrade --help\n")


def test_who_may_and_where_no_mount_is(daemon, program):
    d = daemon()
    if os.geteuid() == 0:
        r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount], user=65534, capture_output=True, text=True, check=False)
        assert (r.returncode, r.stderr) == (1, f"prefixfs: only root, who mounted {d.mount}, may upgrade its daemon\n")
    for mount, text in ((d.run, d.run), (d.run + "/none", d.run + "/none: No such file or directory")):
        r = subprocess.run([program("prefixfs"), "upgrade", "--mount", mount], capture_output=True, text=True, check=False)
        assert (r.returncode, r.stderr) == (1, f"prefixfs: no prefixfs is mounted at {text}\n")


def test_one_at_a_time(daemon, upgrade, other, program, slower):
    d = daemon("--upgrade-judge-ms=60000")
    first = subprocess.Popen([program("prefixfs"), "upgrade", "--mount", d.mount, other("hang")])
    try:
        wait_for(lambda: any("--judge" in words for words in children(d.process.pid)), 10 * slower, "the judge")
        said = upgrade(d)
        assert (said["status"], said["errno"], said["text"]) == (1, errno.EBUSY, "an upgrade is under way already")
    finally:
        first.kill()
        first.wait()
    # Who asked is gone: the next one may ask.
    wait_for(lambda: upgrade(d)["status"] == 0, 10 * slower, "an upgrade")


def children(pid):
    """The command lines of its children."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        pids = f.read().split()
    lines = []
    for child in pids:
        try:
            with open(f"/proc/{child}/cmdline", encoding="utf-8") as f:
                lines.append(f.read().split("\0"))
        except OSError:
            pass
    return lines


# ---- the new one does not come to serve -------------------------------------------------------------------------------------


ENDS = [("exit", "another program's last words", "serves on"), ("abort", "signal 6 (Aborted)", "serves on"),
        ("late", "another program's last words", "serves again"),
        ("never", "it was not ready within 500 ms and was killed", "serves on"),
        ("stuck", "it was not ready within 500 ms and was killed", "serves again")]


@pytest.mark.parametrize("how, reason, then", ENDS)
def test_one_that_does_not_come_to_serve(daemon, upgrade, other, how, reason, then, slower):
    d = daemon("--upgrade-ready-ms=500") if reason.startswith("it was") else daemon()
    d.namespace(layout=LAYOUT)
    put(d, 1)
    serving = d.serving()
    version = d.read("version").split()[1]
    said = upgrade(d, other(how))
    assert (said["status"], said["errno"]) == (1, errno.ECANCELED), said
    assert said["text"].startswith("the new serving process ended before it served: "), said
    assert said["text"].endswith(f"; prefixfsd {version} {then}") and reason in said["text"] or how in ("exit", "late"), said
    assert (d.serving() == serving) == (then == "serves on")
    assert found(d, 1) and "upgrades: 0\n" in d.read("health")
    if stays(d):
        assert "mounted anew" not in d.log()
    said = upgrade(d)
    assert said["status"] == 0, said
    assert found(d, 1) and d.stop()[0] == 0


def test_an_old_one_that_dies_meanwhile(daemon, other, program, upgrade, slower):
    d = daemon("--upgrade-ready-ms=60000")
    d.namespace(layout=LAYOUT)
    put(d, 1)
    asker = subprocess.Popen([program("prefixfs"), "upgrade", "--mount", d.mount, other("stuck")], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: not alive(d.serving()), 20 * slower, "the old one's end")
        stuck = wait_for(lambda: [w for w in open(f"/proc/{d.process.pid}/task/{d.process.pid}/children", encoding="ascii").read().split()
                                  if alive(w)], 10 * slower)
        os.kill(int(stuck[-1]), signal.SIGKILL)
        _, err = asker.communicate(timeout=20 * slower)
    finally:
        asker.kill()
        asker.wait()
    assert asker.returncode == 1 and "ended before it served: signal 9 (Killed)" in err, err
    assert found(d, 1) and upgrade(d)["status"] == 0


# ---- the end, in the middle -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hang", "never", "stuck"])
def test_the_end_comes_within_a_second(daemon, other, program, how, slower):
    d = daemon("--upgrade-judge-ms=60000", "--upgrade-ready-ms=60000")
    d.namespace(layout=LAYOUT)
    asker = subprocess.Popen([program("prefixfs"), "upgrade", "--mount", d.mount, other(how)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        if how == "hang":
            wait_for(lambda: any("--judge" in words for words in children(d.process.pid)), 10 * slower, "the judge")
        elif how == "never":
            wait_for(lambda: sum(any(w.startswith("--serve=") for w in words) for words in children(d.process.pid)) == 2, 10 * slower)
        else:
            wait_for(lambda: not alive(d.serving()), 10 * slower, "the old one's end")
        mine = [int(p) for p in open(f"/proc/{d.process.pid}/task/{d.process.pid}/children", encoding="ascii").read().split()]
        began = time.monotonic()
        status, seconds = d.stop()
        assert seconds < 1.1 * slower, d.log()
        assert status == 0 or how == "stuck"  # which is killed, unless the old one has not been reaped yet
        _, err = asker.communicate(timeout=20 * slower)
        assert asker.returncode == 1 and "the daemon is being stopped" in err, (err, time.monotonic() - began)
    finally:
        asker.kill()
        asker.wait()
    assert mounts_at(d.mount) == []
    wait_for(lambda: not any(alive(p) for p in mine), 5 * slower, "the end of all")


def test_a_long_path_is_a_warning(program, daemon, tmp_path, slower):
    """The clients' socket fits where parent.sock does not: the daemon runs, and says what it cannot."""
    d = daemon(start=False)
    name = os.path.join(d.base, "r" * (64 - len(d.base) - 1))
    os.mkdir(name)
    mount = os.path.join(d.base, "m" * 24)
    os.mkdir(mount)
    d.run, d.mount = name, mount
    d.options[d.options.index("--run-dir") + 1] = name
    d.start()
    if len(d.folder()) + len("/parent.sock") < 108:
        pytest.skip("the folder's name is too short here")
    assert re.search(r"warning: prefixfs upgrade cannot ask this daemon: socket .*/parent.sock: its path has \d+ bytes", d.log())
    r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount], capture_output=True, text=True, check=False)
    assert r.returncode == 1 and "at most 107 are possible" in r.stderr
    assert d.stop()[0] == 0
