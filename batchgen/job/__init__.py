"""The composition root: everything is put together here, and only here.

The names are loaded when they are asked for: `batchgen.job.validate` needs neither torch nor an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.job.loading import LoadedEngine, open_engine
    from batchgen.job.run import run_job
    from batchgen.job.summary import Summary

__all__ = ["LoadedEngine", "Summary", "open_engine", "run_job"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "run_job":
        # Alone: a run that finds its output finished needs no engine.
        from batchgen.job import run

        return run.run_job
    from batchgen.job import loading, summary

    return getattr(summary if name == "Summary" else loading, name)
