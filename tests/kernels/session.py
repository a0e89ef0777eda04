#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that is to be known of a GPU, in one go and in a given time: checks, all figures, where their time goes, what the rest of the device
feels, checkers. session.py OUT [SECONDS [reserve] [tune]]; beside `run` and what carry.sh puts there.

OUT gets twins.txt, faults.txt, gpu.txt, times.txt, beside.txt (JSON lines), said.txt (standard error of all), checkers.txt, host.txt. With
`reserve`, which needs root and a machine of one's own, 15 GiB of huge pages are reserved meanwhile. With `tune` it is registration by its
parts (register.txt), faults, a sweep of tunings of the ring (sweep.txt), and the rates of the best with their times. What does not fit into
the time is left out, and said.txt says so."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = sys.argv[1]
END = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 520)
KERNELS = os.environ.get("PFS_KERNELS", "cuda")
SIZE = os.environ.get("SESSION_BYTES")  # of all figures, for a try without a GPU
RESERVE = "reserve" in sys.argv[3:]
TUNE = "tune" in sys.argv[3:]
POOL = "/proc/sys/vm/nr_hugepages"
PAGES = 7680  # 15 GiB: what bench gpu takes, registers, and gives to a daemon

SIZES = ("4096", "16384", "65536", "262144")
RATES = ",".join(["h2d_ratio_1168"] + ["%s_ratio_%s" % (way, size) for size in SIZES for way in ("h2d", "d2h")] + ["cpu_ms"])
GOALS = {"h2d_ratio_" + size: 0.98 for size in SIZES}
GOALS.update({"h2d_ratio_1168": 0.90, "d2h_ratio_4096": 0.93, "d2h_ratio_16384": 0.95, "d2h_ratio_65536": 0.97, "d2h_ratio_262144": 0.97})
TUNINGS = [
    "",
    "--spin 0",
    "--ring-in 30M",
    "--ring-slots 3",
    "--copy-lanes 1",
    "--ring-blocks 16",
    "--ring-blocks 64",
    "--turns",
    "--path staged",
    "--path batched",
    "CUDA_DEVICE_MAX_CONNECTIONS=32",
]
UPLOADS = ["", "--turns"]
BESIDE = ["", "--prefer-overlap"]


def left(keep=0):
    return END - time.monotonic() - keep


def say(text):
    with open(os.path.join(OUT, "said.txt"), "a", encoding="utf-8") as f:
        f.write("[%5.0f s left] %s\n" % (left(), text))


def run(name, words, limit, env=None, before=()):
    """Standard output goes to the end of file @name. What it printed; None: there was no time, or not enough."""
    limit = min(limit, left(5))
    if limit < 5:
        say("left out: " + " ".join(words))
        return None
    begin = time.monotonic()
    path = os.path.join(OUT, name)
    with open(path, "a+b") as out, open(os.path.join(OUT, "said.txt"), "ab") as err:
        start = out.seek(0, 2)
        try:
            # A group of its own: what a checker has started must not go on beside the next measurement.
            with subprocess.Popen([*before, os.path.join(HERE, "run"), *words], stdout=out, stderr=err,
                                  env={**os.environ, **(env or {})}, start_new_session=True) as child:
                try:
                    rc = child.wait(limit)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    rc = "too slow"
        except OSError as e:
            rc = str(e)
        out.seek(start)
        text = out.read().decode(errors="replace")
    say("%.1f s, %s: %s" % (time.monotonic() - begin, rc, " ".join([*before, *words])))
    return text


def bench(name, options, limit):
    env = dict(word.split("=") for word in options if word.startswith("CUDA_"))
    words = ["prefixfs", "bench", "gpu", "--kernels", KERNELS, *(word for word in options if not word.startswith("CUDA_"))]
    if SIZE:
        words += ["--bytes", SIZE, "--register-bytes", SIZE, "--memory", "1G"]
    text = run(name, words, limit, env)
    rows = {}
    for line in (text or "").splitlines():
        try:
            row = json.loads(line)
            rows[row["figure"]] = row
        except (ValueError, KeyError):
            pass
    return rows


