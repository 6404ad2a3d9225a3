"""Which rows of an input are one shard's of a job that several processes share.

Every process reads the whole input and comes to the same answer by itself. Requests that begin alike stay together,
so that what they begin with is computed by one process alone; but a beginning that a large share of the requests has
is no reason to give them all to one process: those are told apart by a longer beginning, at last by their custom_id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from batchgen.io.digest import plain_bytes
from batchgen.protocol.parse import custom_id_of
from batchgen.protocol.request import RawRow

__all__ = ["Partition", "body_of", "plan_partition", "prompt_bytes"]

_BEGINNINGS = (512, 2048, 8192, None)
"""Bytes of a request that are its beginning, from coarse to fine; None: all of it."""
_BUCKETS = 1 << 16
"""Counters of each length, so that memory is bounded. Beginnings that share one are split a little too early."""
_LARGEST = 4
"""A group stays together up to the fourth part of a fair share."""
_PROMPT_FIELDS = ("tools", "system", "messages", "prompt", "input")
"""Of a body, in the order in which templates put them into the prompt."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The split of one input into shards."""

    num_shards: int
    rows: int
    """Of the whole input."""
    digest: str
    """Changes with the requests and their order. Shards with the same one are of the same split."""
    counts: tuple[array[int], ...]
    """For each length of a beginning, requests by bucket."""

    def shard_of(self, row: RawRow) -> int:
        """The shard that a row of the input is in, in [0, num_shards)."""
        hashes = _hashes(row)
        for name, counts in zip(hashes, self.counts, strict=True):
            if counts[name % _BUCKETS] * self.num_shards * _LARGEST <= self.rows:
                return (name >> 32) % self.num_shards
        return xxhash.xxh3_64_intdigest(_name(row)) % self.num_shards


def plan_partition(rows: Iterable[RawRow], num_shards: int) -> Partition:
    """Read an input for its split."""
    counts = tuple(array("q", bytes(8 * _BUCKETS)) for _ in _BEGINNINGS)
    digest = xxhash.xxh3_128()
    number = 0
    for row in rows:
        number += 1
        hashes = _hashes(row)
        for name, counters in zip(hashes, counts, strict=True):
            counters[name % _BUCKETS] += 1
        digest.update(hashes[-1].to_bytes(8, "little") + _name(row))
    return Partition(num_shards, number, digest.hexdigest(), counts)


def body_of(row: RawRow) -> Mapping[str, Any] | None:
    """The part of a row that holds its parameters; None of a row that is no request."""
    body = (row.data or {}).get("body") or (row.data or {}).get("params")
    return body if isinstance(body, dict) else None


def prompt_bytes(row: RawRow) -> bytes:
    """What a row puts into the prompt: rows whose prompts begin alike have bytes that do. Of a row that is no request,
    its line."""
    body = body_of(row)
    if body is None:
        return str(row.line).encode()
    return plain_bytes([body[name] for name in _PROMPT_FIELDS if body.get(name) is not None])


def _name(row: RawRow) -> bytes:
    return (custom_id_of(row) or str(row.line)).encode("utf-8", "surrogatepass")


def _hashes(row: RawRow) -> list[int]:
    """A hash of each beginning of a request; of a row that is none, of its line."""
    text = prompt_bytes(row)
    return [xxhash.xxh3_64_intdigest(text[:length]) for length in _BEGINNINGS]
