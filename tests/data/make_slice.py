#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts a slice out of recorded coding-agent sessions for the demo and the tests.

tests/data/make_slice.py TRACE [--sessions N] [--requests K] [--least L] [--spread SECONDS] [--seed S] > slice.jsonl

TRACE has a session a line: {"id", "block", ..., "reqs": [[t, tokens, model, is_main, keep, [[first, count], ...]], ...]}
and may be gzipped. Taken are the first N sessions that have at least L requests, of each the first K, with their own
times; only the start of a session is drawn, uniformly over SECONDS, and written down as "start".
"""
import argparse
import gzip
import json
import random


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("trace")
    options.add_argument("--sessions", type=int, default=12)
    options.add_argument("--requests", type=int, default=30)
    options.add_argument("--least", type=int, default=30)
    options.add_argument("--spread", type=float, default=1800)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    draw = random.Random(args.seed)
    taken = 0
    opener = gzip.open if args.trace.endswith(".gz") else open
    with opener(args.trace, "rt", encoding="utf-8") as lines:
        for line in lines:
            session = json.loads(line)
            if taken == args.sessions:
                break
            if len(session["reqs"]) < args.least:
                continue
            cut = {"id": session["id"], "block": session["block"], "start": round(draw.uniform(0, args.spread), 1),
                   "reqs": session["reqs"][:args.requests]}
            print(json.dumps(cut, separators=(",", ":")))
            taken += 1


if __name__ == "__main__":
    main()
