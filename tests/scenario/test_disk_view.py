# SPDX-License-Identifier: Apache-2.0
"""What the mount, the commands and the configuration say of the disk tier, and what is there again after a restart."""
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

import disk
from mounted import MiB, PLAIN_LAYOUT, STATE_LAYOUT, wait_for
from peers import value_of
from raw import NOROOM, Client, errno_of, key, name_of

SESSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "coding_sessions.jsonl")
BYTES = 8192
PAGES = 16
OPTIONS = ("disk", "disk_bytes", "disk_workers", "durability", "disk_only", "disk_io", "disk_fault", "expire", "drain",
           "drain_limit")


@pytest.fixture
def with_disk(daemon, folder):
    d = daemon("--disk", folder, "--disk-bytes", "256M")
    return d


def refusal(daemon, *options):
    """The sentence of a start that is refused."""
    d = daemon(start=False)
    r = subprocess.run([d.program, *d.options, *options, d.mount], capture_output=True, text=True, timeout=20, check=False)
    assert r.returncode == 1, r
    return r.stderr


def keys_of(chain, pages=PAGES):
    return [key(chain, i) for i in range(pages)]


def bytes_of(keys):
    return [value_of(k, BYTES) for k in keys]


def named_layout(name):
    """A layout of its own for each name: a folder on the disk is that of a layout."""
    return dict(PLAIN_LAYOUT, identity={"model": "test/" + name})


