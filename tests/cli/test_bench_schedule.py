"""bench schedule on a recording: what is gained by choosing, how long anybody waits, what is refused. Counts, the same everywhere."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
RECORDED = pathlib.Path(os.environ["COT_SHARED"]) / "data/routing"


def run(*words):
    return subprocess.run([PROGRAM, "bench", "schedule", *map(str, words)], capture_output=True, text=True, timeout=600)


class Schedule(unittest.TestCase):
    def batches(self, *words):
        found = run(RECORDED / "gpt-oss-20b", "--json", *words)
        self.assertEqual(found.returncode, 0, found.stderr)
        told = json.loads(found.stdout)
        rows = {row["policy"]: row for row in told["policies"]}
        self.assertEqual(list(rows), ["fcfs", "random", "chosen", "oracle", "admission"])
        self.assertTrue(told["gains"])
        return told, rows

    def test_figures(self):
        for batch, seeds, most in (8, 5, 0.90), (16, 2, 0.94):
            told, rows = self.batches("--batch", batch, "--seeds", seeds)
            self.assertEqual((told["running"], told["steps"], told["seeds"]), (32, 1000, seeds))
            self.assertLessEqual(rows["chosen"]["over_fcfs"], most)
            self.assertLess(rows["oracle"]["over_fcfs"], rows["chosen"]["over_fcfs"])
            self.assertLess(rows["admission"]["over_fcfs"], 1)
            self.assertAlmostEqual(rows["random"]["over_fcfs"], 1, delta=0.01)
            for policy in "chosen", "oracle":
                self.assertLessEqual(rows[policy]["max_wait_steps"], 8 + 32 // batch - 1)
            self.assertLessEqual(rows["admission"]["max_overtaken"], 16)

    def test_text(self):
        found = run(RECORDED / "gpt-oss-20b", "--steps", 50, "--seeds", 1)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("8 of 32 sequences a step", found.stdout)
        self.assertNotIn("gains nothing", found.stdout)
        same = run(RECORDED / "gpt-oss-20b", "--steps", 50, "--seeds", 1, "--batch", 32)
        self.assertIn("choosing by experts gains nothing here: 1.000 of fcfs's distinct experts", same.stdout)

    def test_refused(self):
        for words, status, line in [
            (["--batch", 33], 1, "a batch of 33 is not 1 to 32, as many as run"),
            (["--running", 300], 1, "300 sequences cannot run at once: the trace has 290 of two tokens or more to replay"),
            (["--max-wait-steps", 0], 2, "--max-wait-steps"),
        ]:
            found = run(RECORDED / "gpt-oss-20b", *words)
            self.assertEqual((found.returncode, found.stdout), (status, ""), found.stderr)
            self.assertIn(line, found.stderr.splitlines()[-1])
        counts = next((RECORDED / "olmoe").glob("token_expert*.tsv"))
        found = run(counts)
        self.assertEqual(found.returncode, 1)
        self.assertIn("counts of tokens", found.stderr)


if not RECORDED.is_dir():
    print(f"skipped: there is no {RECORDED}")
    sys.exit(77)
unittest.main()
