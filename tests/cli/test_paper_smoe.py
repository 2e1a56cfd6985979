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
if words[0] == "bench":
    s_moe = value("--pipeline") == "s-moe"
    links = ["none"] + [words[i + 1] for i, w in enumerate(words) if w == "--link"]
    cells = []
    for tokens in value("--tokens").split(","):
        for link in links:
            ns = (1e6 if s_moe else 2e6) * int(tokens)
            cells.append(dict(ranks=4, op=value("--op", "bulk"), tokens=int(tokens), link=link, median_ns=ns,
                              model_ns=None if link == "none" else ns * 1.25, bytes=5.0, bytes_formula=float(os.environ["FORM"]),
                              bytes_busiest=1e6 if s_moe else 3e6, rounds=26, lar=0.5, remote_ranks=1.5, expert_peak=1.2))
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
    kept = json.loads((folder / "kept.json").read_text())
    assert list(kept["parts"]) == list(PARTS)
    done = run(folder, "--redraw", "--note", "Taken by a stub.")
    assert done.returncode == 0 and "\nTaken by a stub.\n" in (folder / "PAPER_SMOE.md").read_text()
