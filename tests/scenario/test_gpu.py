# SPDX-License-Identifier: Apache-2.0
"""Whole requests through libprefixfs-gpu and a daemon, on ordinary memory."""
import ctypes
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import disk
from mounted import alive, mounts_at, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYOUT = {"version": 1, "memory": {"floor": 8 << 20}, "identity": {"model": "gpu"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [
              {"name": "a", "bytes": 1168}, {"name": "b", "bytes": 4096}, {"name": "c", "bytes": 2048}]},
              {"name": "state", "kind": "state", "planes": [{"name": "s", "bytes": 10000}]}]}


@pytest.fixture
def served(daemon):
    return daemon("--memory=32M")


def make_namespace(d, layout):
    path = os.path.join(d.mount, "ns/g")
    os.mkdir(path)
    with open(os.path.join(path, "layout"), "w", encoding="utf-8") as f:
        json.dump(layout, f)
    return path


@pytest.fixture
def namespace(served):
    return make_namespace(served, LAYOUT)


def ranges_layout(dense_bytes, **dense):
    """As client_gpu_ranges expects it."""
    return {**LAYOUT, "classes": [
        {"name": "kv", "kind": "dense", "planes": [{"name": "a", "bytes": dense_bytes}], **dense},
        {"name": "win", "kind": "window", "sink": 1, "last": 2, "planes": [{"name": "w", "bytes": 2048}]},
        {"name": "state", "kind": "state", "planes": [{"name": "s", "bytes": 1000}]}]}


def stats(namespace):
    with open(os.path.join(namespace, "stats"), encoding="utf-8") as f:
        return dict(text.split() for text in f)


