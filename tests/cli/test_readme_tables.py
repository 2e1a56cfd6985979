"""README's numbers: the phases that `make demo` shows, the table of bytes a token, that of pipelines, and that of what rounded weights lose (a row
drawn by chance, all with COT_LONG), against the program (with --isa avx2, so that every processor of the kind writes the same text; skipped on
others)."""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

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


def check_pipelines(readme):
    """README's own commands, in the order of its table's rows."""
    commands = re.findall(r"^    (\$c .*out/trace.*|head .*out/T.*|head .*ds-moe.*)$", readme[readme.index("Tables of a text's routing"):], re.M)
    assert len(commands) == 4, commands
    profile, group, tables, baseline = commands
    none = tables.replace("--tables out/T.safetensors", "--predict none")
    rows = [re.findall(r"[\d.]+", row) for row in re.findall(r"^\| d?s-moe[^|]*\|((?: [\d.]+ \|){5})$", readme, re.M)]
    assert len(rows) == 4, rows
    with tempfile.TemporaryDirectory() as folder:
        for name in "models", "LICENSE":
            os.symlink(SOURCE / name, f"{folder}/{name}")
        os.mkdir(f"{folder}/out")

        def shell(line):
            done = subprocess.run(["bash", "-c", line], cwd=folder, env={**os.environ, "c": PROGRAM}, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stderr)
            return done.stderr

        shell(f"{profile} --isa avx2")
        shell(group)
        for line, row in zip((baseline, none, tables, f"{tables} --combine reduced"), rows):
            stats = shell(f"{line} --isa avx2")
            found = a_token(stats)
            told = [found[phase] for phase in ("attention", "dispatch", "combine")]
            told += [str(sum(int(found[phase]) for phase in PHASES if phase != "control")), re.search(r"activation rate ([\d.]+),", stats)[1]]
            assert told == row, (line, told, row)


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
    check_pipelines(readme)
    check_weights(readme)
    return 0


def check_weights(readme):
    shown = re.findall(r"^\| `(\w+)` \| [\d.]+ \| ([+-][\d.]+) \|", readme, re.M)
    assert [weights for weights, _ in shown] == ["int8", "fp8", "int4", "mxfp4"], shown
    for weights, loss in shown if os.environ.get("COT_LONG") else [random.choice(shown)]:
        tiny = SOURCE / "models" / "tiny"
        done = subprocess.run([PROGRAM, "eval", tiny, "--tokens", tiny / "heldout.safetensors", "--weights", weights, "--isa", "avx2",
                               "--compare", tiny], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        more = re.findall(r"^(?!all )\w+ +[\d.]+ +[\d.]+ +([+-][\d.]+) ", done.stdout, re.M)
        assert len(more) == 8 and max(more, key=float) == loss, (weights, loss, done.stdout)


def numbers_of(rows, ranks, attention):
    return next(numbers for r, a, *numbers in rows if (r, a) == (ranks, attention))


sys.exit(main())
