# SPDX-License-Identifier: Apache-2.0
"""The command line, from mount to unmount, as an operator types it."""
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time

import pytest

from raw import Client, key, name_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SESSIONS = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")
SMALL = ["--model", "Qwen3-8B", "--tp", "2", "--one-rank", "--plane-divisor", "1024"]


def line(path, name):
    with open(path, encoding="utf-8") as f:
        for text in f:
            if text.startswith(name + ": "):
                return text.split(": ", 1)[1].strip()
    return None


def gone(pid):
    """Or a zombie that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Cli:
    def __init__(self, program, mount):
        self.program, self.mount = program, mount

    def __call__(self, *arguments, rc=0):
        words = list(arguments)
        if words[0] not in ("mount", "unmount", "version", "--version", "bench") and "--help" not in words:
            words += ["--mount", self.mount]
        answer = subprocess.run([self.program] + words, capture_output=True, text=True, check=False)
        assert answer.returncode == rc, f"{words}: {answer.returncode}, {answer.stdout}{answer.stderr}"
        return answer.stdout if rc == 0 else answer.stderr

    def json(self, *arguments):
        return [json.loads(text) for text in self(*arguments, "--json").splitlines()]

    def serving(self):
        return int(line(os.path.join(self.mount, "health"), "serving"))


@pytest.fixture
def cli(program, mountable, tmp_path, on_hang):
    program("prefixfsd")
    mount = tmp_path / "mnt"
    mount.mkdir()
    run = tempfile.mkdtemp(prefix="prefixfs-")  # its path has a limit
    c = Cli(program("prefixfs"), str(mount))
    c.run = run
    c("mount", str(mount), "--memory=64M", f"--run-dir={run}")
    serving = c.serving()
    on_hang(lambda: os.kill(serving, signal.SIGKILL))
    yield c
    if os.path.ismount(mount):
        subprocess.run([c.program, "unmount", "--lazy", str(mount)], check=False)
    shutil.rmtree(run, ignore_errors=True)


def test_mount_and_unmount_leave_nothing(cli):
    parent = int(line(os.path.join(cli.mount, "health"), "parent"))
    cli("unmount", cli.mount)
    assert not os.path.ismount(cli.mount)
    assert gone(parent)


def test_pin_touch_drain_and_reset(cli):
    cli("ns", "create", "x", *SMALL)
    with Client(os.path.join(cli.mount, "ns/x/ctl")) as c:
        c.acknowledge()
        a = c.attached
        keys = [key(1, i) for i in range(4)]
        c.put_start(1, [(None, 4 * a.page_tokens, keys)])
        c.put_end("PUT_COMMIT", 1)
        record = name_of(4 * a.page_tokens, keys[-1])
        out = cli.json("pin", "x", record)[0]
        assert out["changed"] == 1 and out["gone"] == 0 and 0 < out["pinned_bytes"] <= out["limit_bytes"]
        assert "pinned" in cli("evict", "x", record, rc=1)
        assert cli.json("pin", "x", record)[0]["changed"] == 0
        assert cli.json("touch", "x", record) == [{"touched": 1}]
        out = cli.json("unpin", "x", record)[0]
        assert out["changed"] == 1 and out["pinned_bytes"] == 0
        assert "16 hex digits" in cli("pin", "x", "nothing", rc=1)
        assert "No such file" in cli("pin", "x", name_of(64, key(9)), rc=1)
        nothing = {"namespace": "x", "drained": 0, "left": 0, "note": "no disk tier"}
        assert cli.json("drain", "x") == cli.json("drain") == cli.json("drain", cli.mount) == [nothing]
        assert "no disk tier" in cli("fsck", "x", rc=1) and "no disk tier" in cli("fsck", rc=1)
        assert "for a folder" in cli("fsck", "x", "--repair", rc=2)
        c.get_start(1, keys)
        out = cli.json("reset", "x")[0]
        assert out == {"generation": 2, "values": 0, "held_records": 1}
        assert c.probe(keys).hits == 0
        c.call("GET_CANCEL", handle=1)
    for command in ("pin", "unpin", "touch", "drain", "fsck", "reset"):
        assert "NAMESPACE" in cli(command, "--help")
        assert command in cli(command, *(["x", "x"] if command in ("drain", "fsck") else []), rc=2)
        assert "y" in cli(command, "y", *([record] if command in ("pin", "unpin", "touch") else []), rc=1)


def test_what_makes_and_takes_away_speaks_json(cli):
    """They said nothing at all; errors are sentences on stderr with --json too."""
    assert cli.json("ns", "create", "a", *SMALL) == [{"namespace": "a", "mount": cli.mount}]
    said = cli("ns", "create", "a", *SMALL, "--json", rc=1)
    assert said == f"prefixfs: namespace a exists in {cli.mount}\n"
    assert cli.json("ns", "remove", "a") == [{"namespace": "a", "mount": cli.mount}]
    parent = int(line(os.path.join(cli.mount, "health"), "parent"))
    assert cli.json("unmount", cli.mount) == [{"mount": cli.mount, "pid": parent}]
    [again] = cli.json("mount", "--memory", "16M", cli.mount, f"--run-dir={cli.run}")
    assert again == {"mount": cli.mount, "pid": int(line(os.path.join(cli.mount, "health"), "parent"))}
    assert "carries a prefixfs already" in cli("mount", "--json", cli.mount, f"--run-dir={cli.run}", rc=1)


def test_mount_in_the_foreground_has_no_json(cli, tmp_path):
    assert "--json and --foreground exclude each other" in cli("mount", str(tmp_path), "--json", "--foreground", rc=2)


def test_unmount_says_what_is_wrong(cli, tmp_path):
    with open(os.path.join(cli.mount, "README"), encoding="utf-8"):
        assert "in use" in cli("unmount", cli.mount, rc=1)
    assert cli("unmount", str(tmp_path), rc=1) == f"prefixfs: {tmp_path} is no prefixfs mount\n"


@pytest.mark.parametrize("more", [[], ["--lazy"]])
def test_unmount_of_a_daemon_that_is_stopped_takes_no_longer_than_it_may(cli, more):
    """It read the daemon's pid in the mount, and hung there for ever."""
    parent = int(line(os.path.join(cli.mount, "health"), "parent"))
    serving = cli.serving()
    os.kill(serving, signal.SIGSTOP)
    began = time.monotonic()
    try:
        answer = subprocess.run([cli.program, "unmount", cli.mount, "--wait", "1", *more], capture_output=True, text=True,
                                timeout=20, check=False)
        assert answer.stderr == (f"prefixfs: unmounted, but the daemon (process {parent}) has not ended within 1 s: "
                                 f"process {serving} is stopped; kill {parent} ends it\n")
        assert answer.returncode == 1 and 1 <= time.monotonic() - began < 10
        assert not os.path.ismount(cli.mount)
        os.kill(parent, signal.SIGTERM)
        end = time.monotonic() + 20
        while not (gone(parent) and gone(serving)):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(serving, signal.SIGKILL)


