#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Under CUDA MPS, with a server of our own for each part: mps.py FOLDER. The kernels work there; what a device does for an engine that is
killed; a guard (prefixfs.h) keeps the engine's slots until the server is gone. FOLDER is a build, or what carry.sh has made. Exits with 77
and the reason where there is no GPU, no MPS, or nothing can be mounted. Ends the servers that it started, and no other."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

import faults

CONTROL = "nvidia-cuda-mps-control"


class Server:
    """A control daemon and its pipes; the server itself comes with its first client."""

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="pfs-mps-")
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = self.base
        answer = subprocess.run([CONTROL, "-d"], capture_output=True, text=True, timeout=30, check=False)
        if answer.returncode:
            print("skipped: %s does not start: %s%s" % (CONTROL, answer.stdout, answer.stderr))
            self.__exit__()
            sys.exit(faults.SKIPPED)
        return self

    def ask(self, words):
        answer = subprocess.run([CONTROL], input=words + "\n", capture_output=True, text=True, timeout=60, check=False)
        return answer.stdout.split()

    def pid(self):
        """0: there is none, or not any more."""
        words = self.ask("get_server_list")
        return int(words[0]) if words and words[0].isdigit() else 0

    def __exit__(self, *_):
        subprocess.run([CONTROL], input="quit -t 5\n", capture_output=True, text=True, timeout=60, check=False)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            os.environ.pop(name, None)
        shutil.rmtree(self.base, ignore_errors=True)


def wait_for(what, condition):
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            faults.fail("60 s passed in wait for " + what)
        time.sleep(0.01)


def guarded():
    """An engine is killed amid a put: its slots rest while the server lives, and no longer."""
    daemon = None
    try:
        with Server() as server:
            daemon = faults.Daemon()
            faults.run(*faults.engine(daemon, "keep"))
            pid = server.pid()
            client = subprocess.Popen(faults.words(*faults.engine(daemon, "held")), stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, "GUARD_PID": str(pid)})
            line = client.stdout.readline()
            if line != "copying\n":
                faults.fail("held: " + line + client.communicate()[0])
            client.kill()
            client.wait()
            wait_for("the end of the session", lambda: daemon.stats()["sessions"] == 0)
            time.sleep(3)  # nothing is to happen
            seen = daemon.stats()["slots_quarantined"]
            if seen != faults.PAGES or server.pid() != pid:
                faults.fail("%d slots rest of %d, the server was %d and is %d" % (seen, faults.PAGES, pid, server.pid()))
        begun = time.monotonic()
        wait_for("slots", lambda: not any(daemon.stats()[name] for name in faults.LEFT))
        print("  guarded by the server %d: %d slots rested, and were free %d ms after it had been told to end" % (
            pid, seen, (time.monotonic() - begun) * 1e3), flush=True)
        faults.run(*faults.engine(daemon, "look", "2", "3"))
    finally:
        if daemon:
            daemon.stop()


def main():
    if not shutil.which(CONTROL):
        print("skipped: there is no " + CONTROL)
        sys.exit(faults.SKIPPED)
    for what in ("kernel", "copies"):
        faults.run("check_killed", what)
    with Server():
        faults.run("check_twins", "cuda", "30", "small")
    for what in ("kernel", "copies"):
        with Server():
            faults.run("check_killed", what)
    guarded()
    print("all: ok")


main()
