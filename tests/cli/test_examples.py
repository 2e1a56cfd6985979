"""Every example of every command's help runs, each in a folder of its own that has the files that examples name.

test_examples.py [--bench]: those of the benchmarks, which take minutes; otherwise all others, and what guides write
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from openai_server import Server

PROGRAM = pathlib.Path(os.environ["COT_PROGRAM"])
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
BENCH = "--bench" in sys.argv
FABRIC = """\
vendid=0x2c9
switchguid=0x1(1)
Switch\t4 "S-0001"\t# "leaf" enhanced port 0 lid 1
[1]\t"H-000a"[1](a) \t# "dgx-01 mlx5_0" lid 5 4xNDR
[2]\t"H-000b"[1](b) \t# "dgx-02 mlx5_0" lid 6 4xNDR

caguid=0xa
Ca\t1 "H-000a"\t# "dgx-01 mlx5_0"
[1](a) \t"S-0001"[1]\t# lid 5 4xNDR
caguid=0xb
Ca\t1 "H-000b"\t# "dgx-02 mlx5_0"
[1](b) \t"S-0001"[2]\t# lid 6 4xNDR
"""


COLUMNS = 100  # of tables
# What prints text of its user's, or data for programs, has lines of any length.
ANY_WIDTH = re.compile(r"coterie (run|chat|tokenize|man|completions)\b|--json\b|^source ")


def too_wide(text):
    """The first line that a terminal of that many columns would break."""
    return next((line for line in text.splitlines() if len(line) > COLUMNS), None)


def shell(line, folder, said=b""):
    """Runs it as a reader would type it: bash, with coterie on the path."""
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=folder, env=env, capture_output=True,
                          input=said)


@contextlib.contextmanager
def serving(line, folder):
    """The URL of a server that the line starts; it ends well on SIGTERM."""
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", "-c", f"exec {line} --port 0"], cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    said, found = "", None
    for line in process.stderr:
        said += line
        if found := re.search(r"(?:serving \S+|routing) at (http://\S+)/v1", said):
            break
    try:
        if not found:
            raise AssertionError(f"it does not serve: {said}")
        yield found[1].replace("0.0.0.0", "127.0.0.1")
    finally:
        process.terminate()
        said += process.stderr.read()
        process.stderr.close()
    if process.wait():
        raise AssertionError(f"it exits with {process.returncode}: {said}")


def must(line, folder):
    run = shell(line, folder)
    if run.returncode:
        raise AssertionError(f"{line}: {run.stderr.decode()}")
    return run.stdout.decode()


def write_ids(path):
    """A safetensors file of two short sequences."""
    ids = {"ids.one": [5, 6, 7, 8], "ids.two": [9, 10, 11]}
    header, data = {}, b""
    for name, values in ids.items():
        bytes_ = struct.pack(f"<{len(values)}i", *values)
        header[name] = {"dtype": "I32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_gpt_oss(folder):
    """Routing of 40 tokens in 3 layers, 4 of 32 experts, as recordings of gpt-oss lie in a folder."""
    tokens, layers, top_k = 40, 3, 4
    folder.mkdir(parents=True)
    cells = [(t * 7 + l * 3 + k * 5) % 32 for t in range(tokens) for l in range(layers) for k in range(top_k)]
    (folder / "ids.u8").write_bytes(bytes(cells))
    (folder / "probs.bf16").write_bytes(struct.pack("<H", 0x3E80) * len(cells))
    rows = [{"row0": 20 * s, "rows": 20, "tokens": [f" w{t % 11}" for t in range(20)], "dataset": "x"} for s in (0, 1)]
    (folder / "index.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(folder):
    """The files that examples name: models are models/tiny, loads and maps such as the example's model would have."""
    (folder / "bin").mkdir()
    (folder / "bin" / "coterie").symlink_to(PROGRAM)
    (folder / "models").mkdir()
    for name in ("models/tiny", "MODEL"):
        (folder / name).symlink_to(SOURCE / "models" / "tiny")
    (folder / "tokenizer.json").symlink_to(SOURCE / "models" / "tiny" / "tokenizer.json")
    (folder / ".zsh" / "completions").mkdir(parents=True)
    text = (SOURCE / "docs" / "RATIONALE.md").read_text()
    for i, name in enumerate(("prompt.txt", "book.txt", "a.txt", "b.txt")):
        (folder / name).write_text(text[4000 * i : 4000 * (i + 1)] if i else "The town was")
    (folder / "keys.txt").write_text("sk-one\n")
    (folder / "workers.json").write_text('[{"url": "http://127.0.0.1:8001"}]')
    write_ids(folder / "ids.safetensors")
    write_gpt_oss(folder / "routing" / "gpt-oss-20b")
    (folder / "fabric.txt").write_text(FABRIC)
    (folder / "hosts.csv").write_text("host,gpu,adapter\ndgx-01,0,mlx5_0\ndgx-02,0,mlx5_0\n")
    shutil.copy(SOURCE / "tests/placement/samples/sglang-stat.pt", folder / "recording.pt")
    with open(folder / "counts.csv", "w") as csv:  # DeepSeek-R1's layers with experts
        csv.write("layer,expert,tokens\n")
        csv.writelines(f"{l},{e},{100 + (l * 31 + e * 17) % 97}\n" for l in range(3, 61) for e in range(256))
    for line in ("coterie profile MODEL --text book.txt --text a.txt -o trace.safetensors",
                 "coterie trace convert routing/gpt-oss-20b -o gpt-oss.safetensors",
                 "coterie group trace.safetensors --ranks 8 --iterations 2 --tables T.safetensors --placement P.json",
                 "coterie place --load counts.csv --ranks 32 --method eplb --slots 256 -o placement.json",
                 "coterie place convert placement.json --to vllm -o mapping.jsonl"):
        must(line, folder)


