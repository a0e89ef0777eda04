# SPDX-License-Identifier: Apache-2.0
"""Starts, ends and deaths of the daemon's two processes: the mount goes, the reason stays."""
import ctypes
import errno
import glob
import os
import signal
import subprocess
import time

import pytest

from mounted import PLAIN_LAYOUT, alive, mounts_at, wait_for
from raw import WAIT_INFLIGHT, Client, errno_of, key, name_of

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # __WALL: threads, too


def test_sigterm_ends_it_cleanly(daemon):
    d = daemon()
    d.namespace()
    serving = d.serving()
    status, _ = d.stop()
    assert status == 0
    assert not alive(serving) and mounts_at(d.mount) == []
    assert os.listdir(d.run) == [] if os.path.exists(d.run) else True


@pytest.mark.parametrize("lazily", [False, True])
def test_unmount_from_outside_ends_it_cleanly(daemon, lazily):
    d = daemon()
    subprocess.run(["umount"] + (["-l"] if lazily else []) + [d.mount], check=True)
    assert d.process.wait(5) == 0
    assert not alive(d.serving())


def test_exit_is_quick_while_a_client_holds_ctl(daemon, slower):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        status, seconds = d.stop()
        assert status == 0 and seconds < 1 * slower
        assert errno_of(c.call, "PROBE", keys=1) in (errno.ENOTCONN, errno.ECONNABORTED)
    assert mounts_at(d.mount) == []


def test_exit_is_quick_while_a_request_waits(daemon, slower, on_hang):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put_start(1, [(None, 64, [key(1, 0)])])
        pid = os.fork()
        if pid == 0:
            os._exit(errno_of(c.get_start, 1, [key(1, 0)], flags=WAIT_INFLIGHT, deadline_ms=60000))
        time.sleep(0.3)
        status, seconds = d.stop()
        assert status == 0 and seconds < 1 * slower
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED), errno.errorcode.get(code, code)


def test_killed_serving_process_comes_back(daemon, slower):
    d = daemon()
    d.namespace()
    d.namespace("other", mode=0o700)
    first, mounted_as = d.serving(), os.stat(d.mount).st_dev
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1, 0)], [b"v" * 8192])
        os.kill(first, signal.SIGKILL)
        d.wait_ready(times=2)
        assert errno_of(c.call, "PROBE", keys=1) == errno.ESTALE
    assert d.serving() != first and not alive(first)
    assert len(mounts_at(d.mount)) == 1 and os.stat(d.mount).st_dev == mounted_as
    assert sorted(os.listdir(d.path("ns"))) == ["other", "x"]
    assert os.stat(d.path("ns/other")).st_mode & 0o777 == 0o700
    assert os.listdir(d.path("ns/x/records")) == [name_of(64, key(1, 0))]
    with open(os.path.join(d.folder(), "last_exit"), encoding="utf-8") as f:
        reason = f.read()
    assert reason.startswith("reason: signal 9") and f"pid: {first}" in reason and "last lines:" in reason
    assert "\nphase: serving\n" in reason and "\nsessions: 1  spaces: 2\nnext: started again after 100 ms\n" in reason
    health = d.read("health")
    assert "restarts: 1" in health and "last exit: signal 9" in health
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1, 0)], [b"v" * 8192])
    assert d.stop()[0] == 0


