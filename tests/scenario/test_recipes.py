# SPDX-License-Identifier: Apache-2.0
"""The handbook's recipes do what they say: each line of its shell blocks is executed, with real names in it."""
import os
import re
import shlex
import shutil
import subprocess

import pytest

from mounted import STATE_LAYOUT
from raw import Client, key, name_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SESSIONS = os.path.join(ROOT, "tests", "data", "coding_sessions.jsonl")
# Lines that change the host or start another daemon of 64 GiB or kill it, and lines that are no commands.
ELSEWHERE = ("prefixfs ns create a --mount /mnt/try ", "prefixfs replay TRACE --mount /mnt/try ", "tools/demo ", "prefixfs bench survive ",
             "prefixfs upgrade", "prefixfs mount ", "prefixfs fsck /var/lib", "prefixfs unmount ", "sysctl ", "echo advise > ", "cat /sys/kernel/mm/", "{ ", "memory bytes=", "namespace ", "grants ")
# What does not end by itself, and what it must print until it is ended.
STREAMS = {"cat MOUNT/events | jq -c": '"event":"evicted"', "dd if=MOUNT/events": None, "timeout 10 cat": "stored",
           "cat MOUNT/events | jq -r 'select(.event == \"degraded\")": None}
# Lines that say "no" on purpose, with the statuses that they may have.
MAY_FAIL = {"test -e ns/x/pages": (0,), "grep -H 'oldest_ms": (0, 1), "echo 'evict --bytes": (0, 1), "pgrep ": (0, 1)}


def blocks():
    """Each shell block as its lines; a line that goes on is joined to the next."""
    with open(os.path.join(ROOT, "docs/operating.md"), encoding="utf-8") as f:
        for block in re.findall(r"^```\n(.*?)^```$", f.read(), re.M | re.S):
            lines = re.sub(r"(&&|\\)\n", r"\1 ", block).splitlines()
            here = [line for line in lines if not line.startswith(ELSEWHERE)]
            if here:
                yield here


def store(d, ns):
    keys = [key(1, i) for i in range(4)]
    with Client(d.path("ns", ns, "ctl")) as c:
        c.acknowledge()
        c.put_start(1, [(None, 256, keys)], class_mask=3, answers=5)
        c.put_end("PUT_COMMIT", 1)
    return name_of(256, keys[3]), keys[0].hex()


def real(line, d, record, page, tmp_path):
    """The line with names that are there."""
    name = {"prefixfs ns create NAME --model": "m", "prefixfs ns create NAME --layout": "l", "prefixfs ns remove": "m"}
    mine = next((new for begin, new in name.items() if line.startswith(begin)), "x")
    for old, new in (("/mnt/kv", d.mount), ("/var/lib/node_exporter", str(tmp_path)), ("RECORD...", record), ("RECORD", record),
                     ("KEY KEY", f"{page} {'0' * 64}"), ("KEY", page), ("OTHER", "y"), ("4G", "4K"), ("NAME", mine), ("TRACE", SESSIONS),
                     ("FILE", str(tmp_path / "layout.json")), ("replay.html", str(tmp_path / "replay.html")),
                     (" > a;", f" > {tmp_path}/a;"), ("comm -13 - a", f"comm -13 - {tmp_path}/a")):
        line = line.replace(old, new)
    return line


def missing(line):
    words = {"jq": "jq", "setfattr": "setfattr", "getfattr": "getfattr", "fuser": "fuser"}
    return [tool for word, tool in words.items() if re.search(rf"\b{word}\b", line) and not shutil.which(tool)]


def run_stream(line, d, slower):
    expected = next((text for begin, text in STREAMS.items() if line.startswith(begin.replace("MOUNT", d.mount))), "")
    if expected == "":
        return False
    line = line.replace("timeout 10", "timeout 1")
    # jq keeps what it has until it ends: the file's reader is ended, not jq
    line = re.sub(r"^(cat|dd) ", r"timeout 1 \1 ", line)
    out = subprocess.run(["bash", "-c", line], cwd=d.mount, capture_output=True, text=True, timeout=60 * slower, check=False)
    assert out.returncode in (0, 124), (line, out.stderr)
    assert expected is None or expected in out.stdout, (line, out.stdout[:500])
    return True


@pytest.mark.limit(300)
@pytest.mark.parametrize("lines", list(blocks()), ids=lambda lines: re.sub(r"\W+", "_", lines[0])[:40])
def test_recipe(daemon, program, slower, tmp_path, lines):
    lacking = sorted({tool for line in lines for tool in missing(line)})
    if lacking:
        pytest.skip("not installed: " + ", ".join(lacking))
    d = daemon("--memory", "64M")
    d.namespace("x", layout=STATE_LAYOUT)
    d.namespace("y", layout=dict(STATE_LAYOUT, identity={"model": "other"}))
    record, page = store(d, "x")
    store(d, "y")
    with open(d.path("ns/x/layout"), encoding="utf-8") as f:
        (tmp_path / "layout.json").write_text(f.read())
    environment = dict(os.environ, PREFIXFS_MOUNT=d.mount, PATH=f"{os.path.dirname(program('prefixfs'))}:{os.environ['PATH']}")
    os.rmdir(d.path("ns/y/records", record))  # something to tell in events
    store(d, "y")
    session = any(line.startswith(("exec 3", "dev=")) for line in lines)   # one shell for all lines
    holder = Client(d.path("ns/x/ctl"))
    script = []
    for line in (real(line, d, record, page, tmp_path) for line in lines):
        if run_stream(line, d, slower):
            continue
        if line.startswith("prefixfs ns create m"):  # of a size that fits
            line += " --plane-divisor 64 --floor 4M"
        statuses = next((ok for begin, ok in MAY_FAIL.items() if line.startswith(begin)), (0,))
        # a `#` begins what the line says of itself
        script.append(f"{line}\nr=$?; case $r in {'|'.join(map(str, statuses))}) ;; *) echo {shlex.quote(line)}: $r >&2; exit 1;; esac")
        if not session:
            out = subprocess.run(["bash", "-c", script.pop()], cwd=d.mount, env=environment, capture_output=True, text=True,
                                 timeout=120 * slower, check=False)
            assert out.returncode == 0, out.stderr
            if not os.path.isdir(d.path("ns/x/records", record)):
                store(d, "x")
    if script:
        out = subprocess.run(["bash", "-c", "\n".join(script)], cwd=d.mount, env=environment, capture_output=True, text=True,
                             timeout=120 * slower, check=False)
        assert out.returncode == 0, out.stderr
    holder.close()
