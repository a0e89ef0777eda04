# SPDX-License-Identifier: Apache-2.0
"""The four requests of docs/ranks-and-classes.md through a daemon, and what `funnel` says of them."""
import json
import os
import subprocess

import pytest

LINES = ["interval", "requests", "dense_hit_tokens", "hit_tokens", "lost_to_checkpoint_tokens", "lost_unrecoverable_tokens",
         "demands_recorded", "demands_repeated", "demands_acted", "demands_kept", "demands_dropped", "demands_evicted", "demands_open",
         "rows_wanted", "rows_put", "rows_superseded"]


def layout(page, world=1):
    return {"version": 1, "identity": {"model": "test/funnel"}, "world": world, "page_tokens": page,
            "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 4096}]},
                        {"name": "state", "kind": "state", "planes": [{"name": "S", "bytes": 8192}]}]}


def funnel(d, name="x"):
    lines = [line.split(" ") for line in d.read("ns", name, "funnel").splitlines()]
    assert [name for name, _ in lines] == LINES
    return {name: int(value) for name, value in lines}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("page, reused", [(256, 768), (64, 960)])
def test_four_requests(daemon, program, tmp_path, page, reused, world):
    """They share 1,000 tokens. The first stores them, the second finds that a state is missing and keeps one, the others reuse it."""
    d = daemon()
    d.namespace("x", layout(page, world))
    assert funnel(d) == dict.fromkeys(LINES, 0) | {"interval": 8192}
    shared, trace, hits = list(range(1000 // page)), tmp_path / "trace.jsonl", []
    for request in range(4):
        trace.write_text(json.dumps({"timestamp": 0, "hash_ids": shared + [100 + request]}) + "\n")
        answer = subprocess.run([program("prefixfs"), "replay", trace, "--mount", d.mount, "--ns", "x", "--json"], capture_output=True,
                                text=True, check=True)
        result = json.loads(answer.stdout)
        assert result["wrong_values"] == 0 and result["verified_values"] == (result["block_hits"] + (1 if result["block_hits"] else 0)) * world
        hits.append(result["block_hits"] * page)
    assert hits == [0, 0, reused, reused]
    said = funnel(d)
    assert [said[n] for n in LINES[1:6]] == [4, 3 * reused, 2 * reused, reused, 0]
    assert [said[n] for n in LINES[6:13]] == [1, 0, 1, 1, 0, 0, 0]
    assert said["rows_put"] == 5, "one was wanted, and each request keeps its last"
    checkpoints = os.listdir(d.path("ns/x/checkpoints"))
    assert sorted(int(name.split("-")[0], 16) for name in checkpoints) == [reused] + 4 * [reused + page]
