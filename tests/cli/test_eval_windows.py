"""How `coterie eval` cuts texts: which tokens each window begins with, and which of its predictions count."""

import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MODEL = os.environ["COT_PROGRAM"], pathlib.Path(os.environ["COT_SOURCE"]) / "models" / "tiny"
SEED = int(os.environ.get("COT_SEED") or int.from_bytes(os.urandom(4), "little"))


def write_ids(path, sequences):
    """A safetensors file of int32 sequences."""
    header, data = {}, b""
    for name, ids in sequences.items():
        header[f"ids.{name}"] = {"dtype": "I32", "shape": [len(ids)], "data_offsets": [len(data), len(data) + 4 * len(ids)]}
        data += struct.pack(f"<{len(ids)}i", *ids)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Windows(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED} (COT_SEED={SEED} repeats it)", file=sys.stderr)
        self.draw = random.Random(SEED)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def eval(self, *options, status=0):
        done = subprocess.run([PROGRAM, "eval", MODEL, *map(str, options)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout) if not status else done.stderr

    def ids_of(self, text):
        done = subprocess.run([PROGRAM, "tokenize", MODEL, text, "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["ids"]

    def sums(self, sequences):
        """The summed log-likelihood of each, of all its predictions."""
        write_ids(self.path / "ids", sequences)
        each = self.eval("--tokens", self.path / "ids", "--json")["sequences"]
        return {n: -each[n]["nats"] * (len(s) - 1) if len(s) > 1 else 0 for n, s in sequences.items()}

    def text(self, words):
        path = self.path / "text"
        path.write_text(" ".join(self.draw.choices(["hens", "lay", "eggs", "naïve", "東京", "12", "x = f(y)"], k=words)))
        return path, self.ids_of(path.read_text())

    def test_plain(self):
        path, ids = self.text(30)
        for window in (2, 7, len(ids), 500):
            got = self.eval("--text", path, "--window", window, "--json")
            parts = {str(i): ids[at : at + window] for i, at in enumerate(range(0, len(ids), window))}
            self.assertEqual([s["tokens"] for s in got["sequences"].values()], [len(p) for p in parts.values()])
            self.assertTrue(math.isclose(-got["all"]["nats"] * got["all"]["predictions"], sum(self.sums(parts).values()), rel_tol=1e-6))

    def test_rolling(self):
        """A prediction's log-likelihood is that of the sequence up to it less that of the sequence before."""
        path, ids = self.text(20)
        prefix = self.draw.randrange(4096)
        joined, count = [prefix, *ids], len(ids)
        for window in (1, 4, count - 1, count, 511, None):
            got = self.eval("--text", path, "--prefix-token", prefix, *(["--window", window] if window else []), "--json")
            self.assertEqual(got["all"]["predictions"], count)
            long, before = {}, {}
            for i, first in enumerate(range(0, count, window or 511)):
                end = min(first + (window or 511), count)
                start = max(end - (window or 511), 0)
                long[str(i)], before[str(i)] = joined[start : end + 1], joined[start : first + 1]
            self.assertEqual([s["tokens"] for s in got["sequences"].values()], [len(s) for s in long.values()])
            expected = sum(self.sums(long).values()) - sum(self.sums(before).values())
            self.assertTrue(math.isclose(-got["all"]["nats"] * count, expected, rel_tol=1e-3), (window, got["all"], expected))

    def test_refused(self):
        path, _ = self.text(3)
        write_ids(self.path / "ids", {"a": [1, 2]})
        empty = self.path / "empty"
        empty.touch()
        for options, status, told in (
            (["--text", path, "--window", 513], 1, "allows 512"),
            (["--text", path, "--window", 512, "--prefix-token", 0], 1, "allows 511"),
            (["--text", path, "--window", 0], 2, "--window"),
            (["--text", path, "--prefix-token", 4096], 1, "4096"),
            (["--text", path, "--prefix-token", "x"], 2, "--prefix-token"),
            (["--text", empty, "--prefix-token", 0], 1, "is empty"),
            (["--tokens", self.path / "ids", "--window", 3], 2, "for --text"),
            (["--tokens", self.path / "ids", "--prefix-token", 3], 2, "for --text"),
        ):
            line = self.eval(*options, status=status)
            self.assertIn(told, line)
            self.assertTrue(line.startswith("coterie: "), line)


if __name__ == "__main__":
    unittest.main()
