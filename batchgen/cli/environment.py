"""The environment of a command: read here, and for the models' home by the Python API, nowhere else in the package
(options read theirs through the option parser)."""

from __future__ import annotations

import os
import sys

from batchgen.api.home import home

__all__ = ["array_index", "array_size", "home", "live_terminal", "wants_color"]


def live_terminal() -> bool:
    """Whether standard error is a terminal that can redraw lines."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def wants_color() -> bool:
    """Whether colours are welcome: not where `NO_COLOR` is set to anything (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")


def array_size() -> int | None:
    """Tasks of the Slurm array that this process belongs to."""
    return _number("SLURM_ARRAY_TASK_COUNT")


def array_index() -> int | None:
    """Which task this is, from 0: of a Kubernetes job with completion mode Indexed, or of a Slurm array."""
    if (index := _number("JOB_COMPLETION_INDEX")) is not None:
        return index
    if (task := _number("SLURM_ARRAY_TASK_ID")) is None:
        return None
    # An array such as 10-40:10 has the tasks 10, 20, 30, 40.
    return (task - (_number("SLURM_ARRAY_TASK_MIN") or 0)) // (_number("SLURM_ARRAY_TASK_STEP") or 1)


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else None
