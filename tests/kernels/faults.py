#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Devices that are lost or full, and engines that are killed amid copies, with a daemon of our own: faults.py FOLDER [ref|cuda]. FOLDER is
a build, or what carry.sh has made. Exits with 77 and the reason where there is no GPU, or nothing can be mounted."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.abspath(sys.argv[1])
KERNELS = sys.argv[2] if len(sys.argv) > 2 else "cuda"
PAGES, MEMORY, KILLS = (512, 1 << 30, 8) if KERNELS == "cuda" else (48, 96 << 20, 4)
LAYOUT = {"version": 1, "memory": {"floor": MEMORY // 4}, "identity": {"model": "faults"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [
              {"name": "a", "bytes": 65536}, {"name": "b", "bytes": 4096}, {"name": "c", "bytes": 1168}]}]}
SKIPPED = 77
LEFT = ("sessions", "put_plans", "get_plans", "handles", "pins", "slots_prepared", "slots_quarantined")


def words(name, *more):
    """The command line of one of ours."""
    if os.path.exists(os.path.join(FOLDER, "run")):
        return [os.path.join(FOLDER, "run"), name, *more]
    for path in (name, "tests/kernels/" + name):
        if os.path.isfile(os.path.join(FOLDER, path)):
            return [os.path.join(FOLDER, path), *more]
    sys.exit("%s is not in %s" % (name, FOLDER))


def fail(text):
    print("FAILED: " + text, flush=True)
    sys.exit(1)


def run(*command):
    """What it said."""
    answer = subprocess.run(words(*command), capture_output=True, text=True, timeout=180, check=False)
    sys.stdout.write("".join("  %s\n" % line for line in answer.stdout.splitlines()))
    sys.stdout.flush()
    if answer.returncode == SKIPPED:
        sys.exit(SKIPPED)
    if answer.returncode:
        fail("%s: %d %s" % (" ".join(command), answer.returncode, answer.stderr))
    return answer.stdout


class Daemon:
    def __init__(self):
        self.base = tempfile.mkdtemp(prefix="pfs-faults-")
        self.mount = os.path.join(self.base, "mnt")
        for name in ("mnt", "run"):
            os.mkdir(os.path.join(self.base, name))
        self.log = os.path.join(self.base, "log")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                words("prefixfsd", "--foreground", "--run-dir", os.path.join(self.base, "run"), "--memory", str(MEMORY), self.mount),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + 60
        while not re.search(r"info: serving .*, pid \d+", self.text()):
            if self.process.poll() is not None or time.monotonic() > until:
                print("skipped: no daemon can be started here: " + self.text()[-400:])
                self.stop()
                sys.exit(SKIPPED)
            time.sleep(0.01)
        self.namespace = os.path.join(self.mount, "ns/faults")
        os.mkdir(self.namespace)
        with open(os.path.join(self.namespace, "layout"), "w", encoding="utf-8") as f:
            json.dump(LAYOUT, f)

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stats(self):
        with open(os.path.join(self.namespace, "stats"), encoding="utf-8") as f:
            return {name: int(value) for name, value in (text.split() for text in f) if value.isdigit()}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        subprocess.run(["umount", "-l", self.mount], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.base, ignore_errors=True)


def engine(daemon, what, *more):
    return ("check_plans", KERNELS, daemon.namespace, str(PAGES), what, *more)


def killed(daemon, after, what, *more):
    """Starts an engine, kills it so many seconds after it has begun to copy, and waits until nothing is left of it. The last line it said."""
    client = subprocess.Popen(words(*engine(daemon, what, *more)), stdout=subprocess.PIPE, text=True)
    line = client.stdout.readline()
    if line != "copying\n":
        rest = line + client.communicate()[0]
        if client.returncode == SKIPPED:
            print(rest)
            sys.exit(SKIPPED)
        fail("%s: %s" % (what, rest))
    time.sleep(after)
    if client.poll() is not None:
        fail("%s ended by itself: %s" % (what, client.stdout.read()))
    before = daemon.stats()
    begun = time.monotonic()
    client.send_signal(signal.SIGKILL)
    most, gone, seen = 0, None, daemon.stats()
    while any(seen[name] for name in LEFT):
        if time.monotonic() - begun > 60:
            fail("60 s after %s was killed this is left: %s" % (what, {name: seen[name] for name in LEFT}))
        if gone is None and client.poll() is not None:
            gone = time.monotonic() - begun
        most = max(most, seen["slots_quarantined"])
        seen = daemon.stats()
    said = client.communicate()[0].splitlines()
    print("  %s, killed with %d put and %d get plans and %d slots prepared: %d slots quarantined at most, the process gone within %s ms,"
          " nothing left after %d ms" % (what, before["put_plans"], before["get_plans"], before["slots_prepared"], most,
          "?" if gone is None else "%d" % (gone * 1e3), (time.monotonic() - begun) * 1e3), flush=True)
    return said[-1] if said else ""


def main():
    seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
    print("%s, SEED=%d" % (KERNELS, seed), flush=True)
    chance = random.Random(seed)
    for what in ("lost", "full", "shared"):
        run("check_faults", KERNELS, what)
    daemon = Daemon()
    try:
        run(*engine(daemon, "keep"))
        run(*engine(daemon, "lost"))
        killed(daemon, 0, "held")
        if "%d of %d pages of chain 1; of chains 2..3 0 are there" % (PAGES, PAGES) not in run(*engine(daemon, "look", "2", "3")):
            fail("what others had stored has changed, or something half stored is to be seen")
        first = 10
        for _ in range(KILLS):
            last = int(killed(daemon, chance.random() * 0.3, "churn", str(first)))
            run(*engine(daemon, "look", str(max(first, last - 5)), str(last)))
            first = last + 1
        run(*engine(daemon, "fill", str(first), str(2 * MEMORY)))
    finally:
        daemon.stop()
    print("all: ok")


if __name__ == "__main__":
    main()
