"""The page and the plots that bench/paper-smoe writes, of what it kept: {"parts": {part: {way: [cell]}}, ...}, where a cell is an object
of `coterie bench pipeline --json`. Python's standard library alone."""
import html, math, statistics

RANKS, LAYERS, TOP_K = 4, 6, 4
SLOW, HOP = "12.5MB/s,0us", "1GB/s,500us"
RATES = (0.25, 0.5, 0.75, 1.0)

def units(cell, hidden=192, layers=LAYERS):
    """Elements that a rank sends in a layer, in T x H."""
    return cell["bytes"] / (cell["ranks"] * layers * cell["tokens"] * hidden * 2)


def of_link(cells, way, link, tokens=None):
    return next(c for c in cells[way] if c["link"] == link and tokens in (None, c["tokens"]))


def speed_up(cells, way, link, key="median_ns", tokens=None, base="DS-MoE"):
    return of_link(cells, base, link, tokens)[key] / of_link(cells, way, link, tokens)[key]


def ms(ns):
    return f"{ns / 1e6:.3g}" if ns < 1e9 else f"{ns / 1e6:.0f}"


def link_name(link):
    rate, hop = link.split(",")
    return f"{float(rate[:-4]) / (125 if rate.endswith('MB/s') else 0.125):g} Gbit/s, {float(hop[:-2]) / 1e3:g} ms"


