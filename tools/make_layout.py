#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a namespace layout from a table of model geometries.

tools/make_layout.py GEOMETRIES MODEL [--tp N]   print one layout, its sources beside it
tools/make_layout.py GEOMETRIES --list           print the models in the table
tools/make_layout.py GEOMETRIES --shipped DIR    write those that come with prefixfs

GEOMETRIES is JSON: {"models": {name: {"source", "notes", "page_tokens", "tp": {"1": {"planes": [{"plane", "count",
"bytes"}], "state": {...}}}}}}: bytes of one page on one rank. Planes named indexer*, swa* make classes of their own.
"""
import argparse
import json
import os
import re
import sys

SHIPPED = [("Qwen3-8B", 1), ("Qwen3-8B", 2), ("Llama-3.1-70B", 4), ("DeepSeek-V3", 1), ("DeepSeek-V3", 8),
           ("Qwen3-Next-80B-A3B", 1), ("Qwen3-Next-80B-A3B", 2)]


def plane(p):
    return {"name": re.sub(r"[^A-Za-z0-9._-]", "_", p["plane"]), "count": p["count"], "bytes": p["bytes"]}


def shares(page_bytes, tp):
    """share_of_rank: ranks whose planes do not shrink any further hold the same heads."""
    whole = page_bytes["1"]
    count = min(tp, max(1, round(whole / page_bytes[str(tp)])))
    return [rank * count // tp for rank in range(tp)]


def class_of(name, kind, tp, share_of_rank, planes, **more):
    c = {"name": name, "kind": kind, **more}
    if share_of_rank != list(range(tp)):
        c["share_of_rank"] = share_of_rank
    c["planes"] = planes
    return c


def make(models, name, tp):
    model = models[name]
    sizes = model.get("tp", {})
    if str(tp) not in sizes:
        raise SystemExit(f"make_layout: {name} at TP {tp} is not in the table; it has TP {', '.join(sizes) or 'none'}")
    page, per_rank = model["page_tokens"], sizes[str(tp)]
    share_of_rank = shares({k: v["page_bytes_per_rank"] for k, v in sizes.items()}, tp)
    groups = {}
    for p in per_rank["planes"]:
        kind = "indexer" if p["plane"].startswith("indexer") else "swa" if p["plane"].startswith("swa") else "kv"
        groups.setdefault(kind, []).append(plane(p))
    classes = []
    for kind, planes in groups.items():
        window = model.get("sliding_window")
        if kind == "swa" and window:
            classes.append(class_of("swa", "window", tp, share_of_rank, planes, sink=0, last=-(-window // page)))
        else:
            classes.append(class_of(kind, "dense", tp, share_of_rank, planes))
    if "state" in per_rank:
        s = per_rank["state"]
        sizes = {}
        for key, size in s.items():  # of two precisions the first, which is the model's own
            if "_bytes_per_layer" in key:
                sizes.setdefault(key.split("_bytes_per_layer")[0], size)
        planes = [{"name": n, "count": s["layers"], "bytes": size} for n, size in sizes.items()]
        classes.append(class_of("state", "state", tp, list(range(tp)), planes))
    layout = {"version": 1, "identity": {"model": name, "kv_dtype": "bf16", "execution": f"tp{tp}"}, "world": tp,
              "page_tokens": page, "classes": classes}
    source = model["source"].replace("; copy in model_configs/", "")
    return {"description": f"{name}, tensor parallel {tp}, pages of {page} tokens", "status": model.get("status", ""),
            "source": source, "notes": model.get("notes", "").strip(), "layout": layout}


def text(made):
    return json.dumps(made, indent=2) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("geometries")
    options.add_argument("model", nargs="?")
    options.add_argument("--tp", type=int, default=1)
    options.add_argument("--list", action="store_true")
    options.add_argument("--shipped", metavar="DIR")
    args = options.parse_args()
    with open(args.geometries, encoding="utf-8") as f:
        models = json.load(f)["models"]
    if args.list:
        for name, model in models.items():
            print(name, "TP", ", ".join(model.get("tp", [])))
    elif args.shipped:
        for name, tp in SHIPPED:
            with open(os.path.join(args.shipped, f"{name}-tp{tp}.json"), "w", encoding="utf-8") as f:
                f.write(text(make(models, name, tp)))
    elif args.model in models:
        sys.stdout.write(text(make(models, args.model, args.tp)))
    else:
        raise SystemExit(f"make_layout: no model '{args.model}' in {args.geometries}; --list names them")


if __name__ == "__main__":
    main()
