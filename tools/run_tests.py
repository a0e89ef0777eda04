#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run every test in every build and count. Called by tools/test, which first installs what is missing.

plain   every unit test, the tidy checks, every scenario
asan    address and undefined-behaviour sanitizers: every unit test, every scenario, half a minute of each fuzz target
tsan    thread sanitizer: the unit tests of suite `concurrency`, the scenarios marked `concurrency`
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WHOLE_RUN_S = 75 * 60  # a run that hangs; what it should take is under 45 minutes
SCENARIO_FILE_S = 600
FUZZ_S = {"asan": 30}  # of each target; elsewhere they run for a moment
MODEL_OPERATIONS = 1000000  # of the ranks' model, two minutes; elsewhere it does some of them
JOBS = os.environ.get("JOBS", str(os.cpu_count()))

BUILDS = {
    "plain": {"folder": "build", "options": [], "slower": 1},
    "asan": {"folder": "build-asan", "slower": 3,
             "options": ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled"]},
    "tsan": {"folder": "build-tsan", "slower": 5,
             "options": ["-Db_sanitize=thread", "-Db_lundef=false", "-Dcuda=disabled"]},
}
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=0:exitcode=66:second_deadlock_stack=1:atexit_sleep_ms=0",  # a second more is too long for an end
}


class Count:
    def __init__(self):
        self.started = time.monotonic()
        self.passed = self.failed = self.skipped = 0
        self.names = []

    def fail(self, name, output=""):
        self.failed += 1
        self.names.append(name)
        print(f"---- FAILED {name}")
        if output.strip():
            print(output.rstrip())
            print(f"---- end of {name}")
        sys.stdout.flush()

    def left(self):
        return max(1, WHOLE_RUN_S - (time.monotonic() - self.started))


def left_behind(mark):
    """The processes whose environment has @mark: a daemon has left the session of the test that started it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark in f.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def end_left_behind(scratch):
    """Ends what a file of scenarios that was cut off left: its processes, and then its mounts and loop devices."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pids = left_behind(b"TMPDIR=" + scratch.encode())
        if not pids:
            break
        for pid in pids:  # a parent starts its daemon again: it is in the next round, at the latest
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        mounts = [line.split()[4] for line in f]
    for mount in reversed([m for m in mounts if m.startswith(scratch + "/")]):
        subprocess.run(["umount" if os.geteuid() == 0 else "fusermount3", "-l" if os.geteuid() == 0 else "-uqz", mount],
                       capture_output=True, check=False)


def run(command, env, timeout):
    """Exit status (None: it ran too long) and everything it printed. What it started and left behind is killed."""
    # A file, not a pipe: a daemon that a test lost would hold a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, start_new_session=True) as process:
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        output.seek(0)
        return status, output.read()


def fixed_addresses():
    """The prefix that runs a program without address randomisation, where the thread sanitizer needs that."""
    try:
        with open("/proc/sys/vm/mmap_rnd_bits", encoding="ascii") as f:
            bits = int(f.read())
    except (OSError, ValueError):
        bits = 99
    prefix = ["setarch", os.uname().machine, "-R"]
    if bits <= 28 or not shutil.which("setarch"):
        return []
    return prefix if subprocess.run(prefix + ["true"], capture_output=True, check=False).returncode == 0 else []


def environment(name, build, quick):
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PREFIXFS_BUILD=os.path.join(ROOT, build["folder"]),
               PREFIXFS_SANITIZER="" if name == "plain" else name, PREFIXFS_SLOWER=str(build["slower"]))
    if name != "plain":
        env.update(SANITIZERS)
    if name == "plain" and not quick:
        env["PREFIXFS_MODEL_OPERATIONS"] = str(MODEL_OPERATIONS)
    if name in FUZZ_S:
        env["PREFIXFS_FUZZ_SECONDS"] = str(FUZZ_S[name])
    return env


