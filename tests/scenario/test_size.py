# SPDX-License-Identifier: Apache-2.0
"""`prefixfs size` against its model, and what it says of layouts that come along."""
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


@pytest.mark.parametrize("change, sentence", [
    ({"context": 0}, "a context of 0 tokens; 1 to 1099511627776 are possible"),
    ({"ladder": {"interval": 100}}, "an interval of 100 tokens is no multiple of the page, 64"),
    ({"page_tokens": 100}, "class c0 has a value each 64 tokens, no multiple of the page, 100"),
    ({"page_tokens": 0}, "the layout has 1 classes and pages of 0 tokens")])
def test_layouts_that_cannot_be_sized(program, tmp_path, change, sentence):
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(dict(layout_of([Class(DENSE, [0])], 64), **change)))
    assert ask(program, "--layout", path, "--budget", "1G", rc=1) == f"prefixfs: {sentence}\n"
