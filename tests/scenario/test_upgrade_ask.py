# SPDX-License-Identifier: Apache-2.0
"""prefixfs upgrade: what it asks the parent, and what it makes of the answers. The parent is played by the test."""
import array
import json
import os
import socket
import struct
import subprocess
import threading

import pytest

MAGIC = 0x5046535550474431
REQUEST = struct.Struct("<QIIII")
ANSWER = struct.Struct("<QIIII480s")


class FakeParent:
    """Listens in place of the daemon's parent, takes one request and gives the answers."""

    def __init__(self, folder, answers):
        path = os.path.join(folder, "parent.sock")
        if os.path.exists(path):
            os.unlink(path)
        self.answers = answers
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(1)
        self.listener.settimeout(20)
        self.request = self.program = None
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        asker, _ = self.listener.accept()
        with asker:
            asker.settimeout(20)
            data, control, _, _ = asker.recvmsg(4096, socket.CMSG_SPACE(4))
            self.request = REQUEST.unpack(data)
            fds = array.array("i")
            fds.frombytes(control[0][2])
            self.program = os.readlink(f"/proc/self/fd/{fds[0]}")
            self.head = os.read(fds[0], 4)
            os.close(fds[0])
            for done, error, pause_us, text in self.answers:
                asker.send(ANSWER.pack(MAGIC, done, error, pause_us, 0, text.encode()))

    def end(self):
        self.thread.join(20)
        self.listener.close()


@pytest.fixture
def asked(daemon, program):
    d = daemon()

    def ask(answers, *words):
        fake = FakeParent(d.folder(), answers)
        r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount, *words], capture_output=True, text=True, check=False)
        fake.end()
        return r, fake
    return ask


def test_an_upgrade(asked, program):
    r, fake = asked([(0, 0, 0, "prefixfsd 9 may follow 8"), (1, 0, 12500, "prefixfsd 9 serves, after a pause of 12.5 ms")])
    assert (r.returncode, r.stdout, r.stderr) == (0, "prefixfsd 9 may follow 8\nprefixfsd 9 serves, after a pause of 12.5 ms\n", "")
    assert fake.request == (MAGIC, REQUEST.size, 0, 0, 0)
    assert fake.program == program("prefixfsd"), "the one that the daemon was started from"
    assert fake.head == b"\x7fELF", "open for reading, at its beginning"


def test_another_program_and_options(asked, program):
    r, fake = asked([(1, 0, 0, "prefixfsd 9 may follow 8")], program("prefixfs"), "--judge-only", "--remount", "--json")
    assert r.returncode == 0
    said = json.loads(r.stdout)
    assert said.pop("mount")
    assert said == {"upgraded": False, "errno": 0, "text": "prefixfsd 9 may follow 8", "pause_ms": None}
    assert fake.request == (MAGIC, REQUEST.size, 1, 1, 0)
    assert fake.program == program("prefixfs")


def test_a_refusal(asked):
    r, _ = asked([(1, 95, 0, "stop with --drain, then start it")])
    assert (r.returncode, r.stdout, r.stderr) == (1, "", "prefixfs: stop with --drain, then start it\n")
    r, _ = asked([(0, 0, 0, "goes on"), (1, 16, 0, "an upgrade is under way already")], "--json")
    assert r.returncode == 1 and r.stderr == ""
    assert json.loads(r.stdout)["errno"] == 16 and json.loads(r.stdout)["upgraded"] is False


def test_the_parent_ends(asked):
    r, _ = asked([(0, 0, 0, "goes on")])
    assert r.returncode == 1 and "ended before it answered" in r.stderr


def test_files_that_are_not_there(daemon, program):
    d = daemon()
    r = subprocess.run([program("prefixfs"), "upgrade", "--mount", d.mount, "/nowhere/prefixfsd"], capture_output=True, text=True, check=False)
    assert (r.returncode, r.stderr) == (1, "prefixfs: /nowhere/prefixfsd: No such file or directory\n")


def test_the_judge_of_this_build(program, daemon):
    """The program that serves says what it is, and that it takes the options that a daemon hands on."""
    d = daemon()
    with open(f"/proc/{d.serving()}/cmdline", "rb") as f:
        words = [w for w in f.read().decode().split("\0")[1:] if w and not w.startswith("--serve=")]
    r = subprocess.run([program("prefixfsd"), "--judge", *words], input=b"", capture_output=True, check=False)
    assert (r.returncode, r.stderr) == (0, b"")
    magic, size, will = struct.unpack_from("<QII", r.stdout)
    error, = struct.unpack_from("<I", r.stdout, 28)
    assert (magic, size, error) == (MAGIC, len(r.stdout), 0) and will >= 1
    r = subprocess.run([program("prefixfsd"), "--judge", "--no-such-option=1", d.mount], input=b"", capture_output=True, check=False)
    assert r.returncode == 0
    assert struct.unpack_from("<I", r.stdout, 28)[0] == 22 and b"no_such_option" in r.stdout.replace(b"-", b"_")
