# SPDX-License-Identifier: Apache-2.0
"""The mount outlives its serving process: the same mount, nobody hangs, what was asked is answered, what is gone is ESTALE."""
import contextlib
import errno
import json
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time

import pytest

from mounted import alive, mounts_at, wait_for
from peers import value_of
from raw import LOST as LOST_GROUP
from raw import U8, WAIT_INFLIGHT, Client, Refused, errno_of, key, name_of

LAYOUT = {"version": 1, "identity": {"model": "test/survive"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 8192}]}]}
LOST = (errno.ENOTCONN, errno.ECONNABORTED)  # what nobody may see while the mount stays


@pytest.fixture
def survives(daemon):
    """A daemon with these options, on a kernel that sends requests again."""
    def make(*options):
        d = daemon("--deaths=1000", *options)
        if "after a death: the mount stays" not in d.read("health"):
            pytest.skip("this kernel does not send requests again: Linux 6.9 does")
        return d
    return make


def kill(d, number=signal.SIGKILL):
    pid = d.serving()
    os.kill(pid, number)
    return pid


def kill_and_wait(d):
    """Until the next one serves; its pid."""
    before = kill(d)
    wait_for(lambda: d.serving() != before, 20 * d.slower, "the next serving process")
    return d.serving()


def last_exit(d):
    with open(os.path.join(d.folder(), "last_exit"), encoding="utf-8") as f:
        return f.read()


def keep(d, space="hot"):
    """A namespace with a chain of three pages, and the client that has put it."""
    d.namespace(space, LAYOUT)
    client = Client(d.path("ns", space, "ctl"), client_id=(U8 * 16)(*range(16)))
    client.acknowledge()
    keys = [key(7, i) for i in range(3)]
    client.put(1, None, 192, keys, [value_of(k) for k in keys])
    return client, keys


def again(d, space="hot", client_id=range(16)):
    client = Client(d.path("ns", space, "ctl"), client_id=(U8 * 16)(*client_id))
    client.acknowledge()
    return client


def assert_found(client, keys, handle=900, plan=901):
    found = client.get_start(handle, keys)
    assert found.all_hit and found.transferable_len == 64 * len(keys)
    client.get_transfer(handle, plan, found.transferable_len)
    for k, offset in zip(keys, client.offsets):
        assert client.segment[offset:offset + 8192] == value_of(k)
    client.release([plan])


def test_what_was_committed_is_there_after_a_death(survives):
    d = survives("--memory=64M")
    client, keys = keep(d)
    before = d.stats("hot")
    end = d.path("ns", "hot", "records", name_of(192, keys[2]))
    os.setxattr(end, "user.prefixfs.pin", b"1")
    inode = os.stat(end).st_ino
    client.put_start(2, [(None, 64, [key(8, 0)])])
    kill_and_wait(d)
    assert errno_of(client.probe, keys) == errno.ESTALE
    with again(d) as heir:
        assert os.fstat(heir.segment_fd).st_ino == os.fstat(client.segment_fd).st_ino
        assert_found(heir, keys)
        stats = d.stats("hot")
        assert stats["remnants"] == "1" and int(stats["remnant_slots"]) == 4 - 3
        assert stats["records"] == before["records"] and stats["pages"] == "3"
        assert stats["granted_bytes"] == before["granted_bytes"]
        assert os.getxattr(end, "user.prefixfs.pin") == b"1"
        assert os.stat(end).st_ino == inode
        assert f"1 slots are kept for session {client.attached.session} of before" in d.read("health")
        with pytest.raises(Refused) as e:
            heir.put_end("PUT_COMMIT", 2)
        assert e.value.errno == errno.EALREADY and e.value.reply.outcome == LOST_GROUP
        with again(d, client_id=range(1, 17)) as other:
            assert errno_of(other.call, "SETTLE", session=client.attached.session) == errno.EACCES
        heir.call("SETTLE", session=client.attached.session)
        assert errno_of(heir.call, "SETTLE", session=client.attached.session) == errno.ENOENT
        stats = d.stats("hot")
        assert stats["remnants"] == stats["remnant_slots"] == stats["slots_owed"] == stats["groups_open"] == "0"
        kill_and_wait(d)
    with again(d) as heir:
        assert_found(heir, keys)
    client.close()