def put(d, chain=1, ns="x"):
    keys = keys_of(chain)
    with Client(d.path("ns", ns, "ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64 * PAGES, keys, bytes_of(keys))
    return name_of(64 * PAGES, keys[-1])


def put_if_room(d, chain):
    """As put; None: there was no room, for a grant or the disk is on its way."""
    try:
        return put(d, chain)
    except AssertionError as e:
        assert str([NOROOM]) in str(e)
        return None


def get(d, chain=1, ns="x"):
    """All pages of a chain through a plan."""
    keys = keys_of(chain)
    with Client(d.path("ns", ns, "ctl")) as c:
        c.acknowledge()
        r = c.get_start(1, keys)
        assert r.transferable_len == 64 * PAGES
        r = c.get_transfer(1, 2, 64 * PAGES)
        assert r.delivered_len == 64 * PAGES
        return [bytes(c.segment[offset:offset + BYTES]) for offset in c.offsets]


def record_files(folder):
    return [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(".rec")]


def header(d, record, ns="x"):
    return dict(line.split(": ", 1) for line in d.read("ns", ns, "records", record, "header").splitlines())


def command(d, line, ns="x"):
    """A command of the text face and its answer."""
    fd = os.open(d.path("ns", ns, "ctl"), os.O_RDWR)
    try:
        error = errno_of(os.write, fd, (line + "\n").encode())
        return error, json.loads(os.read(fd, 16384))
    finally:
        os.close(fd)


# ---- without a disk -----------------------------------------------------------------------------------------------


def test_options_and_their_defaults(daemon):
    config = dict((line + " ").split(" ", 1) for line in daemon().read("config").splitlines())
    assert {name: config[name].strip() for name in OPTIONS} == {
        "disk": "", "disk_bytes": "0", "disk_workers": "2", "durability": "none", "disk_only": "false", "disk_io": "auto",
        "disk_fault": "", "expire": "0", "drain": "none", "drain_limit": "60"}


@pytest.mark.parametrize("option", ["--disk-only", "--disk-bytes=1G", "--durability=data", "--disk-io=plain",
                                    "--disk-fault=write:EIO", "--drain=full", "--drain=5"])
def test_what_makes_no_sense_without_a_folder(daemon, option):
    name = option[2:].split("=")[0].replace("-", "_")
    assert re.fullmatch(rf"prefixfsd: {name}: there is no disk tier without `disk`, .*\n", refusal(daemon, option))


@pytest.mark.parametrize("options, sentence", [
    (["--drain=perhaps"], "drain: 'perhaps' is neither none nor full nor a number of seconds"),
    (["--drain=61"], "drain: 61 s are over the drain_limit of 60 s"),
    (["--drain=3", "--drain-limit=2"], "drain: 3 s are over the drain_limit of 2 s"),
    (["--disk-bytes=4K"], "disk_bytes: 4096 are under the least budget of 16777216"),
    (["--disk-workers=17"], "disk_workers: 17 is outside 1 to 16"),
    (["--durability=much"], "durability: 'much' is not one of none|data"),
    (["--disk-io=magic"], "disk_io: 'magic' is not one of auto|uring|plain"),
    (["--disk-fault=write:EIO,wirte:EIO"], "disk_fault: fault rule 'wirte:EIO' is not understood"),
])
def test_values_that_are_refused(daemon, tmp_path, options, sentence):
    assert refusal(daemon, f"--disk={tmp_path}", *options) == f"prefixfsd: {sentence}\n"


def test_a_relative_folder_becomes_absolute(daemon, folder):
    d = daemon(start=False)
    here = os.getcwd()
    os.chdir(os.path.dirname(folder))
    try:
        d.options += ["--disk", os.path.basename(folder)]
        d.start()
    finally:
        os.chdir(here)
    assert f"disk {folder}\n" in d.read("config")


def test_without_a_disk_nothing_speaks_of_one(daemon):
    d = daemon()
    d.namespace("x")
    record = put(d)
    assert os.listdir(d.path("ns/x/records", record)) == ["header", "pages"]
    assert header(d, record)["tiers"] == "memory" and "file_bytes" not in header(d, record)
    assert os.getxattr(d.path("ns/x/records", record), "user.prefixfs.tiers") == b"memory"
    assert "disk" not in d.read("tiers") and "disk" not in d.read("health")
    assert "prefixfs_disk_state" not in d.read("metrics")
    assert d.stats()["disk_bytes"] == d.stats()["dirty_bytes"] == "0"
    assert os.statvfs(d.mount).f_blocks == (64 << 20) // 4096
    assert command(d, "drain --newest 3") == (0, {"drained": 0, "note": "no disk tier"})
    assert command(d, "fsck")[0] == errno.ENODEV and "no disk tier" in command(d, "fsck")[1]["error"]
    for words in ("drain 26", "drain soon", "drain 1 2 3", "fsck 1 2"):
        assert command(d, words)[0] == errno.EINVAL, words


def test_a_check_by_hand_says_what_it_takes(program, tmp_path):
    daemon = program("prefixfsd")

    def run(*words):
        return subprocess.run([daemon, "--fsck", *words], capture_output=True, text=True, check=False)

    for words in ([], ["--what"], ["a", "b"]):
        assert run(*words).returncode == 2 and "usage:" in run(*words).stderr, words
    r = run(str(tmp_path / "none"))
    assert r.returncode == 1 and r.stderr.startswith(f"prefixfsd: {tmp_path}/none: "), r
    r = subprocess.run([program("prefixfs"), "fsck", str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert r.returncode == 1 and r.stderr.startswith(f"prefixfsd: {tmp_path}/none: "), r


def test_the_end_is_as_quick_as_before(daemon):
    d = daemon()
    d.namespace("x")
    put(d)
    status, took = d.stop()
    assert status == 0 and took < 3 * d.slower


# ---- with one -----------------------------------------------------------------------------------------------------


def test_a_folder_has_one_daemon(daemon, with_disk, folder):
    sentence = refusal(daemon, "--disk", folder)
    assert folder in sentence and "another daemon" in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_leaves_memory(daemon, folder):
    os.chmod(folder, 0o555)
    d = daemon("--disk", folder)
    assert "state=refused" in d.read("tiers")


def test_a_folder_that_cannot_be(daemon, folder):
    none, file = os.path.join(folder, "none"), os.path.join(folder, "file")
    assert refusal(daemon, "--disk", none) == f"prefixfsd: disk: {none}: No such file or directory; make the folder first\n"
    with open(file, "x", encoding="utf-8"):
        pass
    assert refusal(daemon, "--disk", file) == f"prefixfsd: disk: {file} is not a directory\n"
    d = daemon(start=False)
    mount = os.path.realpath(d.mount)
    above = os.path.dirname(mount)
    for disk_folder, said in (mount, f"{mount} is the mount point"), (above, f"the mount point {mount} lies in {above}"):
        r = subprocess.run([d.program, *d.options, "--disk", disk_folder, d.mount], capture_output=True, text=True, timeout=20,
                           check=False)
        assert r.returncode == 1 and r.stderr.startswith(f"prefixfsd: disk: {said}; "), r


def test_a_folder_that_cannot_be_used_leaves_memory(daemon, folder):
    os.mkdir(os.path.join(folder, "lock"))
    d = daemon("--disk", folder)
    assert disk.tier(d)["state"] == "refused"
    first = d.read("health").splitlines()[0]
    assert first.startswith("degraded: there is no disk tier: ") and folder in first
    assert d.logged("there is no disk tier, memory runs alone")
    d.namespace("x")
    put(d)
    assert get(d) == bytes_of(keys_of(1))


def test_the_start_warns_of_a_folder_that_cannot_be_used(daemon, folder, program):
    os.mkdir(os.path.join(folder, "lock"))
    d = daemon(start=False)
    options = [o for o in d.options if o not in ("-f", "--foreground")]
    r = subprocess.run([program("prefixfs"), "mount", *options, "--disk", folder, d.mount], capture_output=True, text=True,
                       timeout=20, check=False)
    try:
        assert r.returncode == 0, r
        assert r.stderr.startswith("prefixfsd: warning: there is no disk tier, memory runs alone: ") and folder in r.stderr
    finally:
        subprocess.run([program("prefixfs"), "unmount", d.mount], check=True)


def test_a_death_after_the_unmount_is_the_end(daemon, folder):
    d = daemon("--disk", folder, "--disk-fault", "write:EIO", "--drain", "full")
    d.namespace("x")
    put(d)
    serving = d.serving()
    subprocess.run(["fusermount3", "-u", d.mount], check=True)
    wait_for(lambda: "MiB down, for at most 60 s" in d.log(), 5 * d.slower, "writing down")
    os.kill(serving, signal.SIGKILL)
    assert d.process.wait(5 * d.slower) == 1
    assert "starting again" not in d.log() and not os.path.ismount(d.mount)
    assert f"info: {d.mount} was unmounted: it is not started again\n" in d.log()
    assert "it was told to stop" not in d.log()


@pytest.mark.parametrize("deaths", [1, 4])
def test_an_end_while_nobody_serves_writes_down_what_memory_holds(daemon, folder, deaths):
    """The parent has it all: one more serving process writes it down."""
    d = daemon("--disk", folder, "--drain", "full", "--deaths", "1000")
    d.namespace("x")
    put(d)
    assert disk.files(folder) == []
    for n in range(deaths):
        d.wait_ready(times=n + 1)
        os.kill(d.serving(), signal.SIGKILL)
    wait_for(lambda: d.log().count("the serving process died") == deaths, 20 * d.slower, "the pause", pause=0.001)
    d.process.send_signal(signal.SIGTERM)
    assert d.process.wait(30 * d.slower) == 0, d.log()
    assert len(disk.files(folder)) > 0 and "is lost" not in d.log(), d.log()


def test_the_end_of_the_fallen_mount_says_what_is_lost(daemon, folder):
    d = daemon("--disk", folder, "--drain", "full", "--deaths", "1")
    d.namespace("x")
    put(d)
    os.kill(d.serving(), signal.SIGKILL)
    wait_for(d.falls, 30 * d.slower, "the fallen mount")
    assert d.stop()[0] == 1
    assert "warning: what was not on the disk is lost: it died before anything was written down\n" in d.log()


def test_what_a_death_while_writing_down_loses_is_told(daemon, folder):
    d = daemon("--disk", folder, "--disk-fault", "write:EIO", "--drain", "full")
    d.namespace("x")
    put(d)
    serving = d.serving()
    d.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "writing 1 MiB down" in d.log(), 5 * d.slower, "writing down")
    os.kill(serving, signal.SIGKILL)
    assert d.process.wait(5 * d.slower) == 1
    assert "info: it was told to stop and is not started again\n" in d.log()
    assert "warning: 1 of 1 MiB were not written down: it died before\n" in d.log()


def test_the_figures(with_disk):
    d = with_disk
    d.namespace("x")
    put(d)
    t = disk.tier(d)
    assert t["state"] == "ok" and int(t["bytes"]) == 256 << 20 and int(t["dirty"]) == PAGES * BYTES
    assert command(d, "drain")[1]["left"] == 0
    t = disk.tier(d)
    assert int(t["dirty"]) == 0 and int(t["clean"]) == PAGES * BYTES and int(t["used"]) >= PAGES * BYTES and t["files"] == "1"
    assert re.search(r"^namespace x .* disk=\d+ files=1 dirty=0 clean=131072$", d.read("tiers"), re.M)
    metrics = dict(line.rsplit(" ", 1) for line in d.read("metrics").splitlines() if line[0] != "#")
    assert metrics['prefixfs_disk_state{state="ok"}'] == "1" and metrics['prefixfs_disk_state{state="closed"}'] == "0"
    assert metrics["prefixfs_host_disk_used_bytes"] == t["used"] and metrics["prefixfs_host_dirty_bytes"] == "0"
    assert metrics['prefixfs_disk_files{ns="x"}'] == "1" and int(metrics["prefixfs_disk_written_bytes_total"]) > 0
    assert os.statvfs(d.mount).f_blocks == (256 << 20) // 4096
    assert d.stats()["disk_files"] == "1" and d.stats()["dirty_bytes"] == "0"
    assert re.search(r"^disk: ok$", d.read("health"), re.M)


def test_raw_is_the_record_file(with_disk, folder):
    d = with_disk
    d.namespace("x")
    record = put(d)
    path = d.path("ns/x/records", record)
    assert "raw" not in os.listdir(path) and header(d, record)["dirty_values"] == str(PAGES)
    assert command(d, "drain")[0] == 0
    assert sorted(os.listdir(path)) == ["header", "pages", "raw"]
    h = header(d, record)
    assert (h["tiers"], h["memory_values"], h["dirty_values"]) == ("memory,disk", str(PAGES), "0")
    assert os.getxattr(path, "user.prefixfs.tiers") == b"memory,disk"
    files = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(".rec")]
    assert [os.path.basename(f) for f in files] == [record + ".rec"]
    with open(files[0], "rb") as f, open(os.path.join(path, "raw"), "rb") as g:
        there = f.read()
        assert g.read() == there and len(there) == int(h["file_bytes"]) == os.stat(os.path.join(path, "raw")).st_size
    for value in bytes_of(keys_of(1)):
        assert value in there


def test_a_restart_has_names_and_bytes(with_disk):
    d = with_disk
    os.chmod(d.namespace("x"), 0o2770)
    d.namespace("s", layout=STATE_LAYOUT)
    d.options += ["--drain", "full"]
    d.stop()
    d.start(wait=False)
    d.wait_ready(times=2)
    assert sorted(os.listdir(d.path("ns"))) == ["s", "x"]
    record = put(d)
    d.stop(seconds=60)
    assert d.logged("everything is written down")
    d.start(wait=False)
    d.wait_ready(times=3)
    assert os.stat(d.path("ns/x")).st_mode & 0o7777 == 0o2770
    assert os.listdir(d.path("ns/x/records")) == [record]
    assert header(d, record)["tiers"] == "disk"
    with open(d.path("ns/x/records", record, "pages"), "rb") as f:
        assert f.read() == b"".join(bytes_of(keys_of(1)))
    assert header(d, record)["tiers"] == "disk", "a look at it brings nothing back"
    assert get(d) == bytes_of(keys_of(1))
    assert header(d, record)["tiers"] == "memory,disk"


def test_what_a_reset_hid_does_not_come_back_with_a_restart(with_disk, folder):
    """Not even from files that it had no time to remove."""
    d = with_disk
    d.namespace("x")
    record = put(d)
    assert command(d, "drain")[0] == 0
    [path] = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(".rec")]
    with open(path, "rb") as f:
        bytes_of_file = f.read()
    assert command(d, "reset")[1]["generation"] == 2
    d.stop()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(bytes_of_file)
    d.start(wait=False)
    d.wait_ready(times=2)
    assert os.listdir(d.path("ns/x/records")) == []
    wait_for(lambda: not os.path.exists(path), 10, "removing the file")
    assert put(d) == record
    assert command(d, "drain")[0] == 0
    assert get(d) == bytes_of(keys_of(1))


def test_a_smaller_budget_lets_the_oldest_go_and_serves_no_half_record(with_disk):
    d = with_disk
    d.namespace("x")
    names = [wait_for(lambda chain=chain: put_if_room(d, chain), 10 * d.slower, "room") for chain in range(200)]
    assert command(d, "drain")[0] == 0
    d.stop()
    d.options += ["--disk-bytes", "16M"]  # fewer values than there are
    d.start(wait=False)
    d.wait_ready(times=2)
    wait_for(lambda: int(disk.tier(d)["used"]) <= 16 * MiB, 10, "the budget")
    left = os.listdir(d.path("ns/x/records"))
    assert 0 < len(left) <= 128 and set(left) <= set(names)
    for name in left:
        with open(d.path("ns/x/records", name, "pages"), "rb") as f:
            assert f.read() == b"".join(bytes_of(keys_of(names.index(name)))), name


@pytest.mark.limit(120)
def test_recorded_sessions_are_there_after_a_restart(with_disk, program):
    """With chains longer than memory, which come in several ranges: every byte of all that was put."""
    d = with_disk
    prefixfs = program("prefixfs")

    def replay(*more):
        r = subprocess.run([prefixfs, "replay", SESSIONS, "--mount", d.mount, "--ns", "x", "--requests", "16", "--group-pages",
                            "64", "--json", *more], capture_output=True, text=True, check=True)
        return json.loads(r.stdout)

    first = replay("--model", "Qwen3-8B", "--tp", "2", "--one-rank", "--plane-divisor", "64")
    assert first["bytes_put"] > 0
    for _ in range(10):  # a put that finds no room for a second goes on without: until all of it is there
        assert first["wrong_values"] == first["unfetched_pages"] == 0
        if first["hit_ratio"] > 0.9:
            break
        first = replay()
    assert int(d.stats()["bytes_spilled"]) > 0, "memory alone would do"
    assert command(d, "drain")[1]["left"] == 0
    d.stop(seconds=60)
    d.start(wait=False)
    d.wait_ready(times=2)
    again = replay()
    assert again["wrong_values"] == again["unfetched_pages"] == 0
    assert again["hit_ratio"] > 0.9 and again["verified_values"] >= first["verified_values"]
    assert again["bytes_from_disk"] == int(d.stats()["bytes_promoted"]) > 0
    assert d.stats()["waiting"] == d.stats()["slots_owed"] == "0"


def test_a_restart_has_the_floors_that_were_chosen(with_disk):
    """The default depends on what was promised before, so the order of the folder decided."""
    d = with_disk
    floors = {}
    for name in "abcd":  # a quarter of the budget, then half of what is left, twice
        d.namespace(name, layout=named_layout(name))
        floors[name] = d.stats(name)["floor_bytes"]
    assert floors == {"a": str(16 * MiB), "b": str(16 * MiB), "c": str(16 * MiB), "d": str(8 * MiB)}
    os.rmdir(d.path("ns", "a"))
    wait_for(lambda: f" floors={40 * MiB} " in d.read("tiers"), 10 * d.slower, "the end of a namespace with a disk")
    del floors["a"]
    own = dict(named_layout("e"), memory={"floor": 10 * MiB})
    d.namespace("e", layout=own)
    floors["e"] = str(10 * MiB)
    d.stop()
    d.start(wait=False)
    d.wait_ready(times=2)
    assert {name: d.stats(name)["floor_bytes"] for name in os.listdir(d.path("ns"))} == floors


def test_a_restart_with_less_memory_has_all_namespaces(with_disk):
    """Floors that were not asked for make room: what was asked for is kept, the rest shares what there is."""
    d = with_disk
    d.namespace("own", layout=dict(named_layout("own"), memory={"floor": 16 * MiB}))
    for name in "ab":
        d.namespace(name, layout=named_layout(name))
        assert d.stats(name)["floor_bytes"] == str(16 * MiB)
    d.stop()
    d.options += ["--memory", "32M"]
    d.start(wait=False)
    d.wait_ready(times=2)
    floors = {name: int(d.stats(name)["floor_bytes"]) for name in os.listdir(d.path("ns"))}
    assert sorted(floors) == ["a", "b", "own"] and floors["own"] == 16 * MiB
    assert sum(floors.values()) <= 32 * MiB and min(floors.values()) >= 2 * MiB


def test_a_second_signal_ends_the_writing_down(with_disk):
    d = with_disk
    d.stop()
    d.options += ["--drain", "full"]
    d.start(wait=False)
    d.wait_ready(times=2)
    d.namespace("x")
    for chain in range(50):
        put(d, chain)
    d.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "info: stopping" in d.log().split("serving")[-1], 5 * d.slower, "the end's beginning")
    status, _ = d.stop(seconds=10)
    assert status == 0 and ("a second signal" in d.log() or "everything is written down" in d.log())


