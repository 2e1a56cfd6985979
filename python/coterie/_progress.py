"""How far long work is: a bar of tqdm, where that is installed and somebody looks."""

from __future__ import annotations

import contextlib
from typing import Any


class Bar:
    """Shown from the first `show` on, on terminals and in notebooks alone."""

    def __init__(self, title: str, unit: str, wanted: bool = True):
        self._options = {"desc": title, "unit": unit, "unit_scale": True, "leave": False}
        self._bar: Any = None
        self._class: Any = None
        with contextlib.suppress(ImportError):
            if wanted:
                from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]

                self._class = tqdm

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_exception) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, done: int, total: int) -> None:
        if self._class is None:
            return
        if self._bar is None:
            notebook = any(kind.__module__ == "tqdm.notebook" for kind in self._class.__mro__)
            self._bar = self._class(total=total, disable=False if notebook else None, **self._options)
        self._bar.total = total
        self._bar.update(done - self._bar.n)
