"""`pip install .` in an empty environment, every Python line of python/README.md, in order, and what mypy says."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import venv

SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
BEFORE = """
import numpy
draw = numpy.random.default_rng(1)
weight = draw.integers(1, 1000, (4, 256))
load = draw.integers(1, 1000, (3, 256)).astype(float)
new_load = draw.integers(1, 1000, (3, 256)).astype(float)
"""


def blocks():
    """The README's indented blocks that are Python."""
    text = (SOURCE / "python" / "README.md").read_text()
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, flags=re.M)
    lines = [re.sub(r"^    ", "", block, flags=re.M) for block in found]
    return [block for block in lines if "coterie." in block or "eplb." in block]


class Wheel(unittest.TestCase):
    def test_readme(self):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder + "/venv", with_pip=True)
            own = folder + "/venv/bin/python"
            run = subprocess.run([own, "-m", "pip", "install", "-q", str(SOURCE)], capture_output=True, text=True)
            if run.returncode and re.search("(?i)connection|resolve|No matching distribution", run.stderr):
                self.skipTest("SKIPPED: no package index to be reached")
            self.assertEqual(run.returncode, 0, run.stderr)
            trace = [os.environ["COT_PROGRAM"], "profile", str(SOURCE / "models" / "tiny"), "--text", "README.md"]
            subprocess.run([*trace, "-o", folder + "/trace.safetensors"], cwd=SOURCE, check=True, capture_output=True)
            os.symlink(SOURCE / "models", folder + "/models")
            found = blocks()
            self.assertGreaterEqual(len(found), 3)
            code = BEFORE + "from coterie import eplb\n" + "\n".join(found)
            subprocess.run([own, "-m", "pip", "install", "-q", "mypy"], check=True, capture_output=True)
            run = subprocess.run([own, "-m", "mypy", "--strict-equality", str(SOURCE / "python" / "coterie")], capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stdout)
            env = {k: v for k, v in os.environ.items() if k not in ("COTERIE_LIBRARY", "PYTHONPATH")}
            run = subprocess.run([own, "-c", code], env=env, cwd=folder, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("\nTokens: ", run.stdout)
            self.assertTrue(pathlib.Path(folder, "placement.json").exists() and pathlib.Path(folder, "map.json").exists())


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(0 if result.wasSuccessful() and not result.skipped else 77 if result.skipped else 1)
