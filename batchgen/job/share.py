"""The rows of the input that are this run's: all of them, or a shard's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchgen.config import JobConfig
from batchgen.errors import UsageError
from batchgen.io.partition import plan_partition
from batchgen.io.readers import count_rows, open_rows
from batchgen.io.source import is_stream
from batchgen.protocol.request import RawRow

__all__ = ["Share", "share_of_input"]


@dataclass(frozen=True, slots=True)
class Share:
    """What of the input is to be run."""

    holds: Callable[[RawRow], bool]
    """Whether a row is."""
    count: Callable[[], int | None]
    """Reads the input for the number of such rows; None where it can't be read twice."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of the split, for `merge` to check: `total_rows`, `partition`."""


def share_of_input(config: JobConfig) -> Share:
    """The share of this run. Of a shard's input a first reading makes the split.

    Raises `UsageError` for a shard of standard input, which can't be read twice, and by every process.
    """
    if config.num_shards == 1:
        return Share(lambda _: True, lambda: count_rows(config.input))
    if is_stream(config.input.input_file):
        raise UsageError("--num-shards reads the input twice, which standard input does not allow; give a file")
    partition = plan_partition(open_rows(config.input), config.num_shards)

    def holds(row: RawRow) -> bool:
        return partition.shard_of(row) == config.shard_index

    return Share(
        holds,
        lambda: sum(map(holds, open_rows(config.input))),
        {"total_rows": partition.rows, "partition": partition.digest},
    )
