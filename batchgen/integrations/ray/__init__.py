"""Ray: a worker class for `ray.data.Dataset.map_batches`, and `run`, which uses it. Needs `batchgen[ray]`.

`run-batch --distributed ray` is in `batchgen.integrations.ray.fleet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.integrations.ray.data import TableWorker, run

__all__ = ["TableWorker", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from batchgen.integrations.ray import data

    return getattr(data, name)
