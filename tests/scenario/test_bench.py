# SPDX-License-Identifier: Apache-2.0
"""bench control, view and disk and the demo print what others read."""
import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

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


@pytest.mark.limit(300)
def test_the_hybrid_demo(program, build, mountable):
    if build != os.path.join(ROOT, "build"):
        pytest.skip("the demo uses build/")
    program("prefixfsd")
    answer = subprocess.run([os.path.join(ROOT, "tools/demo"), "--hybrid", "--json"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["restored"] == [0, 0, 960, 960]
    f = result["funnel"]
    assert f["dense_hit_tokens"] == f["hit_tokens"] + f["lost_to_checkpoint_tokens"] + f["lost_unrecoverable_tokens"] == 2880
    assert (f["requests"], f["demands_recorded"], f["demands_kept"]) == (4, 1, 1)


def gpu(program, *words):
    return subprocess.run([program("prefixfs"), "bench", "gpu", "--kernels", "ref", "--bytes", "16M"] + list(words),
                          capture_output=True, text=True, check=False)


def test_gpu_figures_by_name(program):
    answer = gpu(program, "--figure", "h2x")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "no figure begins with 'h2x'" in answer.stderr
    answer = gpu(program, "--figure", "d2h_ratio_4096")
    assert answer.returncode == 0, answer.stderr
    rows = {r["figure"]: r for r in map(json.loads, answer.stdout.splitlines())}
    assert set(rows) == {"gpu_staging_mib", "d2h_ratio_4096"}
    row = rows["d2h_ratio_4096"]
    assert row["value"] > 0 and row["gbps"] > 0 and row["ceiling_gbps"] > 0 and row["disturbed"] >= 0
    answer = gpu(program, "--figure", "d2h_ceiling,h2d_ratio_4096")
    assert [json.loads(r)["figure"] for r in answer.stdout.splitlines()] == ["gpu_staging_mib", "d2h_ceiling_gbps", "h2d_ratio_4096"]
    answer = gpu(program, "--figure", "d2h_ratio_4096", "--human")
    assert " of " in answer.stdout.splitlines()[-1] and answer.stdout.endswith("GB/s\n")


def wait_until(true, what, seconds=60):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def disk_lines(program, folder, *words, path=None):
    program("prefixfsd")
    env = dict(os.environ, PATH=path) if path else None
    answer = subprocess.run([program("prefixfs"), "bench", "disk", "--dir", folder, *words], capture_output=True, text=True,
                            check=False, env=env)
    assert answer.returncode == 0, answer.stderr
    assert os.listdir(folder) == [], "its folder goes"
    return {r["figure"]: r for r in map(json.loads, answer.stdout.splitlines())}


TINY = ("--bytes", "32M", "--page-bytes", "128K", "--pairs", "2", "--records", "64", "--record-pages", "2", "--rebuild-records", "32",
        "--repeats", "20")
DISK_FIGURES = {"write_vs_fio", "read_vs_fio", "write_gbps", "read_gbps", "cpu_s_per_gib", "disk_memory_mib", "write_small_vs_fio",
                "read_small_vs_fio", "write_small_gbps", "read_small_gbps", "checksum_gbps", "restart_1m_records_s",
                "rebuild_files_per_s"}


@pytest.fixture
def disk_folder(build):
    """On a disk: where scratch folders lie may be memory."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=build) as path:
        yield path


@pytest.mark.limit(400)
def test_disk_has_its_figures(program, mountable, disk_folder):
    rows = {}
    for figure in ("write", "read", "cpu", "disk", "checksum", "restart", "rebuild"):
        rows.update(disk_lines(program, disk_folder, *TINY, "--figure", figure))
    assert set(rows) == DISK_FIGURES
    for name, row in rows.items():
        assert "skipped" in row or row["value"] > 0 or name == "cpu_s_per_gib", name
    assert rows["write_gbps"]["records"] == 16 and rows["write_small_gbps"]["records"] == 16
    assert len(rows["read_gbps"]["pairs"]) == 2 and rows["restart_1m_records_s"]["records"] == 64
    if shutil.which("fio"):
        for name in ("write_vs_fio", "read_vs_fio", "read_small_vs_fio"):
            words = rows[name]["fio"]
            assert "--nrfiles=8" in words and "--filesize=2097152" in words and "--bs=2097152" in words


@pytest.mark.limit(300)
def test_disk_without_fio_leaves_the_ratios_out(program, mountable, disk_folder, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("fusermount3 is looked for in PATH")
    rows = disk_lines(program, disk_folder, *TINY, "--pairs", "1", "--figure", "write_small", path=str(tmp_path))
    assert rows["write_small_vs_fio"]["skipped"] == "fio is not installed" and rows["write_small_gbps"]["value"] > 0


@pytest.mark.limit(300)
def test_disk_slowdown(program, mountable, disk_folder):
    rows = disk_lines(program, disk_folder, "--bytes", "512M", "--page-bytes", "1M", "--pairs", "1", "--repeats", "20", "--figure",
                      "control")
    row = rows["control_slowdown"]
    assert row["value"] > 0 and row["quiet_p50_us"] > 0 and row["loaded_p50_us"] > 0


@pytest.mark.limit(300)
def test_disk_cleans_up_when_it_is_ended(program, mountable, disk_folder):
    program("prefixfsd")
    process = subprocess.Popen([program("prefixfs"), "bench", "disk", "--dir", disk_folder, "--bytes", "64M", "--page-bytes", "128K",
                                "--pairs", "100", "--figure", "write_gbps"], stdout=subprocess.DEVNULL)
    wait_until(lambda: any(files for _, _, files in os.walk(disk_folder)), "it has begun")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT
    wait_until(lambda: os.listdir(disk_folder) == [], "its folder goes")


def test_disk_refuses_what_has_no_room(program, disk_folder):
    for words, said in ((["--bytes", "4T"], "are needed"), (["--bytes", "1M"], "are the least"), (["--page-bytes", "5000"], "no multiple")):
        answer = subprocess.run([program("prefixfs"), "bench", "disk", "--dir", disk_folder, "--figure", "write_gbps", *words],
                                capture_output=True, text=True, check=False)
        assert answer.returncode in (1, 2) and said in answer.stderr
    assert os.listdir(disk_folder) == []