def test_a_removed_namespace_stays_away(with_disk, folder):
    d = with_disk
    d.namespace("x")
    put(d)
    assert command(d, "drain")[0] == 0
    os.rmdir(d.path("ns/x"))
    wait_for(lambda: not [n for _, _, names in os.walk(folder) for n in names if n.endswith(".rec")], 10, "removing files")
    d.stop()
    d.start(wait=False)
    d.wait_ready(times=2)
    assert os.listdir(d.path("ns")) == []


def folders(folder):
    return sorted(n for n in os.listdir(folder) if os.path.isdir(os.path.join(folder, n)))


def test_a_removed_namespace_can_be_made_again_at_once(with_disk, folder):
    """With its files and its floor, of which there is only one."""
    d = with_disk
    layout = dict(PLAIN_LAYOUT, memory={"floor": 40 * MiB})
    for chain in range(5):
        d.namespace("x", layout=layout)
        put(d, chain)
        assert command(d, "drain")[0] == 0
        os.rmdir(d.path("ns/x"))
    d.namespace("x", layout=layout)
    assert os.listdir(d.path("ns/x/records")) == []
    put(d)
    assert command(d, "drain")[0] == 0 and get(d) == bytes_of(keys_of(1))
    wait_for(lambda: len(folders(folder)) == 1 and len(disk.files(folder)) == 1, 10 * d.slower, "removing files")
    d.stop()
    left = os.path.join(folder, folders(folder)[0])
    shutil.copytree(left, left + ".7.gone")  # as a death in the middle of a removal leaves it
    d.start(wait=False)
    d.wait_ready(times=2)
    assert os.listdir(d.path("ns")) == ["x"] and get(d) == bytes_of(keys_of(1))
    wait_for(lambda: folders(folder) == [os.path.basename(left)], 10 * d.slower, "what a death left of a removal")