@pytest.fixture
def nobody(cli):
    """Runs a command as somebody else, who may come as far as the mount."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")

    def run(*words):
        return subprocess.run([cli.program, *words], user=65534, group=65534, extra_groups=[], capture_output=True,
                              text=True, timeout=30, check=False)

    folder = os.path.dirname(cli.mount)
    while folder != "/":  # pytest's folders are their maker's alone
        os.chmod(folder, os.stat(folder).st_mode | 0o011)
        folder = os.path.dirname(folder)
    if run("version").returncode:
        pytest.skip("the build folder is closed to others")
    return run


def test_unmount_of_anothers_mount_says_who_may(cli, nobody):
    """fusermount3 said that the mount is not in /etc/mtab."""
    for more in ([], ["--lazy"]):
        answer = nobody("unmount", cli.mount, *more)
        assert answer.returncode == 1
        assert answer.stderr == f"prefixfs: {cli.mount}: root mounted it, and only root may unmount it\n"
    assert os.path.ismount(cli.mount)


def test_mount_says_that_the_daemon_was_killed_while_it_began(cli, program, tmp_path):
    """It ended with 1 and without a word, or with a status that the page does not know."""
    folder = tmp_path / "programs"
    folder.mkdir()
    shutil.copy(cli.program, folder / "prefixfs")
    (folder / "prefixfsd").write_text("#!/bin/sh\nkill -9 $$\n")
    (folder / "prefixfsd").chmod(0o755)
    answer = subprocess.run([folder / "prefixfs", "mount", "/nowhere"], capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 1
    assert answer.stderr == f"prefixfs: {folder}/prefixfsd was ended by signal 9 (Killed)\n"

    cli("unmount", cli.mount)
    os.mkfifo(tmp_path / "log")  # nobody reads there: the start waits
    words = [cli.program, "mount", cli.mount, "--memory=64M", f"--run-dir={cli.run}", f"--log-file={tmp_path}/log"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as starting:
        pids = [starting.pid]
        end = time.monotonic() + 20
        while len(pids) < 3:  # prefixfs, the process that waits, the one that serves the mount
            assert time.monotonic() < end
            with open(f"/proc/{pids[-1]}/task/{pids[-1]}/children", encoding="ascii") as f:
                pids += [int(pid) for pid in f.read().split()]
        os.kill(pids[2], signal.SIGKILL)
        said = starting.communicate(timeout=30)[1]
    assert starting.returncode == 1 and said == "prefixfsd: ended by signal 9 (Killed) before it served\n"


def test_version(cli, monkeypatch):
    monkeypatch.delenv("PREFIXFS_MOUNT", raising=False)
    here = json.loads(cli("version", "--json"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", here["libprefixfs"]) and here["abi"] == 1
    both = json.loads(cli("version", "--json", "--mount", cli.mount))
    assert both["daemon"]
    words = [cli.program, "version", "--json"]
    answer = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PREFIXFS_MOUNT": cli.mount}, check=True)
    assert json.loads(answer.stdout) == both
    monkeypatch.setenv("PREFIXFS_MOUNT", "/nowhere")  # it asks nobody
    assert cli("--version") == f"prefixfs {here['prefixfs']}\n"


def test_namespaces(cli, tmp_path):
    cli("ns", "create", "a", *SMALL)
    cli("ns", "create", "b", "--model", "Qwen3-Next-80B-A3B", "--tp", "2", "--plane-divisor", "1024")
    rows = cli.json("ns", "list")
    assert [r["name"] for r in rows] == ["a", "b"]
    assert rows[0]["page_bytes"] == 72 * 64 and rows[1]["world"] == 2
    assert "state" in cli("ns", "show", "b")
    assert "exists" in cli("ns", "create", "a", *SMALL, rc=1)
    (tmp_path / "bad.json").write_text('{"version": 1, "world": 1, "page_tokens": 64, "classes": []}')
    assert "refused" in cli("ns", "create", "c", "--layout", str(tmp_path / "bad.json"), rc=1)
    cli("ns", "remove", "b")
    assert [r["name"] for r in cli.json("ns", "list")] == ["a"]


@pytest.mark.parametrize("words", [["ns", "show", "no"], ["ns", "remove", "no"], ["stat", "no"], ["evict", "no", "--all"],
                                   ["evict", "no", "--bytes", "1M"], ["evict", "no", f"{16:016x}-{'0' * 64}"],
                                   ["probe", "no", "0" * 64], ["replay", SESSIONS, "--ns", "no"]])
def test_an_unknown_namespace_is_said_to_be_unknown(cli, words):
    """It was the errno of some file below it."""
    assert cli(*words, rc=1) == f"prefixfs: no namespace no in {cli.mount}\n"


@pytest.mark.parametrize("words, sentence", [
    (["ns", "show", "p"], "namespace p has no layout yet: write one to {mount}/ns/p/layout"),
    (["stat", "p"], "namespace p has no layout yet, and so no counters"),
    (["evict", "p", "--all"], "{mount}/ns/p/records: the namespace has no layout yet, and so no records"),
    (["probe", "p", "0" * 64], "no session: {mount}/ns/p/ctl: no such namespace, or it has no layout yet"),
    (["evict", "a", f"{16:016x}-{'0' * 64}"], f"{16:016x}-{'0' * 64}: no such record"),
    (["ns", "create", "b", "--layout", "/nowhere"], "layout /nowhere: No such file or directory"),
    (["ns", "create", "b", "--layout", "/etc"], "layout /etc: Is a directory"),
    (["replay", "/etc", "--ns", "a"], "/etc: Is a directory"),
    (["ns", "create", "b", "--layout", "/etc/passwd"], "layout /etc/passwd is no JSON: line 1: "),
])
def test_sentences_name_the_thing(cli, words, sentence):
    cli("ns", "create", "a", *SMALL)
    os.mkdir(os.path.join(cli.mount, "ns/p"))
    said = cli(*words, rc=1)
    expected = "prefixfs: " + sentence.format(mount=cli.mount)
    assert said.startswith(expected) if sentence.endswith(": ") else said.splitlines()[0] == expected, said


@pytest.mark.parametrize("words", [["ns", "list"], ["ns", "show", "a"], ["stat"], ["stat", "a"], ["version"],
                                   ["probe", "a", "0" * 64], ["bench", "control", "--pages", "20000"]])
def test_a_folder_that_is_no_mount_is_said_to_be_none(program, tmp_path, words):
    for at, more in ((tmp_path, ""), (tmp_path / "no", ": No such file or directory")):
        answer = subprocess.run([program("prefixfs"), *words, "--mount", str(at)], capture_output=True, text=True,
                                timeout=30, check=False)
        assert answer.returncode == 1 and answer.stderr == f"prefixfs: no prefixfs is mounted at {at}{more}\n"


@pytest.mark.parametrize("mode", ["777", "0700", "2770", "755", "0"])
def test_the_mode_given_is_the_mode_had(cli, mode):
    """It passed through the caller's umask, and lost the setgid bit."""
    answer = subprocess.run([cli.program, "ns", "create", "a", *SMALL, "--mode", mode, "--mount", cli.mount], umask=0o077,
                            capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stderr
    assert stat.S_IMODE(os.stat(os.path.join(cli.mount, "ns/a")).st_mode) == int(mode, 8)


def test_without_a_mode_the_umask_counts(cli):
    subprocess.run([cli.program, "ns", "create", "a", *SMALL, "--mount", cli.mount], umask=0o027, check=True, timeout=30)
    assert stat.S_IMODE(os.stat(os.path.join(cli.mount, "ns/a")).st_mode) == 0o750


def test_one_namespace_too_many_is_no_space(cli):
    """It was EMFILE, which a shell explains with too many open files."""
    for i in range(64):
        os.mkdir(os.path.join(cli.mount, f"ns/n{i}"))
    with pytest.raises(OSError) as refused:
        os.mkdir(os.path.join(cli.mount, "ns/n64"))
    assert refused.value.errno == errno.ENOSPC
    assert cli("ns", "create", "n64", *SMALL, rc=1) == \
        f"prefixfs: namespace n64: {cli.mount} has as many as it may have: 64 namespaces at most (max_namespaces)\n"
    cli("ns", "remove", "n7")
    cli("ns", "create", "n64", *SMALL)


def test_replay_checks_every_byte_then_probe_and_evict(cli):
    cli("ns", "create", "a", *SMALL)
    [result] = cli.json("replay", SESSIONS, "--ns", "a", "--requests", "60", "--clients", "2")
    assert result["requests"] == 60 and result["wrong_values"] == 0
    assert result["verified_values"] == result["block_hits"] > 0 and 0.3 < result["hit_ratio"] < 1
    records = os.listdir(os.path.join(cli.mount, "ns/a/records"))
    keys = [records[0].split("-")[1], "ab" * 32]
    rows = cli.json("probe", "a", *keys)
    assert [r["there"] for r in rows] == [True, False]
    assert cli.json("stat", "a")[0]["values_committed"] == result["new_values"]
    before = int(cli.json("ns", "show", "a")[0]["slot_bytes"])
    cli("evict", "a", "--bytes", "1M")
    after = int(cli.json("ns", "show", "a")[0]["slot_bytes"])
    assert after <= before - (1 << 20)
    cli("evict", "a", "--all")
    assert cli.json("ns", "show", "a")[0]["records"] == 0
    assert f"{records[0]}: no such record" in cli("evict", "a", records[0], rc=1)


def test_replay_says_what_would_fit(cli):
    """Groups that can never fit were a counter in stats alone."""
    cli("unmount", cli.mount)
    cli("mount", cli.mount, "--memory=16M", f"--run-dir={cli.run}")
    cli("ns", "create", "a", "--model", "Qwen3-8B", "--tp", "2", "--one-rank", "--plane-divisor", "64")
    words = [cli.program, "replay", SESSIONS, "--mount", cli.mount, "--ns", "a", "--requests", "3", "--json"]
    answer = subprocess.run([*words, "--requests", "1"], capture_output=True, text=True, timeout=100, check=True)
    assert answer.stderr.startswith("prefixfs: 1 put group can never fit: it has "), answer.stderr
    cli("evict", "a", "--all")
    answer = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    result = json.loads(answer.stdout)
    hint = re.fullmatch(r"prefixfs: (\d+) put groups can never fit: the largest has (\d+) pages, (\d+) bytes, and a session "
                        r"may hold half of the memory in open puts, 8388608 bytes; "
                        r"--memory=(\d+)M or --group-pages (\d+) would do\n", answer.stderr)
    assert hint, answer.stderr
    groups, pages, size, memory, fitting = map(int, hint.groups())
    assert groups == result["toobig_groups"] > 1 and size == (pages + 27) // 28 * (2 << 20)  # 28 slots a grant
    assert 2 * size == memory << 20 > 16777216 and fitting == 4 * 28
    answer = subprocess.run([*words, "--group-pages", str(fitting)], capture_output=True, text=True, timeout=100, check=True)
    assert answer.stderr == "" and json.loads(answer.stdout)["toobig_groups"] == 0


def test_replay_with_rows_and_two_ranks(cli):
    cli("ns", "create", "q", "--model", "Qwen3-Next-80B-A3B", "--tp", "2", "--plane-divisor", "1024")
    [result] = cli.json("replay", SESSIONS, "--ns", "q", "--requests", "40", "--planes")
    assert result["wrong_values"] == 0 and result["verified_values"] > result["block_hits"]


def test_replay_survives_deaths_of_the_daemon(cli, slower):
    cli("ns", "create", "a", *SMALL)
    with subprocess.Popen([cli.program, "replay", SESSIONS, "--mount", cli.mount, "--ns", "a", "--json"],
                          stdout=subprocess.PIPE, text=True) as replay:
        time.sleep(0.4 * slower)
        if replay.poll() is None:
            os.kill(cli.serving(), signal.SIGKILL)
        out = replay.communicate()[0]
    assert replay.returncode == 0
    result = json.loads(out)
    assert result["wrong_values"] == 0 and result["requests"] == 400


def test_replay_says_that_it_waits_for_the_daemon(cli, slower):
    """It was silent until it gave up."""
    cli("ns", "create", "a", *SMALL)
    pids = [int(line(os.path.join(cli.mount, "health"), name)) for name in ("parent", "serving")]
    with subprocess.Popen([cli.program, "replay", SESSIONS, "--mount", cli.mount, "--ns", "a", "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as replay:
        watchdog = threading.Timer(80 * slower, replay.kill)
        watchdog.start()
        try:
            while int(cli.json("stat", "a")[0]["put_calls"]) == 0:
                assert replay.poll() is None
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            said = replay.stderr.readline()
            assert re.fullmatch(f"prefixfs: waiting for the daemon of {cli.mount}/ns/a: .+; "
                                r"since \d\d:\d\d:\d\d, a request waits until \d\d:\d\d:\d\d\n", said), said
            cli("mount", cli.mount, "--memory=64M", f"--run-dir={cli.run}")
            cli("ns", "create", "a", *SMALL)
            out, rest = replay.communicate()
        finally:
            watchdog.cancel()
            replay.kill()
    assert replay.returncode == 0
    assert re.fullmatch(f"prefixfs: {cli.mount}/ns/a/ctl: attached anew after \\d+ ms; memory is new; \\d plans lost\n", rest), rest
    assert json.loads(out)["requests"] == 400 and json.loads(out)["reattached"] == 1


@pytest.mark.parametrize("order", ["strict", "lookups", "free"])
def test_replay_ends_when_a_client_dies(cli, order):
    """It waited for client 0, which waited for the dead one's turn."""
    cli("ns", "create", "a", *SMALL)
    with subprocess.Popen([cli.program, "replay", SESSIONS, "--mount", cli.mount, "--ns", "a", "--clients", "3", "--order",
                           order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as replay:
        try:
            children = []
            while len(children) < 3:
                assert replay.poll() is None
                with open(f"/proc/{replay.pid}/task/{replay.pid}/children", encoding="ascii") as f:
                    children = [int(pid) for pid in f.read().split()]
            os.kill(children[2], signal.SIGKILL)
            out, said = replay.communicate(timeout=40)
        finally:
            replay.kill()
    assert replay.returncode == 1 and out == "" and said == "prefixfs: client 2 was ended by signal 9\n"


@pytest.mark.parametrize("words, sentence", [
    (["nonsense"], "no command 'nonsense'"),
    (["ns", "create", "a"], "one of --layout and --model"),
    (["ns", "create", "a", "--model", "NoSuchModel"], None),
    (["probe", "a", "xyz"], "'xyz' is no key"),
    (["evict", "a"], "one of record names"),
    (["evict", "a", "--all", "--bytes", "1M"], "record names, --all and --bytes exclude each other"),
    (["evict", "a", "x", "--all"], "record names, --all and --bytes exclude each other"),
    (["ns", "create", "a", "--model", "Qwen3-8B", "--layout", "x"], "--layout and --model exclude each other"),
    (["replay", "x", "--ns", "a", "--model", "Qwen3-8B", "--layout", "x"], "--layout and --model exclude each other"),
    (["ns", "create", "a", "--layout", "x", "--tp", "2"], "--tp goes with --model;"),
    (["ns", "create", "a", "--layout", "x", "--one-rank"], "--one-rank goes with --model;"),
    (["ns", "create", "a", "--model", "../x"], "--model is '../x', not the name of a layout that comes along"),
    (["replay", "x", "--ns", "a", "--tp", "2"], "--tp goes with --model;"),
    (["replay", "x", "--ns", "a", "--one-rank"], "--one-rank goes with --model;"),
    (["replay", "x", "--ns", "a", "--plane-divisor", "2"], "--plane-divisor goes with --model or --layout;"),
    (["replay", "x", "--ns", "a", "--floor", "2M"], "--floor goes with --model or --layout;"),
    (["replay", "x", "--ns", "a", "--clients", "0"], "--clients is 0"),
    (["replay", "x", "--ns", "a", "--order", "some"], "--order is 'some'"),
    (["bench", "control", "--pages", "12x"], "not a number"),
    (["bench", "control", "--figure", "foo"], "--figure is 'foo', and none begins so; there are get_start_1000_p50_us, "),
    (["ns", "create", "a", "--model", "Qwen3-8B", "--mode", "789"], "--mode is '789', not octal digits like 0755"),
    (["ns", "create", "a", "--model", "Qwen3-8B", "--mode", "17777"], "--mode is 17777, 0..7777 are possible"),
    (["stat", "--nonsense"], "unknown option"),
])
def test_wrong_usage_is_2_with_a_sentence(cli, words, sentence):
    if sentence is None:
        assert "no layout of NoSuchModel" in cli(*words, rc=1)
    else:
        assert sentence in cli(*words, rc=2)


def test_help_everywhere(program):
    prefixfs = program("prefixfs")
    for words in ["", "mount", "unmount", "ns", "ns create", "ns list", "ns show", "ns remove", "stat", "probe", "evict",
                  "replay", "bench", "bench control", "version"]:
        answer = subprocess.run([prefixfs] + words.split() + ["--help"], capture_output=True, text=True, check=False)
        assert answer.returncode == 0 and answer.stderr == "", words
        assert answer.stdout.startswith(" ".join(["prefixfs", *words.split()])), words
        assert not re.search(" $", answer.stdout, re.MULTILINE), words
        assert answer.stdout.endswith("Exit status: 0 done, 1 it failed, 2 wrong usage.\n"), words
        options = re.findall(r"^  --\S+(?: [A-Z]+)?(.*)$", answer.stdout, re.MULTILINE)
        assert all(text.strip() for text in options), words


@pytest.mark.parametrize("words", [
    ["evict", "b", "../../b"], ["evict", "b", "../../../../victim"], ["evict", "../ns/a", "--all"],
    ["evict", "b", "0000000000000040-" + "0" * 63], ["ns", "remove", "../../victim"], ["ns", "remove", ""],
    ["ns", "create", "../../victim2", "--model", "Qwen3-8B"], ["ns", "create", "a b", "--model", "Qwen3-8B"],
    ["ns", "create", "\x1b[31m", "--model", "Qwen3-8B"], ["ns", "create", "x" * 65, "--model", "Qwen3-8B"],
    ["ns", "show", ".."], ["stat", "../ns/a"], ["probe", "../a", "0" * 64],
    ["replay", "x", "--ns", "../a"],
])
def test_a_name_never_leaves_its_folder(cli, words):
    """Names were joined to paths as they came: evict and ns remove took folders away elsewhere."""
    victim = os.path.join(os.path.dirname(cli.mount), "victim")
    os.mkdir(victim)
    cli("ns", "create", "b", "--model", "Qwen3-8B", "--plane-divisor", "64")
    said = cli(*words, rc=1)
    assert " is no name of a " in said and "\x1b" not in said, said
    assert os.path.isdir(victim) and not os.path.exists(victim + "2")
    assert os.listdir(os.path.join(cli.mount, "ns")) == ["b"]
