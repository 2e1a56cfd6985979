#!/usr/bin/env python3
"""bench/device without a device: its words, and programs in the place of its own that are right, wrong, or hang."""
import json
import os
import subprocess
import tempfile
import time
import unittest

BENCH = os.environ["COT_SOURCE"] + "/bench/device"
POINTS = """#!/bin/sh
case "$1 $2" in
"about "*) echo '{"name": "None", "capability": "9.0"}' ;;
"probe "*) echo '{"case": "small", "tokens": 1, "right": true}'; %s ;;
"time "*) echo '{"tokens": 8, "ns": 1000, "bytes_least": 2000000, "flops": 3000000}'; %s ;;
esac
"""
ROOFS = """#!/bin/sh
echo '{"roof": "read", "bytes_per_second": 4e12}'
echo '{"roof": "cublas", "absent": "the toolkit has no cuBLAS"}'
"""


def run(*words):
    return subprocess.run([BENCH, *words], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


class Device(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def bench(self, probe, timed, *words):
        """With programs that end so; the run, and its points."""
        at = self.folder.name
        for name, text in (("device_points", POINTS % (probe, timed)), ("roofs", ROOFS)):
            with open(f"{at}/{name}", "w") as out:
                out.write(text)
            os.chmod(f"{at}/{name}", 0o755)
        done = run("--programs", at, "-o", f"{at}/out", *words)
        with open(f"{at}/out/points.jsonl") as points:
            return done, [json.loads(line) for line in points]

    def test_words(self):
        self.assertIn("--budget", run("--help").stdout)
        for words, said in ((["--only", "decode,x"], "there is no part 'x'"), (["--budget", "fast"], "not 'fast'"),
                            (["--budget", "0s"], "not '0s'"), (["more"], "more"), (["--programs"], "--programs")):
            done = run(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(said, done.stderr)

    def test_no_device(self):
        at = f"{self.folder.name}/out"
        done = run("-o", at)
        if "building" in done.stderr:
            self.skipTest("there is one")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))
        self.assertIn("bench/device: ", done.stderr)
        self.assertFalse(os.path.exists(at))

    def test_what_is_measured(self):
        done, points = self.bench("true", "true", "--only", "roofs,decode")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([p["part"] for p in points], ["about", "roofs", "roofs", "decode"])
        self.assertIn("| decode | cuda | 1 | 64 | 8 | 1.0 | 2000 | 0.50 | 3.0 | - |", done.stdout)
        with open(f"{self.folder.name}/out/summary.md") as summary:
            self.assertEqual(summary.read(), done.stdout)

    def test_what_is_wrong_ends_it(self):
        done, points = self.bench("echo wrong >&2; exit 1", "true", "--only", "correct,decode")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([p["part"] for p in points], ["about", "correct", "correct"])
        self.assertEqual(points[-1]["wrong"], "wrong")
        self.assertIn("correct: wrong", done.stdout)

    def test_a_part_that_fails_and_one_that_prints_anything(self):
        done, points = self.bench("true", "exit 3", "--only", "decode,roofs")
        self.assertEqual((done.returncode, points[-3]["wrong"], points[-1]["part"]), (1, "exit status 3", "roofs"))
        done, points = self.bench("true", "echo anything", "--only", "decode")
        self.assertEqual((done.returncode, points[-1]["wrong"]), (1, "printed what is no JSON"))

    def test_a_part_that_hangs_and_a_budget_that_ends(self):
        began = time.monotonic()
        hang = f"sleep 60 & echo $! >{self.folder.name}/pid; wait"
        done, points = self.bench("true", hang, "--only", "decode,ranks,bulk", "--budget", "0.5s")
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([p["part"] for p in points], ["about", "decode", "decode", "ranks", "bulk"])
        self.assertEqual(points[1]["ns"], 1000)  # written before
        self.assertIn("ended at its limit of 0.", points[2]["wrong"])
        self.assertEqual(points[3]["wrong"], "not run: the budget is spent")
        with open(f"{self.folder.name}/pid") as pid:
            child = int(pid.read())
        try:
            with open(f"/proc/{child}/stat") as stat:
                self.assertEqual(stat.read().rsplit(")", 1)[1].split()[0], "Z")  # ended with what began it
        except FileNotFoundError:
            pass


unittest.main()
