# SPDX-License-Identifier: Apache-2.0
"""The run folder: what a start may leave there, and what happens where nothing can be written."""
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess

import pytest

from mounted import wait_for
from raw import errno_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")


@contextlib.contextmanager
def small(folder, *options):
    """A tmpfs at @folder with these options."""
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", folder], capture_output=True,
                       text=True, check=False)
    if r.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {r.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def refusal(d, **more):
    """The sentence of a start that fails, in the background."""
    options = [o for o in d.options if o != "--foreground"]
    r = subprocess.run([d.program, *options, d.mount], capture_output=True, text=True, timeout=20, check=False, **more)
    assert r.returncode == 1 and r.stderr.count("\n") == 1, r
    return r.stderr


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (15, 15))


def without_fusermount():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@needs_root
def test_a_claim_that_fails_leaves_nothing(daemon):
    d = daemon(start=False)
    with small(d.run, "nr_inodes=3"):  # its root, the run folder, the lock; not spaces/
        assert "spaces cannot be made: No space left on device" in refusal(d)
        assert os.listdir(d.run) == []


def test_a_serving_process_that_refuses_leaves_nothing(daemon):
    d = daemon(start=False)
    refusal(d, preexec_fn=few_descriptors)
    assert os.listdir(d.run) == []


def test_a_clean_end_leaves_the_folder_that_others_made(daemon):
    """It was removed with the last mount's own: whoever had bind-mounted it saw the next daemon's no more."""
    d = daemon()
    before = os.stat(d.run).st_ino
    assert d.stop()[0] == 0
    assert os.listdir(d.run) == [] and os.stat(d.run).st_ino == before


@needs_root
def test_a_mount_that_fails_leaves_nothing(daemon):
    d = daemon(run_as=65534, start=False)
    assert "fusermount3 cannot be run" in refusal(d, preexec_fn=without_fusermount, env={"PATH": "/nonexistent"})
    assert os.listdir(d.run) == []


def test_a_start_that_fails_leaves_the_reason_of_the_end_before(daemon):
    d = daemon("--deaths=1")
    folder = d.folder()
    os.kill(d.serving(), 9)
    assert d.give_up() == 1
    with open(os.path.join(folder, "log"), "w", encoding="utf-8") as f:
        f.write("of the end before\n")
    refusal(d, preexec_fn=few_descriptors)
    assert sorted(os.listdir(folder)) == ["deaths", "last_exit", "log"]
    with open(os.path.join(folder, "log"), encoding="utf-8") as f:
        assert f.read() == "of the end before\n"
    with open(os.path.join(folder, "last_exit"), encoding="utf-8") as f:
        assert f.read().startswith("reason: signal 9")


def test_a_run_folder_in_the_mount_is_refused(daemon):
    """The daemon would look for its files in its own mount, and wait for itself."""
    d = daemon(start=False)
    for run, said in (d.mount, "is the mount point"), (d.path("run"), f"lies below the mount point {d.mount}"):
        d.options[d.options.index("--run-dir") + 1] = run
        assert refusal(d) == f"prefixfsd: run_dir: {run} {said}; its files need a folder elsewhere\n"
        assert os.listdir(d.mount) == []
        d.options[d.options.index("--run-dir") + 1] = d.run


