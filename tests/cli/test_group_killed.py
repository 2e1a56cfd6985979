"""SIGTERM ends `coterie group` at whatever moment it comes, also while METIS, which handles it by itself, runs."""

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


class Killed(unittest.TestCase):
    def test_random_moments(self):
        seed = int(os.environ.get("COT_SEED") or random.randrange(1 << 32))
        print(f"seed {seed} (COT_SEED={seed} repeats it)", file=sys.stderr)
        draw = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            lines = ["layer\texpert\ttoken_id\tcount"]
            for layer in range(6):
                for token in range(800):
                    lines += (f"{layer}\t{e}\t{token}\t{1 + token % 5}" for e in sorted(draw.sample(range(32), 4)))
            trace = pathlib.Path(folder, "t.tsv")
            trace.write_text("\n".join(lines) + "\n")
            for threads in "1", "2", "3":
                for _ in range(8):
                    run = subprocess.Popen([PROGRAM, "group", trace, "--ranks", "4", "--split", "1", "--method", "metis", "--threads", threads,
                                            "--seconds", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                    time.sleep(draw.uniform(0.05, 0.4))  # any moment will do
                    run.send_signal(signal.SIGTERM)
                    _, said = run.communicate(timeout=300)
                    self.assertEqual(run.returncode, -signal.SIGTERM, (threads, said))


if __name__ == "__main__":
    unittest.main()