def test_put_get_and_their_failures(program, namespace):
    out = subprocess.run([program("tests/scenario/client_gpu"), namespace], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


def test_killed_with_copies_under_way(program, namespace, slower):
    client = subprocess.run([program("tests/scenario/client_gpu"), namespace], check=False)
    assert client.returncode == 0
    client = subprocess.Popen([program("tests/scenario/client_gpu"), namespace, "hang"], stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "hanging\n"
        held = stats(namespace)
        assert held["put_plans"] == "1" and held["get_plans"] == "1"
    finally:
        client.kill()
        client.wait()
    until = time.monotonic() + 10 * slower
    names = ("sessions", "put_plans", "get_plans", "handles", "pins", "slots_prepared", "slots_quarantined")
    while any(stats(namespace)[name] != "0" for name in names) and time.monotonic() < until:
        time.sleep(0.02)
    left = stats(namespace)
    assert {name: left[name] for name in names} == {name: "0" for name in names}


def kill_both(d, starts):
    serving = d.serving()
    for pid in (d.process.pid, serving):
        os.kill(pid, signal.SIGKILL)
    d.process.wait(10 * d.slower)
    wait_for(lambda: not alive(serving), 10 * d.slower, "the end of the serving process")
    for _ in mounts_at(d.mount):
        subprocess.run(["umount", "-l", d.mount], check=True)
    d.start(wait=False)
    d.wait_ready(starts)
    d.namespace("g", LAYOUT)


def test_an_engine_outlives_the_daemon_and_its_parent(program, daemon):
    """Memory that is registered stays mapped until the engine has attached to the next one, a copy out of it ends with the right bytes; a
    reset registers nothing anew."""
    d = daemon("--memory=32M")
    starts, wanted = 1, []
    client = subprocess.Popen([program("tests/scenario/client_gpu"), d.namespace("g", LAYOUT), "outlive"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in client.stdout:
            starts += 1
            wanted.append(line)
            if line == "serving\n":
                os.kill(d.serving(), signal.SIGKILL)
                d.wait_ready(starts)
            else:
                kill_both(d, starts)
            client.stdin.write("go\n")
            client.stdin.flush()
        assert client.wait(10 * d.slower) == 0, client.stderr.read()
        assert wanted == ["serving\n", "both\n", "both\n"]
    finally:
        client.kill()
        client.wait()


def test_late_plans_hold_up_no_other_copies(program, served, namespace):
    client = [program("tests/scenario/client_gpu"), namespace]
    subprocess.run(client, check=True)
    serving = served.serving()
    try:
        out = subprocess.run([*client, "stopped", str(serving)], capture_output=True, text=True, check=False)
    finally:
        os.kill(serving, signal.SIGCONT)
    assert out.returncode == 0, out.stderr


def test_put_under_a_ticket_comes_again(program, served):
    client = [program("tests/scenario/client_gpu"), make_namespace(served, {**LAYOUT, "world": 2}), "ranks"]
    out = subprocess.run(client, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize("dense, words", [({}, []), ({"every": 128}, ["two"])], ids=["a_page", "two_pages"])
def test_ranges_of_a_get(program, served, dense, words):
    client = [program("tests/scenario/client_gpu_ranges"), make_namespace(served, ranges_layout(4096, **dense)), *words]
    out = subprocess.run(client, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize("options, words", [([], []), (["--disk-fault=read:EIO:130"], ["1"]), (["--disk-fault=read:flip:=130"], ["7"])],
                         ids=["all", "dense_in_part", "state_in_part"])
def test_get_of_more_than_memory_holds(program, daemon, build, tmp_path, options, words):
    folder = disk.folder(tmp_path, build)
    try:
        d = daemon("--memory=32M", "--disk", folder, "--disk-bytes", "256M", *options)
        if not disk.tier(d):
            pytest.skip("this build has no disk tier")
        client = [program("tests/scenario/client_gpu_ranges"), make_namespace(d, ranges_layout(262144)), "long", *words]
        out = subprocess.run(client, capture_output=True, text=True, check=False)
        assert out.returncode == 0, out.stderr
    finally:
        disk.remove(folder)


@pytest.mark.concurrency
def test_late_plans_of_several_threads_are_given_back(program, namespace):
    client = [program("tests/scenario/client_gpu"), namespace]
    subprocess.run(client, check=True)
    out = subprocess.run([*client, "threads"], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


def test_handbooks_example(build, program, served, tmp_path):
    """It compiles, and stores and fetches what it says."""
    folders = [os.path.join(build, name) for name in ("kernels", "fs/client")]
    with open(program("kernels/libprefixfs-gpu.so"), "rb") as f:
        if b"__asan_init" in f.read():
            pytest.skip("a program that a sanitizer watches is linked otherwise")
    with open(os.path.join(ROOT, "docs/gpu.md"), encoding="utf-8") as f:
        (tmp_path / "gpu_put_get.c").write_text(re.search(r"^```c\n(.*?)^```$", f.read(), re.M | re.S)[1])
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/fs/client", f"-I{ROOT}/kernels", str(tmp_path / "gpu_put_get.c"),
                    f"-L{folders[0]}", "-lprefixfs-gpu", f"-L{folders[1]}", "-lprefixfs", "-Wl,-rpath," + ":".join(folders),
                    "-o", str(tmp_path / "gpu_put_get")], check=True)
    planes = [{"name": f"{name}{layer}", "bytes": 4096} for layer in range(4) for name in "KV"]
    path = make_namespace(served, {**LAYOUT, "classes": [{"name": "kv", "kind": "dense", "planes": planes}]})
    out = subprocess.run([tmp_path / "gpu_put_get", path], env=dict(os.environ, PFS_KERNELS="ref"), capture_output=True, text=True,
                         check=False)
    assert (out.returncode, out.stderr) == (0, "")
    assert out.stdout.splitlines() == [
        "stored: 6 new values, 1 groups", "fetched: 384 tokens, 6 values",
        *(f"layer {layer}: 'd' in its first page" for layer in range(4)), "fetched by layers: 6 values"]


def test_lost_full_and_killed(program, build, mountable):
    """What a GPU is asked for by the same program, here on plain C that is held up and lost."""
    for name in ("prefixfsd", "tests/kernels/check_faults", "tests/kernels/check_plans"):
        program(name)
    answer = subprocess.run([sys.executable, os.path.join(ROOT, "tests/kernels/faults.py"), build, "ref"], capture_output=True, text=True,
                            check=False)
    if answer.returncode == 77:
        pytest.skip(answer.stdout.splitlines()[-1])
    assert answer.returncode == 0 and answer.stdout.endswith("all: ok\n"), answer.stdout + answer.stderr


class Plane(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("stride", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("row_bytes", ctypes.c_uint64),
                ("row_stride", ctypes.c_uint64), ("blocks", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


class Pool(ctypes.Structure):
    _fields_ = [("planes", ctypes.POINTER(Plane)), ("plane_count", ctypes.c_uint32), ("page_limit", ctypes.c_uint32),
                ("pages_per_value", ctypes.c_uint32), ("value_tokens", ctypes.c_uint32), ("reserved", ctypes.c_uint64 * 2)]


class Copy(ctypes.Structure):
    _fields_ = [("pool", ctypes.POINTER(Pool)), ("values", ctypes.POINTER(ctypes.c_uint64)),
                ("pages", ctypes.POINTER(ctypes.c_uint32)), ("count", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("token_from", ctypes.c_uint64), ("token_to", ctypes.c_uint64), ("parts", ctypes.c_void_p),
                ("part_count", ctypes.c_uint32), ("reserved0", ctypes.c_uint32), ("after", ctypes.c_void_p),
                ("reserved", ctypes.c_uint64 * 4)]


def test_from_python(library, monkeypatch):
    """The library as an engine's Python calls it: one page of two planes out of a pool, and back to another page."""
    monkeypatch.setenv("PFS_KERNELS", "ref")
    gpu = library("kernels/libprefixfs-gpu.so")
    device, op = ctypes.c_void_p(), ctypes.c_void_p()
    assert gpu.pfs_gpu_open(None, ctypes.byref(device)) == 0
    memory = mmap.mmap(-1, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert gpu.pfs_gpu_register(device, ctypes.c_void_p(address), ctypes.c_uint64(8192), ctypes.c_uint64(1)) == 0
    tensors = [ctypes.create_string_buffer(os.urandom(4 * 512), 4 * 512) for _ in range(2)]
    before = [tensor.raw for tensor in tensors]
    planes = (Plane * 2)(*[Plane(ctypes.addressof(tensor), 512, 512) for tensor in tensors])
    if any(plane.base % 16 for plane in planes):
        pytest.skip("ctypes aligned its memory to less than 16 bytes")
    pool = Pool(planes, 2, 4)
    for move, page in ((gpu.pfs_gpu_gather, 1), (gpu.pfs_gpu_scatter, 3)):
        copy = Copy(ctypes.pointer(pool), (ctypes.c_uint64 * 1)(address), (ctypes.c_uint32 * 1)(page), 1)
        assert move(device, ctypes.byref(copy), ctypes.byref(op)) == 0
        assert gpu.pfs_gpu_wait(op, 0) == 0
        gpu.pfs_gpu_end(ctypes.byref(op))
    assert memory[:1024] == before[0][512:1024] + before[1][512:1024]
    for tensor, old in zip(tensors, before):
        assert tensor.raw == old[:1536] + old[512:1024]
    copy.count = 0
    why = ctypes.create_string_buffer(200)
    assert gpu.pfs_gpu_gather(device, ctypes.byref(copy), ctypes.byref(op)) == -22
    gpu.pfs_gpu_last_error(why, ctypes.c_size_t(200))
    assert why.value == b"a copy has no values or no pages"
    gpu.pfs_gpu_close(ctypes.byref(device))
    del planes, pool, copy