def test_requests_under_way_end_with_the_serving_process(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put_start(1, [(None, 64, [key(1, 0)])])
        pid = os.fork()
        if pid == 0:
            os._exit(errno_of(c.get_start, 1, [key(1, 0)], flags=WAIT_INFLIGHT, deadline_ms=60000))
        wait_for(lambda: c.stats()["waiting"] == "1", 5)
        os.kill(d.serving(), signal.SIGKILL)
        began = time.monotonic()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == errno.ESTALE and time.monotonic() - began < 5
    d.wait_ready(times=2)


def name_and_state(pid, tid):
    with open(f"/proc/{pid}/task/{tid}/stat", encoding="ascii") as f:
        name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
    return name, rest.split()[0]


def threads(pid, wanted):
    """A process's threads with this name: the letter of each one's state."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            name, state = name_and_state(pid, tid)
        except OSError:
            continue  # it has ended
        if name == wanted:
            found[int(tid)] = state
    return found


def freezer(peer, pid):
    """Does as it is told: "hold NAME" keeps the threads of that name still, "free NAME" lets them go on."""
    libc = ctypes.CDLL(None, use_errno=True)

    def trace(request, tid):
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(tid), None, None):
            raise OSError(ctypes.get_errno(), "ptrace")

    while line := peer.listen():
        what, name = line.split()
        try:
            for tid in threads(pid, name):
                if what == "free":
                    trace(PTRACE_DETACH, tid)
                    continue
                trace(PTRACE_SEIZE, tid)
                trace(PTRACE_INTERRUPT, tid)
                os.waitpid(tid, WALL)
        except OSError as e:
            peer.tell(e.errno)
            return
        peer.tell(0)


def remover(peer, folder, name):
    peer.tell("there")
    peer.tell(errno_of(os.rmdir, name, dir_fd=folder))


def entangle(d, peer, slower):
    """The notifier of the serving process waits for a folder's lock, which a client holds that waits for an answer, and
    the loops are still: not even SIGKILL ends a thread there. Returns the client, and who keeps the loops still."""
    serving = d.serving()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for chain in (1, 2):
            c.put(chain, None, 64, [key(chain, 0)], [b"v" * 8192])
    holder = peer(freezer, serving)

    def tell(text):
        holder.say(text)
        error = holder.hear(10 * slower)
        if error == errno.EPERM:
            pytest.skip("threads cannot be traced here")
        assert error == 0, (text, errno.errorcode.get(error, error))

    records = os.open(d.path("ns/x/records"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        tell("hold pfs-notify")
        os.rmdir(name_of(64, key(1, 0)), dir_fd=records)  # the notifier has something to say of the folder
        os.fstat(records)  # its attributes are known: who removes something there does not ask for them first
        tell("hold pfs-loop")
        client = peer(remover, records, name_of(64, key(2, 0)))
        assert client.hear(10 * slower) == "there"
        wait_for(lambda: name_and_state(client.pid, client.pid)[1] in "SD", 10 * slower, "the wait for an answer")
        tell("free pfs-notify")
        wait_for(lambda: list(threads(serving, "pfs-notify").values()) == ["D"], 10 * slower, "the wait for the lock")
    finally:
        os.close(records)
    return client, holder


def test_a_serving_process_that_died_but_cannot_end_is_freed(daemon, peer, slower):
    """Its notifier waits for what the next one answers, which does not wait for its end."""
    d = daemon()
    d.namespace()
    first = d.serving()
    client, holder = entangle(d, peer, slower)
    os.kill(first, signal.SIGKILL)
    holder.end()
    assert client.hear(10 * slower) in (0, errno.ENOENT)  # its record may have gone with memory
    d.wait_ready(times=2)
    assert "its connection is ended" not in d.log() and "mounted anew" not in d.log()
    assert not alive(first) and len(mounts_at(d.mount)) == 1
    assert "restarts: 1" in d.read("health")

    def reason():
        with open(os.path.join(d.folder(), "last_exit"), encoding="utf-8") as f:
            return f.readline()

    wait_for(lambda: reason() == "reason: signal 9 (Killed)\n", 5 * slower, "the exit status of the first")
    assert d.stop()[0] == 0


def test_one_that_cannot_end_does_not_keep_the_parent_from_stopping(daemon, peer, slower):
    """The mount is detached by then, while the client's folder keeps the connection."""
    d = daemon()
    d.namespace()
    serving = d.serving()
    client, holder = entangle(d, peer, slower)
    d.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "and is killed" in d.log(), 5 * slower, "the end of the parent's patience")
    holder.end()
    assert client.hear(10 * slower) in (errno.ENOTCONN, errno.ECONNABORTED)
    assert d.process.wait(5 * slower) == 1
    assert not alive(serving) and mounts_at(d.mount) == []


def test_signals_to_the_group_stop_it_cleanly(daemon):
    """As a service manager or timeout(1) does it: the parent decides, the serving process does not die of it."""
    d = daemon()
    os.killpg(d.process.pid, signal.SIGTERM)
    assert d.process.wait(5) == 0
    assert "died" not in d.log()


def test_stop_while_memory_is_being_populated(daemon, slower):
    d = daemon("--memory", "3G", "--populate-threads", "1")
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 3 << 30}))
    status, seconds = d.stop()
    assert status == 0 and seconds < 1.5 * slower, d.log()


def test_it_gives_up_after_many_deaths(daemon, slower):
    """The mount stays, and says why in health; test_survive.py has more of it."""
    d = daemon("--deaths", "3")
    for n in range(3):
        d.wait_ready(times=n + 1)
        os.kill(d.serving(), signal.SIGKILL)
    wait_for(d.falls, 10 * slower, "the fallen mount")
    assert "giving up: the serving process died 3 times" in d.log()
    assert len(mounts_at(d.mount)) == 1
    assert d.stop()[0] == 1
    assert mounts_at(d.mount) == []
    with open(os.path.join(d.folder(), "last_exit"), encoding="utf-8") as f:
        assert "\nnext: giving up: the serving process died 3 times" in f.read()
    with open(os.path.join(d.folder(), "deaths"), encoding="utf-8") as f:
        lines = [line.split(" ", 3) for line in f.read().splitlines()]
    assert [(restarts, reason) for _, restarts, _, reason in lines] == [(str(n), "signal 9 (Killed)") for n in range(3)]


