"""The one way to standard error, shared by logs and display so that neither tears the other."""

from __future__ import annotations

from rich.console import Console

__all__ = ["stderr_console"]


def stderr_console(*, live: bool, color: bool) -> Console:
    """A console on standard error. `live`: it is a terminal that can redraw; `color`: colours are welcome there."""
    return Console(stderr=True, force_terminal=live, no_color=not (live and color), highlight=False, markup=False)
