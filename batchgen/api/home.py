"""Where models are, by the environment."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """Where models and caches live: `BATCHGEN_HOME`, else `batchgen` in the XDG data folder."""
    if own := os.environ.get("BATCHGEN_HOME"):
        return Path(own).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "batchgen"
