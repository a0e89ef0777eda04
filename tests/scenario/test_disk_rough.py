# SPDX-License-Identifier: Apache-2.0
"""Rough hands on a record directory that is in use, and disks that fail: engines see misses and NOROOM and nothing else, PUT_START answers
at once, the daemon lives, and health, metrics and events say what is wrong."""
import errno
import json
import os
import random
import re
import subprocess

import pytest

import disk
from mounted import alive, wait_for

CHAINS = 3000
OPTIONS = ("--memory", "32M", "--disk-bytes", "200M")
AT_ONCE = 1  # seconds that PUT_START may take, times slower: no I/O of the disk is waited for


class Rough:
    """A daemon over @folder with two engines on it, whose pid must not change."""

    def __init__(self, daemon, peer, folder, seed, *options):
        self.dice = random.Random(seed)
        self.d = daemon("--disk", folder, *OPTIONS, *options)
        self.d.namespace("x")
        self.pid = self.d.serving()
        self.peers = [peer(disk.load, self.d.path("ns/x/ctl"), CHAINS, self.dice.random()) for _ in range(2)]

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.d.read("metrics"), re.M)[1])

    def wait(self, condition, what, seconds=30):
        wait_for(condition, seconds * self.d.slower, what, pause=0.02)

    def more(self, name, n):
        """Waits for n more of a counter of `stats`."""
        goal = int(self.d.stats()[name]) + n
        self.wait(lambda: int(self.d.stats()[name]) >= goal, f"{n} more {name}")

    def end(self, reset=False):
        seen = disk.stopped(self.peers)
        assert reset or not seen["stale"], seen
        assert seen["slowest_put"] < AT_ONCE * self.d.slower, seen
        assert alive(self.pid) and self.d.serving() == self.pid and "restarts: 0" in self.d.read("health")
        return seen


# ---- files -----------------------------------------------------------------------------------------------------------


def delete(path, others, dice):
    os.unlink(path)


def cut(path, others, dice):
    os.truncate(path, dice.choice([0, 100, 4096, 8192, 70000]))


