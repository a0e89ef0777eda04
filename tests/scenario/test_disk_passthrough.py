# SPDX-License-Identifier: Apache-2.0
"""`raw`, read by the kernel past the daemon: where the mount says that it is so; and where it lacks the privilege."""
import ctypes
import errno
import mmap
import os
import re
import resource
import threading

import pytest

import disk
import mounted
from mounted import wait_for
from peers import value_of
from raw import Client, errno_of, name_of

CHAINS = 3
READS = 200
OPENS = 1024  # PASSTHROUGH_OPENS


def put(d, chain):
    """A chain as one record; its name."""
    keys = disk.chain_keys(chain)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, disk.TOKENS * disk.PAGES, keys, [value_of(k, disk.BYTES) for k in keys])
    return name_of(disk.TOKENS * disk.PAGES, keys[-1])


def command(d, line):
    fd = os.open(d.path("ns/x/ctl"), os.O_RDWR)
    try:
        os.write(fd, (line + "\n").encode())
        return os.read(fd, 16384)
    finally:
        os.close(fd)


def content(path):
    with open(path, "rb") as f:
        return f.read()


def whole(fd):
    """Through an open descriptor, in steps."""
    parts, at = [], 0
    while part := os.pread(fd, 65536, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


class Scene:
    """Records on disk: their names, their files and what was in these."""

    def __init__(self, d, folder):
        self.d, self.folder = d, folder
        d.namespace("x")
        self.records = [put(d, chain) for chain in range(1, 1 + CHAINS)]
        command(d, "drain")
        self.there = {r: content(self.file(r)) for r in self.records}

    def file(self, record):
        return next(f for f in disk.files(self.folder) if os.path.basename(f) == record + ".rec")

    def raw(self, record):
        return self.d.path("ns/x/records", record, "raw")

    def open(self, record, flags=0):
        return os.open(self.raw(record), os.O_RDONLY | flags)


@pytest.fixture
def scene(daemon, folder):
    d = daemon("--disk", folder, "--disk-bytes", "256M")
    if disk.tier(d)["passthrough"] != "yes":
        pytest.skip("the mount says passthrough=no: " + d.log().partition("through the daemon: ")[2].partition("\n")[0])
    return Scene(d, folder)


def reads(d):
    """Reads that the daemon was asked for, those of `metrics` itself included."""
    metrics = dict(line.rsplit(" ", 1) for line in d.read("metrics").splitlines() if line[0] != "#")
    assert metrics["prefixfs_disk_passthrough"] == disk.tier(d)["passthrough"].replace("yes", "1").replace("no", "0")
    return int(metrics['prefixfs_request_seconds_count{op="read"}'])


# ---- where it is in use ------------------------------------------------------------------------------------------------


def test_it_is_the_file_and_the_daemon_reads_nothing(scene):
    d, record = scene.d, scene.records[0]
    assert d.log().count("`raw` of records is read by the kernel") == 1
    assert content(scene.raw(record)) == scene.there[record]
    assert os.stat(scene.raw(record)).st_size == len(scene.there[record])

    def cost(path):
        before = reads(d)
        fd = os.open(path, os.O_RDONLY)
        for i in range(READS):
            assert len(os.pread(fd, 512, 512 * i)) == 512
        os.close(fd)
        return reads(d) - before
    assert cost(scene.raw(record)) < 20 < READS <= cost(d.path("ns/x/records", record, "pages"))


def test_it_cannot_be_written(scene):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        assert errno_of(os.open, scene.raw(scene.records[0]), flags) == errno.EPERM
    fd = scene.open(scene.records[0])
    assert errno_of(os.pwrite, fd, b"x", 0) == errno.EBADF
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(fd)
    assert content(scene.file(scene.records[0])) == scene.there[scene.records[0]]


def test_it_can_be_mapped_and_read_directly(scene):
    record = scene.records[0]
    fd = scene.open(record)
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as m:
        os.close(fd)
        assert m[:] == scene.there[record]
    fd = scene.open(record, os.O_DIRECT)
    with mmap.mmap(-1, 4096) as aligned:
        assert os.preadv(fd, [aligned], 4096) == 4096 and aligned[:] == scene.there[record][4096:8192]
    os.close(fd)


def test_two_opens_at_once(scene, peer):
    record = scene.records[0]
    one, two = scene.open(record), scene.open(record)
    p = peer(lambda p: (p.tell(content(scene.raw(record)) == scene.there[record])))
    assert p.hear() is True and p.wait() == 0
    assert whole(one) == whole(two) == scene.there[record]
    os.close(one)
    assert whole(two) == scene.there[record] == content(scene.raw(record))
    os.close(two)
    assert content(scene.raw(record)) == scene.there[record]


def test_what_is_open_stays_readable(scene):
    """Its record is gone, and a new one of the same name and other bytes is there."""
    d, record = scene.d, scene.records[0]
    fd = scene.open(record)
    os.rmdir(d.path("ns/x/records", record))
    wait_for(lambda: len(disk.files(scene.folder)) == CHAINS - 1, 10 * d.slower, "the removal of its file")
    assert errno_of(os.open, scene.raw(record), os.O_RDONLY) == errno.ENOENT
    assert errno_of(os.open, f"/proc/self/fd/{fd}", os.O_RDONLY) == errno.ENOENT
    assert whole(fd) == scene.there[record]
    assert put(d, 1) == record
    command(d, "drain")
    new = content(scene.file(record))
    assert new != scene.there[record] and content(scene.raw(record)) == new
    assert whole(fd) == scene.there[record]
    os.close(fd)


def test_a_file_that_was_written_anew_while_it_was_open(scene):
    """Who opens `raw` then sees the new one, and who had it open the old one."""
    d, record = scene.d, scene.records[0]
    with open(scene.file(record), "r+b") as f:
        f.seek(-100, os.SEEK_END)
        f.write(b"damaged")
    damaged = content(scene.file(record))
    old, node = scene.open(record), os.stat(scene.raw(record)).st_ino
    command(d, "fsck")
    command(d, "drain")
    new = content(scene.file(record))
    assert new != damaged and os.stat(scene.raw(record)).st_ino == node
    later, more = scene.open(record), scene.open(record)
    before = reads(d)
    assert whole(old) == damaged and whole(later) == whole(more) == new == content(scene.raw(record))
    assert reads(d) > before
    os.close(old)
    assert whole(later) == new == content(scene.raw(record))
    os.close(later)
    os.close(more)
    before = reads(d)
    fd = scene.open(record)
    for i in range(READS):
        assert os.pread(fd, 512, 512 * i) == new[512 * i:512 * i + 512]
    os.close(fd)
    assert reads(d) - before < 20, "nobody has the old one open any more"


@pytest.mark.concurrency
def test_opens_and_ends_at_random(scene):
    """No open may find the node in another state than the daemon thinks: EIO."""
    wrong = []

    def run(number):
        try:
            for i in range(150):
                record = scene.records[(number + i // 50) % CHAINS]
                assert content(scene.raw(record)) == scene.there[record]
        except Exception as e:  # pylint: disable=broad-except
            wrong.append(repr(e))
    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_so_many_opens(scene):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < OPENS + 100:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPENS + 100, hard))
    fds = []
    try:
        fds = [scene.open(scene.records[i % CHAINS]) for i in range(OPENS)]
        assert errno_of(os.open, scene.raw(scene.records[0]), os.O_RDONLY) == errno.ENFILE
        assert whole(fds[-1]) == scene.there[scene.records[(OPENS - 1) % CHAINS]]
        os.close(fds.pop())
        wait_for(lambda: errno_of(os.open, scene.raw(scene.records[0]), os.O_RDONLY) != errno.ENFILE, 5 * scene.d.slower)
    finally:
        for fd in fds:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_daemon_s_end_with_one_open(scene):
    d, record = scene.d, scene.records[0]
    fd = scene.open(record)
    assert d.stop(seconds=20)[0] == 0
    assert whole(fd) == scene.there[record], "the kernel has the file"
    os.close(fd)
    assert "error" not in d.log() and "does not let go" not in d.log()


# ---- where it is not ---------------------------------------------------------------------------------------------------


CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def become_root_of_a_namespace():
    """Root who may mount, and has no privilege over the host; an errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        return ctypes.get_errno()
    for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
            f.write(text)
    return 0


def without_privilege(p, program, slower, folder):
    """For a Peer: what the mount says and gives there."""
    error = become_root_of_a_namespace()
    if error:
        p.tell({"error": error})
        return
    d = mounted.Daemon(program, slower, ["--disk", folder, "--disk-bytes", "256M"])
    try:
        s = Scene(d, folder)
        one = s.open(s.records[0])
        good = [content(s.raw(r)) == s.there[r] for r in s.records] + [whole(one) == s.there[s.records[0]]]
        os.close(one)
        p.tell({"error": 0, "passthrough": disk.tier(d)["passthrough"], "good": good, "log": d.log(), "reads": reads(d)})
    finally:
        d.clean_up()


def test_without_the_privilege_the_daemon_reads(program, mountable, slower, folder, peer):
    if os.geteuid() != 0:
        pytest.skip("it takes root to open /dev/fuse and to be root of a namespace")
    p = peer(without_privilege, program("prefixfsd"), slower, folder)
    said = p.hear()
    if said["error"]:
        pytest.skip("there are no user namespaces here: " + os.strerror(said["error"]))
    assert said["passthrough"] == "no" and said["good"] == [True] * (CHAINS + 1)
    lines = [line for line in said["log"].splitlines() if "`raw` of records" in line]
    assert len(lines) == 1 and re.search(
        " info: `raw` of records is read through the daemon: it takes (CAP_SYS_ADMIN|a daemon that was built with libfuse 3.17)$",
        lines[0])
    assert " error: " not in said["log"] and " warning: " not in said["log"]
    assert p.wait() == 0