def test_killed_parent_takes_the_mount_along(daemon, slower):
    d = daemon()
    serving = d.serving()
    with open(d.path("version"), "rb"):
        d.process.kill()
        d.process.wait()
        wait_for(lambda: not alive(serving), 3 * slower, "the end of the serving process")
    assert mounts_at(d.mount) == []
    assert glob.glob(d.run + "/*/sock") == []
    assert f"prefixfsd[{serving}] error: the parent is gone; unmounting\n" in d.log()
    d.start(wait=False)
    d.wait_ready(times=2)
    assert d.read("health").startswith("ok\n")


def test_everything_killed_is_cleaned_up_by_the_next_start(daemon):
    d = daemon()
    os.kill(d.serving(), signal.SIGSTOP)
    d.process.kill()
    os.kill(d.serving(), signal.SIGKILL)
    d.process.wait()
    wait_for(lambda: not alive(d.serving()), 5)
    assert len(mounts_at(d.mount)) == 1
    assert errno_of(os.listdir, d.mount) in (errno.ENOTCONN, errno.ECONNABORTED)
    d.start(wait=False)
    d.wait_ready(times=2)
    assert len(mounts_at(d.mount)) == 1
    assert d.read("health").startswith("ok\n")
    assert "nobody serves" in d.log()


def refusal(program, *options):
    r = subprocess.run([program("prefixfsd"), *options], capture_output=True, text=True, timeout=20, check=False)
    assert r.returncode == 1 and r.stderr.count("\n") == 1, r
    return r.stderr


def test_refusals_are_one_sentence(daemon, program, tmp_path):
    d = daemon()
    file = tmp_path / "file"
    file.write_text("x")
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("x")
    run = ("--run-dir", str(tmp_path / "r"))
    assert "carries a prefixfs already" in refusal(program, *run, d.mount)
    assert "is not a directory" in refusal(program, *run, str(file))
    assert "is not empty" in refusal(program, *run, str(full))
    assert "No such file" in refusal(program, *run, str(tmp_path / "none"))
    assert "known are: memory" in refusal(program, "--mammory", "1G", d.mount)
    assert "memory" in refusal(program, "--memory", "1K", d.mount)
    assert "no mount point" in refusal(program)
    assert refusal(program, *run, "--memory-fault", "read:OOPS", d.mount) == (
        "prefixfsd: memory_fault: fault rule 'read:OOPS' is not understood\n")
    config = tmp_path / "config.json"
    config.write_text('{"memory": "64M", "nonsense": 1}')
    assert "nonsense" in refusal(program, "--config", str(config), d.mount)


def test_background_start_waits_until_the_mount_answers(program, mountable, tmp_path, daemon):
    d = daemon(start=False)
    options = [o for o in d.options if o != "--foreground"]
    r = subprocess.run([program("prefixfsd"), *options, d.mount], capture_output=True, text=True, timeout=20, check=False)
    try:
        assert r.returncode == 0 and r.stderr == "", r
        health = dict(line.split(": ", 1) for line in d.read("health").splitlines() if ": " in line)
        d.pids |= {int(health["parent"]), int(health["serving"])}
        assert "serving" in open(os.path.join(d.folder(), "log"), encoding="utf-8").read()
    finally:
        subprocess.run(["umount", "-l", d.mount], check=False)
    wait_for(lambda: not alive(int(health["parent"])), 5)
    assert not os.path.exists(d.run) or os.listdir(d.run) == []


def test_config_file_and_effective_values(daemon, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"memory": "32M", "loop_threads": 1, "populate": false, "hugepages": "never"}')
    d = daemon("--config", str(config), "--memory", "48M")
    values = dict(line.partition(" ")[::2] for line in d.read("config").splitlines())
    assert values["memory"] == str(48 << 20) and values["loop_threads"] == "1"
    assert values["populate"] == "false" and values["hugepages"] == "never"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_root(daemon):
    if os.stat("/dev/fuse").st_mode & 0o006 != 0o006:
        pytest.skip("/dev/fuse is root's alone here")
    d = daemon(run_as=65534)
    d_uid = os.stat(os.path.join(d.run, os.listdir(d.run)[0])).st_uid
    assert d_uid == 65534
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            d.namespace()
            with Client(d.path("ns/x/ctl")) as c:
                c.acknowledge()
                c.put(1, None, 64, [key(1, 0)], [b"v" * 8192])
                ok = c.probe([key(1, 0)]).hits == 1
        except Exception as e:
            print(e)
            ok = False
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert d.stop()[0] == 0
    assert mounts_at(d.mount) == []


def test_both_processes_have_the_name_of_the_program(daemon):
    """The serving process was `exe`: pgrep found the parent alone."""
    d = daemon()
    for pid in (d.process.pid, d.serving()):
        with open(f"/proc/{pid}/comm", encoding="ascii") as f:
            assert f.read() == "prefixfsd\n"
