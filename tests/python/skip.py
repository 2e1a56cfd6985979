"""Modules that a test can do without, loudly."""

import importlib
import sys


def need(*names):
    """The modules, or the end of the test as skipped."""
    modules = []
    for name in names:
        try:
            modules.append(importlib.import_module(name))
        except ImportError:
            print(f"SKIPPED: this Python ({sys.executable}) has no module '{name}'")
            sys.exit(77)
    return modules


def have(name):
    """The module, or None after a line that says what is left out."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"SKIPPED in part: this Python has no module '{name}'")
        return None
