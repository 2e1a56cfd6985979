"""bench drift: halves and their sequences, figures that add up, a drawing that is XML, what is refused."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = pathlib.Path(os.environ["COT_PROGRAM"])
LAYERS, EXPERTS, K, DOCUMENTS = 2, 64, 6, 12
ROWS = ["blocks", "best of first half", "best of second half", "EPLB", "top-k replicated", "load", "joint"]


def run(*arguments):
    return subprocess.run([PROGRAM, "bench", "drift", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def draw_routing(folder, rng, favourites):
    """As DeepSeek-V2-Lite's recordings are: a file a layer, a document a line."""
    folder.mkdir()
    lengths = [rng.randrange(1, 20) for _ in range(DOCUMENTS)]
    for layer in range(1, LAYERS + 1):
        lines = []
        for length in lengths:
            ids = []
            for _ in range(length):
                some = rng.sample(favourites, 3)
                ids += some + rng.sample([e for e in range(EXPERTS) if e not in some], K - 3)
            lines.append("\t".join(map(str, ids)) + "\t\t" + "\t".join(["0.1"] * len(ids)))
        (folder / f"expert_weights_{layer}.txt").write_text("\n".join(lines) + "\n")
    return folder


class BenchDrift(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)
        seed = int(os.environ.get("COT_SEED", random.randrange(1 << 32)))
        print(f"COT_SEED={seed}")
        rng = random.Random(seed)
        self.first = draw_routing(self.folder / "first", rng, list(range(8)))
        self.second = draw_routing(self.folder / "second", rng, list(range(20, 28)))
        self.plain = ["--shape", "deepseek-v2-lite", "--costs", "10,1000,30", "--steps", 32, "--interval", 8, "--width", 8,
                      "--seed", rng.randrange(1000)]

    def tearDown(self):
        self.scratch.cleanup()

    def test_json(self):
        done = run(self.first, self.second, *self.plain, "--json", "--second-width", 4, "--moves-a-cycle", 5)
        self.assertEqual(done.returncode, 0, done.stderr)
        d = json.loads(done.stdout)
        self.assertEqual((d["intervals"], d["change"]), (8, 4))
        self.assertEqual([half["width"] for half in d["halves"]], [8, 4])
        self.assertEqual([half["sequences"] for half in d["halves"]], [list(range(DOCUMENTS))] * 2)
        costs = d["costs"]
        self.assertEqual((costs["layer_ns"], costs["expert_ns"], costs["row_ns"]), (10e3, 1e6, 30e3))
        self.assertEqual(costs["expert_bytes"], 2 * 3 * 2048 * 1408)
        self.assertAlmostEqual(costs["copy_ns"], costs["expert_bytes"] / 10)  # 10 GB/s
        self.assertEqual([row["name"] for row in d["rows"]], ROWS)
        for row in d["rows"]:
            self.assertEqual([v["tokens"] for v in row["intervals"]], [64] * 4 + [32] * 4)
            for v in row["intervals"]:
                # a rank calls at least as many experts as a token has on it, and at most all of its slots
                self.assertGreater(v["ns"], 8 * LAYERS * (10e3 + 1e6 + 30e3))
                self.assertLess(v["ns"], 8 * LAYERS * (10e3 + 9 * 1e6 + 8 * K * 30e3 + 8 * K * costs["send_ns"]))
                self.assertAlmostEqual(v["gap_ns"], v["copies"] * costs["copy_ns"], delta=1)
            if row["name"] in ("load", "joint"):
                self.assertEqual(sum(row["reasons"].values()), LAYERS * 7)
                self.assertTrue(all(v["copies"] <= 5 for v in row["intervals"]))

    def test_text_and_drawing(self):
        svg = self.folder / "drift.svg"
        done = run(self.first, *self.plain, "--first", "0-3,7", "--plot", svg)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("first half   5 sequences, 8 at a time\n  0-3,7\n", done.stdout)
        self.assertIn("second half  7 sequences, 8 at a time\n  4-6,8-11\n", done.stdout)
        for row in ROWS:
            self.assertRegex(done.stdout, f"(?m)^{row} +[0-9]")
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        drawing = xml.etree.ElementTree.parse(svg).getroot()
        lines = [e for e in drawing.iter() if e.tag.endswith("polyline")]
        self.assertEqual([len(line.get("points").split()) for line in lines], [8] * len(ROWS))

    def test_refused(self):
        for arguments, code, why in (
                ([self.first], 2, "give a second TRACE or --first"),
                ([self.first, self.second, "--first", "1"], 2, "not both"),
                ([self.first, "--first", "1-"], 1, "--first takes sequences such as 0-3,7"),
                ([self.first, "--first", "12"], 1, "each below 12"),
                ([self.first, "--first", "0-11"], 1, "0 in the second half"),
                ([self.first, self.second, "--steps", 9], 1, "9 steps a half"),
                ([self.first, self.second, "--interval", 0], 2, "--interval"),
                ([self.first, self.second, "--spare", 3], 1, "3 spare slots"),
                ([self.first, self.second, "--costs", "1,2"], 1, "--costs takes LAYER,EXPERT,ROW"),
                ([self.first, self.second, "--shape", "gpt-oss"], 1, "6 of 64 experts a token, gpt-oss has 4 of 32"),
                ([self.first, self.second, "--shape", "none"], 2, "no shape 'none'"),
                ([self.folder / "absent", self.second], 1, "absent")):
            with self.subTest(arguments=arguments[1:]):
                done = run(arguments[0], *self.plain, *arguments[1:])
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
                self.assertIn(why, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