def fill(folder):
    """A file there that leaves no room for another byte."""
    path = os.path.join(folder, "filler")
    with open(path, "wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4096))
    return path


def first_line(d):
    return d.read("health").split("\n", 1)[0]


@needs_root
def test_health_says_that_a_namespace_would_not_survive(daemon, slower):
    d = daemon(start=False)
    with small(d.run, "size=256k"):
        d.start()
        d.namespace("before")
        saved = os.path.join(d.folder(), "spaces")
        filler = fill(d.run)
        d.namespace("x")
        assert first_line(d) == ("degraded: namespace x would be lost with the serving process, "
                                 f"{saved}/x cannot be written: No space left on device")
        os.unlink(filler)
        wait_for(lambda: first_line(d) == "ok", 10 * slower, "the second attempt")
        wait_for(lambda: "info: namespace x is saved" in d.log(), 10 * slower, "its line in the log")
        assert d.log().count("warning: namespace x would be lost") == 1  # not once a second
        os.kill(d.serving(), 9)
        d.wait_ready(times=2)
        assert sorted(os.listdir(d.path("ns"))) == ["before", "x"]
        assert first_line(d) == "ok"


@needs_root
def test_access_that_would_not_survive_is_refused(daemon):
    """It was changed, and after a death what was private was open to all again."""
    d = daemon(start=False)
    with small(d.run, "size=256k"):
        d.start()
        d.namespace("x")
        path = d.path("ns/x")
        filler = fill(d.run)
        assert errno_of(os.chmod, path, 0o700) == errno.ENOSPC
        assert errno_of(os.chown, path, 1, 1) == errno.ENOSPC
        assert os.stat(path).st_mode & 0o777 == 0o755 and os.stat(path).st_uid == 0
        assert first_line(d) == "ok"  # what is written is what there is
        os.unlink(filler)
        os.chmod(path, 0o700)
        os.kill(d.serving(), 9)
        d.wait_ready(times=2)
        assert os.stat(path).st_mode & 0o777 == 0o700 and first_line(d) == "ok"


def saved(d, name="x"):
    return os.path.join(d.folder(), "spaces", name)


def take_away(path):
    os.unlink(path)


def take_all_away(path):
    shutil.rmtree(os.path.dirname(os.path.dirname(path)))


def scribble(path):
    with open(path, "w", encoding="utf-8") as f:
        f.write("garbage")


@pytest.mark.parametrize("spoil", (take_away, take_all_away, scribble))
def test_what_was_taken_away_is_written_anew(daemon, slower, spoil):
    d = daemon()
    d.namespace("x")
    path = saved(d)
    with open(path, encoding="utf-8") as f:
        before = f.read()
    spoil(path)
    wait_for(lambda: f"warning: {path} was missing or changed; it is written anew" in d.log(), 10 * slower, "the look of each second")
    with open(path, encoding="utf-8") as f:
        assert f.read() == before
    os.kill(d.serving(), 9)
    d.wait_ready(times=2)
    assert os.listdir(d.path("ns")) == ["x"] and first_line(d) == "ok"


@pytest.mark.parametrize("spoil, why", ((take_away, "is missing"), (scribble, "is damaged")))
def test_memory_that_was_dropped_for_want_of_its_file_is_told(daemon, slower, spoil, why):
    d = daemon()
    d.namespace("x")
    os.kill(d.serving(), signal.SIGSTOP)  # nobody looks
    spoil(saved(d))
    os.kill(d.serving(), 9)
    d.wait_ready(times=2)
    sentence = f"the memory of namespace x was dropped: {saved(d)} {why}"
    assert os.listdir(d.path("ns")) == []
    assert first_line(d) == f"degraded: {sentence}"
    assert d.logged(f"error: {sentence}\n")
    d.namespace("x")
    assert first_line(d) == "ok"


@needs_root
def test_a_removed_namespace_is_neither_degraded_nor_saved(daemon):
    d = daemon(start=False)
    with small(d.run, "size=256k"):
        d.start()
        filler = fill(d.run)
        d.namespace("x")
        assert first_line(d).startswith("degraded: namespace x would be lost")
        os.rmdir(d.path("ns/x"))
        assert first_line(d) == "ok"
        os.unlink(filler)
        d.namespace("y")
        os.kill(d.serving(), 9)
        d.wait_ready(times=2)
        assert os.listdir(d.path("ns")) == ["y"]


def last_exit_line(d):
    return [line for line in d.read("health").splitlines() if line.startswith("last exit: ")]


@needs_root
def test_health_knows_the_last_exit_that_could_not_be_written(daemon):
    d = daemon(start=False)
    with small(d.run, "size=256k"):
        d.start()
        assert last_exit_line(d) == []
        path = os.path.join(d.folder(), "last_exit")
        filler = fill(d.run)
        os.kill(d.serving(), 9)
        d.wait_ready(times=2)
        assert last_exit_line(d) == [f"last exit: signal 9 (Killed); {path} cannot be written: No space left on device"]
        assert not os.path.exists(path)
        os.unlink(filler)
        os.kill(d.serving(), 6)
        d.wait_ready(times=3)
        assert last_exit_line(d) == [f"last exit: signal 6 (Aborted); more in {path}"]
        with open(path, encoding="utf-8") as f:
            assert f.read().startswith("reason: signal 6 (Aborted)\n")


def test_health_knows_the_end_before_this_start(daemon):
    d = daemon("--deaths=1")
    path = os.path.join(d.folder(), "last_exit")
    os.kill(d.serving(), 9)
    assert d.give_up() == 1
    with open(path, encoding="utf-8") as f:
        when = f.read().splitlines()[1].removeprefix("time: ")
    d.start(wait=False)
    d.wait_ready(times=2)
    assert last_exit_line(d) == [f"last exit: signal 9 (Killed), before this start, at {when}; more in {path}"]
    assert first_line(d) == "ok"
