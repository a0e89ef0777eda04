# SPDX-License-Identifier: Apache-2.0
"""Clients in processes of their own, which tests kill, stop and watch."""
import ctypes
import json
import os
import select
import signal
import sys
import traceback

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)

# Counters of `stats` that are 0 when nobody holds anything (store/stats.h, STATS_TRANSIENT).
TRANSIENT = ("sessions", "put_plans", "get_plans", "handles", "pins", "slots_prepared", "slots_quarantined",
             "groups_open", "waiting")


def transient(stats):
    """What is not at its base."""
    return {name: int(stats[name]) for name in TRANSIENT if int(stats[name])}


def victims_add_up(stats):
    fates = ("victims_freed", "victims_restored", "victims_obsolete", "victims_pending")
    return int(stats["victims_selected"]) == sum(int(stats[f]) for f in fates)


def value_of(k, size=8192):
    """The bytes that belong under a key: every 32 of them are the key, so a foreign or torn value shows."""
    return k * (size // len(k))


class Peer:
    """A process that runs body(peer, *arguments) and ends with it, or when it is told or killed.

    In the child: peer.tell(x) gives the test something to hear(), peer.listen() waits for what it says."""

    def __init__(self, body, *arguments):
        self.reader, writer = os.pipe()
        ear, self.mouth = os.pipe()
        self.buffer = b""
        self.status = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            os.close(ear)
            return
        code = 70
        try:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.close(self.reader)
            os.close(self.mouth)
            self.writer, self.ear = writer, ear
            body(self, *arguments)
            code = 0
        except BaseException:
            self.tell({"failed": traceback.format_exc()})
        finally:
            os._exit(code)

    # ---- in the child

    def tell(self, message):
        os.write(self.writer, json.dumps(message).encode() + b"\n")

    def listen(self):
        """One line; "" when the test is gone."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.ear, 1)
            if not byte:
                break
            line += byte
        return line.decode().strip()

    @staticmethod
    def rest():
        while True:
            signal.pause()

    # ---- in the test

    def say(self, text):
        try:
            os.write(self.mouth, text.encode() + b"\n")
        except BrokenPipeError:
            self.hear()  # what it died of
            raise

    def hear(self, seconds=60):
        """The next message; an exception of the child is one of the test."""
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], seconds)
            data = os.read(self.reader, 65536) if ready else b""
            assert data, "the client ended without a word" if ready else f"the client said nothing for {seconds} s"
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        message = json.loads(line)
        if isinstance(message, dict) and "failed" in message:
            raise AssertionError("in the client: " + message["failed"])
        return message

    def kill(self, number=signal.SIGKILL):
        if self.status is None:
            os.kill(self.pid, number)

    def wait(self):
        """Its exit code, negative for a signal."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def end(self):
        if self.status is None:
            self.kill()
            self.wait()
        if self.reader >= 0:
            os.close(self.reader)
            os.close(self.mouth)
            self.reader = -1