def test_a_client_that_dies_frees_what_was_kept_for_it(survives, peer):
    d = survives("--memory=64M")

    def body(peer):
        client, keys = keep(d)
        client.put_start(2, [(None, 64 * 40, [key(8, i) for i in range(40)])])
        peer.tell(client.attached.session)
        peer.listen()

    p = peer(body)
    session = p.hear()
    kill_and_wait(d)
    assert d.stats("hot")["remnant_slots"] == "40"
    kill_and_wait(d)
    assert f"kept for session {session} of before" in d.read("health")
    assert d.stats("hot")["remnant_slots"] == "40"
    p.kill()
    wait_for(lambda: d.stats("hot")["remnants"] == "0", 10 * d.slower, "the slots of a client that is gone")
    assert d.stats("hot")["slots_owed"] == "0"
    with again(d) as heir:
        assert_found(heir, [key(7, i) for i in range(3)])


def test_a_namespace_stays_while_a_client_of_before_holds_plans(survives):
    d = survives("--memory=64M")
    client, _ = keep(d)
    client.put_start(2, [(None, 64, [key(8, 0)])])
    assert errno_of(os.rmdir, d.path("ns/hot")) == errno.EBUSY
    kill_and_wait(d)
    assert errno_of(os.rmdir, d.path("ns/hot")) == errno.EBUSY
    assert d.logged("1 slots of namespace hot are kept for clients of before")
    with again(d) as heir:
        heir.call("SETTLE", session=client.attached.session)
    os.rmdir(d.path("ns/hot"))
    client.close()


class Load:
    """Threads that ask without a pause; every answer is noted, and how long the longest took."""

    def __init__(self, *jobs):
        self.over, self.answers, self.errors, self.longest = False, 0, {}, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(job,), daemon=True) for job in jobs]
        for t in self.threads:
            t.start()

    def run(self, job):
        while not self.over:
            began, error = time.monotonic(), 0
            try:
                job()
            except OSError as e:
                error = e.errno
            with self.lock:
                self.answers += 1
                self.longest = max(self.longest, time.monotonic() - began)
                if error:
                    self.errors[error] = self.errors.get(error, 0) + 1

    def goes_on(self, seconds):
        before = self.answers
        wait_for(lambda: self.answers > before + 20 * len(self.threads), seconds, "the load")

    def end(self, seconds):
        self.over = True
        for t in self.threads:
            t.join(seconds)
        assert not any(t.is_alive() for t in self.threads), "somebody hangs"
        return self.errors


def read_whole(path):
    with open(path, "rb") as f:
        return f.read()


# ---- the mount stays --------------------------------------------------------------------------------------------------


def test_nobody_notices_ten_deaths(survives, slower, on_hang):
    d = survives()
    d.namespace(layout=LAYOUT)
    before = os.stat(d.mount)
    load = Load(lambda: os.stat(d.path("ns/x/layout")), lambda: read_whole(d.path("version")), lambda: os.listdir(d.path("ns")),
                lambda: os.listdir(d.path("ns/x/records")), lambda: read_whole(d.path("ns/x/stats")),
                lambda: os.close(os.open(d.path("ns/x/layout"), os.O_RDONLY)))
    for n in range(10):
        load.goes_on(20 * slower)
        kill_and_wait(d)
    load.goes_on(20 * slower)
    errors = load.end(20 * slower)
    # A text that was open while its server died is gone; nothing else is.
    assert set(errors) <= {errno.ESTALE}, errors
    after = os.stat(d.mount)
    assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)
    assert len(mounts_at(d.mount)) == 1 and "mounted anew" not in d.log()
    assert "restarts: 10" in d.read("health")
    assert load.longest < 10 * slower


