# SPDX-License-Identifier: Apache-2.0
"""The root file `metrics`: what a strict reader of Prometheus' text format 0.0.4 makes of it, and who sees what."""
import os
import re

import pytest

from mounted import PLAIN_LAYOUT, wait_for
from peers import value_of
from raw import Client, key

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
NUMBER = re.compile(r"(?:[+-]?Inf|NaN|[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\Z")
TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}


def labels_of(text):
    found, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        assert m, text
        assert m[1] not in found and not m[1].startswith("__")
        found[m[1]] = re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1], m[2])
        at = m.end()
        if at < len(text):
            assert text[at] == "," and at + 1 < len(text), text
            at += 1
    return found


def parse(text):
    """{family: (type, {(sample name, labels): value})}; every rule of the format is an assertion."""
    families, current, helped = {}, None, set()
    assert text.endswith("\n") and "\r" not in text
    for line in text[:-1].split("\n"):
        assert line and line == line.strip()
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            assert NAME.match(name) and words and name not in helped
            assert not re.search(r"\\(?![\\n])", words)
            helped.add(name)
            current = None
            continue
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert kind in TYPES and name in helped and name not in families
            families[name] = (kind, {})
            current = name
            continue
        assert not line.startswith("#")
        m = re.match(r"([^ {]+)(?:\{(.*)\})? ([^ ]+)\Z", line)
        assert m and NAME.match(m[1]) and NUMBER.match(m[3]), line
        kind, samples = families[current]  # samples of a family stand together, behind its TYPE
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert m[1] in [current + s for s in suffixes], line
        assert kind != "counter" or (m[1].endswith("_total") and float(m[3]) >= 0)
        where = (m[1], tuple(sorted(labels_of(m[2] or "").items())))
        assert where not in samples, line
        samples[where] = float(m[3])
    for name, (kind, samples) in families.items():
        assert samples, name
        if kind == "histogram":
            check_histogram(name, samples)
    return families


def check_histogram(name, samples):
    rows = {}
    for (sample, labels), value in samples.items():
        rest = tuple(label for label in labels if label[0] != "le")
        row = rows.setdefault(rest, {"buckets": []})
        if sample.endswith("_bucket"):
            row["buckets"].append((float(dict(labels)["le"]), value))
        else:
            row[sample[len(name):]] = value
    for row in rows.values():
        ends, counts = zip(*row["buckets"])
        assert ends[-1] == float("inf") and list(ends) == sorted(set(ends)) and list(counts) == sorted(counts)
        assert all(abs(b / a - 4) < 1e-9 for a, b in zip(ends, ends[1:-1])) and abs(ends[0] - 4e-6) < 1e-12
        assert row["_count"] == counts[-1]
        assert (row["_sum"] == 0) == (row["_count"] == 0)


def value(families, name, sample=None, **labels):
    return families[name][1][(sample or name, tuple(sorted(labels.items())))]


def answered(m):
    """A request is counted behind its answer."""
    return all(value(m, "prefixfs_request_seconds", "prefixfs_request_seconds_count", op=op) for op in ("PUT_START", "PUT_COMMIT", "ATTACH"))


def test_format_and_numbers(daemon, slower):
    d = daemon()
    parse(d.read("metrics"))  # without any namespace
    d.namespace(layout=dict(PLAIN_LAYOUT, memory={"floor": 16 << 20}))
    wait_for(lambda: d.stats()["prewarm_done"] == d.stats()["prewarm_goal"], 10 * slower, "the floor")
    keys = [key(1, i) for i in range(3)]
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 192, keys, map(value_of, keys))
        wait_for(lambda: answered(parse(d.read("metrics"))), 10 * slower, "the count of requests")
        m = parse(d.read("metrics"))
        stats = d.stats()
    assert value(m, "prefixfs_values_committed_total", ns="x") == 3
    assert value(m, "prefixfs_sessions", ns="x") == value(m, "prefixfs_host_sessions") == 1
    assert value(m, "prefixfs_records", ns="x") == 1 and value(m, "prefixfs_pages", ns="x") == 3
    assert value(m, "prefixfs_slots", ns="x", **{"class": "kv"}, share="0", state="used") == 3
    assert value(m, "prefixfs_slots", ns="x", **{"class": "kv"}, share="0", state="free") == int(stats["slots_free"])
    assert value(m, "prefixfs_host_memory_bytes") == 64 << 20
    assert value(m, "prefixfs_host_used_bytes") == 3 * 8192
    assert value(m, "prefixfs_up") == 1 and value(m, "prefixfs_restarts_total") == 0
    requests = "prefixfs_request_seconds"
    for op in ("PUT_START", "PUT_COMMIT", "ATTACH"):
        assert value(m, requests, requests + "_count", op=op) == 1
        assert 0 < value(m, requests, requests + "_sum", op=op) < 5 * slower
    assert value(m, requests, requests + "_count", op="GET_START") == 0
    assert value(m, requests, requests + "_count", op="open") > 0
    # every counter of stats is there, under its name
    for name, number in stats.items():
        if name in ("slots", "slots_free") or "." in name:
            continue
        found = [f for f in ("prefixfs_" + name, "prefixfs_" + name + "_total") if f in m]
        assert len(found) == 1, name
        assert (m[found[0]][0] == "counter") == found[0].endswith("_total")


def test_a_snapshot(daemon):
    d = daemon()
    d.namespace()
    with open(d.path("metrics"), encoding="ascii") as f:
        first = f.read(100)
        d.namespace("y", dict(PLAIN_LAYOUT, memory={"floor": 2 << 20}))
        assert {dict(labels).get("ns") for _, labels in parse(first + f.read())["prefixfs_records"][1]} == {"x"}
    assert {dict(labels)["ns"] for _, labels in parse(d.read("metrics"))["prefixfs_records"][1]} == {"x", "y"}


def read_as(peer, path, uid, groups):
    os.setgroups(groups)
    os.setgid(uid)
    os.setuid(uid)
    with open(path, encoding="ascii") as f:
        peer.tell(f.read())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_each_user_gets_its_namespaces(daemon, peer):
    d = daemon()
    for name, uid, gid, mode in (("mine", 4001, 1, 0o700), ("group", 1, 4100, 0o740), ("root", 0, 0, 0o700)):
        d.namespace(name, dict(PLAIN_LAYOUT, memory={"floor": 2 << 20}), mode=mode)
        os.chown(d.path("ns", name), uid, gid)
    for uid, groups, names in ((4001, [4100], {"mine", "group"}), (4002, [4100], {"group"}), (4003, [], set())):
        text = peer(read_as, d.path("metrics"), uid, groups).hear()
        m = parse(text)
        seen = {dict(labels)["ns"] for _, s in m.values() for _, labels in s if "ns" in dict(labels)}
        assert seen == names
        assert value(m, "prefixfs_namespaces") == 3  # sums over the host are everybody's
        assert "root" not in re.sub("# .*", "", text)


def test_scraping_many_namespaces_is_cheap(daemon, slower):
    """Not a measurement, which a loaded host would spoil: a bound that a mistake of an order would pass."""
    d = daemon("--memory", "256M")
    for i in range(64):
        d.namespace(f"n{i}", dict(PLAIN_LAYOUT, memory={"floor": 2 << 20}))
    pid = d.serving()

    def ticks():
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before, n = ticks(), 100
    for _ in range(n):
        text = d.read("metrics")
    spent = (ticks() - before) / os.sysconf("SC_CLK_TCK") / n
    assert len(parse(text)["prefixfs_records"][1]) == 64
    assert spent < 0.01 * slower, f"{spent * 1e6:.0f} us of the daemon's time for one"
