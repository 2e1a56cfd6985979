"""README's bytes: the phases that `make demo` shows and the table of bytes a token, against the program (with --isa avx2, so that
every processor of the kind writes the same text; skipped on others)."""

import os
import pathlib
import re
import subprocess
import sys

PROGRAM = os.environ["COT_PROGRAM"]
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
QUESTION = re.search(r"^PROMPT = (.*)$", (SOURCE / "Makefile").read_text(), re.M)[1]
PHASES = ("dispatch", "combine", "attention", "metadata", "control")


def run(ranks, *options):
    done = subprocess.run([PROGRAM, "run", SOURCE / "models" / "tiny", "-p", f"{QUESTION}\nAnswer:", "--ranks", ranks, "--max-tokens",
                           "80", "--stats", "--isa", "avx2", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def a_token(stats):
    return {phase: re.search(rf"^{phase} .* (\d+)$", stats, re.M)[1] for phase in PHASES}


def main():
    if " avx2 " not in f" {pathlib.Path('/proc/cpuinfo').read_text()} ".replace("\n", " "):
        print("skipped: this processor has no AVX2, with which README's bytes were counted")
        return 77
    readme = (SOURCE / "README.md").read_text()
    text, stats = run("4")
    shown = re.search(r"^    phase .*?\n\n    local.*?$", readme, re.M | re.S)[0].replace("\n    ", "\n").removeprefix("    ")
    assert shown in stats, (shown, stats)
    assert "\n".join("    " + line for line in text.splitlines()) in readme, text
    rows = re.findall(r"^\| (\d+) \| (tp|dp) \|" + r" (\d+) \|" * 5 + r" ([\d.]+) \|$", readme, re.M)
    assert len(rows) == 4, rows
    for ranks, attention, *numbers, rate in rows:
        _, stats = run(ranks, "--attention", attention)
        assert list(a_token(stats).values()) == numbers, (ranks, attention, numbers, stats)
        assert f"local activation rate {rate}," in stats, (ranks, attention, rate, stats)
    reduced, bulk = a_token(run("4", "--combine", "reduced")[1]), a_token(run("4", "--op", "bulk")[1])
    assert f"as dispatch does: {reduced['combine']} bytes a token instead of {numbers_of(rows, '4', 'tp')[1]} on four\n" in readme, reduced
    assert f"dispatches {bulk['dispatch']} bytes and needs {bulk['metadata']} of metadata there" in readme, bulk
    return 0


def numbers_of(rows, ranks, attention):
    return next(numbers for r, a, *numbers in rows if (r, a) == (ranks, attention))


sys.exit(main())
