# SPDX-License-Identifier: Apache-2.0
"""kill -9 amid the writing and reading of record files: after a restart every byte is right, nothing is left lying about."""
import json
import os
import random
import signal
import sqlite3
import subprocess

import pytest

import disk
from mounted import PLAIN_LAYOUT, alive, mounts_at, wait_for
from raw import COMMITTED

CHAINS = 8000  # 128 KiB each: more than memory holds, and the disk


def begun(daemon, folder, *options):
    d = daemon("--disk", folder, "--disk-bytes", "256M", "--memory", "32M", "--deaths=1000", *options)
    d.namespace("x")
    return d


def kill_serving(d, starts):
    os.kill(d.serving(), signal.SIGKILL)
    d.wait_ready(starts)


def kill_both(d, starts):
    serving = d.serving()
    for pid in (d.process.pid, serving):
        os.kill(pid, signal.SIGKILL)
    d.process.wait(10)
    wait_for(lambda: not alive(serving), 10 * d.slower, "the end of the serving process")
    for _ in mounts_at(d.mount):
        subprocess.run(["umount", "-l", d.mount], check=True)
    d.start(wait=False)
    d.wait_ready(starts)


def fsck(program, folder):
    r = subprocess.run([program("prefixfs"), "fsck", folder, "--values", "--json"], capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stdout + r.stderr
    return json.loads(r.stdout.splitlines()[-1])


def wait_for_files(d, dice):
    """Some time amid the load: after so many more files were written than there were."""
    goal = int(d.stats()["files_written"]) + dice.randint(1, 100)
    wait_for(lambda: int(d.stats()["files_written"]) >= goal, 30 * d.slower, "the load's files", pause=0.002)


def compared(d):
    """What lies on the disk was compared with what memory kept through a death."""
    return " comparing=0 " in d.read("tiers")


def all_on_disk(d, folder):
    """What memory kept through the death is written, and what lies on the disk was compared with it."""
    e = disk.Engine(d.path("ns/x/ctl"))
    e.c.call("DRAIN")
    e.c.close()

    def same():
        return compared(d) and {os.path.basename(f)[:-4] for f in disk.files(folder)} == set(os.listdir(d.path("ns/x/records")))

    wait_for(same, 30 * d.slower, "the comparison of disk and memory")


@pytest.mark.concurrency
@pytest.mark.limit(180)
@pytest.mark.parametrize("kill", [kill_serving, kill_both])
@pytest.mark.parametrize("durability", ["none", "data"])
def test_killed_under_load(daemon, peer, program, folder, seed, kill, durability):
    dice = random.Random(seed)
    d = begun(daemon, folder, f"--durability={durability}")
    clients = [peer(disk.load, d.path("ns/x/ctl"), CHAINS, dice.random(), True) for _ in range(2)]
    for starts in range(2, 6):
        wait_for_files(d, dice)
        kill(d, starts)
        assert os.listdir(d.path("ns")) == ["x"]
    wait_for_files(d, dice)
    seen = disk.stopped(clients)
    assert seen["puts"] and seen["hits"], seen
    kill(d, 6)
    all_on_disk(d, folder)
    assert disk.files(folder, ".tmp") == disk.files(folder, ".old") == []
    assert disk.check_records(d) == len(os.listdir(d.path("ns/x/records"))) > 0
    stats = d.stats()
    assert stats["loads_failed"] == stats["files_dropped"] == "0", stats
    names = set(os.listdir(d.path("ns/x/records")))
    assert {os.path.basename(f)[:-4] for f in disk.files(folder)} == names
    assert int(stats["disk_bytes"]) == sum(os.stat(f).st_size for f in disk.files(folder))
    assert d.stop(seconds=30)[0] == 0
    r = fsck(program, folder)
    assert r["files"] == len(names) and r["left_over"] == 0, r


def test_a_reset_is_not_taken_back(daemon, folder, slower):
    """The serving process dies as soon as RESET has answered, whatever the folders look like then."""
    d = begun(daemon, folder)
    for n in range(3):
        e = disk.Engine(d.path("ns/x/ctl"))
        for chain in range(60):
            e.put(chain)
        e.c.call("DRAIN")
        wait_for(lambda: d.stats()["dirty_bytes"] == "0", 20 * slower, "the writing")
        generation = e.c.reset().generation
        os.kill(d.serving(), signal.SIGKILL)
        e.c.close()
        d.wait_ready(n + 2)
        assert os.listdir(d.path("ns/x/records")) == []
        assert int(d.stats()["generation"]) == generation == n + 2
        wait_for(lambda: disk.files(folder) == [], 20 * slower, "the end of the old files")


def start_without_fault(d, words):
    """After the death that a rule brought about, which was the last one."""
    d.give_up()
    assert d.logged(words)
    d.options = [o for o in d.options if not o.startswith("--disk-fault=")]
    d.start(wait=False)
    d.wait_ready(2)


def test_half_a_cut_is_finished(daemon, program, folder, slower):
    """The file of a record that became shorter has its new name and its old length."""
    d = begun(daemon, folder, "--deaths=1", "--disk-fault=truncate:kill")
    e = disk.Engine(d.path("ns/x/ctl"))
    e.put(1)
    e.c.call("DRAIN")
    [path] = disk.files(folder)
    whole = os.stat(path).st_size
    e.c.remove(disk.chain_keys(1)[8:])
    start_without_fault(d, "killed before truncate")
    wait_for(lambda: [os.stat(f).st_size for f in disk.files(folder)] == [whole - 8 * disk.BYTES], 10 * slower, "the cut")
    assert disk.check_records(d) == 1 and int(d.stats()["disk_bytes"]) == whole - 8 * disk.BYTES
    assert d.stop(seconds=30)[0] == 0
    assert fsck(program, folder)["wrong_lengths"] == 0


TWO_CLASSES = dict(PLAIN_LAYOUT, classes=[dict(PLAIN_LAYOUT["classes"][0], name=name) for name in ("a", "b")])


def put_class(e, mask):
    keys = disk.chain_keys(1)
    e.c.put_start(e.next(), [(None, disk.TOKENS * disk.PAGES, keys)], class_mask=mask)
    for k, offset in zip(keys, e.c.put_answers):
        e.c.segment[offset:offset + disk.BYTES] = disk.value_of(k, disk.BYTES)
    e.c.put_end("PUT_COMMIT", e.plan)
    assert e.c.put_status == [COMMITTED]
    assert e.c.call("DRAIN").bytes == 0


@pytest.mark.parametrize("seconds", [0, 10])
def test_a_file_written_anew_that_the_catalogue_does_not_know(daemon, program, folder, slower, seconds):
    """It has the name and the length of the one that the catalogue knows, and values that one lacked. @seconds: between the two."""
    d = daemon("--disk", folder, "--disk-bytes", "256M", "--memory", "32M")
    d.namespace("x", layout=TWO_CLASSES)
    e = disk.Engine(d.path("ns/x/ctl"))
    e.c.acknowledge()
    put_class(e, 1)
    [path] = disk.files(folder)
    length = os.stat(path).st_size
    other = sqlite3.connect(os.path.join(os.path.dirname(os.path.dirname(path)), "catalogue.sqlite"), isolation_level=None)
    wait_for(lambda: other.execute("SELECT count(*) FROM records").fetchone()[0] == 1, 10 * slower, "the row")
    other.execute("BEGIN IMMEDIATE")  # from here on the catalogue's thread waits
    other.execute("UPDATE records SET written = written - ?", [seconds])
    put_class(e, 2)
    assert disk.files(folder) == [path] and os.stat(path).st_size == length
    os.kill(d.serving(), signal.SIGKILL)
    other.execute("COMMIT")
    other.close()
    e.c.close()
    d.wait_ready(2)
    with disk.Engine(d.path("ns/x/ctl")).c as c:  # which has both of each page
        assert c.get_start(1, disk.chain_keys(1), class_mask=3).transferable_len == disk.TOKENS * disk.PAGES
        r = c.get_transfer(1, 2, disk.TOKENS * disk.PAGES, deadline_ms=60000)
        assert r.values == 2 * disk.PAGES
        there = [bytes(c.segment[offset:offset + disk.BYTES]) for offset in c.offsets]
        assert sorted(there) == sorted(2 * [disk.value_of(k, disk.BYTES) for k in disk.chain_keys(1)])
    assert d.stats()["loads_failed"] == "0"
    wait_for(lambda: compared(d), 30 * slower, "the comparison of disk and memory")
    assert d.stop(seconds=30)[0] == 0
    assert fsck(program, folder)["wrong_rows"] == 0
