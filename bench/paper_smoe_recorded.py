"""What bench/paper-smoe --trace measures with a recorded routing of a large model, and the page of it: what each way sends, counted over
all layers of the recording, and times of one layer of a real shape. Python's standard library alone."""
import json, os

from paper_smoe_page import link_name, ms

TOKENS, HIDDEN, REAL_HIDDEN, LINKS = 4096, 64, 2880, ("12.5MB/s,0us", "125MB/s,0us")
BULK, REDUCED = ("--op", "bulk", "--collective", "direct"), ("--combine", "reduced")
DEDUP, FORETOLD = ("--a2a", "one-shot", "--dedup", "on"), ("--predict", "algorithm-2")
DS, S = ("--pipeline", "ds-moe", *BULK), ("--pipeline", "s-moe", *BULK, *DEDUP)
# name: (which tables, options, what was expected of gpt-oss-20b with 4 and 8 ranks)
COUNTED = {
    "DS-MoE, padded": ("plain", (*DS, "--a2a", "padded"), (10.4, 7.7)),
    "DS-MoE": ("plain", (*DS, "--a2a", "two-phase", "--dedup", "off"), (3.75, 3.50)),
    "DS-MoE, dedup": ("plain", (*DS, *DEDUP, *REDUCED), (3.38, 3.41)),
    "s-MoE: neither": ("plain", (*S, *REDUCED, "--predict", "none"), (2.63, 2.53)),
    "s-MoE: shuffle": ("plain", (*S, *REDUCED, *FORETOLD), (2.57, 2.47)),
    "s-MoE: groups": ("groups", (*S, *REDUCED, "--predict", "none"), (2.37, 2.42)),
    "s-MoE: both": ("groups", (*S, *REDUCED, *FORETOLD), (2.23, 2.33)),
    "s-MoE: groups, true homes": ("groups", (*S, *REDUCED, "--predict", "oracle"), (2.16, 2.27)),
    "s-MoE: groups, worst homes": ("groups", (*S, *REDUCED, "--predict", "worst"), None),
    "attention dp": ("groups", ("--pipeline", "dp", "--op", "bulk", *DEDUP, *REDUCED), (0.87, 0.67)),
    "DS-MoE, dedup, exact combine": ("plain", (*DS, *DEDUP), (3.57, 3.46)),
    "s-MoE: both, exact combine": ("groups", (*S, *FORETOLD), (2.37, 2.38)),
}
LAR_1 = ("s-MoE: LAR 1", (*S, *REDUCED, "--predict", "none", "--routing", "lar:1"), (1.50, 1.75))


def one_cell(bench, *words):
    cells = json.loads(bench.run("bench", "pipeline", *words, "--tokens", TOKENS, "--json"))
    if any(c["bytes"] != c["bytes_formula"] for c in cells):
        raise SystemExit(f"paper-smoe: {' '.join(map(str, words))}: bytes are not docs/BYTES.md's")
    return cells


