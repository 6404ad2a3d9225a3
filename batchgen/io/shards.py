"""The outputs of a job that several processes share: one folder for each shard, beside the output that they will be."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["Shard", "shard_folder", "shards_beside"]

_NAME = re.compile(r"(?P<output>.+)\.shard-(?P<index>\d{5,})-of-(?P<number>\d{5,})")


def shard_folder(output: str, index: int, number: int) -> str:
    """The output of shard `index` of `number`: `out.jsonl.shard-00003-of-00008`."""
    return f"{output}.shard-{index:05d}-of-{number:05d}"


class Shard:
    """A shard's output, and what its name says."""

    def __init__(self, path: Path) -> None:
        """Raises `ValueError` where the name is not that of a shard."""
        found = _NAME.fullmatch(path.name)
        if found is None:
            raise ValueError(f"{path} is not named like a shard, OUTPUT.shard-00000-of-00008")
        self.path = path
        self.output = path.with_name(found["output"])
        """The output of the whole job."""
        self.index, self.number = int(found["index"]), int(found["number"])

    @staticmethod
    def is_named(path: Path) -> bool:
        """Whether a path has the name of a shard."""
        return _NAME.fullmatch(path.name) is not None


def shards_beside(output: Path) -> list[Shard]:
    """The shards of an output that are there, in order."""
    shards = [Shard(path) for path in output.parent.glob("*.shard-*-of-*") if Shard.is_named(path)]
    return sorted((shard for shard in shards if shard.output == output), key=lambda shard: shard.index)
