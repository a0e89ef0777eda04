# SPDX-License-Identifier: Apache-2.0
"""The replay notices one wrong byte."""
import json
import os
import subprocess

import pytest

from raw import Client

BLOCKS = 3
LAYOUT = {"version": 1, "identity": {"model": "test/bytes"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense",
                       "planes": [{"name": "K", "bytes": 40000}, {"name": "V", "bytes": 33000}]}]}
PAYLOAD = 73000


@pytest.fixture
def replayed(daemon, program, tmp_path):
    """A namespace that one request has filled; replay() repeats the request, which then finds all."""
    d = daemon()
    prefixfs = program("prefixfs")
    d.namespace("a", layout=LAYOUT)
    trace = tmp_path / "one.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": BLOCKS * 512, "output_length": 1,
                                 "hash_ids": list(range(BLOCKS))}) + "\n")

    def replay(*more):
        r = subprocess.run([prefixfs, "replay", str(trace), "--mount", d.mount, "--ns", "a", "--json", *more],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        return r.returncode, json.loads(r.stdout), r.stderr

    code, first, _ = replay()
    assert code == 0 and first["new_values"] > 0 and first["verified_values"] == 0
    d.replay, d.values = replay, first["new_values"]
    return d


def last_value(d, c):
    """The offset of the last page's value, as a get plan gives it."""
    name, = os.listdir(d.path("ns/a/records"))
    consumed, endpoint = int(name[:16], 16), bytes.fromhex(name[17:])
    tokens = c.attached.page_tokens
    assert consumed == d.values * tokens
    r = c.get_start(1, [endpoint], start=consumed - tokens)
    assert r.transferable_len == consumed
    c.get_transfer(1, 2, consumed, start=consumed - tokens)
    offset, = c.offsets
    return offset


def test_nothing_flipped_nothing_wrong(replayed):
    code, r, said = replayed.replay()
    assert (code, r["wrong_values"], r["verified_values"], said) == (0, 0, replayed.values, "")


@pytest.mark.parametrize("where", [0, 40000, PAYLOAD - 1])
def test_one_flipped_byte_is_one_wrong_value(replayed, where):
    with Client(replayed.path("ns/a/ctl")) as c:
        c.acknowledge()
        offset = last_value(replayed, c)
        at = offset + where
        c.segment[at] ^= 0x10
        c.release([2])
    for more in ([], ["--planes"]):
        code, r, said = replayed.replay(*more)
        assert (code, r["wrong_values"], r["verified_values"]) == (1, 1, replayed.values)
        assert "1 values are not what was put" in said
    with Client(replayed.path("ns/a/ctl")) as c:
        c.segment[at] ^= 0x10
    assert replayed.replay()[1]["wrong_values"] == 0


def test_padding_is_nobodys_value(replayed):
    with Client(replayed.path("ns/a/ctl")) as c:
        c.acknowledge()
        at = last_value(replayed, c) + PAYLOAD
        c.segment[at] ^= 0xff
        c.release([2])
    assert replayed.replay()[1]["wrong_values"] == 0
    name, = os.listdir(replayed.path("ns/a/records"))
    with open(replayed.path("ns/a/records", name, "pages"), "rb") as f:
        text = f.read()
    stride = len(text) // BLOCKS
    assert all(text[i * stride + PAYLOAD:(i + 1) * stride] == bytes(stride - PAYLOAD) for i in range(BLOCKS))
