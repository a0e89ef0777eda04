# SPDX-License-Identifier: Apache-2.0
"""Replays with a process for each rank: one answer for all by tickets, every byte checked on every rank."""
import json
import os
import signal
import subprocess

import pytest

from mounted import wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SESSIONS = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")


@pytest.fixture
def replay(daemon, program):
    d = daemon("--memory=512M", "--populate=false")

    def run(ns, *options):
        answer = subprocess.run([program("prefixfs"), "replay", SESSIONS, "--mount", d.mount, "--ns", ns, "--json", *options],
                                capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout), d.stats(ns)
    run.daemon = d
    return run


def layout(model, tp, divisor):
    return ["--model", model, "--tp", str(tp), "--plane-divisor", str(divisor)]


@pytest.mark.parametrize("model, tp, divisor", [("DeepSeek-V3", 8, 1024), ("Qwen3-235B-A22B", 8, 1024), ("Qwen3-Next-80B-A3B", 4, 512),
                                                ("gpt-oss-20b", 4, 1024)])
def test_all_ranks_restore_the_same(replay, model, tp, divisor):
    together, stats = replay("a", *layout(model, tp, divisor), "--requests", "40")
    apart, _ = replay("b", *layout(model, tp, divisor), "--requests", "40", "--ranks", "sessions")
    for name in ("requests", "block_references", "block_hits", "bytes_put", "bytes_got", "verified_values", "new_values"):
        assert together[name] == apart[name], name
    assert together["wrong_values"] == together["unfetched_pages"] == together["lost_plans"] == 0
    assert together["block_hits"] > together["block_references"] // 2
    assert int(stats["tickets_decided"]) == 40 and int(stats["tickets_joined"]) == 40 * tp
    assert int(stats["tickets_restored"]) > 20 and int(stats["tickets_late"]) == 0
    transient = ("tickets", "ticket_pins", "ticket_slots", "pins", "handles", "get_plans", "put_plans")

    def under_way():
        now = replay.daemon.stats("a")
        return {n: now[n] for n in transient if now[n] != "0"}
    wait_for(lambda: not under_way() or print(under_way()), 5, "the end of all that is under way", pause=0.5)


def test_what_is_replicated_is_put_once(replay):
    """Eight ranks, one share: as many values as one rank alone would put."""
    eight, _ = replay("a", *layout("DeepSeek-V3", 8, 1024), "--requests", "20")
    one, _ = replay("b", *layout("DeepSeek-V3", 1, 1024), "--requests", "20")
    assert eight["new_values"] == one["new_values"] and eight["bytes_put"] == one["bytes_put"]
    assert eight["bytes_got"] == 8 * one["bytes_got"] and eight["hit_ratio"] == one["hit_ratio"]


def test_a_rank_that_is_killed_ends_the_replay(replay, program):
    with subprocess.Popen([program("prefixfs"), "replay", SESSIONS, "--mount", replay.daemon.mount, "--ns", "a",
                           *layout("Qwen3-235B-A22B", 8, 256)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        def children(pid):
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
                return [int(child) for child in f.read().split()]
        try:
            [client] = wait_for(lambda: children(p.pid), 10, "the client")
            ranks = wait_for(lambda: len(children(client)) == 8 and children(client), 10, "its ranks")
            wait_for(lambda: int(replay.daemon.stats("a")["tickets_restored"]) > 2, 20, "a request")
            os.kill(ranks[5], signal.SIGKILL)
            out, said = p.communicate(timeout=60)
        finally:
            p.kill()
    assert p.returncode == 1 and out == "" and said == "prefixfs: client 0: rank 5: its process has ended\n"


def test_deaths_of_the_daemon_give_no_wrong_byte(replay):
    result, _ = replay("a", *layout("Qwen3-235B-A22B", 8, 1024), "--requests", "60", "--kills", "2")
    assert result["wrong_values"] == 0 and result["kills"] == 2 and result["requests"] == 60
