#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a namespace layout from a table of model geometries.

tools/make_layout.py GEOMETRIES MODEL [--tp N]   print one layout, its sources beside it
tools/make_layout.py GEOMETRIES --list           print the models in the table
tools/make_layout.py GEOMETRIES --all DIR        write every model at every tensor parallel size, as the build does

GEOMETRIES is JSON, as tools/geometries.json: {"models": {name: {"source", "notes", "page_tokens", "sliding_window",
"tp": {"1": {"planes": [{"plane", "count", "bytes"}], "state": {...}}}}}}: bytes of one page on one rank. Planes named
indexer*, swa* make classes of their own. Each class is cut into shares for itself: heads that are fewer than the ranks are
held by several.
"""
import argparse
import json
import os
import re
import sys

BLOCK = 256  # tokens of a page of a model that is tabled by "per_256_token_block"


def plane(p):
    return {"name": re.sub(r"[^A-Za-z0-9._-]", "_", p["plane"]), "count": p["count"], "bytes": p["bytes"]}


def shares(alone, here, tp, what):
    """share_of_rank of a class that has @alone bytes on one rank and @here on each of @tp."""
    count, rest = divmod(alone, here)
    if rest or not count:
        raise SystemExit(f"make_layout: {what} at TP {tp}: {alone} bytes on one rank are no whole number of times the {here} "
                         f"on each of {tp}")
    if tp % count:
        raise SystemExit(f"make_layout: {what} at TP {tp}: {alone} bytes on one rank are {count} shares of {here}, which {tp} "
                         "ranks cannot have alike")
    return [rank * count // tp for rank in range(tp)]


def class_of(name, kind, tp, share_of_rank, planes, **more):
    c = {"name": name, "kind": kind, **more}
    if share_of_rank != list(range(tp)):
        c["share_of_rank"] = share_of_rank
    c["planes"] = planes
    return c


def by_class(planes):
    """Planes of a page by the class that they make."""
    groups = {}
    for p in planes:
        name = "indexer" if p["plane"].startswith("indexer") else "swa" if p["plane"].startswith("swa") else "kv"
        groups.setdefault(name, []).append(plane(p))
    return groups


def payload(planes):
    return sum(p["count"] * p["bytes"] for p in planes)


def state_planes(state):
    sizes = {}
    for key, size in state.items():  # of two precisions the first, which is the model's own
        if "_bytes_per_layer" in key:
            sizes.setdefault(key.split("_bytes_per_layer")[0], size)
    return [{"name": n, "count": state["layers"], "bytes": size} for n, size in sizes.items()]


def blocks_to_planes(model):
    """One latent of all ranks, compressed over 4 and over 128 tokens; of every layer a window that lies within a page."""
    layers, block = model["layers"], model["per_256_token_block"]
    window = model["swa_window_bytes_all_layers"] // sum(layers.values())
    assert block["c4a_planes"] == layers["c4a"] and block["c128a_planes"] == layers["c128a"] and model["sliding_window"] <= BLOCK
    return {"planes": [{"plane": "c4a.latent", "count": layers["c4a"], "bytes": block["c4a_kv_plane_bytes"]},
                       {"plane": "c128a.latent", "count": layers["c128a"], "bytes": block["c128a_kv_plane_bytes"]},
                       {"plane": "indexer.c4a", "count": layers["c4a"], "bytes": block["c4a_indexer_plane_bytes_fp8"]},
                       {"plane": "swa.latent", "count": sum(layers.values()), "bytes": window}]}


def sizes_of(model):
    """Tokens of a page; what each rank has of it, by tensor parallel size."""
    if "per_256_token_block" in model:
        return BLOCK, dict.fromkeys(("1", "2", "4", "8"), blocks_to_planes(model))
    return model["page_tokens"], model["tp"]


def make(models, name, tp):
    model = models[name]
    page, sizes = sizes_of(model)
    if str(tp) not in sizes:
        raise SystemExit(f"make_layout: {name} at TP {tp} is not in the table; it has TP {', '.join(sizes)}")
    alone, classes = by_class(sizes["1"]["planes"]), []
    for kind, planes in by_class(sizes[str(tp)]["planes"]).items():
        share_of_rank = shares(payload(alone[kind]), payload(planes), tp, f"{kind} of {name}")
        window = model.get("sliding_window") if kind == "swa" else None
        more = {"sink": 0, "last": -(-window // page)} if window else {}
        classes.append(class_of(kind, "window" if window else "dense", tp, share_of_rank, planes, **more))
    if "state" in sizes[str(tp)]:
        planes = state_planes(sizes[str(tp)]["state"])
        classes.append(class_of("state", "state", tp, list(range(tp)), planes))
    layout = {"version": 1, "identity": {"model": name, "kv_dtype": "fp8" if "per_256_token_block" in model else "bf16",
                                         "execution": f"tp{tp}"}, "world": tp, "page_tokens": page, "classes": classes}
    source = model["source"] if isinstance(model["source"], str) else "; ".join(model["source"])
    return {"description": f"{name}, tensor parallel {tp}, pages of {page} tokens", "status": model.get("status", ""),
            "source": source, "notes": model.get("notes", "").strip(), "layout": layout}


def text(made):
    return json.dumps(made, indent=2) + "\n"


def file_name(name, tp):
    return f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-')}-tp{tp}.json"


def read(geometries):
    with open(geometries, encoding="utf-8") as f:
        return json.load(f)["models"]


def all_layouts(geometries):
    """Text by file name."""
    models = read(geometries)
    return {file_name(name, tp): text(make(models, name, int(tp))) for name in models for tp in sizes_of(models[name])[1]}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("geometries")
    options.add_argument("model", nargs="?")
    options.add_argument("--tp", type=int, default=1)
    options.add_argument("--list", action="store_true")
    options.add_argument("--all", metavar="DIR")
    args = options.parse_args()
    models = read(args.geometries)
    if args.list:
        for name, model in models.items():
            print(name, "TP", ", ".join(sizes_of(model)[1]))
    elif args.all:
        os.makedirs(args.all, exist_ok=True)
        for name, made in all_layouts(args.geometries).items():
            with open(os.path.join(args.all, name), "w", encoding="utf-8") as f:
                f.write(made)
    elif args.model in models:
        sys.stdout.write(text(make(models, args.model, args.tp)))
    else:
        raise SystemExit(f"make_layout: no model '{args.model}' in {args.geometries}; --list names them")


if __name__ == "__main__":
    main()
