"""Workers of a distributed job on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Any

from batchgen.errors import BatchgenError
from batchgen.integrations.ray.actor import StationActor
from batchgen.integrations.ray.cluster import connect, nodes, share_of, with_ray
from batchgen.job.arrivals import Arrival
from batchgen.job.crew import Assignment, Crew, OpenCrew
from batchgen.job.fleet import Event, Lost, Orders
from batchgen.job.pool import crew_of

__all__ = ["ray_crew"]


def ray_crew(address: str | None, workers: int | None) -> OpenCrew:
    """A crew of actors on the cluster at `address`; None: on the one that Ray finds, else on a new one here.

    `workers`: their number; None: one for each GPU, or each node of a cluster without. Raises `UsageError` where Ray is
    not installed, when called; where no cluster answers, when opened.
    """
    with_ray()
    open_pool = crew_of(lambda orders: RayFleet(address, workers, orders))

    @contextmanager
    def open_crew(job: Assignment) -> Iterator[Crew]:
        # Ray prints what it notices of its cluster, and standard output is for results.
        with redirect_stdout(sys.stderr), open_pool(job) as crew:
            yield crew

    return open_crew


class RayFleet:
    """`batchgen.job.fleet.Fleet` of Ray actors."""

    def __init__(self, address: str | None, workers: int | None, orders: Orders) -> None:
        self._ray = with_ray()
        self._is_ours = connect(address)
        self._share = share_of(nodes(), orders.engine, workers)
        self._orders = replace(orders, engine=replace(orders.engine, **self._share.settings))
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        """What was asked and is not answered -> the worker that it was asked of, in the order of asking."""

    @property
    def workers(self) -> int:
        """How many there are to be."""
        return self._share.workers

    def start(self, worker: int) -> None:
        """Have an actor begin."""
        share = self._share
        made = self._ray.remote(StationActor).options(
            num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        actor = self._actors[worker] = made.remote(self._orders)
        self._pending[actor.load.remote()] = worker

    def send(self, worker: int, rows: Sequence[Arrival]) -> None:
        """Give an actor rows and a turn."""
        self._pending[self._actors[worker].turn.remote(rows)] = worker

    def wait(self, timeout_s: float) -> list[tuple[int, Event]]:
        """Answers that are there, and losses."""
        if not self._pending:
            time.sleep(timeout_s)
            return []
        waiting = list(self._pending)
        # Wait for the first one; then for none, to have all that are there.
        if self._ray.wait(waiting, timeout=timeout_s)[0]:
            there, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
            return [self._answer(ref, self._pending.pop(ref)) for ref in there if ref in self._pending]
        return []

    def close(self) -> None:
        """End all actors, whatever they are at."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()

    def _answer(self, ref: Any, worker: int) -> tuple[int, Event]:
        errors = self._ray.exceptions
        try:
            event: Event = self._ray.get(ref)
        except errors.RayTaskError as error:
            # Raised by our own code there; it ends the job as it would here.
            if isinstance(error.cause, BatchgenError | MemoryError):
                raise error.cause from None
            raise
        except errors.RayError as error:
            self._forget(worker)
            return worker, Lost(_in_short(error))
        return worker, event

    def _forget(self, worker: int) -> None:
        """What the actor was asked is never answered; it may be alive behind a broken network."""
        self._pending = {ref: one for ref, one in self._pending.items() if one != worker}
        self._ray.kill(self._actors.pop(worker))


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(dict.fromkeys((lines or [type(error).__name__])[:1] + lines[-1:]))[:500]