def test_folders_that_somebody_stands_in(survives):
    d = survives()
    d.namespace(layout=LAYOUT)
    root, ns, x = (os.open(d.path(p), os.O_RDONLY | os.O_DIRECTORY) for p in ("", "ns", "ns/x"))
    inodes = [os.fstat(fd).st_ino for fd in (root, ns, x)]
    here = os.getcwd()
    os.chdir(d.path("ns/x"))
    try:
        for _ in range(2):
            kill_and_wait(d)
            assert [os.fstat(fd).st_ino for fd in (root, ns, x)] == inodes
            assert "records" in os.listdir(".") and os.listdir(ns) == ["x"] and "health" in os.listdir(root)
            assert os.path.samefile(".", d.path("ns/x"))
            with open("layout", encoding="utf-8") as f:
                assert "test/survive" in f.read()
            d_x = os.stat("ctl", dir_fd=x)
            assert d_x.st_ino == os.stat(d.path("ns/x/ctl")).st_ino
    finally:
        os.chdir(here)
        for fd in (root, ns, x):
            os.close(fd)
    assert d.stop()[0] == 0


def test_a_bind_mount_goes_on(survives, tmp_path):
    d = survives()
    d.namespace(layout=LAYOUT)
    if subprocess.run(["mount", "--bind", d.path("ns"), str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be bind-mounted here")
    try:
        kill_and_wait(d)
        assert os.listdir(tmp_path) == ["x"]
        with Client(str(tmp_path / "x" / "ctl")) as c:
            c.acknowledge()
            c.put(1, None, 64, [key(1, 0)], [value_of(key(1, 0))])
        assert read_whole(tmp_path / "x" / "records" / name_of(64, key(1, 0)) / "pages") == value_of(key(1, 0))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_records_of_before_are_not_mistaken(survives):
    """Memory is made anew here: another record under the same number is another file to who stands in the old one."""
    d = survives()
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1, 0)], [value_of(key(1, 0))])
    old = os.open(d.path("ns/x/records", name_of(64, key(1, 0))), os.O_RDONLY | os.O_DIRECTORY)
    try:
        number = os.fstat(old).st_ino
        kill_and_wait(d)
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            c.put(1, None, 64, [key(2, 0)], [value_of(key(2, 0))])
        path = d.path("ns/x/records", name_of(64, key(2, 0)))
        if os.path.exists(d.path("ns/x/records", name_of(64, key(1, 0)))):
            assert os.fstat(old).st_ino == number  # it was adopted
        else:
            assert os.stat(path).st_ino != number
            assert errno_of(os.listdir, old) in (errno.ENOENT, errno.ESTALE)
    finally:
        os.close(old)


def test_pages_by_key_are_looked_up_anew(survives):
    d = survives()
    d.namespace(layout=LAYOUT)
    k = key(1, 0)

    def put():
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            c.put(1, None, 64, [k], [value_of(k)])

    put()
    page = d.path("ns/x/pages", k.hex())
    with open(page, "rb", buffering=0) as f:
        assert f.read(8192) == value_of(k)
        kill_and_wait(d)
        assert errno_of(f.read, 1) == errno.ESTALE
    if not os.path.exists(page):
        put()
    assert read_whole(page) == value_of(k)


# ---- the control file ---------------------------------------------------------------------------------------------------


def test_an_old_ctl_is_stale_for_everything(survives):
    d = survives()
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        old = c.attached.session
        kill_and_wait(d)
        for call, fields in (("PROBE", dict(keys=1)), ("PUT_COMMIT", dict(plan=1, groups=1)), ("RELEASE", dict(count=1))):
            assert errno_of(c.call, call, **fields) == errno.ESTALE, call
        assert errno_of(os.read, c.fd, 10) == errno.ESTALE
        assert errno_of(os.write, c.fd, b"stat\n") == errno.ESTALE
        with Client(d.path("ns/x/ctl")) as again:
            assert again.attached.session > old
            assert errno_of(os.stat, d.path("sessions", str(old))) == errno.ENOENT
            assert os.listdir(d.path("sessions")) == [str(again.attached.session)]


def test_requests_in_flight_are_answered(survives, slower):
    """One that waits inside the daemon is sent again: its handle is gone, and nothing is executed."""
    d = survives()
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put_start(1, [(None, 64, [key(1, 0)])])
        pids = []
        for n in range(4):
            pid = os.fork()
            if pid == 0:
                os._exit(errno_of(c.get_start, 1 + n, [key(1, 0)], flags=WAIT_INFLIGHT, deadline_ms=60000))
            pids.append(pid)
        wait_for(lambda: d.stats()["waiting"] == "4", 10 * slower, "the waits")
        kill_and_wait(d)
        for pid in pids:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.ESTALE


