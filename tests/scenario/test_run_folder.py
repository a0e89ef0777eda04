# SPDX-License-Identifier: Apache-2.0
"""The run folder: what a start may leave there, and what happens where nothing can be written."""
import contextlib
import os
import resource
import subprocess

import pytest

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
    assert not os.path.exists(d.run)


@needs_root
def test_a_mount_that_fails_leaves_nothing(daemon):
    d = daemon(run_as=65534, start=False)
    assert "fusermount3 cannot be run" in refusal(d, preexec_fn=without_fusermount, env={"PATH": "/nonexistent"})
    assert os.listdir(d.run) == []


def test_a_start_that_fails_leaves_the_reason_of_the_end_before(daemon):
    d = daemon("--deaths=1")
    folder = d.folder()
    os.kill(d.serving(), 9)
    assert d.process.wait(10) == 1
    with open(os.path.join(folder, "log"), "w", encoding="utf-8") as f:
        f.write("of the end before\n")
    refusal(d, preexec_fn=few_descriptors)
    assert sorted(os.listdir(folder)) == ["last_exit", "log"]
    with open(os.path.join(folder, "log"), encoding="utf-8") as f:
        assert f.read() == "of the end before\n"
    with open(os.path.join(folder, "last_exit"), encoding="utf-8") as f:
        assert f.read().startswith("reason: signal 9")
