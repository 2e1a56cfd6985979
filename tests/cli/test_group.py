"""`coterie group` as a process: how long it takes, how it ends, and what it says of limits."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
SEED = int(os.environ.get("COT_SEED") or int.from_bytes(os.urandom(4), "little"))


class Group(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED} (COT_SEED={SEED} repeats it)", file=sys.stderr)
        self.draw = random.Random(SEED)
        self.holder = tempfile.TemporaryDirectory()
        self.trace = pathlib.Path(self.holder.name, "t.tsv")

    def tearDown(self):
        self.holder.cleanup()

    def begin(self, layers, *args):
        """Tokens that call 4 of 32 experts in no order, so that nothing is proven soon."""
        lines = ["layer\texpert\ttoken_id\tcount"]
        for layer in range(layers):
            for token in range(800):
                lines += (f"{layer}\t{e}\t{token}\t{1 + token % 5}" for e in sorted(self.draw.sample(range(32), 4)))
        self.trace.write_text("\n".join(lines) + "\n")
        self.command = [PROGRAM, "group", self.trace, "--ranks", "4", "--split", "1", *args]

    def test_killed(self):
        """SIGTERM ends it at whatever moment it comes, also while METIS, which handles it by itself, runs."""
        self.begin(6, "--method", "metis", "--seconds", "600")
        for threads in "1", "2", "3":
            for _ in range(8):
                run = subprocess.Popen([*self.command, "--threads", threads], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                time.sleep(self.draw.uniform(0.05, 0.4))  # any moment will do
                run.send_signal(signal.SIGTERM)
                _, said = run.communicate(timeout=300)
                self.assertEqual(run.returncode, -signal.SIGTERM, (threads, said))

    def processor_time(self, *args):
        with open(os.path.join(self.holder.name, "out.json"), "w+") as out:
            run = subprocess.Popen([*self.command, *args, "--json"], stdout=out, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(run.returncode, 0)
            out.seek(0)
            return used.ru_utime + used.ru_stime, json.load(out)[0]["seconds"]

    def test_idle_threads(self):
        """Threads that no layer is left for add nothing to the processor time that solvers get."""
        for layers, more in (1, ()), (3, ("--nodes", "2")):
            self.begin(layers, "--processor-time", "--seconds", "0.3", *more)
            alone, _ = self.processor_time("--threads", "1")
            many, told = self.processor_time("--threads", "16")
            self.assertLess(many, 3 * alone)
            self.assertLess(many, 3 * told + 0.5)  # the rest reads, and prints
        self.begin(2, "--processor-time", "--seconds", "0.5")
        used, _ = self.processor_time("--threads", "16")
        self.assertGreater(used, 0.8)  # of both layers' threads

    def test_time_or_rounds(self):
        """Of a time and a number of rounds one would be ignored."""
        self.begin(2)
        for more in ["--seconds", "1"], ["--processor-time"]:
            run = subprocess.run([PROGRAM, "group", self.trace, "--iterations", "1", *more], capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (2, f"coterie: --iterations takes as long as it takes: leave out {more[0]}\n"))

    def test_heavy_token(self):
        """Where one token is heavier than a rank's share may be, that is said, and how much is held to instead."""
        for heavy in 30, 1:
            lines = ["layer\texpert\ttoken_id\tcount"]
            for layer in range(2):
                for token in range(12):
                    lines += (f"{layer}\t{(token + k) % 8}\t{token}\t{1 if token else heavy}" for k in range(4))
            self.trace.write_text("\n".join(lines) + "\n")
            command = [PROGRAM, "group", self.trace, "--ranks", "4", "--split", "1", "--iterations", "2", "--token-balance", "0.05"]
            mean = (4 * heavy + 44) / 4
            limit = 4 * heavy / mean if heavy > 1 else 1.05
            run = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)
            said = " ".join(run.stdout.split())
            self.assertEqual("coterie: in 2 of 2 layers tokens were not found to divide within 1.05 of the mean load" in said, heavy > 1, said)
            self.assertEqual(f"the busiest rank's have {limit:.4f}, in layer 0" in said, heavy > 1, said)
            for layer in json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True).stdout)[0]["layers"]:
                self.assertAlmostEqual(layer["token_limit"], limit, 6)
                self.assertLessEqual(layer["token_imbalance_train"], limit + 1e-6)
            over = subprocess.run([*command, "--nodes", "2", "--json"], capture_output=True, text=True)
            self.assertIsNone(json.loads(over.stdout)[0]["layers"][0]["token_limit"])


if __name__ == "__main__":
    unittest.main()
