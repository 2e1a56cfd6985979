"""bench/grouping-table and bench/olmoe-counts, for whoever has other traces than the guide's."""

import collections
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
METHODS = ("coterie", "ce", "ce-joint", "metis", "kmeans", "spectral")


class Tables(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.holder.name)

    def tearDown(self):
        self.holder.cleanup()

    def run_tool(self, name, *args):
        return subprocess.run([sys.executable, SOURCE / "bench" / name, *args], cwd=self.folder, capture_output=True, text=True)

    def table(self, *args):
        run = self.run_tool("grouping-table", "--program", PROGRAM, "--seconds", "0.02", "--ranks", "2", *args)
        self.assertEqual(run.returncode, 0, run.stderr)
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in run.stdout.splitlines() if line]

    def write_counts(self, name, shift):
        (self.folder / "data" / "deep").mkdir(parents=True, exist_ok=True)
        lines = ["layer\texpert\ttoken_id\tcount"]
        for l in (0, 7):
            for token in range(60):
                for k in range(2):
                    lines.append(f"{l}\t{(token * 3 + k * 5 + shift) % 16}\t{token}\t{1 + token % 4}")
        (self.folder / "data" / "deep" / name).write_text("\n".join(lines) + "\n")

    def test_model(self):
        text = self.folder / "a.txt"
        text.write_text((SOURCE / "docs" / "RATIONALE.md").read_text()[:9000])
        rows = self.table("--model", str(SOURCE / "models" / "tiny"), "--text", "a.txt", "--split", "0.5")
        self.assertEqual([row[1] for row in rows if row[0] == "tiny, 2"][:6], list(METHODS))
        predictors = {row[1] for row in rows if row[0].startswith("tiny, grouped")}
        self.assertEqual(predictors, {"global", "token-table", "unbalanced-table", "device-sequence", "algorithm-2", "context-prefill", "context-decode"})
        self.assertEqual(len([row for row in rows if row[:2] == ["tiny, 2", "shrunk"]]), 1)
        for row in rows:
            if row[0] == "tiny, 2" and row[1] in (*METHODS, "shrunk"):
                self.assertTrue(0 < float(row[3]) < 1)

    def test_folder(self):
        """What lies deep in a folder, beside files that are no traces; counts are tested on each other."""
        self.write_counts("one.tsv", 0)
        self.write_counts("two.tsv", 1)
        (self.folder / "data" / "LICENSE").write_text("as you like\n")
        rows = self.table("data", "--split", "0.5")
        for a, b in (("one", "two"), ("two", "one")):
            title = f"deep/{a}.tsv, tested on deep/{b}.tsv, 2"
            self.assertEqual([row[1] for row in rows if row[0] == title][:6], list(METHODS))
        alone = self.table("data/deep/one.tsv")
        self.assertEqual([row[1] for row in alone if row[0] == "one.tsv, 2"][:6], list(METHODS))

    def test_refusals(self):
        (self.folder / "empty").mkdir()
        (self.folder / "x.txt").write_text("x")
        for args, words in ((["empty"], "no routing data that coterie trace convert reads below 'empty'"),
                            (["x.txt"], "is no routing data"), (["none"], "none"),
                            (["--data", "none"], "'none' is no folder"), (["--model", "none"], "none")):
            run = self.run_tool("grouping-table", "--program", PROGRAM, *args)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(words, run.stderr)
            self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)

    def test_olmoe_counts(self):
        def write(value):
            (self.folder / "x.pkl").write_bytes(pickle.dumps(value))

        first = collections.defaultdict(collections.Counter, {3: collections.Counter({7: 2, 5: 1})})
        write([first, {0: {9: 4}}])
        run = self.run_tool("olmoe-counts", "x.pkl", "--layers", "0,7")
        self.assertEqual(run.stdout, "layer\texpert\ttoken_id\tcount\n0\t3\t5\t1\n0\t3\t7\t2\n7\t0\t9\t4\n")
        for value, words in ((os.system, "asks for"), ([first], "has 1 layers"), ([1, 2], "cannot read")):
            write(value)
            run = self.run_tool("olmoe-counts", "x.pkl", "--layers", "0,7")
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(words, run.stderr)
            self.assertNotIn("Traceback", run.stderr)


if __name__ == "__main__":
    unittest.main()
