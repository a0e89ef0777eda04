# SPDX-License-Identifier: Apache-2.0
"""Budgets that the host or its cgroup does not have, and deaths while memory is populated."""
import contextlib
import os
import re
import subprocess
import time

import pytest

from mounted import PLAIN_LAYOUT, mounts_at, wait_for

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"


def total():
    """What this host has for ordinary pages; tests that would need more than a terabyte to pass are not run there."""
    with open("/proc/meminfo", encoding="ascii") as f:
        fields = dict(re.findall(r"(\w+): +(\d+)", f.read()))
    return (int(fields["MemTotal"]) - int(fields.get("Hugetlb", 0))) << 10


def refusal(d, *options, **more):
    r = subprocess.run([d.program, *d.options, *options, d.mount], capture_output=True, text=True, timeout=20,
                       check=False, **more)
    assert r.returncode == 1 and r.stderr.count("\n") == 1, r
    assert os.listdir(d.run) == [] and mounts_at(d.mount) == []
    return r.stderr


def test_a_budget_beyond_the_host_is_refused(daemon):
    d = daemon(start=False)
    sentence = refusal(d, "--memory=60T", "--hugepages=never")
    found = re.fullmatch(r"prefixfsd: memory: the budget of 65970697666560 bytes is more than the (\d+) that may be had "
                         r"\((.+)\)\n", sentence)
    assert found, sentence
    assert int(found[1]) <= total()
    assert found[2].startswith("MemTotal") and int(found[1]) == total() or found[2].startswith("/")


def test_a_budget_that_is_not_populated_is_a_warning(daemon):
    d = daemon("--memory=60T", "--hugepages=never", "--populate=false")
    warning = r"memory: the budget of 65970697666560 bytes is more than the \d+ that may be had \(.+\)"
    health = d.read("health").splitlines()
    assert health[0] == "ok"
    assert len([line for line in health if re.fullmatch("warning: " + warning, line)]) == 1, health
    wait_for(lambda: re.search(" warning: " + warning + "\n", d.log()), 10, "its line in the log")
    assert d.stop()[0] == 0


def test_a_budget_that_fits_warns_of_nothing(daemon):
    d = daemon()
    assert "warning" not in d.read("health") and " warning: " not in d.log()


def test_huge_pages_are_missed_at_the_start(daemon):
    try:
        with open(POOL, encoding="ascii") as f:
            pages = int(f.read())
    except FileNotFoundError:
        pages = 0
    if pages:
        pytest.skip(f"this host has {pages} huge pages")
    d = daemon(start=False)
    for populate in ("true", "false"):
        assert refusal(d, "--hugepages=require", f"--populate={populate}") == (
            f"prefixfsd: hugepages: require was asked for, and this host has no huge pages of 2 MiB: {POOL} is 0; "
            "reserve 32 for the budget, see vm.nr_hugepages\n")


@contextlib.contextmanager
def cgroup(limit):
    """A cgroup with this limit below that of this process: its folder and the limit's file."""
    with open("/proc/self/cgroup", encoding="ascii") as f:
        own = dict(line.rstrip("\n").split(":", 2)[1:] for line in f)
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        mounts = [line.split() for line in f]
    for v2, name in ((False, "memory.limit_in_bytes"), (True, "memory.max")):
        for row in mounts:
            kind = row[row.index("-") + 1]
            if kind != ("cgroup2" if v2 else "cgroup") or (not v2 and "memory" not in row[-1].split(",")):
                continue
            path = own.get("" if v2 else next((c for c in own if "memory" in c.split(",")), None))
            folder = f"{row[4]}{(path or '/').rstrip('/')}/pfs-test-{os.getpid()}"
            try:
                os.mkdir(folder)
            except OSError:
                continue
            try:
                with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                    f.write(str(limit))
            except OSError:
                os.rmdir(folder)
                continue
            try:
                yield folder, os.path.join(folder, name)
            finally:
                def gone():
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)
                    return not os.path.exists(folder)
                wait_for(gone, 10, "the end of the cgroup")
            return
    pytest.skip("no cgroup with a limit of memory can be made here")


def test_a_budget_beyond_the_cgroup_is_refused(daemon):
    d = daemon(start=False)
    with cgroup(200 << 20) as (folder, file):
        def enter():
            with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as f:
                f.write(str(os.getpid()))
        assert refusal(d, "--memory=256M", "--hugepages=never", preexec_fn=enter) == (
            f"prefixfsd: memory: the budget of 268435456 bytes is more than the 209715200 that may be had ({file})\n")


def test_deaths_while_memory_is_populated_end_with_that_reason(daemon, slower):
    """As the OOM killer does it: whoever comes next populates the same again. A floor that is there ends the row."""
    d = daemon("--deaths=3", "--memory=3G", "--populate-threads=1", "--hugepages=never")
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 3 << 30}))
    path = os.path.join(d.folder(), "last_exit")
    for n in range(3):
        if n:
            d.wait_ready(times=n + 1)
            s = d.stats()
            assert int(s["prewarm_done"]) < int(s["prewarm_goal"])
        os.kill(d.serving(), 9)
    assert d.give_up() == 1
    with open(path, encoding="utf-8") as f:
        assert f.readline() == "reason: signal 9 (Killed) while it populated memory, as the OOM killer does\n"
    assert "giving up: the serving process" in d.log()


def test_a_death_after_memory_is_populated_has_no_such_reason(daemon, slower):
    d = daemon("--deaths=3", "--hugepages=never")
    d.namespace()
    for n in (1, 2):
        wait_for(lambda: (s := d.stats())["prewarm_done"] == s["prewarm_goal"], 10 * slower, "the floor")
        time.sleep(0.1 * slower)  # the word to the parent was on its way for up to a second
        os.kill(d.serving(), 9)
        d.wait_ready(times=n + 1)
    assert "last exit: signal 9 (Killed); more in" in d.read("health")


def test_a_death_where_nothing_is_populated_has_no_such_reason(daemon):
    d = daemon("--hugepages=never")
    for n in (1, 2, 3):
        os.kill(d.serving(), 9)
        d.wait_ready(times=n + 1)
        assert "last exit: signal 9 (Killed); more in" in d.read("health")
