# SPDX-License-Identifier: Apache-2.0
"""prefixfs replay --kills: the serving process dies again and again under clients, and no byte is wrong."""
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACE = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")
KEPT = ["--model", "Qwen3-8B", "--tp", "2", "--one-rank", "--plane-divisor", "256"]


def replay(d, program, *more):
    return subprocess.run([program("prefixfs"), "replay", TRACE, "--mount", d.mount, "--ns", "a", "--requests", "60", *more],
                          capture_output=True, text=True, check=False)


def test_no_value_is_wrong(daemon, program):
    d = daemon("--deaths=20")
    r = replay(d, program, *KEPT, "--kills", "3", "--seed", "7", "--json")
    assert r.returncode == 0, r.stderr
    said = json.loads(r.stdout)
    assert (said["kills"], said["wrong_values"], said["requests"]) == (3, 0, 60)
    assert 1 <= said["reattached"] <= 3, "two deaths may lie between two calls"
    assert 0 < said["hit_ratio_before_kill"] < 1 and 0 <= said["hit_ratio_after_kill"] < 1
    assert said["verified_values"] > 0 and said["longest_gap_ms"] > 0
    assert "restarts: 3\n" in d.read("health")


def test_the_last_line(daemon, program):
    r = replay(daemon("--deaths=20"), program, *KEPT, "--kills", "1")
    assert r.returncode == 0, r.stderr
    assert r.stdout.splitlines()[-1].startswith("1 kill: 0 wrong values of ")


def test_a_daemon_that_would_give_up_is_let_be(daemon, program):
    d = daemon("--deaths=3")
    r = replay(d, program, *KEPT, "--kills", "3")
    assert r.returncode == 1
    assert "--kills 3: the daemon at" in r.stderr and "gives up after 3 deaths in 60 s; start it with --deaths=4 or more" in r.stderr
    assert "restarts: 0\n" in d.read("health")
    r = replay(d, program, "--kills", "61")
    assert (r.returncode, r.stderr) == (1, "prefixfs: --kills is 61, and the replay has 60 requests\n")