def garbage(path, others, dice):
    size = os.path.getsize(path)
    with open(path, "r+b") as f:
        f.seek(dice.choice([0, 4096, 8192, size // 2]))
        f.write(dice.randbytes(8192))
    assert os.path.getsize(path) >= size


def replace(path, others, dice):
    """By another record's file, as a file and in place."""
    with open(dice.choice(others), "rb") as f:
        there = f.read()
    if dice.random() < 0.5:
        os.unlink(path)
    with open(path, "wb") as f:
        f.write(there)


def all_of_it(path, others, dice):
    dice.choice([delete, cut, garbage, replace])(path, others, dice)


@pytest.mark.concurrency
@pytest.mark.parametrize("how", [delete, cut, garbage, replace, all_of_it])
def test_files_are_treated_badly(daemon, peer, folder, program, seed, how):
    r = Rough(daemon, peer, folder, seed)
    r.more("files_written", 150)

    def treat():
        files = disk.files(folder)
        for path in r.dice.sample(files, min(60, len(files) // 2)):
            try:
                how(path, files, r.dice)
            except FileNotFoundError:
                pass  # it was let go

    for _ in range(3):
        treat()
        r.more("loads_failed", 16)
    if how is garbage:
        r.wait(lambda: r.metric("prefixfs_disk_checksum_errors_total") > 0 or treat(), "a value that was hit")
    seen = r.end()
    assert seen["hits"] and seen["misses"] + seen["short"], seen
    assert int(r.d.stats()["loads_failed"]) >= 48
    fd = os.open(r.d.path(".events"), os.O_RDONLY | os.O_NONBLOCK)
    lines = os.read(fd, 1 << 20).splitlines()
    os.close(fd)
    assert lines and all(json.loads(line)["event"] for line in lines)
    disk.check_records(r.d, may_fail=(errno.ENOENT, errno.EIO, errno.ENODATA))
    assert r.d.stop(seconds=30)[0] == 0
    said = subprocess.run([program("prefixfs"), "fsck", folder, "--values", "--repair"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout[-900:] + said.stderr
    r.d.start(wait=False)
    r.d.wait_ready(2)
    assert disk.check_records(r.d, may_fail=(errno.ENODATA,)) > 0  # a value in the middle may be missing


# ---- the folder --------------------------------------------------------------------------------------------------------


def immutable(folder, on):
    return subprocess.run(["chattr", "-R", "+i" if on else "-i", folder], capture_output=True, check=False).returncode == 0


def test_a_folder_that_nothing_can_be_written_to(daemon, peer, folder, seed):
    if not immutable(folder, True):
        pytest.skip("files cannot be made immutable here")
    immutable(folder, False)
    r = Rough(daemon, peer, folder, seed)
    r.more("files_written", 100)
    namespace = os.path.join(folder, [n for n in os.listdir(folder) if "-" in n][0])
    try:
        for name in os.listdir(namespace):
            if len(name) == 2:
                subprocess.run(["chattr", "+i", os.path.join(namespace, name)], check=True)
        r.wait(lambda: int(r.d.stats()["write_errors"]) >= 2, "failed writes")  # of this alone, and perhaps all that it takes
        r.wait(lambda: r.d.read("health").startswith("degraded"), "a degraded line")
        assert disk.tier(r.d)["state"] != "full" and "the disk tier is full" not in r.d.read("health")
        r.wait(lambda: disk.tier(r.d)["state"] == "closed", "the closing of the tier", 60)
        assert re.search(r"^disk: .*closed", r.d.read("health"), re.M), r.d.read("health")
        assert r.metric('prefixfs_disk_state{state="closed"}') == 1
        before = int(r.d.stats()["values_committed"])
        r.wait(lambda: int(r.d.stats()["values_committed"]) > before + 16 * 300, "puts into memory alone")
        r.end()
    finally:
        immutable(folder, False)
    assert r.d.stop(seconds=30)[0] == 0
    r.d.start(wait=False)
    r.d.wait_ready(2)
    assert disk.tier(r.d)["state"] == "ok"
    assert disk.check_records(r.d) == len(os.listdir(r.d.path("ns/x/records")))


@pytest.fixture
def small_disk(tmp_path):
    """256 MiB of ext4 in a file."""
    image, at = str(tmp_path / "image"), str(tmp_path / "small")
    with open(image, "wb") as f:
        f.truncate(256 << 20)
    os.mkdir(at)
    made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], capture_output=True, check=False)
    if made.returncode or subprocess.run(["mount", "-o", "loop", image, at], capture_output=True, check=False).returncode:
        pytest.skip("no loop device can be mounted here")
    yield at
    subprocess.run(["umount", "-l", at], check=False)


def test_a_full_disk(daemon, peer, small_disk, seed):
    folder = os.path.join(small_disk, "records")
    os.mkdir(folder)
    r = Rough(daemon, peer, folder, seed)
    r.more("files_written", 50)
    ballast = os.path.join(small_disk, "ballast")
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)

    def fill():
        try:
            while True:
                os.posix_fallocate(fd, os.fstat(fd).st_size, 1 << 20)
        except OSError:
            pass
    r.wait(lambda: fill() or int(r.d.stats()["write_errors"]) > 3, "refusals")  # what is let go meanwhile is taken as well
    with disk.Engine(r.d.path("ns/x/ctl")).c as c:
        assert c.reset().generation == 2  # needs no room
    os.close(fd)
    os.unlink(ballast)
    r.more("files_written", 50)
    r.wait(lambda: disk.tier(r.d)["state"] == "ok", "the end of the trouble", 60)
    r.end(reset=True)
    assert disk.check_records(r.d) > 0


# ---- faults --------------------------------------------------------------------------------------------------------------


@pytest.mark.concurrency
@pytest.mark.parametrize("fault, counter", [
    ("read:EIO:1/20,seed=3", "read_errors"),
    ("read:flip:1/10,seed=4", "checksum_errors"),
    ("write:EIO:1/10,seed=5", "write_errors"),
    ("write:short:1/10,rename:EIO:1/20,unlink:EIO:1/20,truncate:EIO:1/20,seed=6", "write_errors"),
    ("create:ENOSPC:1/10,allocate:EDQUOT:1/10,seed=7", "write_errors"),
])
def test_a_disk_with_faults(daemon, peer, folder, seed, fault, counter):
    r = Rough(daemon, peer, folder, seed, f"--disk-fault={fault}")
    r.more("files_written", 200)
    r.wait(lambda: r.metric(f"prefixfs_disk_{counter}_total") >= 3, "faults")
    seen = r.end()
    assert seen["puts"] and seen["hits"], seen
    assert r.d.stop(seconds=30)[0] == 0


# ---- two daemons -----------------------------------------------------------------------------------------------------------


def test_a_second_daemon_under_load(daemon, peer, folder, seed):
    r = Rough(daemon, peer, folder, seed)
    r.more("files_written", 20)
    second = daemon(start=False)
    refused = subprocess.run([second.program, *second.options, "--disk", folder, second.mount], capture_output=True, text=True,
                             timeout=20 * r.d.slower, check=False)
    assert refused.returncode == 1 and folder in refused.stderr and "another daemon" in refused.stderr, refused
    assert str(r.pid) in refused.stderr or str(r.d.process.pid) in refused.stderr, refused.stderr
    r.more("files_written", 20)
    r.end()