def test_a_removed_namespace_does_not_come_back(daemon, folder):
    """The serving process dies as soon as rmdir has answered, with all of the files there."""
    d = daemon("--disk", folder, "--disk-bytes", "256M", "--disk-fault=remove_aside:kill")
    d.namespace("x")
    d.namespace("y", layout=named_layout("y"))
    put(d)
    assert command(d, "drain")[0] == 0
    os.rmdir(d.path("ns/x"))
    d.wait_ready(times=2)
    assert d.logged("killed at remove_aside") and os.listdir(d.path("ns")) == ["y"]
    wait_for(lambda: len(folders(folder)) == 1 and disk.files(folder) == [], 10 * d.slower, "what a death left of a removal")
    d.namespace("x")
    assert os.listdir(d.path("ns/x/records")) == []


def test_one_folder_serves_one_namespace(with_disk):
    d = with_disk
    d.namespace("a")
    with pytest.raises(OSError) as refused:
        d.namespace("b")
    assert refused.value.errno == errno.EEXIST
    assert ("namespace b: namespace a has the same identity and layout, and one record folder serves one namespace" in
            d.read("ns", "b", "layout.error"))


def test_folders_without_a_namespace_are_told(with_disk, folder, program):
    d = with_disk
    at = {}
    for name in "abc":
        before = folders(folder)
        d.namespace(name, layout=named_layout(name))
        put(d, ns=name)
        at[name] = [n for n in folders(folder) if n not in before][0]
    assert command(d, "drain", ns="a")[0] == command(d, "drain", ns="b")[0] == 0
    d.stop()
    with open(os.path.join(folder, at["a"], "namespace.json"), "w", encoding="utf-8") as f:
        f.write("{")
    catalogue = os.path.join(folder, at["b"], "catalogue.sqlite")
    os.rename(catalogue, catalogue + ".away")
    os.mkdir(catalogue)
    r = subprocess.run([program("prefixfs"), "fsck", folder], capture_output=True, text=True, check=False)
    assert r.returncode == 1 and at["a"] + "/namespace.json: " in r.stdout
    d.start(wait=False)
    d.wait_ready(times=2)
    assert os.listdir(d.path("ns")) == ["c"]
    first = d.read("health").splitlines()[0]
    assert first.startswith("degraded: ") and "2 folders of the disk have no namespace, " in first
    assert at["a"] in first or at["b"] in first
    assert d.log().count(f"the folder {at['a']} of the disk has no namespace") == 1 and "not an error" not in d.log()
    figures = disk.tier(d)
    assert figures["foreign_files"] == "2" and int(figures["foreign_bytes"]) > 2 * PAGES * BYTES


