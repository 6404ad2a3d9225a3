"""Steps of one token a sequence at a ladder of batch sizes, so that each size is recorded once and replayed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import torch

__all__ = ["CudaGraphs", "Direct", "Recorder", "Replays", "Work", "ladder"]

Work = Callable[[], None]


def ladder(most: int) -> tuple[int, ...]:
    """Batch sizes up to `most`, itself included: in between, padding costs an eighth at most from 16 on."""
    sizes = {1, 2, 4, most, *range(8, 257, 8), *range(272, most, 32)}
    return tuple(sorted(size for size in sizes if size <= most))


class Recorder(Protocol):
    """How work becomes something that can be replayed."""

    def record(self, work: Work) -> Work:
        """Do the work once, and return what does it again over the same memory."""
        ...


class Direct:
    """Replays by doing the work again: where there are no CUDA graphs."""

    def record(self, work: Work) -> Work:
        work()
        return work


class CudaGraphs:
    """Records CUDA graphs, all of them in one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        # Kernels are compiled and libraries loaded outside of the recording.
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread may wait for an earlier step meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay


class Replays:
    """The recordings of one program, each made when its size is met first."""

    def __init__(self, most: int, recorder: Recorder) -> None:
        self._sizes = ladder(most)
        self._recorder = recorder
        self._recorded: dict[int, Work] = {}

    def size_for(self, count: int) -> int:
        """The size of the ladder that holds `count` sequences."""
        return self._sizes[bisect_left(self._sizes, count)]

    def run(self, size: int, work: Work) -> None:
        """Do `work`, which must be the same for equal sizes."""
        recorded = self._recorded.get(size)
        if recorded is None:
            self._recorded[size] = self._recorder.record(work)
        else:
            recorded()

    def forget(self) -> None:
        """Drop all recordings: the memory that they work on has moved."""
        self._recorded.clear()