def host():
    with open(os.path.join(OUT, "host.txt"), "w", encoding="utf-8") as f:
        for words in (["uname", "-a"], ["nproc"], ["nvidia-smi"], ["nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE"], ["free", "-m"], ["lscpu"],
                      ["sh", "-c", "cat /sys/devices/system/node/node*/meminfo | grep -i -e memtotal -e hugepages"],
                      ["sh", "-c", "cat /sys/kernel/mm/transparent_hugepage/*enabled; ulimit -l"]):
            try:
                f.write(subprocess.run(words, capture_output=True, text=True, timeout=20, check=False).stdout)
            except (OSError, subprocess.TimeoutExpired) as e:
                f.write("%s: %s\n" % (words[0], e))
        with open("/proc/meminfo", encoding="ascii") as memory:
            f.write(memory.read())


def sweep(keep):
    """The tuning that lacks least of what is to be reached."""
    best, least = TUNINGS[0], None
    for tuning in TUNINGS:
        if left(keep) < 20:
            say("left out: the tuning " + tuning)
            continue
        rows = bench("sweep.txt", [*tuning.split(), "--figure", RATES], 20)
        if not all(name in rows for name in GOALS):
            continue
        lack = sum(max(0, goal + 0.002 - rows[name]["value"]) for name, goal in GOALS.items())
        say("%s lacks %.4f: %s" % (tuning, lack, " ".join("%.4f" % rows[name]["value"] for name in GOALS)))
        if least is None or lack < least - 0.001:
            best, least = tuning, lack
    say("the best tuning: " + best)
    return best


def register(backing, *options):
    bench("register.txt", ["--bytes", "64M", "--register-bytes", "8G", "--figure", "register", "--backing", backing, *options], 90)


def faults():
    run("faults.txt", ["faults.py", HERE, KERNELS], 120)


def killed():
    if KERNELS == "cuda":
        run("faults.txt", ["mps.py", HERE], 90)


def tune():
    host()
    register("hugetlb", "--times")
    run("twins.txt", ["check_twins", KERNELS, "100", "small", "pieces"], 20)
    faults()
    best = sweep(65)
    bench("gpu.txt", ["--times", *best.split(), "--figure", "h2d_ratio,d2h_ratio,duplex,cpu_ms"], left(20))
    register("thp")
    register("4k")


def checker(tool, limit, *options):
    program = shutil.which("compute-sanitizer")
    for path in ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer"):
        if not program and os.path.exists(os.path.join(path, "compute-sanitizer")):
            program = os.path.join(path, "compute-sanitizer")
    if not program:
        say("no compute-sanitizer here")
        return
    text = run("checkers.txt", ["check_twins", KERNELS, "24", "small"], limit, {"SEED": "20260101"},
        [program, "--tool", tool, "--print-limit", "20", "--error-exitcode", "9", "--target-processes", "all", *options])
    say("%s: %s" % (tool, (text or "")[-300:].strip().replace("\n", " | ")))


def set_pages(count):
    """The number that there was."""
    with open(POOL, encoding="ascii") as pages:
        before = int(pages.read())
    with open(POOL, "w", encoding="ascii") as pages:
        pages.write(str(count))
    return before


def main():
    os.makedirs(OUT, exist_ok=True)
    before = set_pages(PAGES) if RESERVE else None
    try:
        if TUNE:
            tune()
        else:
            everything()
    finally:
        if before is not None:
            set_pages(before)


def everything():
    host()
    run("twins.txt", ["check_twins", KERNELS, "200"], 60)
    run("twins.txt", ["check_twins", KERNELS, "200", "small", "pieces"], 30)
    run("twins.txt", ["check_twins", KERNELS, "200", "small", "turns"], 30)
    faults()
    killed()
    bench("gpu.txt", ["--paths"], min(200, left(50)))
    bench("times.txt", ["--times", "--figure", "h2d_ratio,d2h_ratio"], 40)
    for options in BESIDE:
        bench("beside.txt", ["--bytes", "1G", *options.split(), "--figure", ",".join(
            "interference_%s_default_full" % x for x in ("memory_h2d", "memory_d2h", "matrix_h2d", "matrix_d2h"))], 20)
    for options in UPLOADS:
        bench("beside.txt", ["--bytes", "1G", *options.split(), "--figure", "upload_p99_us,small_restore_us"], 15)
    checker("memcheck", 30, "--report-api-errors", "no")  # calls that are to fail are among them
    checker("racecheck", 30, "--racecheck-report", "all")
    checker("initcheck", 45)


main()