def usable(folder):
    """Whether this place and this meson configured the folder."""
    try:
        with open(os.path.join(folder, "meson-info", "meson-info.json"), encoding="utf-8") as f:
            info = json.load(f)
    except (OSError, ValueError):
        return False
    meson = subprocess.run(["meson", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return info["directories"]["source"] == ROOT and info["meson_version"]["full"] == meson and (
        os.path.isfile(os.path.join(folder, "build.ninja")))


def prepare(name, build, env, count):
    folder = os.path.join(ROOT, build["folder"])
    steps = []
    if not usable(folder):
        shutil.rmtree(folder, ignore_errors=True)
        steps.append(["meson", "setup", build["folder"]] + build["options"])
    steps.append(["ninja", "-C", build["folder"], "-j", JOBS, "--quiet"])
    for step in steps:
        print("+ " + " ".join(step), flush=True)
        status, output = run(step, env, count.left())
        if status != 0:
            count.fail(f"{name}: {' '.join(step)}", output)
            return False
    return True


def unit_tests(name, build, env, prefix, only, count):
    folder = os.path.join(ROOT, build["folder"])
    listed = json.loads(subprocess.check_output(["meson", "introspect", "--tests", folder], env=env, text=True))
    wanted = []
    for test in listed:
        suites = [s.split(":")[-1] for s in test["suite"]]
        if name == "asan" and "tidy" in suites or name == "tsan" and "concurrency" not in suites:
            continue
        if only is None or re.search(only, test["name"]):
            wanted.append(test["name"])
    if not wanted:
        return
    log = os.path.join(folder, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.remove(log)
    # A timeout of its own has each test.
    status, output = run(prefix + ["meson", "test", "-C", build["folder"], "--no-rebuild", "--num-processes", JOBS, "-t",
                                   str(build["slower"])] + wanted, env, count.left())
    rows = []
    if os.path.exists(log):
        with open(log, encoding="utf-8", errors="replace") as f:
            rows = [json.loads(line) for line in f if line.strip()]
    for row in rows:
        title = f"{name}: {row['name'].split(' / ')[-1]}"
        if row["result"] in ("OK", "EXPECTEDFAIL"):
            count.passed += 1
        elif row["result"] == "SKIP":
            count.skipped += 1
            print(f"     skipped {title}: {(row.get('stdout') or '').strip()[-200:]}")
        else:
            count.fail(f"{title} ({row['result']}, status {row.get('returncode')})",
                       (row.get("stdout") or "") + (row.get("stderr") or ""))
    print(f"     {name}: {len(rows)} unit tests")
    if len(rows) < len(wanted):
        count.fail(f"{name}: meson test ran {len(rows)} of {len(wanted)} tests", output)
    elif status is None:
        count.fail(f"{name}: meson test ran too long", output)


def scenarios(name, build, env, prefix, only, keep, count):
    folder = os.path.join(ROOT, build["folder"], "scenario")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    tests = os.path.join(ROOT, "tests", "scenario")
    for file in sorted(f for f in os.listdir(tests) if f.startswith("test_") and f.endswith(".py")):
        if name == "tsan":
            with open(os.path.join(tests, file), encoding="utf-8") as f:
                if "concurrency" not in f.read():
                    continue
        title = f"{name}: {file}"
        result = os.path.join(folder, file[:-3] + ".xml")
        reports = os.path.join(folder, file[:-3] + ".reports")
        os.makedirs(reports)
        # Daemons' sockets lie in there, and a socket's path has 107 bytes at most.
        scratch = tempfile.mkdtemp(prefix="pfs-")
        os.chmod(scratch, 0o755)  # some tests become other users
        # A sanitizer's report of a daemon that a test started is found even if the test does not look.
        mine = dict(env, TMPDIR=scratch)
        for variable in SANITIZERS if name != "plain" else ():
            mine[variable] += f":log_path={reports}/{variable[:4].lower()}"
        command = prefix + [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--junitxml", result,
                            "--basetemp", os.path.join(scratch, "t"), os.path.join("tests", "scenario", file)]
        command += ["-k", only] if only else []
        command += ["-m", "concurrency"] if name == "tsan" else []
        began = time.monotonic()
        status, output = run(command, mine, min(SCENARIO_FILE_S * build["slower"], count.left()))
        took = time.monotonic() - began
        end_left_behind(scratch)
        failed = status not in (0, 5)  # 5: none was chosen
        if status is None or not os.path.exists(result):
            count.fail(f"{title} ({'ran too long' if status is None else 'no result'})", output)
        else:
            suite = next(xml.parse(result).getroot().iter("testsuite"))
            bad = int(suite.get("failures")) + int(suite.get("errors"))
            skipped = int(suite.get("skipped"))
            good = max(0, int(suite.get("tests")) - bad - skipped)
            count.passed += good
            count.skipped += skipped
            if failed:
                count.fail(title, output)
                count.failed += max(bad, 1) - 1
            elif good or skipped:
                print(f"     {title}: {good} passed, {skipped} skipped, {took:.0f} s")
                print("".join(f"       {line}\n" for line in output.split("\n") if line.startswith("SKIPPED")), end="")
        for report in sorted(os.listdir(reports)):
            failed = True
            with open(os.path.join(reports, report), encoding="utf-8", errors="replace") as f:
                count.fail(f"{title} left a sanitizer report", f.read())
        if not failed and not keep:
            shutil.rmtree(scratch, ignore_errors=True)
        sys.stdout.flush()


def main():
    options = argparse.ArgumentParser(prog="tools/test", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="the plain build alone")
    options.add_argument("--only", metavar="PATTERN", help="tests whose name matches (unit: a regular expression; "
                         "scenarios: an expression of pytest -k)")
    options.add_argument("--keep", action="store_true", help="keep the scratch folders of scenarios that passed, too")
    args = options.parse_args()

    count = Count()
    for name, build in BUILDS.items():
        if args.quick and name != "plain":
            break
        env = environment(name, build, args.quick)
        prefix = fixed_addresses() if name == "tsan" else []
        print(f"==== {name}", flush=True)
        if prepare(name, build, env, count):
            unit_tests(name, build, env, prefix, args.only, count)
            scenarios(name, build, env, prefix, args.only, args.keep, count)
        print(f"     {time.monotonic() - count.started:.0f} s so far", flush=True)
    for title in count.names:
        print(f"failed: {title}")
    print(f"{count.passed} passed, {count.failed} failed, {count.skipped} skipped")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
