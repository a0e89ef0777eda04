# SPDX-License-Identifier: Apache-2.0
"""prefixfs bench ranks: its figures."""
import json
import subprocess

import pytest


@pytest.fixture
def bench(program, mountable):
    def run(*words, rc=0):
        r = subprocess.run([program("prefixfs"), "bench", "ranks", *words], capture_output=True, text=True, check=False)
        assert r.returncode == rc, r.stderr
        return [json.loads(line) for line in r.stdout.splitlines()] if rc == 0 else r.stderr
    return run


def test_what_all_ranks_hold_alike_is_there_once(bench):
    [said] = bench("--figure", "mla")
    assert (said["figure"], said["value"], said["payload_bytes"]) == ("mla_tp8_bytes_ratio", 1.0, 1000 * 61 * 4096)


def test_lookups_and_tickets(bench):
    said = {row["figure"]: row for row in bench("--pages", "10000", "--repeats", "10")}
    assert sorted(said) == ["classes_get_start_ratio", "get_start_joined_p50_us", "mla_tp8_bytes_ratio", "ticket_round_p50_us"]
    assert all(row["value"] > 0 for row in said.values()) and said["classes_get_start_ratio"]["against"] == 1.3
    assert said["classes_get_start_ratio"]["samples"] == 10 and said["get_start_joined_p50_us"]["samples"] == 30


def test_an_unknown_figure(bench):
    assert "--figure is 'nothing'" in bench("--figure", "nothing", rc=2)
