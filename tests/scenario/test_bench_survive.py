# SPDX-License-Identifier: Apache-2.0
"""prefixfs bench survive: its figures and its table."""
import json
import subprocess

import pytest


@pytest.fixture
def survive(program, mountable):
    def run(*words):
        r = subprocess.run([program("prefixfs"), "bench", "survive", "--quick", *words], capture_output=True, text=True, check=False)
        assert r.returncode == 0, r.stderr
        return r.stdout
    return run


def test_committed_values(survive):
    said = json.loads(survive("--json", "--figure", "committed"))
    assert (said["figure"], said["target"], said["kills"], said["wrong"]) == ("committed_values_lost", "0", 3, 0)
    assert 0 < said["committed"] <= 4 * 200 * 32
    assert said["value"] == said["missing"] and said["met"] == (said["value"] == 0)


def test_the_table(survive):
    head, opened, looked = survive("--figure", "first").splitlines()
    assert head.split() == ["figure", "value", "target"]
    for line, figure in ((opened, "first_open_after_kill_ms"), (looked, "first_stat_after_kill_ms")):
        words = line.split()
        assert words[0] == figure and 0 < float(words[1]) < 10000 and words[2:5] == ["ms", "<=", "50"]
        assert words[5] in ("met", "MISSED")


def test_what_is_not_there(survive, program):
    said = json.loads(survive("--json", "--figure", "upgrade"))
    assert said["figure"] == "upgrade_pause_ms_p99"
    assert said["value"] is not None or "cannot be upgraded" in said["not_available"]
    r = subprocess.run([program("prefixfs"), "bench", "survive", "--figure", "nothing"], capture_output=True, text=True, check=False)
    assert r.returncode == 2 and "--figure is 'nothing'" in r.stderr
