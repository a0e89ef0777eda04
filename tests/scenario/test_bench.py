# SPDX-License-Identifier: Apache-2.0
"""bench control and the demo print what others read."""
import glob
import json
import os
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def lines(program, *words):
    program("prefixfsd")
    answer = subprocess.run([program("prefixfs"), "bench", "control", "--pages", "20000", "--repeats", "5"] + list(words),
                            capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(text) for text in answer.stdout.splitlines()]


def test_batches_in_both_lengths_and_the_worse(program, mountable):
    rows = lines(program)
    batches = ["get_start_1000_p50_us", "get_transfer_1000_p50_us", "release_1000_p50_us", "put_start_1000_p50_us",
               "put_start_full_1000_p50_us", "put_commit_1000_p50_us", "empty_ioctl_p50_us"]
    for name in batches:
        values = {r.get("records_of"): r for r in rows if r["figure"] == name}
        assert set(values) == {None, 1, 32}
        assert values[None]["value"] == max(values[1]["value"], values[32]["value"]) > 0
    names = {r["figure"] for r in rows}
    assert names >= {"index_bytes_per_page", "index_bytes_per_page_after_refill", "index_bytes_per_page_records_of_1",
                     "probe_p99_under_batches_ratio", "segment_ready_s_per_gib", "cat_pages_gbps", "memcpy_gbps"}
    for row in rows:
        assert "skipped" in row or (row["value"] >= 0 and row["unit"] and "against" in row and "ratio" in row)


def test_one_figure(program, mountable):
    assert {r["figure"] for r in lines(program, "--figure", "empty_ioctl")} == {"empty_ioctl_p50_us"}


@pytest.mark.limit(300)
def test_view_has_its_figures(program, mountable):
    program("prefixfsd")
    answer = subprocess.run([program("prefixfs"), "bench", "view", "--pages", "20000"], capture_output=True, text=True,
                            check=False)
    assert answer.returncode == 0, answer.stderr
    rows = {r["figure"]: r for r in map(json.loads, answer.stdout.splitlines())}
    assert set(rows) >= {"ls_1m_records_s", "ls_1m_checkpoints_s", "stat_per_s", "view_extra_mib", "inval_100k_s"}
    assert rows["ls_1m_records_s"]["records"] == rows["ls_1m_checkpoints_s"]["records"] == 20000
    assert rows["view_extra_mib"]["ratio"] < 1 and rows["inval_100k_s"]["dropped"] == 0


@pytest.mark.limit(300)
def test_demo_prints_one_object(program, build, mountable):
    if build != os.path.join(ROOT, "build"):
        pytest.skip("the demo uses build/")
    program("prefixfsd")
    answer = subprocess.run([os.path.join(ROOT, "tools/demo"), "--json"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    [text] = answer.stdout.splitlines()
    result = json.loads(text)
    assert result["wrong_values"] == 0 and result["requests"] == 400 and result["bytes_from_disk"] > 0
    assert result["hit_ratio"] > 0.85
    again = result["again"]
    assert again["wrong_values"] == 0 and again["hit_ratio"] > 0.95, "a slow disk may have refused some puts"
    assert again["bytes_from_disk"] > 1 << 30, "more than the memory"
    assert not glob.glob(os.path.join(build, "demo-disk-*"))