def ablation_page(cells):
    yield ("## Ablation\n\nPrefill of 1,024 tokens, all links 0.1 Gbit/s without latency. Units: elements that a rank sends in a "
           "layer, in T x H. "
           "Expert peak: calls of the busiest rank's experts over the mean, in the layer where that is most. Busiest bytes: what the "
           "busiest "
           "rank of each exchange sends or takes, the larger, which a link's rate divides.\n")  # fmt: skip
    yield ("| way | units, counted = closed form | LAR | remote ranks | expert peak | busiest bytes, MB | rounds a layer | ratio of "
           "busiest bytes, computed | "
           "time computed, ms | time measured, ms | speed-up measured |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for way in cells:
        c = of_link(cells, way, SLOW)
        steps = c["tokens"] / 512
        yield (f"| {way} | {units(c):.3f} | {c['lar']:.3f} | {c['remote_ranks']:.2f} | {c['expert_peak']:.2f} | "
               f"{c['bytes_busiest'] / 1e6:.2f} | "
               f"{(c['rounds'] / steps - 2) / LAYERS:.0f} | {speed_up(cells, way, SLOW, 'bytes_busiest'):.2f} | {ms(c['model_ns'])} | "
               f"{ms(c['median_ns'])} | {speed_up(cells, way, SLOW):.2f} |")  # fmt: skip
    yield "\n![Speed-up of each way over DS-MoE](paper_smoe_ablation.svg)\n"


def sweep_page(title, text, cells, links, label, base="DS-MoE"):
    yield f"## {title}\n\n{text}\n"
    ways = [w for w in cells if w != base]
    yield (f"| link | {label} | DS-MoE measured, ms | " + " | ".join(f"{w}, measured | computed" for w in ways) + " |\n|---|---:|---:|"
           + "---:|---:|" * len(ways))  # fmt: skip
    for link in links:
        for c in [c for c in cells[base] if c["link"] == link]:
            row = " | ".join(f"{speed_up(cells, w, link, tokens=c['tokens']):.2f} | {speed_up(cells, w, link, 'model_ns', c['tokens']):.2f}"
                             for w in ways)  # fmt: skip
            yield f"| {link_name(link)} | {c['tokens']} | {ms(c['median_ns'])} | {row} |"


def lar_page(cells):
    yield ("## Local activation rate against speed-up\n\nRouting drawn so that just that share stays, 512 tokens, 0.1 Gbit/s; s-MoE "
           "without de-duplication, as the paper's formulas have it, over DS-MoE at 0.25. Formula: (3 (P - 1) + 2 K (1 - 1/P)) / "
           "(2 (P - 1) + 2 K (1 - LAR)).\n")  # fmt: skip
    yield "| LAR | formula | ratio of busiest bytes, computed | time computed | speed-up measured |\n|---:|---:|---:|---:|---:|"
    for rate in RATES:
        way = f"{rate}"
        yield (f"| {rate:.2f} | {formula(rate):.2f} | {speed_up(cells, way, SLOW, 'bytes_busiest'):.2f} | "
               f"{speed_up(cells, way, SLOW, 'model_ns'):.2f} | {speed_up(cells, way, SLOW):.2f} |")  # fmt: skip
    yield "\n![Speed-up by local activation rate](paper_smoe_lar.svg)\n"


def formula(rate, ranks=RANKS, k=TOP_K):
    return (3 * (ranks - 1) + 2 * k * (1 - 1 / ranks)) / (2 * (ranks - 1) + 2 * k * (1 - rate))


def shape_page(cells):
    yield (f"## A real shape\n\nOne layer of gpt-oss-20b's shape (H 2880, I 2880, 64 and 8 heads), random weights, "
           "models/tiny's routing in its first layer, prefill of "
           "512 tokens. `fused` streams rows while tiles are computed: what it hides is not in the computed time.\n")  # fmt: skip
    yield ("| way | units, counted = closed form | LAR | time without link, ms | link | time computed, ms | time measured, ms | "
           "ratio of busiest bytes, computed | speed-up measured |\n|---|---:|---:|---:|---|---:|---:|---:|---:|")  # fmt: skip
    for way in cells:
        free = of_link(cells, way, "none")
        for c in cells[way][1:]:
            yield (f"| {way} | {units(c, 2880, 1):.3f} | {c['lar']:.3f} | {ms(free['median_ns'])} | {link_name(c['link'])} | "
                   f"{'-' if c['op'] == 'fused' else ms(c['model_ns'])} | {ms(c['median_ns'])} | "
                   f"{speed_up(cells, way, c['link'], 'bytes_busiest'):.2f} | {speed_up(cells, way, c['link']):.2f} |")  # fmt: skip
    yield ""


def agreement(kept):
    """How far computed times are from measured ones, of bulk, by link: the worst and the median ratio."""
    off = {}
    for part, cells in kept["parts"].items():
        for c in [c for way in cells.values() for c in way if c["link"] != "none" and c["op"] == "bulk"]:
            off.setdefault(c["link"], []).append(c["model_ns"] / c["median_ns"])
    yield ("## Computed over measured times\n\nThe median without a link, plus the busiest ranks' bytes over the rate that the link let "
           "pass in the same run, plus rounds times its "
           "latency, over the median with the link; `bulk`, all cells of this page. Where a link is fast, nearly all is the time "
           "without one, which varies by "
           "more than the wire takes where four ranks share two cores. That ranks compute while others' messages travel, and what it takes to "
           "wake them in every round of a decode, the sum does not know.\n\n| link | cells | least | median | most | within 10 % |\n"
           "|---|---:|---:|---:|---:|---:|")  # fmt: skip
    for link, ratios in sorted(off.items()):
        within = sum(abs(r - 1) <= 0.1 for r in ratios) / len(ratios)
        yield (f"| {link_name(link)} | {len(ratios)} | {min(ratios):.2f} | {statistics.median(ratios):.2f} | {max(ratios):.2f} | "
               f"{100 * within:.0f} % |")  # fmt: skip
    yield ""


def saved(rate, ranks, k):
    return f"{100 * (1 - 1 / formula(rate, ranks, k)):.0f} %"


def volumes():
    yield ("| P, K | saved without any speculation (LAR 1/P) | LAR 0.5 | LAR 1 | K at which LAR 1 saves 75 % |\n|---|---:|---:|---:|---:|")
    for ranks, k, name in ((4, 4, ""), (8, 2, ", Mixtral"), (8, 6, ", DeepSeek-V2"), (8, 8, "")):
        rates = " | ".join(saved(rate, ranks, k) for rate in (1 / ranks, 0.5, 1))
        yield f"| {ranks}, {k}{name} | {rates} | {2.5 * ranks:.0f} |"
    yield ""


def verdict(parts):
    yield ("## What of the paper holds\n\nThe paper's volumes, with the formulas that its text lost (reduce-scatter and allgather "
           "(P - 1) / P of T x H each, allreduce twice that, an all-to-all K (1 - LAR) / P):\n")  # fmt: skip
    yield from volumes()
    yield ("- **\"32 to 75 % less\" (section 3.2) does not follow.** With its own models and 8 ranks no local activation rate saves "
           "more than "
           f"{saved(1, 8, 6)} without de-duplication. 75 % takes K = 2.5 P, which neither has.")  # fmt: skip
    a = parts.get("ablation")
    if a:
        up = lambda way, base="DS-MoE", key="bytes_busiest": speed_up(a, way, SLOW, key, base=base)
        lar = {w: round(of_link(a, w, SLOW)["lar"], 3) for w in a}  # as the table has them
        plain = "DS-MoE, direct, one-shot, dedup"
        all_bytes = lambda way: of_link(a, "DS-MoE", SLOW)["bytes"] / of_link(a, way, SLOW)["bytes"]
        peak = lambda way: of_link(a, way, SLOW)["expert_peak"]
        yield (f"- **Most of the gain is there before anything is foretold.** A reduce-scatter in place of the allreduce, with "
               f"de-duplication, sends "
               f"{all_bytes('s-MoE: neither'):.2f} times less than DS-MoE by itself; shuffle and groups make it "
               f"{all_bytes('s-MoE: both'):.2f}. DS-MoE with "
               f"de-duplication, which needs no speculation either, is at {all_bytes(plain):.2f}.")  # fmt: skip
        yield (f"- **Shuffle and groups need each other for LAR** (section 5.4 gives groups 27 % of the gain on DeepSeek-V2, 4 % on "
               f"Mixtral): neither "
               f"{lar['s-MoE: neither']:.2f}, shuffle {lar['s-MoE: shuffle']:.2f}, groups {lar['s-MoE: groups']:.2f}, both "
               f"{lar['s-MoE: both']:.2f}, "
               f"homes by the true experts {lar['s-MoE: groups, true homes']:.2f}. Section 5.5's LAR is 43 and 61 % higher than "
               f"DS-MoE's; here both "
               f"together are {100 * (lar['s-MoE: both'] / lar['DS-MoE'] - 1):.0f} % higher.")  # fmt: skip
        yield (f"- **Groups make a rank hot, and links wait for that rank.** Its experts get {peak('s-MoE: groups'):.2f} times the "
               f"mean's calls in the worst layer, with "
               f"consecutive experts {peak('s-MoE: neither'):.2f}, whatever limit they were made for in training. By all bytes both "
               f"are worth {all_bytes('s-MoE: both'):.2f}, by "
               f"the busiest rank's {up('s-MoE: both'):.2f}, where neither has {up('s-MoE: neither'):.2f} and shuffle alone "
               f"{up('s-MoE: shuffle'):.2f}. The paper's "
               "volumes are means over ranks and do not show it.")  # fmt: skip
        yield (f"- **6.5 times (p90 TBT) is not in the volumes.** A padded baseline sends {1 / all_bytes('DS-MoE, padded'):.1f} times what "
               f"DS-MoE does here, {1 / up('DS-MoE, padded'):.1f} times by the busiest rank's bytes, of which it has "
               f"{up('s-MoE: both', 'DS-MoE, padded'):.1f} times as many as s-MoE; a ring of 3 P rounds a layer against 4 of one hop "
               f"gives {(3 * RANKS * LAYERS + 2) / (4 * LAYERS + 2):.1f} where latency is all. Either is a choice of baseline, not of speculation: DS-MoE in one hop, one-shot and "
               "de-duplicated, is in each table for that reason.")  # fmt: skip
        yield (f"- **One-shot exchanges save a round a layer**, nothing in bytes ({units(of_link(a, 's-MoE: both', SLOW)):.2f} units "
               f"either way); "
               f"de-duplication with groups saves {100 * (1 - all_bytes('s-MoE: both, no dedup') / all_bytes('s-MoE: both')):.0f} % "
               "of bytes with exact combine, more with reduced. The paper's 7 % for all its engineering is of that order.")  # fmt: skip
    if b := parts.get("batch"):
        one = {way: of_link(b, way, HOP) for way in b}  # of the fewest sequences
        s_moe = one["s-MoE: both"]
        beside = lambda way: (f"{ms(one[way]['median_ns'])} ({one[way]['median_ns'] / s_moe['median_ns']:.2f} times as long, by rounds "
                              f"{one[way]['rounds'] / s_moe['rounds']:.2f})")  # fmt: skip
        yield (f"- **Decode is rounds.** With {link_name(HOP)}, a step of one token takes s-MoE {ms(s_moe['median_ns'])} ms, DS-MoE on its "
               f"ring {beside('DS-MoE')}, in one hop {beside('DS-MoE, direct')}, one-shot with de-duplication "
               f"{beside('DS-MoE, direct, one-shot, dedup')}.")  # fmt: skip
    yield "- **Shuffling costs next to nothing**, as the paper says: docs/BYTES.md has what `bench_shuffle` finds."
    yield ("- **89 % accuracy is not what sends tokens.** It is a metric of the paper's own. What matters is the LAR under even "
           "shares, and how far the "
           "true homes' is above it; recall by method is in docs/GROUPING.md.")  # fmt: skip
    yield "- Throughput under latency targets (TTFT, TPOT, p90 TBT) on GPUs is not measured here.\n"


def page(kept):
    parts = kept["parts"]
    yield "# Speculative MoE, measured again\n"
    yield (f"By `bench/paper-smoe{' --quick' if kept['quick'] else ''}` on {kept['machine']}. models/tiny (H 192, 6 layers, {TOP_K} "
           f"of 32 experts), {RANKS} "
           "ranks as threads, bf16, exact combine, operator `bulk` unless said otherwise; text that tables have not learnt from. "
           "Links are shaped by "
           "`--link`. **Measured** columns are times by the clock, or their ratios; **computed** ones follow from counted bytes and rounds "
           "(`model_ns` of `coterie bench pipeline`); counts equal docs/BYTES.md's closed forms in every cell, or this page would "
           "not be. With the recorded routing of a large model, 4,096 tokens, 4 and 8 ranks: docs/PAPER_SMOE_RECORDED.md.\n")  # fmt: skip
    if kept.get("note"):
        yield kept["note"] + "\n"
    if "ablation" in parts:
        yield from ablation_page(parts["ablation"])
    if "batch" in parts:
        text = "Decode, a token of each sequence a step; speed-ups over DS-MoE (ring, two-phase)."
        yield from sweep_page("Batch", text, parts["batch"], [HOP], "sequences")
        yield "\n![Speed-up by batch](paper_smoe_batch.svg)\n"
    if "tokens" in parts:
        yield from sweep_page("Sequence", "Prefill of so many tokens; speed-ups over DS-MoE.", parts["tokens"], [SLOW, HOP], "tokens")
        yield "\n![Speed-up by tokens](paper_smoe_tokens.svg)\n"
    if "link" in parts:
        links = [c["link"] for c in parts["link"]["DS-MoE"] if c["link"] != "none"]
        yield from sweep_page("Link", "Prefill of 512 tokens; speed-ups over DS-MoE.", parts["link"], links, "tokens")
        yield "\n![Speed-up by link](paper_smoe_link.svg)\n"
    if "lar" in parts:
        yield from lar_page(parts["lar"])
    if "shape" in parts:
        yield from shape_page(parts["shape"])
    yield from agreement(kept)
    yield from verdict(parts)


# ---- plots ----

COLOURS = ["#2171b5", "#c0392b", "#238b45", "#6a51a3", "#d94801"]


def axes(width, height, top, label, x0=60, y0=24):
    """A frame with a grid of speed-ups from 0 to `top`."""
    step = 0.5 if top <= 4 else 1
    yield (f'<rect width="100%" height="100%" fill="#fff"/><path d="M{x0} {y0}v{height}h{width}" fill="none" stroke="#444"/>'
           f'<text transform="rotate(-90)" x="{-(y0 + height / 2)}" y="18" text-anchor="middle">{html.escape(label)}</text>')  # fmt: skip
    for i in range(int(top / step + 1e-9) + 1):
        y = y0 + height * (1 - i * step / top)
        yield (f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>'
               f'<path d="M{x0} {y:.1f}h{width}" stroke="{"#888" if i * step == 1 else "#ddd"}"/>')  # fmt: skip


def svg(width, height, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="13">{"".join(body)}</svg>\n')  # fmt: skip


def draw_lines(ticks, series, axis, apart=(), x0=60, y0=24, w=460, h=300):
    """series: [(name, measured [tick], computed [tick])]; ticks are names at equal distances; no line goes to
    those in `apart`."""
    top = math.ceil(2 * 1.08 * max(v for _, m, c in series for v in (*m, *c) if v)) / 2
    body = list(axes(w, h, top, "speed-up over DS-MoE"))
    x = lambda i: x0 + w * (i + 0.5) / len(ticks)
    y = lambda v: y0 + h * (1 - v / top)
    for i, tick in enumerate(ticks):
        body.append(f'<text x="{x(i):.1f}" y="{y0 + h + 18}" text-anchor="middle">{html.escape(str(tick))}</text>')
    body.append(f'<text x="{x0 + w / 2}" y="{y0 + h + 40}" text-anchor="middle">{html.escape(axis)}</text>')
    for n, (name, measured, computed) in enumerate(series):
        colour, key = COLOURS[n % len(COLOURS)], y0 + 14 + 40 * n
        for values, dash in ((measured, ""), (computed, ' stroke-dasharray="5 4"')):
            path = "".join(f"{'M' if not i or i in apart else 'L'}{x(i):.1f} {y(v):.1f}" for i, v in enumerate(values))
            body.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        body += [f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for i, v in enumerate(measured)]
        body.append(f'<text x="{x0 + w + 16}" y="{key}" fill="{colour}">{html.escape(name)}</text>')
    key = y0 + 14 + 40 * len(series)
    body.append(f'<path d="M{x0 + w + 16} {key - 4}h26" stroke="#444" stroke-width="2"/><text x="{x0 + w + 48}" y="{key}">measured</text>'
                f'<path d="M{x0 + w + 16} {key + 16}h26" stroke="#444" stroke-width="2" stroke-dasharray="5 4"/>'
                f'<text x="{x0 + w + 48}" y="{key + 20}">computed</text>')  # fmt: skip
    return svg(x0 + w + 250, y0 + h + 54, body)


def draw_bars(rows, x0=230, w=420, high=30):
    """rows: [(name, measured, computed)]: two bars each."""
    top = max(max(m, c) for _, m, c in rows) * 1.12
    body = ['<rect width="100%" height="100%" fill="#fff"/>']
    for i in range(int(top * 2) + 1):
        x = x0 + w * i / 2 / top
        body.append(f'<path d="M{x:.1f} 30v{high * len(rows)}" stroke="{"#888" if i == 2 else "#ddd"}"/>'
                    f'<text x="{x:.1f}" y="22" text-anchor="middle">{i / 2:g}</text>')  # fmt: skip
    for n, (name, measured, computed) in enumerate(rows):
        y = 34 + high * n
        body.append(f'<text x="{x0 - 8}" y="{y + 15}" text-anchor="end">{html.escape(name)}</text>')
        for value, colour, at in ((measured, COLOURS[0], 0), (computed, "#abd0e6", 11)):
            body.append(f'<rect x="{x0}" y="{y + at}" width="{w * value / top:.1f}" height="10" fill="{colour}"/>'
                        f'<text x="{x0 + w * value / top + 5:.1f}" y="{y + at + 9}" font-size="10">{value:.2f}</text>')  # fmt: skip
    foot = 34 + high * len(rows) + 16
    body.append(f'<rect x="{x0}" y="{foot - 10}" width="12" height="10" fill="{COLOURS[0]}"/>'
                f'<text x="{x0 + 18}" y="{foot}">speed-up over DS-MoE, measured</text>'
                f'<rect x="{x0 + 250}" y="{foot - 10}" width="12" height="10" fill="#abd0e6"/>'
                f'<text x="{x0 + 268}" y="{foot}">ratio of busiest bytes, computed</text>')  # fmt: skip
    return svg(x0 + w + 60, foot + 12, body)


def plots(parts):
    """{file: text}"""
    out = {}
    sweep = lambda cells, link, way, key: [speed_up(cells, way, link, key, c["tokens"]) for c in cells["DS-MoE"] if c["link"] == link]
    both = lambda cells, link: [(w, sweep(cells, link, w, "median_ns"), sweep(cells, link, w, "model_ns")) for w in cells if w != "DS-MoE"]
    ticks = lambda cells, link: [c["tokens"] for c in cells["DS-MoE"] if c["link"] == link]
    if a := parts.get("ablation"):
        out["ablation"] = draw_bars([(w, speed_up(a, w, SLOW), speed_up(a, w, SLOW, "bytes_busiest")) for w in a])
    if b := parts.get("batch"):
        out["batch"] = draw_lines(ticks(b, HOP), both(b, HOP), f"sequences that decode at once; {link_name(HOP)}")
    if t := parts.get("tokens"):
        out["tokens"] = draw_lines(ticks(t, SLOW), both(t, SLOW), f"tokens of a prefill; {link_name(SLOW)}")
    if k := parts.get("link"):
        links = [c["link"] for c in k["DS-MoE"] if c["link"] != "none"]
        one = lambda w, key: [speed_up(k, w, link, key) for link in links]
        names = [link_name(link).replace(" Gbit/s, ", " / ").replace(" ms", "") for link in links]
        hops = [link.split(",")[1] for link in links]
        apart = [i for i in range(1, len(links)) if hops[i] != hops[i - 1]]
        lines = [(w, one(w, "median_ns"), one(w, "model_ns")) for w in k if w != "DS-MoE"]
        out["link"] = draw_lines(names, lines, "Gbit/s / ms a hop; 512 tokens", apart)
    if r := parts.get("lar"):
        out["lar"] = draw_lines(RATES, [("s-MoE, no dedup", [speed_up(r, f"{x}", SLOW) for x in RATES], [formula(x) for x in RATES])],
                                "local activation rate; computed: the formula")  # fmt: skip
    return out
