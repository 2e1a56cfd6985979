"""What a result looks like where it is printed, and in a notebook."""

from __future__ import annotations

import html
from typing import Any


def number(value: Any) -> str:
    """As people read it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Shown:
    """A class whose `_summary` is a name -> value of what matters most."""

    def _summary(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name} {number(value)}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(number(value))}</td></tr>"
                for name, value in self._summary().items())  # fmt: skip
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"