def sleeper(peer, ctl, events):
    with Client(ctl) as c:
        c.acknowledge()
        epoll = select.epoll()
        epoll.register(c.fd, events)
        drained = epoll.poll(0)
        peer.tell([e for _, e in drained])
        peer.tell([e for _, e in epoll.poll(60)])
        peer.tell(errno_of(c.call, "PROBE", keys=1))


def test_who_sleeps_in_epoll_is_woken(survives, peer, slower):
    d = survives()
    d.namespace(layout=LAYOUT)
    sleepers = [peer(sleeper, d.path("ns/x/ctl"), select.EPOLLPRI) for _ in range(3)]
    for p in sleepers:
        assert p.hear(20 * slower) == []
    kill_and_wait(d)
    for p in sleepers:
        events = p.hear(20 * slower)
        assert events and events[0] & select.EPOLLERR, events
        assert p.hear(20 * slower) == errno.ESTALE


def test_what_was_done_before_the_answer_is_done(survives, slower, on_hang):
    """mkdir and rmdir, again and again, through deaths: each is answered as if it had been executed once."""
    d = survives()
    os.mkdir(d.path("ns/lost"))  # a namespace without a layout goes with its process
    rounds, wrong, over = [0], [], []

    def work():
        n = 0
        while not over:
            n += 1
            try:
                os.mkdir(d.path("ns", f"a{n}"))
                os.rmdir(d.path("ns", f"a{n}"))
            except OSError as e:
                if e.errno != errno.ENOENT:  # a death between the two took it
                    wrong.append((e.errno, e.filename))
            rounds[0] = n

    t = threading.Thread(target=work, daemon=True)
    t.start()
    for _ in range(8):
        before = rounds[0]
        wait_for(lambda b=before: rounds[0] > b + 50, 20 * slower, "the work")
        kill_and_wait(d)
    over.append(1)
    t.join(20 * slower)
    assert not t.is_alive() and not wrong, wrong
    assert "lost" not in os.listdir(d.path("ns"))


# ---- ls, and the notifier ----------------------------------------------------------------------------------------------


