#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worked examples of docs/ranks-and-classes.md, by the model; and the model of `prefixfs size`.

tests/model/ranks_examples.py   prints a line when all of them hold
"""
from itertools import accumulate
from math import lcm

from ranks_model import DENSE, STATE, WINDOW, Cache, Class


def size(classes, page, budget, context, interval):
    """Slots of each class in each share; or the class that did not fit and the least budget."""
    def need(k):
        values = -(-context // (k.every * page))
        rows = 1 + (context // interval if interval else 0)
        return values if k.kind == DENSE else min(values, k.sink + k.last) if k.kind == WINDOW else rows
    order = sorted(range(len(classes)), key=lambda c: (classes[c].kind == STATE, c))
    sums = list(accumulate(need(classes[c]) * classes[c].slot * classes[c].shares for c in order))
    if budget < sums[-1]:
        return next(c for c, total in zip(order, sums) if total > budget), sums[-1]
    dense = [k for k in classes if k.kind == DENSE]
    period = lcm(*[k.every for k in dense])
    periods = budget % sums[-1] // sum(period // k.every * k.slot * k.shares for k in dense) if dense else 0
    return [need(k) * (budget // sums[-1]) + (periods * period // k.every if k.kind == DENSE else 0) for k in classes]


def examples():
    for page, reused in ((256, [0, 0, 768, 768]), (64, [0, 0, 960, 960])):
        cache, got, shared = Cache(page, [Class(DENSE, [0]), Class(STATE, [0])]), [], 1000 // page
        for request in range(4):
            path = [*range(shared), 100 + request]  # the page behind has other tokens
            found, _ = cache.get(path, prompt=1000 + page)
            got.append(found["hit"])
            cache.put_start(request, 0, [(key, b, [0, 1] if b in found["wanted"] else [0]) for b, key in cache.ends(path)])
            cache.put_end(request, True)
        assert got == reused and cache.count["recorded"] == cache.count["kept"] == 1, got
        assert [cache.count[n] for n in ("dense", "hit", "checkpoint", "repeated")] == [3 * reused[2], 2 * reused[2], reused[2], 0]
    cache, path = Cache(64, [Class(DENSE, [0]), Class(WINDOW, [0], last=2), Class(STATE, [0])]), [*range(6)]
    cache.put_start(1, 0, [(i, (i + 1) * 64, [0] + [1] * (i in (0, 3, 4)) + [2] * (i in (0, 3))) for i in path])
    cache.put_end(1, True)
    assert [cache.get(path, h, mask=[0, 1])[0]["restorable"] for h in (0, 256)] == [[64, 320], [320]]
    assert [cache.get(path)[0][n] for n in ("hit", "demand", "dense")] == [64, 320, 384]
    qwen = [Class(DENSE, [0], slot=4194304), Class(STATE, [0], slot=153944064)]
    assert size(qwen, 64, 1 << 30, 8192, 8192) == [182, 2] and size(qwen, 64, 800 << 20, 8192, 8192) == (1, 844759040)
    mla = Cache(64, [Class(DENSE, [0] * 8)])  # one share, eight ranks: one slot
    assert [mla.put_start(rank, rank, [(1, 64, [0])])[0][0] for rank in range(8)] == ["NEW"] + ["INFLIGHT"] * 7


if __name__ == "__main__":
    examples()
    print("the examples hold")
