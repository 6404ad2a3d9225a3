"""Offline batch inference with language models: a file of requests in, Arrow files out.

In Python: `Engine`. The names are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.api.engine import Engine
    from batchgen.api.result import Result, ResultError

__all__ = ["Engine", "Result", "ResultError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version(__name__)
        except metadata.PackageNotFoundError:  # a source tree on the path
            return "(not installed)"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from batchgen.api import engine, result

    return getattr(engine if name == "Engine" else result, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
