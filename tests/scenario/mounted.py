# SPDX-License-Identifier: Apache-2.0
"""A prefixfsd on a folder of its own, taken down whatever happened to it."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

MiB = 1 << 20

PLAIN_LAYOUT = {"version": 1, "identity": {"model": "test/plain"}, "world": 1, "page_tokens": 64,
                "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 8192}]}]}
STATE_LAYOUT = {"version": 1, "identity": {"model": "test/state"}, "world": 1, "page_tokens": 64,
                "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 8192}]},
                            {"name": "st", "kind": "state", "planes": [{"name": "S", "bytes": 5000}]}]}


PATIENCE = 30  # seconds that wait_for has at least: a busy machine is slow, and what holds is seen at once


def wait_for(condition, seconds, what="it", pause=0.01, exactly=False):
    """@exactly: not a moment longer than that, for it would come by itself later."""
    if not exactly:
        seconds = max(seconds, PATIENCE)
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(pause)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


def mounts_at(path):
    """Device minors of the mounts there, the topmost last."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        rows = [line.split() for line in f]
    return [row[2].split(":")[1] for row in rows if row[4] == path]


class Daemon:
    def __init__(self, program, slower, options=(), run_as=None, start=True):
        self.program, self.slower, self.run_as = program, slower, run_as
        self.base = base = tempfile.mkdtemp(prefix="pfs-")  # short, for a socket's path has 104 bytes; and for everyone
        self.mount = os.path.join(base, "mnt")
        self.run = os.path.join(base, "run")
        self.log_path = os.path.join(base, "log")
        self.shm_before = set(os.listdir("/dev/shm"))  # other people's, or of a run that was killed
        self.process = None
        self.pids = set()
        os.mkdir(self.mount)
        os.mkdir(self.run)
        os.chmod(base, 0o755)
        if run_as is not None:
            for path in (self.mount, self.run):
                os.chown(path, run_as, run_as)
        self.options = ["--foreground", "--run-dir", self.run, "--memory", "64M"] + list(options)
        if start:
            self.start()

    def start(self, wait=True):
        become = {} if self.run_as is None else {"user": self.run_as, "group": self.run_as, "extra_groups": []}
        self.fell_before = self.falls()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([self.program] + self.options + [self.mount], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True, **become)
        self.pids.add(self.process.pid)
        if wait:
            self.wait_ready()

    def wait_ready(self, times=1):
        def ready():
            assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log()}"
            return len(re.findall(r"info: serving .*, pid \d+", self.log())) >= times
        try:
            wait_for(ready, 10 * self.slower, "the start of the daemon")
        except AssertionError:
            print(self.log())
            raise

    def log(self):
        if not os.path.exists(self.log_path):
            return ""  # it went into the background
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def logged(self, text):
        """Waits until the log says so: what the serving process says, its parent writes a moment later."""
        wait_for(lambda: text in self.log(), 10 * self.slower, f"in the log: {text}")
        return True

    def serving(self):
        """The pid of the serving process, as the log says."""
        pid = int(re.findall(r"info: serving .*, pid (\d+)", self.log())[-1])
        self.pids.add(pid)
        return pid

    def path(self, *parts):
        return os.path.join(self.mount, *parts)

    def read(self, *parts):
        with open(self.path(*parts), encoding="utf-8") as f:
            return f.read()

    def folder(self):
        return glob.glob(os.path.join(self.run, "*"))[0]

    def namespace(self, name="x", layout=None, mode=0o755):
        os.mkdir(self.path("ns", name), mode)
        with open(self.path("ns", name, "layout"), "w", encoding="utf-8") as f:
            f.write(json.dumps(layout or PLAIN_LAYOUT))
        return self.path("ns", name)

    def stats(self, name="x"):
        return dict(line.split(" ", 1) for line in self.read("ns", name, "stats").splitlines())

    def stop(self, number=signal.SIGTERM, seconds=5):
        """Asks it to end; its exit status and how long that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(seconds * self.slower)
        return status, time.monotonic() - began

    def falls(self):
        return self.log().count("in health why")

    def give_up(self, seconds=10):
        """After what is to be its last death: ends the fallen mount, where there is one; its exit status."""
        wait_for(lambda: self.process.poll() is not None or self.falls() > self.fell_before, seconds * self.slower, "the fallen mount")
        return self.process.wait() if self.process.poll() is not None else self.stop()[0]

    def kill_all(self):
        """For a test that hangs: what waits for the mount gets its answer."""
        try:
            self.serving()
        except (OSError, IndexError):
            pass
        for device in mounts_at(self.mount):
            abort_connection(device)
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def clean_up(self):
        if self.process and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill_all()
                self.process.wait(10)
        try:
            if alive(self.serving()):
                wait_for(lambda: not alive(self.serving()), 3)
        except (OSError, IndexError):
            pass
        except AssertionError:
            self.kill_all()
        for device in mounts_at(self.mount):
            abort_connection(device)
            subprocess.run(["umount", "-l", self.mount], check=False)
        print(self.log())  # shown when the test failed
        if not mounts_at(self.mount):
            shutil.rmtree(self.base, ignore_errors=True)


def abort_connection(device):
    path = f"/sys/fs/fuse/connections/{device}/abort"
    if not os.path.ismount("/sys/fs/fuse/connections"):  # and else it is gone: its number may be another's soon
        subprocess.run(["mount", "-t", "fusectl", "none", "/sys/fs/fuse/connections"], check=False,
                       capture_output=True)
    try:
        with open(path, "w", encoding="ascii") as f:
            f.write("1")
    except OSError:
        pass
