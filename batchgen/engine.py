"""The loop over scheduler and runner: sequences in, finished sequences out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from batchgen.core.ordering import offline_order
from batchgen.core.scheduler import Refusal, Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import ModelRunner

__all__ = ["Engine", "Refusal"]


class Engine:
    """Drives one runner through everything that a source of sequences holds.

    The engine knows the runner by its Protocol alone, and nothing of text, files or requests.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, window: int) -> None:
        """`window`: sequences taken from the source before they are needed, and so the span of the offline order."""
        self.scheduler = scheduler
        self._runner = runner
        self._window = window

    def run(self, source: Iterable[Sequence]) -> Iterator[Sequence | Refusal]:
        """Run every sequence of the source; yield each one when it is finished, or why it can't run.

        The source is read a window at a time: the next window when fewer sequences wait than one step can hold, so
        that steps stay full across the seam and memory stays bounded.
        """
        remaining = iter(source)
        enough = min(self._window, self._runner.capacity.max_num_seqs)
        exhausted = False
        while True:
            if not exhausted and self.scheduler.stats().waiting < enough:
                window = list(islice(remaining, self._window))
                exhausted = len(window) < self._window
                yield from self._admit(window)
            plan = self.scheduler.schedule()
            if plan is None:
                if exhausted:
                    return
                continue
            yield from self.scheduler.commit(plan, self._runner.execute(plan))

    def _admit(self, window: list[Sequence]) -> Iterator[Refusal]:
        for sequence in offline_order(window):
            refusal = self.scheduler.add(sequence)
            if refusal is not None:
                yield refusal