def layers_of(trace):
    with open(trace, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header["__metadata__"]["layers"].count(",") + 1


def group(bench, trace, ranks):
    """Tables without groups and with them, and how unevenly the groups' experts are called."""
    tables, peaks = {}, {}
    for kind, how in (("plain", ("--method", "consecutive", "--expert-load", 1e6)), ("groups", ("--iterations", 60, "--expert-load", 1.2))):
        bench.progress(f"grouping experts on {ranks} ranks")
        tables[kind] = os.path.join(bench.folder, f"{kind}{ranks}.safetensors")
        learnt = json.loads(bench.run("group", trace, "--ranks", ranks, *how, "--tables", tables[kind], "--json"))[0]
        peaks = {part: [layer[f"expert_peak_{part}"] for layer in learnt["layers"]] for part in ("train", "test")}
    return tables, peaks


def measure(bench, source, repeat):
    trace = os.path.join(bench.folder, "recorded.safetensors")
    bench.run("trace", "convert", source, "-o", trace)
    found = {"layers": layers_of(trace), "peaks": {}, "counted": {}}
    for ranks in (8, 4):
        tables, found["peaks"][ranks] = group(bench, trace, ranks)
        ways = {way: (*options, "--routing", f"trace:{trace}", "--tables", tables[kind]) for way, (kind, options, _) in COUNTED.items()}
        for way, options in (ways | {LAR_1[0]: LAR_1[1]}).items():
            bench.progress(f"counting: {way}, {ranks} ranks")
            cells = one_cell(bench, "--shape", "narrow", "--ranks", ranks, *options, "--repeat", 1)
            found["counted"].setdefault(way, {})[ranks] = cells[0]
    bench.progress("one layer of the real shape")
    layer = ("--routing", f"trace:{trace}", "--trace-layers", "0:1", "--tables", tables["groups"], "--step", TOKENS, *FORETOLD,
             "--collective", "direct", "--pipeline", "ds-moe,s-moe")  # fmt: skip
    found["timed"] = one_cell(bench, "--shape", "gpt-oss-20b", *layer, "--op", "bulk,fused", *DEDUP, "--repeat", repeat,
                              *(w for link in LINKS for w in ("--link", link)))  # fmt: skip
    found["narrow"] = one_cell(bench, "--shape", "narrow", *layer, "--op", "bulk", *DEDUP, "--repeat", 1)
    return found


# ---- the page ----


def riding(cell):
    """Bytes that ride with a row."""
    return 1 if cell["pipeline"] == "s-moe" and cell["predict"] == "algorithm-2" else 0


def units(cell, layers, hidden, bytes_of="bytes"):
    """Elements that a rank sends in a layer, in T x H, with rows of the real width whatever the width they were counted at."""
    rides = (cell["ranks"] - 1) * TOKENS * layers * riding(cell) * (1 if bytes_of == "bytes" else 1 / cell["ranks"])
    return (cell[bytes_of] - rides) / (TOKENS * layers * hidden * 2 * (cell["ranks"] if bytes_of == "bytes" else 1))


def counted_page(found):
    ways = {way: expected for way, (_, _, expected) in COUNTED.items()} | {LAR_1[0]: LAR_1[2]}
    yield (f"## What is sent\n\n{TOKENS:,} tokens in steps of 512, all {found['layers']} layers. Units: elements that a rank sends in a "
           "layer, in T x H, counted and equal to docs/BYTES.md's closed form; combine reduced but where it says exact, and in DS-MoE "
           "without dedup, which has none. Expected: what a first try came to, computed without an engine, with groups by swaps and a "
           "token table. Busiest: what the busiest rank of each exchange sends or takes, the larger, summed and in the same "
           "units.\n\n| way | " + " | ".join(f"P = {p}: units | expected | LAR | remote ranks | busiest" for p in (4, 8)) + " |\n|---|"
           + "---:|" * 10)  # fmt: skip
    for way, expected in ways.items():
        row = []
        for at, ranks in enumerate(("4", "8")):
            c = found["counted"][way][ranks]
            layers = 24 if way == LAR_1[0] else found["layers"]
            row += [f"{units(c, layers, HIDDEN):.2f}", f"{expected[at]:.2f}" if expected else "-", f"{c['lar']:.3f}",
                    f"{c['remote_ranks']:.2f}", f"{units(c, layers, HIDDEN, 'bytes_busiest'):.2f}"]  # fmt: skip
        yield f"| {way} | {' | '.join(row)} |"
    yield "\nTensor-parallel experts, two allreduces a layer, would send 3.00 and 3.50 units (computed).\n"
    for ranks in ("4", "8"):
        train, test = found["peaks"][ranks]["train"], sorted(found["peaks"][ranks]["test"])
        yield (f"- P = {ranks}: groups were made for at most 1.2 times the mean load of a rank's experts, and have {max(train):.2f} in "
               f"training in the worst layer; on the sequences not learnt from {test[0]:.2f} to {test[-1]:.2f} by layer, in the mean "
               f"{sum(test) / len(test):.2f}.")  # fmt: skip
    dp, both = (found["counted"][way] for way in ("attention dp", "s-MoE: both"))
    more = {p: units(dp[p], found["layers"], HIDDEN, "bytes_busiest") / units(both[p], found["layers"], HIDDEN, "bytes_busiest")
            for p in ("4", "8")}  # fmt: skip
    yield (f"- Attention dp sends least, but {TOKENS:,} tokens are not many sequences: the rank with most of them has "
           f"{dp['4']['home_peak']:.1f} and {dp['8']['home_peak']:.1f} times the mean's tokens in all, more within a step, and the "
           f"busiest rank's bytes, which a link waits for, are {more['4']:.2f} and {more['8']:.2f} times those of s-MoE. A single "
           "prompt has all its tokens, its attention and its KV on one rank.\n")  # fmt: skip


def wire_ns(cell, rate):
    """Of the reduce-scatter and the allgather, and of the all-to-alls, by the busiest rank's bytes."""
    sums = 0 if cell["pipeline"] == "dp" else (3 if cell["pipeline"] == "ds-moe" else 2) * (1 - 1 / cell["ranks"]) * TOKENS * REAL_HIDDEN * 2
    return sums / rate * 1e9, (cell["bytes_busiest"] - sums) / rate * 1e9


def timed_page(found):
    cells = found["timed"]
    cell = lambda pipeline, op, link: next(c for c in cells if (c["pipeline"], c["op"], c["link"]) == (pipeline, op, link))
    yield (f"## One layer's time\n\nA prefill of {TOKENS:,} tokens in one step, 4 ranks, one layer of gpt-oss-20b's shape (H 2880, I 2880, "
           "64 and 8 heads) with random weights, the recording's first layer, exact combine, direct, one-shot, dedup. Ways take "
           "turns. Bound: (t0 + wire of DS-MoE bulk) / (wire of reduce-scatter and allgather + the larger of t0 and the all-to-alls' "
           "wire), computed; t0 is the time of DS-MoE bulk without a link, wires are the busiest ranks' bytes over the link's "
           "rate.\n\n| link | way | units, counted | time without link, ms | time computed, ms | time measured, ms | speed-up "
           "measured | 0.85 x bound |\n|---|---|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for link in LINKS:
        base, t0 = cell("ds-moe", "bulk", link), cell("ds-moe", "bulk", "none")["median_ns"]
        rate = float(link.split("MB/s")[0]) * 1e6
        for pipeline, op in (("ds-moe", "bulk"), ("s-moe", "bulk"), ("ds-moe", "fused"), ("s-moe", "fused")):
            c, free = cell(pipeline, op, link), cell(pipeline, op, "none")["median_ns"]
            sums, rows = wire_ns(c, rate)
            bound = (t0 + sum(wire_ns(base, rate))) / (sums + max(t0, rows))
            yield (f"| {link_name(link)} | {'DS-MoE' if pipeline == 'ds-moe' else 's-MoE: both'}, {op} | {units(c, 1, REAL_HIDDEN):.3f} | "
                   f"{ms(free)} | {'-' if op == 'fused' else ms(c['model_ns'])} | {ms(c['median_ns'])} | "
                   f"{base['median_ns'] / c['median_ns']:.2f} | {f'{0.85 * bound:.2f}' if (pipeline, op) == ('s-moe', 'fused') else '-'} |")  # fmt: skip
    yield ""
    yield ("Where tokens go does not depend on widths: in this layer the narrow shape (`--shape narrow`, H 64), by which all layers "
           "were counted, sends as many units as the real one.\n")  # fmt: skip
    for c in found["narrow"]:
        same = cell(c["pipeline"], "bulk", "none")
        yield (f"- {'DS-MoE, dedup' if c['pipeline'] == 'ds-moe' else 's-MoE: both'}: "
               f"{units(c, 1, HIDDEN):.6f} units against {units(same, 1, REAL_HIDDEN):.6f}, LAR {c['lar']:.6f} and {same['lar']:.6f}, "
               f"{c['remote_ranks']:.6f} and {same['remote_ranks']:.6f} remote ranks.")  # fmt: skip
    yield ""


def page(kept):
    found = kept["found"]
    yield "# Speculative MoE with recorded routing\n"
    yield (f"By `bench/paper-smoe --trace {kept['name']}` on {kept['machine']}. The recording is replayed through random models "
           "(`coterie bench pipeline --shape NAME --routing trace:FILE`): each token calls the experts on record, all else is the "
           "engine's own path. A fifth of its sequences, which groups and tables learn from (`coterie group --expert-load 1.2 "
           "--split 0.2`), is not run. What the recording of gpt-oss-20b is: docs/GROUPING.md, On recorded traces. models/tiny, all "
           "ways and sweeps: docs/PAPER_SMOE.md.\n")  # fmt: skip
    if kept.get("note"):
        yield kept["note"] + "\n"
    yield from counted_page(found)
    yield from timed_page(found)
