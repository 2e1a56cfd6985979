"""Tests that need packages of the public index: each runs in a virtual environment of its own under COT_BUILD."""

import fcntl
import os
import pathlib
import re
import subprocess
import sys
import venv


def environment(name, *packages):
    """The environment's python, made once for these packages (pinned: name==version). None: no index can be reached."""
    folder = pathlib.Path(os.environ["COT_BUILD"]) / f"{name}-venv"
    own, mark = folder / "bin" / "python", folder / "packages"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # some tests have one environment
        if mark.exists() and mark.read_text() == " ".join(packages):
            return own
        venv.create(folder, with_pip=True, clear=True)
        run = subprocess.run([own, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
        if run.returncode and re.search("(?i)connection|resolve|No matching distribution", run.stderr):
            return None
        assert run.returncode == 0, run.stderr
        mark.write_text(" ".join(packages))
    return own


def need(name, *packages):
    """The environment's python; without an index the test ends here, loudly skipped."""
    python = environment(name, *packages)
    if not python:
        sys.exit(print(f"SKIPPED: no package index to be reached for {packages[0]}") or 77)
    return str(python)
