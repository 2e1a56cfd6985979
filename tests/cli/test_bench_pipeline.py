"""`coterie bench pipeline`: every cell's counted bytes are those of docs/BYTES.md, rounds are as many as the pipeline has, the
local activation rate is that of predict --evaluate or the one drawn for, and cells that make no sense are refused or left out.
Times are not looked at."""

import json
import os
import subprocess
import tempfile

PROGRAM = os.environ["COT_PROGRAM"]
MODEL = os.path.join(os.environ["COT_SOURCE"], "models", "tiny")
TEXT = os.path.join(os.environ["COT_SOURCE"], "README.md")
LAYERS = 6


def run(*arguments, status=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    return done


def bench(*arguments):
    return json.loads(run("bench", "pipeline", *arguments, "--json", "--repeat", "1").stdout)


def refuse(word, *arguments, status=1):
    told = run("bench", "pipeline", *arguments, status=status).stderr.splitlines()
    assert len(told) == 1 and word in told[0], (arguments, told)


def check(cells):
    for cell in cells:
        assert cell["bytes"] > 0 and cell["median_ns"] > 0 and cell["p95_ns"] >= cell["median_ns"], cell
        assert cell["bytes"] == cell["bytes_formula"], cell
        assert cell["bytes"] / cell["ranks"] <= cell["bytes_busiest"], cell
        assert cell["bytes_busiest"] < 1.2 * cell["bytes"], cell  # weights and logits, too
        assert cell["home_peak"] >= 1 and cell["expert_peak"] >= 1, cell
        assert (cell["model_ns"] is None) == (cell["link"] == "none"), cell


def only(cells, **wanted):
    found = [cell for cell in cells if all(cell[name] == value for name, value in wanted.items())]
    assert len(found) == 1, (wanted, cells)
    return found[0]


def every_way():
    cells = bench(MODEL, "--op", "bulk,fused", "--predict", "none,gate", "--collective", "ring,direct", "--a2a",
                  "padded,two-phase,one-shot", "--dedup", "on,off", "--tokens", "61")
    check(cells)
    # ds-moe, and s-moe with two predictions, on a ring and direct: five ways of bulk and one of fused each
    assert len(cells) == 3 * 2 * 6, len(cells)
    rounds = {("s-moe", "direct", "one-shot"): 4, ("ds-moe", "direct", "two-phase"): 6, ("ds-moe", "ring", "two-phase"): 12,
              ("ds-moe", "direct", "one-shot"): 5, ("s-moe", "direct", "two-phase"): 5, ("s-moe", "ring", "one-shot"): 8}
    for (pipeline, collective, a2a), layer in rounds.items():
        for cell in cells:
            if (cell["ranks"], cell["op"], cell["dedup"]) == (4, "bulk", "on") and \
                    (cell["pipeline"], cell["collective"], cell["a2a"]) == (pipeline, collective, a2a):
                assert cell["rounds"] == LAYERS * layer + 2, cell


def decodes_and_links():
    cells = bench(MODEL, "--phase", "decode,prefill", "--tokens", "1,8", "--decode-steps", "3", "--link", "50MB/s,10us",
                  "--link", "50MB/s,10us,groups=2:25MB/s,20us")
    check([cell for cell in cells if cell["tokens"] == 8])
    assert len(cells) == 2 * 2 * 2 * 3
    for cell in cells:
        if cell["phase"] == "decode":
            assert cell["rounds"] == LAYERS * (4 if cell["pipeline"] == "s-moe" else 12) + 2 or cell["a2a"] != "one-shot", cell
        if cell["link"] != "none":
            plain = only(cells, phase=cell["phase"], tokens=cell["tokens"], pipeline=cell["pipeline"], link="none")
            hop = 30e3 if "groups" in cell["link"] else 10e3
            wire = cell["model_ns"] - plain["median_ns"] - cell["rounds"] * hop
            rate = cell["link_bytes_per_s"]
            assert 0 < rate <= 5e7, cell
            at_rate = cell["bytes_busiest"] * 1e9 / rate  # on the ranks' own links
            assert wire >= at_rate * (1 - 1e-6) - 1, (cell, plain)
            if "groups" not in cell["link"]:
                assert abs(wire - at_rate) < 1e-3 * at_rate + 1, (cell, plain)
        else:
            assert cell["link_bytes_per_s"] is None, cell


def sequences_at_home():
    """Attention dp: no sums travel, and one sequence has all its tokens on one rank, which sends and takes all there is."""
    cells = bench(MODEL, "--pipeline", "dp", "--predict", "none,gate", "--collective", "ring,direct", "--a2a", "one-shot",
                  "--dedup", "on", "--combine", "reduced", "--tokens", "40")
    assert len(cells) == 1, cells
    cell = cells[0]
    assert cell["pipeline"] == "dp" and cell["bytes"] == cell["bytes_formula"] > 0 and cell["home_peak"] == 4, cell
    width = 192 * 2
    assert cell["bytes"] == 2 * width * round(cell["remote_ranks"] * 40 * LAYERS), cell
    assert cell["bytes_busiest"] >= cell["bytes"], cell


def replays():
    run("profile", MODEL, "--text", TEXT, "-o", "t.st")
    run("group", "t.st", "--ranks", "4", "--iterations", "1", "--split", "0.4", "--tables", "g.st")
    predicted = json.loads(run("predict", "--tables", "g.st", "--evaluate", "t.st", "--json").stdout)
    even = {row["method"]: row["lar_even_test"] for row in predicted if "lar_even_test" in row}
    tokens = str(predicted[0]["tokens_test"])
    cells = bench(MODEL, "--tables", "g.st", "--routing", "trace:t.st", "--tokens", tokens, "--combine", "reduced",
                  "--pipeline", "ds-moe,s-moe", "--dedup", "on", "--predict", "none,token-table,algorithm-2,oracle,worst")
    check(cells)
    for method in ("token-table", "algorithm-2"):
        assert abs(only(cells, predict=method)["lar"] - even[method]) < 1e-6, (method, even, cells)
    moved = {cell["predict"] if cell["pipeline"] == "s-moe" else "ds-moe": cell["bytes"] for cell in cells}
    assert moved["oracle"] < moved["algorithm-2"] < moved["none"] < moved["worst"] < moved["ds-moe"], moved
    learnt = "sequences that the tables did not learn from"
    refuse("are in the ", MODEL, "--tables", "g.st", "--routing", "trace:t.st", "--tokens", "65536")
    refuse(learnt, MODEL, "--tables", "g.st", "--routing", "trace:t.st", "--tokens", "65536")
    refuse(learnt, MODEL, "--tables", "g.st", "--routing", "trace:t.st", "--phase", "decode", "--tokens", "64")
    refuse("sequences of the trace", MODEL, "--routing", "trace:t.st", "--tokens", "65536")
    refuse("a trace to replay", MODEL, "--tables", "g.st", "--predict", "oracle")
    refuse("tokens to decode", MODEL, "--routing", "trace:t.st", "--phase", "prefill,decode", "--tokens", "64")
    for rate in ("0.25", "0.5", "1"):
        for cell in bench(MODEL, "--routing", f"lar:{rate}", "--tokens", "64", "--dedup", "off"):
            assert cell["lar"] == float(rate), cell


def what_is_refused():
    refuse("give a MODEL or --shape", status=2)
    refuse("unknown shape", "--shape", "gpt", status=2)
    refuse("takes X from 0 to 1", MODEL, "--routing", "lar:nan", status=2)
    refuse("--link takes", MODEL, "--link", "fast", status=2)
    refuse("--tokens takes integers", MODEL, "--tokens", "0", status=2)
    refuse("takes up to", MODEL, "--op", "bulk,,fused", status=2)
    for option, name in ("pipeline", "t-moe"), ("predict", "gat"), ("predict", "context"), ("collective", "ring,star"), ("a2a", "two"), ("dedup", "yes"), ("phase", "auto"):
        refuse(f"--{option} takes a list of ", MODEL, f"--{option}", name, status=2)
    refuse("--pipeline takes a list of ds-moe,s-moe,dp,auto, not 't-moe'", MODEL, "--pipeline", "dp,t-moe", status=2)
    refuse("none of these go together", MODEL, "--a2a", "padded", "--dedup", "on")
    refuse("at most 64 sequences", MODEL, "--phase", "decode", "--tokens", "65")
    refuse("no link is of such a shape", MODEL, "--ranks", "2", "--tokens", "8", "--link", "1GB/s,0us,groups=4:1GB/s,0us")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    every_way()
    decodes_and_links()
    sequences_at_home()
    replays()
    what_is_refused()
