#!/usr/bin/env python3
"""bench/device without a device: its words, and programs in the place of its own that are right, wrong, or hang."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

BENCH = os.environ["COT_SOURCE"] + "/bench/device"
POINTS = """#!/bin/sh
case "$1 $2" in
"about "*) echo '{"name": "None", "capability": "9.0"}' ;;
"probe "*) echo '{"case": "small", "tokens": 1, "right": true}'; %s ;;
"time "*) echo '{"tokens": 8, "ns": 1000, "bytes_least": 2000000, "flops": 3000000, "bytes_in_turn": 90, "cache_bytes": 20}'; %s ;;
esac
"""
ROOFS = """#!/bin/sh
echo '{"roof": "read", "bytes_per_second": 4e12}'
echo '{"roof": "cublas", "absent": "the toolkit has no cuBLAS"}'
"""


def run(*words):
    return subprocess.run([BENCH, *words], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def parts_of(path):
    """Those of the points that are written so far."""
    try:
        with open(path) as points:
            return [json.loads(line)["part"] for line in points if line.endswith("\n")]
    except FileNotFoundError:
        return []


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

    def test_built_for_a_device_that_is_not_here(self):
        """What a machine with a device builds, by the compiler that is at hand; the program starts, and finds none."""
        if not (nvcc := os.environ.get("COT_NVCC")):
            self.skipTest("COT_NVCC names no compiler")
        at = f"{self.folder.name}/out"
        built = subprocess.run([BENCH, "--build", "9", "-o", at], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                               env={**os.environ, "PATH": os.path.dirname(nvcc) + ":" + os.environ["PATH"]})
        with open(f"{at}/build.log") as log:
            self.assertEqual(built.returncode, 0, built.stderr + log.read())
        self.assertIn("built in ", built.stderr)
        programs = os.environ["COT_SOURCE"] + "/build/device"
        self.assertEqual(subprocess.run([f"{programs}/roofs", "starts"]).returncode, 0)
        said = subprocess.run([f"{programs}/device_points", "about"], capture_output=True, text=True)
        if said.returncode:
            self.assertRegex(said.stderr, "^device_points: .*NVIDIA driver.*\n$")

    def test_ended_from_outside(self):
        """By a machine whose time is up: what was measured is there, and nothing goes on."""
        parts = ["about", "roofs", "roofs", "decode"]
        with tempfile.TemporaryDirectory() as at:
            hang = f"echo $$ >{at}/new; mv {at}/new {at}/pid; exec sleep 60"
            for name, text in (("device_points", POINTS % ("true", hang)), ("roofs", ROOFS)):
                with open(f"{at}/{name}", "w") as out:
                    out.write(text)
                os.chmod(f"{at}/{name}", 0o755)
            for number in (signal.SIGTERM, signal.SIGKILL):
                bench = subprocess.Popen([BENCH, "--programs", at, "-o", f"{at}/out", "--only", "roofs,decode"],
                                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
                until = time.monotonic() + 60
                while not (os.path.exists(f"{at}/pid") and parts_of(f"{at}/out/points.jsonl") == parts) and time.monotonic() < until:
                    time.sleep(0.01)
                bench.send_signal(number)
                said = bench.communicate(timeout=60)[1]
                self.assertEqual(bench.returncode, 1 if number == signal.SIGTERM else -number)
                self.assertEqual("bench/device: ended by SIGTERM" in said, number == signal.SIGTERM)
                with open(f"{at}/out/summary.md") as summary:
                    self.assertIn("read: 4e+12 a second", summary.read())
                self.assertEqual(parts_of(f"{at}/out/points.jsonl"), parts)
                with open(f"{at}/pid") as pid:
                    child = pid.read().strip()
                until = time.monotonic() + 60
                while is_running(child) and time.monotonic() < until:
                    time.sleep(0.01)
                self.assertFalse(is_running(child))
                os.remove(f"{at}/pid")
                os.remove(f"{at}/out/points.jsonl")

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
        self.assertIn("| decode | cuda | 1 | 64 | 8 | 1.0 | 2000 | 0.50 | 3.0 | - | 4.5 |", done.stdout)
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
            self.assertFalse(is_running(pid.read().strip()))  # ended with what began it


unittest.main()
