"""Ray Data: tables through engines on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import pyarrow as pa
import xxhash

from batchgen.api.engine import Engine
from batchgen.config import EngineConfig
from batchgen.errors import UsageError
from batchgen.integrations.ray.cluster import connect, nodes, share_of, with_ray
from batchgen.io.digest import plain_bytes

if TYPE_CHECKING:
    import ray.data

__all__ = ["Columns", "TableWorker", "run"]

_SHARED = ("device", "threads", "kv_cache_memory", "tensor_parallel_size")
"""Settings that decide about a worker's share of the cluster."""
_PARQUET = (".parquet", ".pq")
_JSON = (".jsonl", ".json", ".jsonl.gz", ".jsonl.zst")
_PIECE = 256
"""Rows that are made into Python objects at once."""


class Columns(TypedDict, total=False):
    """How rows become requests, and what of their answers is wanted; see `batchgen.Engine.run_table`."""

    prompt_column: str | None
    messages_column: str
    prompt_template: str | None
    system_prompt: str | None
    id_column: str | None
    sampling: Mapping[str, Any] | None
    response_as: Literal["json", "string"]


class TableWorker:
    """For `Dataset.map_batches(TableWorker, batch_format="pyarrow", ...)`: answers the rows of one batch after another.

    Each actor loads the model once, when it is made. Rows without an id get one from what they hold, so that sampled
    answers do not depend on how the data is cut into batches.
    """

    def __init__(
        self, model: str | None = None, *, engine: Mapping[str, Any] | None = None, **columns: Unpack[Columns]
    ) -> None:
        """`engine`: further settings of `batchgen.Engine`; `columns`: of its `run_table`.

        Raises what loading the model does.
        """
        self._engine = Engine(model, **(engine or {}))
        self._columns = columns
        self._engine.load()

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The rows of the batch, in its order, with the columns of results."""
        if self._columns.get("id_column") is None and "custom_id" not in batch.column_names:
            batch = batch.append_column("custom_id", pa.array(_names(batch)))
        return self._engine.run_table(batch, **self._columns)


def run(
    data: ray.data.Dataset | str | Sequence[str],
    *,
    model: str | None = None,
    num_workers: int | None = None,
    batch_size: int = 1024,
    engine: Mapping[str, Any] | None = None,
    **columns: Unpack[Columns],
) -> ray.data.Dataset:
    """Answer every row of a dataset, or of Parquet or JSON-lines files, with actors that have the model.

    Lazy, as datasets are: nothing is computed before rows are taken or written. `num_workers` None: an actor for each
    GPU, or each node of a cluster without. `batch_size`: rows that an actor has at a time and that are ordered
    together; let it be several times `max_num_seqs`. `engine`: further settings of `batchgen.Engine`; `columns`: of its
    `run_table`.

    Raises `UsageError` where Ray is not installed, or for files with another ending.
    """
    with_ray()
    from ray.data import ActorPoolStrategy

    connect(None)
    settings = dict(engine or {})
    known = EngineConfig(**{name: settings[name] for name in _SHARED if name in settings})
    share = share_of(nodes(), known, num_workers)
    # Blocks of a batch each, so that there are enough of them for all actors.
    return (
        _dataset(data)
        .repartition(target_num_rows_per_block=batch_size)
        .map_batches(
            TableWorker,
            fn_constructor_kwargs={"model": model, "engine": {**settings, **share.settings}, **columns},
            batch_format="pyarrow",
            batch_size=batch_size,
            zero_copy_batch=True,
            compute=ActorPoolStrategy(size=share.workers),
            # The last one is for the tasks that read: without any they would wait for the actors, which wait for them.
            num_cpus=share.cpus - 1,
            num_gpus=share.gpus,
        )
    )


def _dataset(data: ray.data.Dataset | str | Sequence[str]) -> ray.data.Dataset:
    from ray.data import Dataset, read_json, read_parquet

    if isinstance(data, Dataset):
        return data
    paths = [data] if isinstance(data, str) else list(data)
    for endings, read in ((_PARQUET, read_parquet), (_JSON, read_json)):
        if all(path.endswith(endings) for path in paths):
            return read(paths)
    raise UsageError(f"{', '.join(paths)}: Parquet (.parquet) or JSON-lines files (.jsonl, .json) can be read")


def _names(batch: pa.Table) -> list[str]:
    """An id for each row: of what it holds, and of how many before it in the batch hold the same."""
    before: Counter[str] = Counter()
    names = []
    for piece in batch.to_batches(max_chunksize=_PIECE):
        for row in piece.to_pylist():
            name = xxhash.xxh3_64_hexdigest(plain_bytes(row))
            names.append(name if not before[name] else f"{name}-{before[name]}")
            before[name] += 1
    return names
