"""A thread for what takes long, so that the main thread hears signals at once.

Python runs signal handlers in the main thread between two instructions: within a step of a large model, or while
weights are read, there may be none for seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from batchgen.core.step import Answer, Capacity, ModelRunner, StepPlan, StepResult

__all__ = ["RunnerInThread", "Worker", "result_of"]

_HEARING_S = 0.25
P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """One thread that runs one call after another."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread and wait for it. An interrupt ends the waiting, not the call."""
        return result_of(self.begin(function, *args, **kwargs))

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in the thread when the calls before are over."""
        return self._pool.submit(function, *args, **kwargs)

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

    def begin(self, plan: StepPlan) -> Answer:
        """Begin to compute the plan in the worker's thread."""
        begun = self._worker.begin(self._runner.begin, plan)

        def answer() -> StepResult:
            return result_of(begun)()

        return answer

    def close(self) -> None:
        """Close the runner when its last step is over."""
        self._worker.end_with(self._runner.close)


def result_of(future: Future[T]) -> T:
    """Wait for a call that was begun. An interrupt ends the waiting alone, so that it can be waited for again."""
    while not future.done():
        # A signal that comes just before a wait for a lock is heard only when that ends.
        with suppress(TimeoutError):
            future.exception(timeout=_HEARING_S)
    return future.result()