def examples():
    """{command: its examples}, as the program's own help tells them."""
    names = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    names = [line[2:22].strip() for line in names.split("commands:\n")[1].split("\n\n")[0].splitlines()]
    found = {}
    for name in names:
        page = subprocess.run([PROGRAM, "help", *name.split()], capture_output=True, text=True, check=True).stdout
        found[name] = [line[2:] for line in page.split("examples:\n")[1].splitlines()]
    return found


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.ready = pathlib.Path(cls.holder.name) / "ready"
        cls.ready.mkdir()
        prepare(cls.ready)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def run_example(self, line):
        """In a copy of the prepared folder, so that several can run at a time; what is wrong, or None."""
        with tempfile.TemporaryDirectory(dir=self.holder.name) as holder:
            folder = pathlib.Path(holder) / "here"
            shutil.copytree(self.ready, folder, symlinks=True)
            before = {f: f.stat().st_mtime_ns for f in folder.rglob("*")}
            if " bench serve " in line:  # of a server that runs
                with Server() as server:
                    run = shell(line.replace("http://127.0.0.1:8000", server.url), folder)
            elif line.startswith(("coterie serve ", "coterie router ")):
                with serving(line, folder):
                    return None
            elif line.startswith(("coterie chat http", "coterie rebalance http")):
                more = " --ranks 4 --rebalance load" if "rebalance" in line else ""
                with serving(f"coterie serve MODEL{more}", folder) as url:
                    run = shell(line.replace("http://localhost:8000", url), folder, b"Hello\n")
            else:
                run = shell(line, folder, b"Hello\n" if line.startswith("coterie chat ") else b"")
            if run.returncode:
                return f"it exits with {run.returncode}: {run.stderr.decode(errors='replace')}"
            wide = None if ANY_WIDTH.search(line) else too_wide(run.stdout.decode())
            if wide is not None:
                return f"more than {COLUMNS} columns: {wide}"
            changed = [f for f in folder.rglob("*") if f.is_file() and before.get(f) != f.stat().st_mtime_ns]
            if not run.stdout and not changed and not line.startswith("source "):
                return "nothing came of it"
            empty = [str(f) for f in changed if not f.stat().st_size]
            return f"nothing is in {empty}" if empty else None

    def test_all(self):
        found = examples()
        self.assertGreater(len(found), 15)
        lines = []
        for command, of_command in found.items():
            self.assertGreater(len(of_command), 0, command)
            lines += of_command if command.startswith("bench") == BENCH else []
        if not shutil.which("man"):
            for line in [line for line in lines if "| man " in line]:
                print(f"SKIPPED in part: there is no man for: {line}")
                lines.remove(line)
        with concurrent.futures.ThreadPoolExecutor(1 if BENCH else 2) as pool:  # what is measured runs alone
            for line, wrong in zip(lines, pool.map(self.run_example, lines)):
                with self.subTest(line):
                    self.assertIsNone(wrong)


    def test_help(self):
        """Help fits as well, but for examples, which are lines to copy."""
        for command in ([], *([name] for name in examples())):
            page = must(" ".join(["coterie", "help", *command]), self.ready)
            wide = too_wide(page.split("\nexamples:\n")[0])
            self.assertIsNone(wide, command)

    @unittest.skipIf(BENCH, "with the other examples")
    def test_tables(self):
        """Tables that no example prints, of many methods, ranks and loads."""
        for line in (
            "coterie predict --evaluate gpt-oss.safetensors --ranks 4,8,16,32 --split 0.5",
            "coterie group gpt-oss.safetensors --method all --ranks 8 --iterations 1 --split 0.5 --expert-load 1",
            "coterie group gpt-oss.safetensors --ranks 4 --nodes 2 --iterations 1 --split 1 --joint",
            "coterie place --ranks 4x8 --top-k 8 --slots 256 --c-layer 8 --drift counts.csv counts.csv counts.csv counts.csv counts.csv",
            "coterie place --ranks 4x8 --load counts.csv --current placement.json --method eplb --slots 256 --max-moves 20",
            "coterie place --ranks 4x8 --load counts.csv --max-load 1.0000001",
            "coterie place --ranks 4x8 --evaluate counts.csv --placement placement.json --top-k 8",
            "coterie trace info gpt-oss.safetensors",
            "coterie topology show dragonfly:ranks=2048",
        ):  # fmt: skip
            with self.subTest(line):
                wide = too_wide(must(line, self.ready))
                self.assertIsNone(wide)


