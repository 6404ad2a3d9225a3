"""The environment, read here and nowhere else in the package (options read theirs through the option parser)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["home", "live_terminal", "wants_color"]


def home() -> Path:
    """Where models and caches live: `BATCHGEN_HOME`, else `batchgen` in the XDG data folder."""
    if own := os.environ.get("BATCHGEN_HOME"):
        return Path(own).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "batchgen"


def live_terminal() -> bool:
    """Whether standard error is a terminal that can redraw lines."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def wants_color() -> bool:
    """Whether colours are welcome: not where `NO_COLOR` is set to anything (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")
