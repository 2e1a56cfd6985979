"""bench affinity on a trace of four kinds of texts, each of which calls a pair of experts of its own in each layer."""

import json
import subprocess
import unittest

import test_bench_signature
from test_bench_signature import KINDS, LAYERS, LONG, PROGRAM, TEXTS


class Affinity(test_bench_signature.Planted):
    def run_it(self, *words):
        words = [self.trace, "--signature", 10, "--judged", LONG - 10, *words]
        return subprocess.run([PROGRAM, "bench", "affinity", *map(str, words)], capture_output=True, text=True, timeout=600)

    def rows(self, *words):
        found = self.run_it("--json", *words)
        self.assertEqual(found.returncode, 0, found.stderr)
        told = json.loads(found.stdout)
        self.assertEqual(told["requests"], TEXTS // 2)
        return {row["name"]: row for row in told["rows"]}

    def test_figures(self):
        rows = self.rows("--workers", KINDS, "--batch", TEXTS // 2 // KINDS)
        for name in "all known at once, within 1", "all known at once, within 4":  # nearly all workers have one kind
            self.assertLess(rows[name]["distinct_experts"], 2.2 * LAYERS)
        self.assertGreater(rows["least load"]["distinct_experts"], 4 * LAYERS)
        self.assertEqual(rows["least load"]["of_least"], 1)
        for name in "experts, counts within 1", "experts, counts within 4":
            self.assertLess(rows[name]["of_least"], 0.9)
        for row in self.rows("--workers", 1, "--batch", TEXTS // 2).values():  # all kinds are there
            self.assertEqual((row["distinct_experts"], row["of_least"], row["of_least_error"]), (2 * KINDS * LAYERS, 1, 0))
        for name, row in self.rows("--workers", TEXTS // 2, "--batch", 1).items():  # one is, or, within 4, none in some
            (self.assertLess if name.endswith("4") else self.assertEqual)(row["distinct_experts"], 2 * LAYERS)
        table = self.run_it("--workers", 4, "--batch", 4)
        self.assertEqual(len(table.stdout.splitlines()), 7)

    def test_one_round_has_no_error(self):
        for rounds, has_error in ((1, False), (2, True)):
            words = ("--workers", 2, "--batch", 4, "--rounds", rounds)
            for row in self.rows(*words).values():
                self.assertEqual(isinstance(row["of_least_error"], (int, float)), has_error, row)
                self.assertEqual(row["of_least_error"] is None, not has_error, row)
            heading, *lines = self.run_it(*words).stdout.splitlines()[1:]
            self.assertEqual("+-" in heading, has_error, heading)
            self.assertEqual([len(line[28:].split()) for line in lines], [3 if has_error else 2] * 5)

    def test_refused(self):
        for words, status, text in (
            (("--workers", 8, "--batch", 8), 1, "16 sequences have 40 tokens or more, and 64 are wanted"),
            (("--judged", 31), 1, "0 sequences have 41 tokens or more"),
            (("--workers", 0), 2, "--workers"),
        ):
            found = self.run_it(*words)
            self.assertEqual(found.returncode, status, found.stderr)
            self.assertIn(text, found.stderr)


if __name__ == "__main__":
    unittest.main()