@unittest.skipIf(BENCH, "with the other examples")
class Guides(unittest.TestCase):
    """What readers copy from README.md and docs/ writes into out/, which git does not see, or a figure into docs/."""

    WRITES = re.compile(r"\s(?:-o|--plot|--report|--timeline|--tables)\s+([^\s\\`]+)")

    def commands(self):
        for guide in [SOURCE / "README.md", SOURCE / "python" / "README.md", *sorted(SOURCE.glob("docs/*.md"))]:
            for line in guide.read_text().splitlines():
                if re.match(r"    \S", line):
                    yield guide.name, line.split(" # ")[0]

    def test_outputs(self):
        written = 0
        for guide, line in self.commands():
            if " predict " in line:  # it reads tables
                line = line.replace("--tables", "")
            for path in self.WRITES.findall(line):
                written += 1
                self.assertRegex(path, "^(out|docs)/", f"{guide}: {line}")
        self.assertGreater(written, 8)
        self.assertIn("/out/", (SOURCE / ".gitignore").read_text().splitlines())

    def test_samples(self):
        """Greedy text of a small model repeats itself: whoever copies a line sees text that was drawn, and the same."""
        runs = [line for guide, line in self.commands() if guide == "README.md" and re.search(r"\$c run ", line)]
        self.assertGreater(len(runs), 1)
        for line in runs:
            self.assertRegex(line, r"--temperature \S+ .*--seed \d")


if __name__ == "__main__":
    unittest.main(argv=[arg for arg in sys.argv if arg != "--bench"])
