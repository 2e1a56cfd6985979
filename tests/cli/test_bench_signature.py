"""bench signature on a trace of four kinds of texts, each of which calls a pair of experts of its own: what is told, and what is
refused."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
LAYERS, EXPERTS, KINDS, TEXTS, LONG, SHORT = 3, 8, 4, 32, 40, 10


def write_trace(path):
    """Every second text is long; the kind of the first ones is another's than that of the home that they are dealt to."""
    lengths = [LONG if s % 2 else SHORT for s in range(TEXTS)]
    kinds = [(s // 2 + (s // 2 < KINDS)) % KINDS for s in range(TEXTS)]
    tokens = sum(lengths)
    experts = b"".join(bytes([(kind + layer) % KINDS, (kind + layer) % KINDS + KINDS]) * n for layer in range(LAYERS) for kind, n in zip(kinds, lengths))
    offsets = [sum(lengths[:s]) for s in range(TEXTS + 1)]
    parts = {
        "experts": ("U8", [LAYERS, tokens, 2], experts),
        "sequence_offsets": ("I64", [TEXTS + 1], struct.pack(f"<{TEXTS + 1}q", *offsets)),
        "token_ids": ("I32", [tokens], bytes(4 * tokens)),
    }
    header = {"__metadata__": {"format": "coterie.trace", "version": "1", "kind": "tokens", "model": "planted", "experts": str(EXPERTS), "top_k": "2", "layers": "0,1,2"}}
    at = 0
    for name, (dtype, shape, data) in parts.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in parts.values()))


class Planted(unittest.TestCase):
    """With a trace of such texts."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.trace = pathlib.Path(cls.folder.name) / "planted.safetensors"
        write_trace(cls.trace)


class Signature(Planted):
    def run_it(self, *words):
        words = [self.trace, "--ranks", 4, "--signature", 10, "--judged", 30, "--peak", 1.2, *words]
        return subprocess.run([PROGRAM, "bench", "signature", *map(str, words)], capture_output=True, text=True, timeout=600)

    def test_figures(self):
        found = self.run_it("--replicas", 1, "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        told = json.loads(found.stdout)
        self.assertEqual((told["requests"], told["other_sequences"], told["other_tokens"]), (TEXTS // 2, TEXTS // 2, SHORT * TEXTS // 2))
        rows = {row["name"]: row for row in told["rows"]}
        self.assertEqual(list(rows), ["contiguous", "homes", "swaps", "homes and swaps", "and 1 replica slot"])
        self.assertGreater(rows["contiguous"]["judged"]["remote_ranks"], 1)
        for name in "homes and swaps", "and 1 replica slot":
            self.assertEqual(rows[name]["judged"], {"remote_ranks": 0, "peak": 1})
            self.assertEqual(rows[name]["oracle"], {"remote_ranks": 0, "peak": 1})

    def test_text(self):
        found = self.run_it("--replicas", 0)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(len(found.stdout.splitlines()), 6)
        self.assertRegex(found.stdout, r"homes and swaps +0\.0\d +0\.00 +1\.00 +0\.00 +1\.00")

    def test_refused(self):
        for words, status, line in [
            (["--ranks", 3], 1, "3 ranks cannot hold equally many of 8 experts"),
            (["--judged", 31], 1, "of 32 sequences 0 have 41 tokens or more: there must be some, and shorter ones to learn from"),
            (["--replicas", 7], 1, "every rank holds all of the 8 experts already"),
            (["--peak", 0.5], 2, "--peak"),
        ]:
            found = self.run_it(*words)
            self.assertEqual((found.returncode, found.stdout), (status, ""), found.stderr)
            self.assertIn(line, found.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
