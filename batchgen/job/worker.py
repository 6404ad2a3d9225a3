"""A thread for what takes long, so that the main thread hears signals at once.

Python runs signal handlers in the main thread between two instructions: within a step of a large model, or while
weights are read, there may be none for seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from batchgen.core.step import Capacity, ModelRunner, StepPlan, StepResult

__all__ = ["RunnerInThread", "Worker"]

_HEARING_S = 0.25
P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """One thread that runs one call after another."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread and wait for it. An interrupt ends the waiting, not the call."""
        future = self._pool.submit(function, *args, **kwargs)
        while not future.done():
            # A signal that comes just before a wait for a lock is heard only when that ends.
            with suppress(TimeoutError):
                future.exception(timeout=_HEARING_S)
        return future.result()

    def end_with(self, function: Callable[[], None]) -> None:
        """Run a last function when the calls before are over, without waiting for it."""
        self._pool.submit(function)
        self._pool.shutdown(wait=False)


class RunnerInThread:
    """A model runner whose steps run in a worker's thread."""

    def __init__(self, runner: ModelRunner, worker: Worker) -> None:
        self._runner = runner
        self._worker = worker

    @property
    def capacity(self) -> Capacity:
        """That of the runner."""
        return self._runner.capacity

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan in the worker's thread."""
        return self._worker.call(self._runner.execute, plan)

    def close(self) -> None:
        """Close the runner when its last step is over."""
        self._worker.end_with(self._runner.close)