def test_get_start_tells_what_lies_where(with_disk):
    d = with_disk
    d.namespace("x")
    put(d)
    d.options += ["--drain", "full"]
    assert command(d, "drain")[0] == 0
    d.stop(seconds=60)
    d.start(wait=False)
    d.wait_ready(times=2)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        r = c.get_start(1, keys_of(1))
        assert list(r.bytes) == [0, PAGES * BYTES, 0, 0]
        assert r.estimate_us[1] == -(-PAGES * BYTES // 3000)
        c.call("GET_CANCEL", handle=1)


def test_drain_by_ioctl_and_command(with_disk, program):
    d = with_disk
    d.namespace("x")
    put(d)
    with Client(d.path("ns/x/ctl")) as c:
        r = c.call("DRAIN")
        assert (r.disk, r.bytes) == (1, 0)
    put(d, chain=2)
    r = subprocess.run([program("prefixfs"), "drain", d.mount, "--newest", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(r.stdout)["left"] == 0 and d.stats()["dirty_bytes"] == "0"


def test_fsck_online_and_offline(with_disk, folder, program):
    d = with_disk
    d.namespace("x")
    put(d)
    assert command(d, "drain")[0] == 0
    prefixfs = program("prefixfs")
    r = subprocess.run([prefixfs, "fsck", "x", "--mount", d.mount, "--json"], capture_output=True, text=True, check=True)
    assert {k: json.loads(r.stdout)[k] for k in ("files", "bad_files", "values", "bad_values")} == {
        "files": 1, "bad_files": 0, "values": PAGES, "bad_values": 0}
    r = subprocess.run([prefixfs, "fsck", folder], capture_output=True, text=True, check=False)
    assert r.returncode == 1 and "another daemon" in r.stderr
    d.stop()
    file = [os.path.join(where, n) for where, _, names in os.walk(folder) for n in names if n.endswith(".rec")][0]
    r = subprocess.run([prefixfs, "fsck", folder, "--values", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(r.stdout.splitlines()[-1])["files"] == 1
    with open(file, "r+b") as f:
        f.seek(-100, os.SEEK_END)
        f.write(b"damaged")
    r = subprocess.run([prefixfs, "fsck", folder, "--values", "--json"], capture_output=True, text=True, check=False)
    assert r.returncode == 1
    said = [json.loads(line) for line in r.stdout.splitlines()]
    assert said[-1]["bad_values"] == 1 and os.path.basename(file) in said[0]["file"]
    r = subprocess.run([prefixfs, "fsck", folder, "--values", "--repair"], capture_output=True, text=True, check=False)
    assert r.returncode == 0, r
    r = subprocess.run([prefixfs, "fsck", folder, "--values"], capture_output=True, text=True, check=False)
    assert r.returncode == 0, r


def test_fsck_online_names_what_was_bad(with_disk, folder, program):
    """What was bad is gone, and so put right: once more finds nothing."""
    d = with_disk
    d.namespace("x")
    record = put(d)
    assert command(d, "drain")[0] == 0
    with open(record_files(folder)[0], "r+b") as f:
        f.seek(-100, os.SEEK_END)
        f.write(b"damaged")
    said = []
    for _ in range(2):
        r = subprocess.run([program("prefixfs"), "fsck", "x", "--mount", d.mount, "--json"], capture_output=True, text=True, check=True)
        said.append(json.loads(r.stdout))
        assert command(d, "drain")[0] == 0
    assert [s["bad_values"] for s in said] == [1, 0] and [s["bad"] for s in said] == [[record], []]


def test_a_foreign_file_is_left_alone_and_is_no_error(with_disk, folder, program):
    d = with_disk
    d.namespace("x")
    record = put(d)
    assert command(d, "drain")[0] == 0
    d.stop(seconds=60)
    own = record_files(folder)[0]
    garbage = os.path.join(os.path.dirname(own), record[:-1] + ("0" if record[-1] != "0" else "1") + ".rec")
    with open(garbage, "wb") as f:
        f.write(b"garbage!" * 2048)
    for times in (2, 3):
        d.start(wait=False)
        d.wait_ready(times=times)
        t = disk.tier(d)
        assert (t["foreign_files"], t["read_errors"], t["files"]) == ("1", "0", "1")
        assert d.read("health").splitlines()[0] == "ok"
        d.stop(seconds=60)
    r = subprocess.run([program("prefixfs"), "fsck", folder, "--values", "--repair"], capture_output=True, text=True, check=False)
    assert r.returncode == 0 and f"{garbage}: " in r.stdout and "may be deleted by hand" in r.stdout, r
    assert os.path.exists(garbage)


def test_failed_writes_are_one_line_of_the_log(daemon, folder):
    d = daemon("--disk", folder, "--disk-bytes", "256M", "--disk-fault", "write:ENOSPC:=1")
    d.namespace("x")
    put(d)
    assert command(d, "drain")[0] == 0
    wait_for(lambda: "a write of the disk tier failed" in d.log(), 5 * d.slower, "the failure in the log")
    wait_for(lambda: "the disk tier is written again" in d.log(), 20 * d.slower, "its end in the log")
    assert d.logged("is written again") and d.log().count("a write of the disk tier failed") == d.log().count("is written again") == 1


def test_odd_budgets_and_folders_are_warned_of(daemon, tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        d = daemon("--disk", folder, "--disk-bytes", "1000T")
        assert d.logged("MiB are more than the file system of") and d.logged("is in memory (tmpfs)")
        assert disk.tier(d)["state"] == "ok"
        d.stop()


def test_events_of_a_record_s_way(with_disk):
    d = with_disk
    d.namespace("x")
    record = put(d)
    assert command(d, "drain")[0] == 0
    fd = os.open(d.path(".events"), os.O_RDONLY | os.O_NONBLOCK)
    lines = [json.loads(line) for line in os.read(fd, 65536).splitlines()]
    os.close(fd)
    mine = [e for e in lines if e.get("record") == record]
    assert [e["event"] for e in mine] == ["stored", "spilled"]
    assert mine[1]["pages"] == PAGES and mine[1]["bytes"] >= PAGES * BYTES


# ---- what a look costs the disk --------------------------------------------------------------------------------------

BIG = 1 * MiB


def big_layout(name, value_bytes=BIG):
    return dict(named_layout(name), classes=[{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": value_bytes}]}])


def put_on_disk_only(d, value_bytes, pages):
    """A record that a restart has left on the disk; its name and its keys."""
    d.options += ["--drain", "full"]
    d.stop()
    d.start(wait=False)
    d.wait_ready(times=2)
    d.namespace("x", layout=big_layout("big", value_bytes))
    keys = keys_of(1, pages)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64 * pages, keys, [value_of(k, value_bytes) for k in keys])
    d.stop(seconds=60)
    d.start(wait=False)
    d.wait_ready(times=3)
    record = name_of(64 * pages, keys[-1])
    assert header(d, record)["tiers"] == "disk"
    return record, keys


def read_in_steps(path, step):
    """As `cat` and `tar` do: small reads, one after another."""
    fd, parts = os.open(path, os.O_RDONLY), []
    try:
        while part := os.read(fd, step):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


@pytest.mark.parametrize("value_bytes, pages, step", [(BIG, 12, 16384), (8192, 512, 10240)])
def test_small_steps_read_each_value_once(with_disk, value_bytes, pages, step):
    d = with_disk
    record, keys = put_on_disk_only(d, value_bytes, pages)
    before = int(disk.tier(d)["read"])
    there = read_in_steps(d.path("ns/x/records", record, "pages"), step)
    read = int(disk.tier(d)["read"]) - before
    assert there == b"".join(value_of(k, value_bytes) for k in keys)
    assert value_bytes * pages * 0.9 <= read <= 1.3 * value_bytes * pages
    assert header(d, record)["tiers"] == "disk", "a look at it brings nothing back"


def test_small_steps_of_a_page_by_its_key(with_disk):
    d = with_disk
    _, keys = put_on_disk_only(d, BIG, 4)
    before = int(disk.tier(d)["read"])
    assert read_in_steps(d.path("ns/x/pages", keys[2].hex()), 16384) == value_of(keys[2], BIG)
    assert int(disk.tier(d)["read"]) - before <= 1.3 * BIG


def test_what_is_evicted_between_two_reads_is_gone(with_disk):
    """Whatever was kept of it."""
    d = with_disk
    record, keys = put_on_disk_only(d, BIG, 4)
    fd = os.open(d.path("ns/x/records", record, "pages"), os.O_RDONLY)
    try:
        assert os.pread(fd, 16384, 0) == value_of(keys[0], BIG)[:16384]
        os.rmdir(d.path("ns/x/records", record))
        assert errno_of(os.pread, fd, 16384, 16384) == errno.ENOENT
        assert errno_of(os.pread, fd, 16384, 0) == errno.ENOENT
    finally:
        os.close(fd)
    with Client(d.path("ns/x/ctl")) as c:  # under the same key, other bytes
        c.acknowledge()
        c.put(1, None, 64 * 4, keys, [value_of(key(9, i), BIG) for i in range(4)])
    assert command(d, "drain")[0] == 0
    d.stop(seconds=60)
    d.start(wait=False)
    d.wait_ready(times=4)
    assert read_in_steps(d.path("ns/x/records", record, "pages"), 65536) == b"".join(value_of(key(9, i), BIG) for i in range(4))
