"""bench/paper-smoe with a program in the place of coterie's that answers at once: every part is asked for what it needs, the page
has a table and a plot of each, ratios are those of the times, and bytes that are not their closed form end it."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
# Of bench pipeline's cells what the script reads; s-moe takes half the time of ds-moe.
STUB = f"""#!{sys.executable} -SE
import json, os, sys
words = sys.argv[1:]
value = lambda name, default=None: words[words.index(name) + 1] if name in words else default
if words[0] == "group":
    open(value("--tables"), "w")
    print(json.dumps([dict(layers=[dict(expert_peak_train=1.1, expert_peak_test=peak) for peak in (1.3, 1.5)])]))
if words[0] == "trace":
    header = b'{{"__metadata__": {{"layers": "0,3"}}}}'
    open(value("-o"), "wb").write(len(header).to_bytes(8, "little") + header)
if words[0] == "bench":
    links = ["none"] + [words[i + 1] for i, w in enumerate(words) if w == "--link"]
    cells = []
    kinds = [(p, o) for p in value("--pipeline", "-").split(",") for o in value("--op", "bulk").split(",")]
    for tokens, (pipeline, op) in [(t, k) for t in value("--tokens").split(",") for k in kinds]:
        for link in links:
            s_moe = pipeline == "s-moe"
            ns = (1e6 if s_moe else 2e6) * int(tokens)
            cells.append(dict(ranks=int(value("--ranks", 4)), op=op, pipeline=pipeline, predict=value("--predict") if s_moe else "",
                              tokens=int(tokens), link=link, median_ns=ns,
                              model_ns=None if link == "none" else ns * 1.25, bytes=5.0, bytes_formula=float(os.environ["FORM"]),
                              bytes_busiest=1e6 if s_moe else 3e6, rounds=26, lar=0.5, remote_ranks=1.5, expert_peak=1.2, home_peak=1.0))
    print(json.dumps(cells))
"""
PARTS = {"ablation": "## Ablation", "batch": "## Batch", "tokens": "## Sequence", "link": "## Link", "lar": "## Local activation rate",
         "shape": "## A real shape"}  # fmt: skip


def run(folder, *more, form="5"):
    return subprocess.run([sys.executable, SOURCE / "bench" / "paper-smoe", "--quick", "--program", folder / "coterie", "--keep",
                           folder / "kept.json", "-o", folder, *more], capture_output=True, text=True, env={**os.environ, "FORM": form})  # fmt: skip


def refuse(word, folder, *more, form="5"):
    done = run(folder, *more, form=form)
    assert done.returncode and word in done.stderr.splitlines()[-1], done.stderr


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "coterie").write_text(STUB)
    (folder / "coterie").chmod(0o755)
    refuse("nothing was kept", folder, "--redraw")
    refuse("no part 'all'", folder, "--only", "all")
    refuse("are not docs/BYTES.md's", folder, "--only", "lar", form="6")
    done = run(folder)
    assert done.returncode == 0 and not done.stderr, done.stderr
    page = (folder / "PAPER_SMOE.md").read_text()
    for part, heading in PARTS.items():
        assert heading in page, part
        if part != "shape":
            assert f"(paper_smoe_{part}.svg)" in page, part
            xml.etree.ElementTree.parse(folder / f"paper_smoe_{part}.svg")
    rows = {cells[0]: cells for line in page.splitlines() if (cells := [c.strip() for c in line.strip("|").split("|")])}
    assert rows["s-MoE: both, no dedup"][-1] == "2.00" and rows["DS-MoE, padded"][-1] == "1.00", rows
    assert rows["s-MoE: shuffle"][7] == "3.00" and rows["s-MoE: shuffle"][8:10] == ["1280", "1024"], rows["s-MoE: shuffle"]
    assert rows["1.00"][1] == "2.50" and rows["8, 6, DeepSeek-V2"][3] == "56 %", rows
    assert re.search(r"\| 8 Gbit/s, 0.5 ms \| 64 \| 128 \|", page), page
    # what sentences say is of these cells
    assert "sends 1.0 times what DS-MoE does here, 1.0 times by the busiest rank's bytes, of which it has 3.0 times as many as" in page, page
    assert "both together are 0 % higher" in page, page
    assert "takes s-MoE 1 ms, DS-MoE on its ring 2 (2.00 times as long, by rounds 1.00), in one hop 2" in page, page
    kept = json.loads((folder / "kept.json").read_text())
    assert list(kept["parts"]) == list(PARTS)
    done = run(folder, "--trace", folder)
    assert done.returncode == 0 and not done.stderr, done.stderr
    page = (folder / "PAPER_SMOE_RECORDED.md").read_text()
    assert f"--trace {folder.name}`" in page and "all 2 layers" in page and "1.50 by layer, in the mean 1.40" in page, page
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    assert [row[2] for row in rows if row[0] == "s-MoE: both"] == ["2.23"], rows
    assert [row[6] for row in rows if row[1] == "s-MoE: both, fused"] == ["2.00", "2.00"], rows
    refuse("are not docs/BYTES.md's", folder, "--trace", folder, form="6")
    done = run(folder, "--redraw", "--note", "Taken by a stub.")
    assert done.returncode == 0 and "\nTaken by a stub.\n" in (folder / "PAPER_SMOE.md").read_text()