def test_listing_under_load_with_the_notifier_busy(survives, program, slower, on_hang):
    """Records come and go while folders are listed, so that the notifier is often about to take a folder's lock."""
    d = survives("--memory", "32M")
    d.namespace(layout=LAYOUT)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    load = Load(*[lambda: subprocess.run(["ls", "-lR", d.path("ns/x/records")], capture_output=True, check=False)] * 2)
    replay = subprocess.Popen([program("prefixfs"), "replay", os.path.join(root, "tests", "data", "coding_sessions.jsonl"), "--mount",
                               d.mount, "--ns", "x", "--clients", "2", "--order", "free"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        for _ in range(5):
            wait_for(lambda: replay.poll() is not None or int(d.stats()["values_committed"]) > 1000, 30 * slower, "the load")
            kill_and_wait(d)
    finally:
        replay.kill()
        replay.wait()
        load.over = True
    load.end(20 * slower)
    assert len(mounts_at(d.mount)) == 1 and "mounted anew" not in d.log()
    status, seconds = d.stop()
    assert status == 0 and seconds < 1 * slower


# ---- one that is stopped --------------------------------------------------------------------------------------------------


def test_one_that_is_stopped_is_replaced(survives, slower):
    d = survives("--watchdog-s=2")
    d.namespace(layout=LAYOUT)
    before = kill(d, signal.SIGSTOP)
    pid = os.fork()
    if pid == 0:
        os._exit(errno_of(os.listdir, d.path("ns")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wait_for(lambda: d.serving() != before, 10 * slower, "the next one")
    assert not alive(before)
    assert last_exit(d).startswith("reason: nothing moved in it for 2 s, for it was stopped, and it was killed\n")
    assert "mounted anew" not in d.log()


def test_one_that_is_stopped_shortly_goes_on(survives, slower):
    d = survives("--watchdog-s=30")
    pid = kill(d, signal.SIGSTOP)
    client = os.fork()
    if client == 0:
        os._exit(errno_of(os.listdir, d.path("ns")))
    wait_for(lambda: open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()[0] == "T", 10 * slower)
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]) == 0
    assert d.serving() == pid and "restarts: 0" in d.read("health")


def waits_in_open(parent):
    """A child of the parent that waits for who writes to a pipe."""
    with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as f:
        children = f.read().split()
    for pid in children:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as f:
            if f.read() == "wait_for_partner":
                return True
    return False


def test_one_that_hangs_in_its_start_is_replaced(survives, slower):
    """What it reads first never ends."""
    d = survives("--watchdog-s=1")
    client, keys = keep(d)
    path, aside = os.path.join(d.folder(), "spaces", "hot"), os.path.join(d.base, "aside")
    os.rename(path, aside)
    os.mkfifo(path)
    with client:
        before = kill(d)
        wait_for(lambda: waits_in_open(d.process.pid), 20 * slower, "the one that hangs")
        os.rename(aside, path)  # whoever opens the other one waits on
        wait_for(lambda: d.serving() != before, 40 * slower, "the one after it")
    assert last_exit(d).startswith("reason: nothing moved in it for 10 s, and it was killed\n")
    with Client(d.path("ns/hot/ctl")) as c:
        assert c.probe(keys).hits == len(keys)


# ---- the mount is made anew ---------------------------------------------------------------------------------------------


def test_without_resending_the_mount_is_made_anew(daemon, slower):
    d = daemon("--deaths=1000", "--resend=no")
    d.namespace(layout=LAYOUT)
    assert "after a death: it is mounted anew" in d.read("health")
    with Client(d.path("ns/x/ctl")) as c:
        for _ in range(2):
            kill_and_wait(d)
            assert os.listdir(d.path("ns")) == ["x"] and len(mounts_at(d.mount)) == 1
        assert errno_of(c.call, "PROBE", keys=1) in LOST
    assert d.log().count("is mounted anew: resend: no") == 2
    assert d.stop()[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to write to the parent's memory")
@pytest.mark.parametrize("at, words, restarts", [
    (4096 + 36, "libfuse answers the kernel's INIT otherwise than before: max_write", 2),  # the serving process finds it
    (0, "the kernel's INIT and the reply to it were not kept whole", 1)])                  # the parent does
def test_a_connection_that_cannot_be_taken_over(survives, slower, at, words, restarts):
    """What the kernel was told is not what the next one would say: it may not serve this connection."""
    d = survives()
    d.namespace(layout=LAYOUT)
    folder = f"/proc/{d.process.pid}/fd"
    [will] = [fd for fd in os.listdir(folder) if "prefixfs-will" in os.readlink(os.path.join(folder, fd))]
    with open(os.path.join(folder, will), "r+b", buffering=0) as f:
        init = f.read().index(bytes([104, 0, 0, 0, 26, 0, 0, 0]))  # length and opcode of INIT; the reply is 4 KiB behind
        byte = os.pread(f.fileno(), 1, init + at)
        os.pwrite(f.fileno(), bytes([byte[0] ^ 1]), init + at)
    kill(d)
    d.wait_ready(times=2)
    assert d.logged(words) and d.log().count("is mounted anew") == 1
    assert os.listdir(d.path("ns")) == ["x"] and len(mounts_at(d.mount)) == 1
    assert f"restarts: {restarts}" in d.read("health")
    assert last_exit(d).startswith("reason: signal 9 (Killed)\n")
    before = os.stat(d.mount).st_dev
    kill_and_wait(d)
    assert os.stat(d.mount).st_dev == before  # this one is as good as any


def test_a_connection_that_was_ended_from_outside(daemon, slower):
    d = daemon("--deaths=1000")
    d.namespace(layout=LAYOUT)
    path = f"/sys/fs/fuse/connections/{mounts_at(d.mount)[0]}/abort"
    if not os.path.exists(path):
        pytest.skip("connections cannot be ended here")
    before = d.serving()
    with open(path, "w", encoding="ascii") as f:
        f.write("1")
    wait_for(lambda: d.serving() != before, 20 * slower, "the next serving process")
    assert os.listdir(d.path("ns")) == ["x"] and len(mounts_at(d.mount)) == 1
    assert last_exit(d).startswith("reason: its connection was ended from outside\n")


def test_faults_leave_their_last_words(survives, monkeypatch):
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0")  # a report is no finding here
    d = survives()
    kill(d, signal.SIGSEGV)
    d.wait_ready(times=2)
    assert last_exit(d).startswith("reason: signal 11 (Segmentation fault)\n")
    assert "mounted anew" not in d.log()


# ---- the fallen mount, and the end in each state --------------------------------------------------------------------------


def fell(d, deaths):
    for n in range(deaths):
        d.wait_ready(times=n + 1)
        kill(d)
    wait_for(d.falls, 30 * d.slower, "the fallen mount")


def test_a_crash_loop_ends_in_the_fallen_mount(daemon, slower):
    d = daemon("--deaths=3")
    d.namespace(layout=LAYOUT)
    before = os.stat(d.mount).st_dev
    stays = "after a death: the mount stays" in d.read("health")
    load = Load(lambda: os.stat(d.path("ns/x/layout")), lambda: os.listdir(d.path("ns")))
    with contextlib.closing(Client(d.path("ns/x/ctl"))) as c:
        fell(d, 3)
        load.goes_on(20 * slower)  # nobody hangs
        load.end(20 * slower)
        assert errno_of(os.stat, d.path("ns")) == errno.EIO
        assert errno_of(c.call, "PROBE", keys=1) == (errno.EIO if stays else errno.ENOTCONN)
    health = d.read("health")
    assert health.startswith(f"state: fallen\nparent: {d.process.pid}\nsocket: {d.folder()}/sock\nreason: signal 9 (Killed)"), health
    assert "\nnext: giving up: the serving process died 3 times in 60 s" in health
    assert "health" in os.listdir(d.mount)
    assert stays == (os.stat(d.mount).st_dev == before)
    assert d.process.poll() is None
    status, seconds = d.stop()
    assert status == 1 and seconds < 1 * slower
    assert mounts_at(d.mount) == []


def test_stray_signals_end_nobody(daemon):
    d = daemon()
    d.namespace(layout=LAYOUT)
    serving = d.serving()
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(d.process.pid, number)
    kill(d)
    d.wait_ready(times=2)
    assert d.process.poll() is None and d.serving() != serving and os.listdir(d.path("ns")) != []


def test_what_ls_asks_of_the_fallen_mount(daemon):
    d = daemon("--deaths=1")
    fell(d, 1)
    for words in (["stat", d.path("health")], ["ls", "-l", d.mount], ["getfattr", "-d", d.path("health")]):
        if shutil.which(words[0]):
            r = subprocess.run(words, capture_output=True, text=True, check=False)
            assert (r.returncode, r.stderr) == (0, ""), words


def test_the_command_waits_for_the_end_of_the_fallen_mount(daemon, program):
    d = daemon("--deaths=1")
    fell(d, 1)
    r = subprocess.run([program("prefixfs"), "unmount", "--json", d.mount], capture_output=True, text=True, check=True)
    assert json.loads(r.stdout)["pid"] == d.process.pid
    assert not alive(d.process.pid)


def test_an_unmount_ends_the_fallen_mount(daemon, slower):
    d = daemon("--deaths=1")
    fell(d, 1)
    subprocess.run(["umount", d.mount], check=True)
    assert d.process.wait(5 * slower) == 1


def stopped(d):
    kill(d, signal.SIGSTOP)


def in_the_pause(d):
    for n in range(4):
        d.wait_ready(times=n + 1)
        kill(d)
    wait_for(lambda: d.log().count("the serving process died") == 4, 20 * d.slower, "the pause", pause=0.001)


def being_started(d):
    kill(d)
    wait_for(lambda: "starting again" in d.log(), 20 * d.slower, "the start", pause=0.001)


@pytest.mark.parametrize("state", [stopped, in_the_pause, being_started])
def test_the_end_comes_within_a_second(daemon, slower, state):
    d = daemon("--deaths=1000")
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        state(d)
        _, seconds = d.stop()
        assert seconds < 1.1 * slower, d.log()
        assert errno_of(c.call, "PROBE", keys=1) in LOST
    assert mounts_at(d.mount) == []
    serving = re.findall(r"info: serving .*, pid (\d+)", d.log())
    wait_for(lambda: not any(alive(int(p)) for p in serving), 5 * slower, "the end of all")
