# SPDX-License-Identifier: Apache-2.0
"""Layouts of known models at every tensor parallel size: which rank has which share, and that a daemon takes each."""
import json
import os
import sys

import pytest

from mounted import wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYOUTS = os.path.join(os.environ.get("PREFIXFS_BUILD", os.path.join(ROOT, "build")), "tools/layouts")
GEOMETRIES = os.path.join(ROOT, "tools/geometries.json")
sys.path.insert(0, os.path.join(ROOT, "tools"))

import make_layout  # noqa: E402


def layouts():
    for name in sorted(os.listdir(LAYOUTS)):
        with open(os.path.join(LAYOUTS, name), encoding="utf-8") as f:
            yield name, json.load(f)["layout"]


def shares(layout):
    """Shares of each class."""
    return {c["name"]: len(set(c.get("share_of_rank", range(layout["world"])))) for c in layout["classes"]}


@pytest.mark.parametrize("name, expected", [
    ("gemma-4-26B-A4B-tp8", {"kv": 2, "swa": 8}),  # it was 6 of both: the planes of all classes were added up
    ("gemma-4-26B-A4B-tp4", {"kv": 2, "swa": 4}),
    ("MiMo-V2-Flash-tp8", {"kv": 4, "swa": 8}),  # it was 7
    ("Qwen3-235B-A22B-tp8", {"kv": 4}),
    ("DeepSeek-V3.2-tp8", {"kv": 1, "indexer": 1}),
    ("Qwen3.5-27B-tp8", {"kv": 4, "state": 8}),
    ("DeepSeek-V4-Flash-tp8", {"kv": 1, "indexer": 1, "swa": 1})])
def test_each_class_has_shares_of_its_own(name, expected):
    assert shares(dict(layouts())[name + ".json"]) == expected


def test_ranks_of_one_share_follow_one_another():
    layout = dict(layouts())["Qwen3-235B-A22B-tp8.json"]
    assert layout["classes"][0]["share_of_rank"] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_bytes_that_do_not_divide_are_refused():
    with pytest.raises(SystemExit, match="kv of x at TP 8: 100 bytes on one rank are no whole number of times the 30 on each of 8"):
        make_layout.shares(100, 30, 8, "kv of x")
    with pytest.raises(SystemExit, match="kv of x at TP 8: 90 bytes on one rank are 3 shares of 30, which 8 ranks cannot have alike"):
        make_layout.shares(90, 30, 8, "kv of x")


def test_shares_hold_as_much_as_one_rank_alone():
    """What all shares of a class have together is what TP 1 has."""
    def payload(c):
        return sum(p["count"] * p["bytes"] for p in c["planes"])
    there = dict(layouts())
    for name, layout in there.items():
        alone = there[name.rsplit("-tp", 1)[0] + "-tp1.json"]
        for c, whole in zip(layout["classes"], alone["classes"]):
            assert shares(layout)[c["name"]] * payload(c) == payload(whole), (name, c["name"])


def test_every_model_comes_along():
    assert sorted(os.listdir(LAYOUTS)) == sorted(make_layout.all_layouts(GEOMETRIES)) and len(os.listdir(LAYOUTS)) == 112


def ranges(path):
    with open(os.path.join(path, "segment"), encoding="utf-8") as f:
        return [dict(w.split("=") for w in line.split(": ", 1)[1].split()) for line in f if line.startswith("range ")]


@pytest.mark.limit(300)
def test_a_daemon_takes_each_as_it_is(daemon):
    """All bytes as they are; the memory is promised and not touched. The largest row has 912,605,184 bytes in a grant of its own."""
    d = daemon("--memory=16G", "--populate=false", "--hugepages=never")
    largest = 0
    for name, layout in layouts():
        path = d.namespace("x", layout)
        wanted = {(i, s) for i, c in enumerate(layout["classes"]) for s in range(shares(layout)[c["name"]])}

        def cut():
            found = ranges(path)
            return found if {(int(r["class"]), int(r["share"])) for r in found} == wanted else None
        for r in wait_for(cut, 20, f"the floor of {name}"):
            c = layout["classes"][int(r["class"])]
            payload = sum(p["count"] * p["bytes"] for p in c["planes"])
            assert int(r["slot_bytes"]) == -(-max(payload, 4096) // 4096) * 4096, name
            largest = max(largest, int(r["length"]) if c["kind"] == "state" else 0)
        os.rmdir(path)
    assert largest == 914358272
