#!/usr/bin/env python3
"""Measures `fused` against `bulk` over a grid of shapes, tokens, ranks and routings, and writes docs/MOE_GRID.md.

    bench/moe_grid.py measure [--folder build/moe_grid] [--coterie build/release/coterie] [--trace TRACE.safetensors]
    bench/moe_grid.py table   [--folder build/moe_grid] > docs/MOE_GRID.md

measure runs one `coterie bench moe` after the other, each under two minutes, and keeps what each found in a file of its
own; where that is there already it goes on with the next, so that it may be stopped at any time. --trace is gpt-oss's
routing (coterie trace convert makes it). --prefix is put before each command. Python's standard library alone.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

SHAPES = ("flashmoe", "olmoe", "qwen3-30b")
TOKENS = (1, 8, 64, 512, 4096)
RANKS = (1, 2, 4, 8)
ROUTINGS = ("uniform", "zipf", "hot")
TRACED = "gpt-oss"
LONG_TOKENS = 4096  # from here on a command takes one routing


def slices(trace):
    """(name, shape, tokens, ranks, routings) of each command, short ones first."""
    for tokens in TOKENS:
        for ranks in RANKS:
            for shape in SHAPES:
                for routings in (ROUTINGS,) if tokens < LONG_TOKENS else [(r,) for r in ROUTINGS]:
                    name = f"{shape}-{tokens}-{ranks}" + (f"-{routings[0]}" if len(routings) == 1 else "")
                    yield name, shape, tokens, ranks, ",".join(routings)
            if trace:
                yield f"{TRACED}-{tokens}-{ranks}", TRACED, tokens, ranks, "trace:" + trace


def measure(o):
    os.makedirs(o.folder, exist_ok=True)
    todo = list(slices(o.trace))
    for n, (name, shape, tokens, ranks, routings) in enumerate(todo, 1):
        path = os.path.join(o.folder, name + ".json")
        if os.path.exists(path):
            continue
        print(f"{n} of {len(todo)}: {name}", file=sys.stderr, flush=True)
        command = shlex.split(o.prefix) + [
            o.coterie, "bench", "moe", "--json", "--op", "fused,bulk", "--shape", shape, "--tokens", str(tokens), "--ranks", str(ranks),
            "--routing", routings, "--threads", str(o.threads), "--repeat", str(o.repeat), "--details", path + ".part"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.rename(path + ".part", path)


def read(folder):
    """{(shape, routing, tokens, ranks): {op: point}}"""
    cells = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".json"):
            with open(os.path.join(folder, file), encoding="utf-8") as f:
                for p in json.load(f):
                    routing = p["routing"].split(":")[0]
                    cells.setdefault((p["shape"], routing, p["tokens"], p["ranks"]), {})[p["op"]] = p
    return cells


def time_text(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns / 1e3:.3g} us"


def cell_text(cell):
    if not cell:
        return "-"
    fused, bulk = cell["fused"], cell["bulk"]
    return f"{bulk['tile_ns'] / fused['tile_ns']:.2f} ({time_text(fused['tile_ns'])}, {100 * fused['roof_share']:.0f} %)"


def costs(points):
    """Medians, over points, of what share of all ranks' time bulk spends how, and of its straggling over its time."""
    shares = {"waiting for other ranks": [], "waiting for a turn": [], "copies": [], "experts": [], "gate": []}
    for p in points:
        total = p["gate_ns"] + p["dispatch_ns"] + p["expert_ns"] + p["combine_ns"]
        waits = p["waited_ns"] + p["queued_ns"]
        for key, ns in zip(shares, (p["waited_ns"], p["queued_ns"], p["dispatch_ns"] + p["combine_ns"] - waits, p["expert_ns"],
                                    p["gate_ns"])):
            shares[key].append(max(ns, 0) / total)
    return {key: statistics.median(values) for key, values in shares.items()}


def table(o):
    cells = read(o.folder)
    pairs = [c for c in cells.values() if "fused" in c and "bulk" in c]
    if not pairs:
        raise SystemExit(f"nothing measured in {o.folder}")
    ratios = sorted(c["bulk"]["tile_ns"] / c["fused"]["tile_ns"] for c in pairs)
    repeats = sorted({p["repeats"] for c in pairs for p in c.values()})
    print("# The grid\n")
    print("`fused` against `bulk`, the same kernels, threads, weights and tokens, runs interleaved: bulk's median time over fused's,\n"
          "then fused's time and its share of the roofs measured in the same run (multiply-add or read, whichever asks for more\n"
          "time). bf16, exact combine.\n")
    print(f"Measured on {o.machine}; {' to '.join(map(str, sorted({repeats[0], repeats[-1]})))} runs each. By\n")
    print("    bench/moe_grid.py measure --trace TRACE && bench/moe_grid.py table > docs/MOE_GRID.md\n")
    print(f"{len(ratios)} points: median {statistics.median(ratios):.3f}, worst {ratios[0]:.3f}, best {ratios[-1]:.3f}; fused takes "
          f"more than 1.05 times as long as bulk in {sum(r < 1 / 1.05 for r in ratios)}.\n")
    for shape in SHAPES + (TRACED,):
        routings = [r for r in ROUTINGS + ("trace",) if any(k[0] == shape and k[1] == r for k in cells)]
        if not routings:
            continue
        print(f"## {shape}\n")
        print("| tokens | routing | " + " | ".join(f"P = {ranks}" for ranks in RANKS) + " |")
        print("|---:|---|" + "---|" * len(RANKS))
        for tokens in TOKENS:
            for routing in routings:
                row = [cells.get((shape, routing, tokens, r)) for r in RANKS]
                if any(row):
                    print(f"| {tokens} | {routing} | " + " | ".join(map(cell_text, row)) + " |")
        print()
    print("## A pass of each\n")
    print("512 tokens of olmoe's shape on 4 ranks and two cores; in bulk's rows dispatch and combine include waiting, for other\n"
          "ranks' rows and for a turn on a core. By\n")
    print("    coterie bench moe --ranks 4 --op fused,bulk --timeline timeline.json\n"
          "    bench/timeline_svg.py timeline.json > docs/moe_timeline.svg\n")
    print("![What each thread does in a pass of fused and of bulk](moe_timeline.svg)\n")
    print("## What bulk spends its time on\n")
    print("Medians over shapes and routings, of all ranks' time in a pass; straggling is the time from the first rank's having done\n"
          "its experts' work to the last one's, over the pass. Waiting for a turn is there where ranks are more than cores.\n")
    print("| tokens | ranks | experts | copies | gate | waiting for other ranks | waiting for a turn | straggling |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for tokens in TOKENS:
        for ranks in RANKS:
            bulk = [c["bulk"] for (_, _, t, r), c in cells.items() if (t, r) == (tokens, ranks) and "bulk" in c]
            if not bulk:
                continue
            share = costs(bulk)
            straggling = statistics.median(p["straggler_median_ns"] / p["tile_ns"] for p in bulk)
            keys = ("experts", "copies", "gate", "waiting for other ranks", "waiting for a turn")
            print(f"| {tokens} | {ranks} | " + " | ".join(f"{100 * share[k]:.1f} %" for k in keys) + f" | {100 * straggling:.1f} % |")


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{len(names)} cores of an {names[0]}" if names else "an unknown machine"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("--folder", default="build/moe_grid")
    parser.add_argument("--coterie", default="build/release/coterie")
    parser.add_argument("--trace", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--machine", default=machine())
    o = parser.parse_args()
    measure(o) if o.what == "measure" else table(o)


if __name__ == "__main__":
    main()
