# SPDX-License-Identifier: Apache-2.0
"""`prefixfs size` against its model, and what it says of layouts that come along."""
import errno
import json
import os
import random
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/model"))

from ranks_examples import size  # noqa: E402
from ranks_model import DENSE, STATE, WINDOW, Class  # noqa: E402

LAYOUTS = 10000
MiB = 1 << 20


def draw(r):
    """Classes, page, budget, context, interval."""
    world = r.choice((1, 2, 4, 8))
    maps = [[*range(world)], [0] * world, [i * ((world + 1) // 2) // world for i in range(world)]]
    classes = []
    for _ in range(r.choice((1, 1, 2, 3, 4, 16))):
        kind = r.choice((DENSE, DENSE, WINDOW, STATE))
        classes.append(Class(kind, r.choice(maps), 1 if kind == STATE else r.choice((1, 1, 2, 3, 4)), r.randrange(4), r.randrange(1, 9),
                             4096 * r.choice((1, 3, r.randrange(1, 4096)))))
    page = r.choice((16, 64, 100, 256))
    context, interval = r.choice((page, 1000, 8192, 131072, r.randrange(1, 1 << 20))), page * r.choice((0, 1, 32, 128, 1000))
    fits = size(classes, page, 1 << 62, context, interval)
    need = size(classes, page, 0, context, interval)[1] if sum(k.slot for k in classes) else 0
    assert len(fits) == len(classes)
    return classes, page, max(0, need * r.randrange(0, 5) + r.choice((-1, 0, 1, r.randrange(need + 1)))), context, interval


def test_sizing_is_the_model_s(program, seed):
    r, lines, expected = random.Random(seed), [], []
    for _ in range(LAYOUTS):
        classes, page, budget, context, interval = draw(r)
        lines.append(f"{page} {context} {interval} {budget} " + " ".join(
            f"{k.kind} {k.every * page} {(k.sink + k.last) if k.kind == WINDOW else 0} {k.slot * k.shares}" for k in classes))
        answer = size(classes, page, budget, context, interval)
        expected.append("short {} {}".format(*answer) if isinstance(answer, tuple) else "fits " + " ".join(map(str, answer)))
    said = subprocess.run([program("tests/model/drive_sizing")], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          check=True).stdout.splitlines()
    assert len(said) == len(expected)
    for line, is_, should in zip(lines, said, expected):
        assert is_ == should, line
    kinds = [e.split()[0] for e in expected]
    assert min(kinds.count("short"), kinds.count("fits")) > LAYOUTS // 10


def layout_of(classes, page):
    return {"version": 1, "identity": {"model": "test/size"}, "world": len(classes[0].map), "page_tokens": page,
            "classes": [{"name": f"c{i}", "kind": k.kind, "share_of_rank": k.map,
                         **({"sink": k.sink, "last": k.last} if k.kind == WINDOW else {}),
                         **({"every": k.every * page} if k.kind != STATE else {}),
                         "planes": [{"name": "p", "bytes": k.slot - 5}]} for i, k in enumerate(classes)]}


def test_layouts_are_read_as_they_are_meant(program, seed, tmp_path):
    r, path, shorts = random.Random(seed), tmp_path / "layout.json", 0
    for _ in range(100):
        classes, page, budget, context, interval = draw(r)
        budget = max(budget, 1)
        path.write_text(json.dumps(layout_of(classes, page)))
        answer = subprocess.run([program("prefixfs"), "size", "--layout", path, "--budget", str(budget), "--context", str(context),
                                 "--interval", str(interval), "--json"], capture_output=True, text=True, check=False)
        expected = size(classes, page, budget, context, interval)
        if isinstance(expected, tuple):
            shorts += 1
            assert (answer.returncode, answer.stdout) == (1, "")
            assert answer.stderr == (f"prefixfs: a budget of {budget} bytes is too small: c{expected[0]} does not fit: one request "
                                     f"needs {expected[1]} bytes\n")
        else:
            out = json.loads(answer.stdout)
            assert [c["slots"] for c in out["classes"]] == expected
            used = sum(c["slots"] * c["value_bytes"] for c in out["classes"])
            assert used + out["left_bytes"] == budget and out["requests"] == budget // out["request_bytes"]
    assert shorts


def ask(program, *words, rc=0):
    answer = subprocess.run([program("prefixfs"), "size", *words], capture_output=True, text=True, check=False)
    assert answer.returncode == rc, answer.stderr
    return json.loads(answer.stdout) if rc == 0 and "--json" in words else answer.stdout if rc == 0 else answer.stderr


def test_the_example_of_the_page(program):
    qwen = ["--model", "Qwen3.5-27B", "--tp", "1"]
    out = ask(program, *qwen, "--budget", "1G", "--json")
    assert {k: v for k, v in out.items() if k != "classes"} == {
        "budget": 1 << 30, "context": 8192, "interval": 8192, "request_bytes": 844759040, "requests": 1, "left_bytes": 2490368}
    assert [(c["class"], c["kind"], c["value_bytes"], c["of_a_request"], c["slots"]) for c in out["classes"]] == [
        ("kv", "dense", 4194304, 128, 182), ("state", "state", 153944064, 2, 2)]
    assert ask(program, *qwen, "--budget", "800M", rc=1) == ("prefixfs: a budget of 838860800 bytes is too small: state does not fit: "
                                                              "one request needs 844759040 bytes\n")
    assert ask(program, *qwen, "--budget", "844759040", "--json")["left_bytes"] == 0


def test_the_layout_says_context_and_interval(program, tmp_path):
    path = tmp_path / "layout.json"
    layout = layout_of([Class(DENSE, [0], slot=4096), Class(STATE, [0], slot=8192)], 64)
    path.write_text(json.dumps(dict(layout, context=65536, ladder={"interval": 16384})))
    out = ask(program, "--layout", path, "--budget", "1G", "--json")
    assert (out["context"], out["interval"]) == (65536, 16384)
    assert [c["of_a_request"] for c in out["classes"]] == [1024, 5]
    out = ask(program, "--layout", path, "--budget", "1G", "--interval", "0", "--context", "64", "--json")
    assert [c["of_a_request"] for c in out["classes"]] == [1, 1]
    path.write_text(json.dumps(layout))
    assert ask(program, "--layout", path, "--budget", "1G", "--json")["interval"] == 8192
    path.write_text(json.dumps(layout_of([Class(DENSE, [0])], 100)))
    assert ask(program, "--layout", path, "--budget", "1G", "--json")["interval"] == 8200


def test_people_get_a_table(program):
    text = ask(program, "--model", "gpt-oss-20b", "--tp", "8", "--budget", "16G").split("\n\n")
    assert text[0].splitlines()[0].split() == ["budget", str(16 << 30)]
    assert text[1].splitlines()[0].split() == ["class", "kind", "value_bytes", "of_a_request", "slots"]
    assert [row.split()[:2] for row in text[1].splitlines()[1:]] == [["kv", "dense"], ["swa", "window"]]


@pytest.mark.parametrize("words, sentence", [
    (["--model", "Qwen3-8B"], "prefixfs size: --budget is needed"),
    (["--budget", "1G"], "prefixfs size: one of --layout and --model is needed"),
    (["--model", "Qwen3-8B", "--budget", "1G", "x"], "prefixfs size: unexpected argument 'x'")])
def test_what_is_missing_is_named(program, words, sentence):
    assert ask(program, *words, rc=2).startswith(sentence)


def plane(name, size, **more):
    return {"name": name, "bytes": size, **more}


KV = {"name": "kv", "kind": "dense", "planes": [plane("K", 8192)]}
STATE_CLASS = {"name": "state", "kind": "state", "planes": [plane("S", 4096)]}
SLIDING = {"name": "win", "kind": "window", "sink": 1, "last": 2, "planes": [plane("W", 4096)]}


def of(*classes, world=1, **more):
    return {"version": 1, "identity": {"model": "test/size"}, "world": world, "page_tokens": 64, "classes": list(classes), **more}


REFUSED = [
    (of(dict(KV, planes=[plane("K", 64), plane("K", 64)])), 'class "kv", share 0: two planes are named "K"'),
    (of(dict(KV, planes=[plane("K", 0)])), "classes[0].planes[0].bytes is 0; it must be from 1 to 4294967296"),
    (of(dict(KV, planes=[plane("K", -5)])), "classes[0].planes[0].bytes is -5; it must be from 1 to 4294967296"),
    (of(dict(KV, planes=[plane("K", 64, count=0)])), "classes[0].planes[0].count is 0; it must be from 1 to 4096"),
    (of(dict(KV, planes=[])), "classes[0].planes has 0 elements; it must have from 1 to 4096"),
    (of(dict(KV, planes=[plane("K", 64, offset=0)])), "classes[0].planes[0].offset is no member of a layout (version 1)"),
    (of(dict(KV, planes=[plane("K", 1 << 31, count=3)])),
     'class "kv", share 0: 6442450944 bytes a value are over the limit of 4294967296'),
    (of(dict(KV, share_planes=[[plane("K", 64)]])),
     "classes[0].planes and classes[0].share_planes are both given; exactly one must be given"),
    (of(*[dict(KV, name=f"c{i}") for i in range(17)]), "classes has 17 elements; it must have from 1 to 16"),
    (of(), "classes has 0 elements; it must have from 1 to 16"),
    (of(KV, KV), 'classes[0].name and classes[1].name are both "kv"'),
    (of(dict(KV, share_of_rank=[0, 1]), world=3), "classes[0].share_of_rank has 2 elements; it must have 3, one for each rank of world"),
    (of(dict(KV, share_of_rank=[0, 1, 1]), world=2), "classes[0].share_of_rank has 3 elements; it must have 2, one for each rank of world"),
    (of(dict(KV, share_of_rank=[0, 2, 2]), world=3), "classes[0].share_of_rank gives share 1 to no rank; shares 0 to 2 must have one"),
    (of(dict(KV, share_of_rank=[0, None]), world=2), "classes[0].share_of_rank[1] is null; it must be an integer"),
    (of(dict(KV, share_of_rank=[0, -1]), world=2), "classes[0].share_of_rank[1] is -1; it must be from 0 to 63"),
    (of(KV, world=65), "classes[0].share_of_rank is missing; a share for each of 65 ranks is over the limit of 64 shares"),
    (of({"name": "kv", "kind": "dense", "share_planes": [[plane("K", 64)]]}, world=2),
     "classes[0].share_planes has 1 elements; it must have 2, one for each share of share_of_rank"),
    (of(KV, SLIDING, context=128), "classes[1]: sink 1 and last 2 values of 64 tokens are 192, over context, 128"),
    (of(KV, dict(SLIDING, last=0)), "classes[1].last is 0; it must be from 1 to 4294967295"),
    (of(dict(KV, sink=1)), "classes[0].sink is given with kind dense; only kind window has it"),
    (of(dict(KV, last=1)), "classes[0].last is given with kind dense; only kind window has it"),
    (of(KV, dict(STATE_CLASS, every=64)), "classes[1].every is given with kind state; only kinds dense and window have it"),
    (of(dict(KV, every=0)), "classes[0].every is 0; it must be from 1 to 4294967295"),
    (of(dict(KV, every=96)), "classes[0].every is 96; it must be a multiple of page_tokens, 64"),
    (of(dict(KV, every=64 << 30)), "classes[0].every is 68719476736; it must be from 1 to 4294967295"),
    (of(KV, context=0), "context is 0; it must be from 1 to 1099511627776"),
    (of(KV, ladder={"interval": 100}), "ladder.interval is 100; it must be 0 or a multiple of page_tokens, 64"),
    (of(KV, ladder={"interval": -1}), "ladder.interval is -1; it must be from 0 to 1099511627776"),
    (of(KV, ladder={"interval": 64, "x": 1}), "ladder.x is no member of a layout (version 1)"),
    (of(KV, page_tokens=0), "page_tokens is 0; it must be from 1 to 65536"),
    (of(KV, world=0), "world is 0; it must be from 1 to 1024"),
    (of(KV, y=1), "y is no member of a layout (version 1)"),
    ([1], "the layout is a list; it must be an object"),
]


def test_it_refuses_what_the_daemon_refuses(program, daemon, tmp_path):
    """By the same parser: each sentence is the daemon's, with the member, its value and the limit."""
    path, ns = tmp_path / "layout.json", os.path.join(daemon("--memory=64M").mount, "ns/x")
    os.mkdir(ns)
    for layout, sentence in REFUSED:
        path.write_text(json.dumps(layout))
        with pytest.raises(OSError), open(f"{ns}/layout", "wb", buffering=0) as f:
            f.write(json.dumps(layout).encode())
        with open(f"{ns}/layout.error", encoding="utf-8") as f:
            assert f.read() == sentence + "\n"
        assert ask(program, "--layout", path, "--budget", "64M", rc=1) == f"prefixfs: layout {path}: {sentence}\n"
    path.write_text(json.dumps(of(KV)))
    assert ask(program, "--layout", path, "--budget", "64M", "--interval", "100", rc=1) == (
        "prefixfs: --interval is 100; it must be 0 or a multiple of page_tokens, 64\n")


def test_a_context_that_never_fits_is_refused_by_both(program, daemon, tmp_path):
    """The daemon counts in grants, which here are as long as the values; without a context a page is enough."""
    path, d = tmp_path / "layout.json", daemon("--memory=64M")
    big = dict(KV, planes=[plane("K", MiB)])
    path.write_text(json.dumps(of(big, context=8192)))
    assert ask(program, "--layout", path, "--budget", "64M", rc=1) == (
        f"prefixfs: a budget of {64 * MiB} bytes is too small: kv does not fit: one request needs {128 * MiB} bytes\n")
    os.mkdir(f"{d.mount}/ns/x")
    with pytest.raises(OSError) as refused, open(f"{d.mount}/ns/x/layout", "wb", buffering=0) as f:
        f.write(path.read_bytes())
    assert refused.value.errno == errno.EINVAL
    with open(f"{d.mount}/ns/x/layout.error", encoding="utf-8") as f:
        assert f.read() == (
            f"namespace x: one request of context, 8192 tokens, can never fit: it needs grants of {128 * MiB} bytes, and class kv passes "
            f"the {64 * MiB} that the budget of {64 * MiB} has for values; the smallest budget that would do is {128 * MiB}\n")
    d.namespace("y", of(big))
