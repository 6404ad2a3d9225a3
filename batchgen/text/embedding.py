"""Sums of hidden states to embeddings."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from batchgen.core.sequence import Pooling
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import EmbeddingRequest

__all__ = ["EmbeddingSpec", "normalised"]

_POOLINGS: Mapping[str, Pooling] = {"last": Pooling.LAST, "mean": Pooling.MEAN}


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """What a model's embeddings are."""

    size: int
    way: str
    """`Checkpoint.pooling`."""

    @property
    def pooling(self) -> Pooling | None:
        """Which hidden states make up an embedding; None for a way that we don't go."""
        return _POOLINGS.get(self.way)

    def fault_of(self, request: EmbeddingRequest) -> RowFault | None:
        """Why the model can't give what a request asks for."""
        if self.pooling is None:
            message = f"the model makes its embeddings by {self.way}, which is not supported; only last and mean are"
            return RowFault(Code.UNSUPPORTED_URL, message, "url")
        if request.dimensions is not None and request.dimensions > self.size:
            message = f"body.dimensions must be at most {self.size}, found {request.dimensions}"
            return RowFault(Code.INVALID_VALUE, message, "body.dimensions")
        return None


def normalised(total: array[float], dimensions: int | None) -> array[float]:
    """The first `dimensions` values of a sum of states, scaled to length 1, as float32.

    A mean points where its sum does, so it needs no division of its own.
    """
    kept = total[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in kept)) or 1.0
    return array("f", (value / length for value in kept))
