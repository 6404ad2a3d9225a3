"""A job whose rows are computed by workers, which may be lost; the workers are in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchgen.config import JobConfig
from batchgen.errors import OutOfResourcesError, UsageError
from batchgen.job import run_job
from batchgen.job.arrivals import Arrival
from batchgen.job.fleet import Event, Lost, Orders, Ready
from batchgen.job.pool import crew_of
from batchgen.job.station import Station
from tests.crash import Silent, job, write_requests
from tests.outputs import results

ROWS = 200


class LocalFleet:
    """Workers that take turns in the caller's thread."""

    def __init__(self, orders: Orders, workers: int) -> None:
        self.workers = workers
        self.turns = 0
        self._orders = orders
        self._stations: dict[int, Station] = {}
        self._events: deque[tuple[int, Event]] = deque()
        self._given: deque[tuple[int, list[Arrival]]] = deque()

    def ready(self, worker: int) -> Ready:
        station = self._stations[worker] = Station(self._orders)
        return station.ready(f"worker {worker}")

    def start(self, worker: int) -> None:
        self._events.append((worker, self.ready(worker)))

    def send(self, worker: int, rows: Sequence[Arrival]) -> None:
        self._given.append((worker, list(rows)))

    def dies(self, rows: Sequence[Arrival]) -> bool:  # noqa: ARG002
        """Whether the worker of this turn is lost in it."""
        return False

    def wait(self, timeout_s: float) -> Sequence[tuple[int, Event]]:  # noqa: ARG002
        events = list(self._events)
        self._events.clear()
        while self._given and not events:
            worker, rows = self._given.popleft()
            self.turns += 1
            if self.dies(rows):
                self._given = deque((one, given) for one, given in self._given if one != worker)
                events.append((worker, Lost("killed")))
            else:
                events.append((worker, self._stations[worker].turn(rows)))
        return events

    def close(self) -> None:
        self._stations.clear()
        self._given.clear()


class Dying(LocalFleet):
    """Loses a worker at some turns."""

    at = (3, 4, 9)

    def dies(self, rows: Sequence[Arrival]) -> bool:  # noqa: ARG002
        return self.turns in self.at


class Poisoned(LocalFleet):
    """A row kills whoever has it."""

    name = "r42"
    deaths = 0

    def dies(self, rows: Sequence[Arrival]) -> bool:
        dies = any(row.row.data is not None and row.row.data.get("custom_id") == self.name for row in rows)
        Poisoned.deaths += dies
        return dies


class Hopeless(LocalFleet):
    def start(self, worker: int) -> None:
        self._events.append((worker, Lost("no memory")))


class Different(LocalFleet):
    def ready(self, worker: int) -> Ready:
        ready = super().ready(worker)
        if worker == 0:
            return ready
        return replace(ready, place="elsewhere", facts={**ready.facts, "kernels": "other"})


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the requests, and their results when they are computed alone."""
    folder = tmp_path_factory.mktemp("pool")
    (folder / "tiny").symlink_to(tiny_model)
    write_requests(folder / "in.jsonl", ROWS)
    for name in ("alone", "alone.jsonl"):
        run_job(job(folder, folder / name), folder / "home", Silent())
    return folder


def run(config: JobConfig, folder: Path, kind: type[LocalFleet], workers: int = 2) -> Any:
    return run_job(config, folder / "home", Silent(), crew_of(lambda orders: kind(orders, workers)))


@pytest.mark.parametrize("kind", [LocalFleet, Dying])
@pytest.mark.parametrize("ending", ["", ".jsonl"])
def test_the_same_files_as_alone(folder: Path, tmp_path: Path, kind: type[LocalFleet], ending: str) -> None:
    output = tmp_path / f"out{ending}"
    summary = run(job(folder, output), folder, kind)
    assert results(output) == results(folder / f"alone{ending}")
    told = summary.to_json()
    assert told["request_counts"]["total"] == len(results(output))
    assert told["usage"]["completion_tokens"] > 0
    assert told["steps"] > 0
    assert 0 < told["time"]["kernels_s"] < told["time"]["worker_s"]


def test_a_row_that_kills_its_workers_is_given_up_after_the_third(folder: Path, tmp_path: Path) -> None:
    Poisoned.deaths = 0
    summary = run(job(folder, tmp_path / "out"), folder, Poisoned)
    found, expected = results(tmp_path / "out"), results(folder / "alone")
    assert Poisoned.deaths == 3
    different = [(one, other) for one, other in zip(found, expected, strict=True) if one != other]
    assert [one["custom_id"] for one, _ in different] == ["r42"]
    assert different[0][0]["error"]["code"] == "internal_error"
    assert summary.counts.failed == sum(row["error"] is not None for row in found)
    # It may be tried again: by a run without workers, in the same output.
    run_job(job(folder, tmp_path / "out"), folder / "home", Silent())
    assert results(tmp_path / "out") == expected


def test_a_run_goes_on_from_one_of_another_kind(folder: Path, tmp_path: Path) -> None:
    class Interrupted(LocalFleet):
        def wait(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
            if self.turns > 6:
                raise KeyboardInterrupt
            return super().wait(timeout_s)

    config = job(folder, tmp_path / "out", rows_per_shard=20)
    with pytest.raises(KeyboardInterrupt):
        run(config, folder, Interrupted)
    summary = run_job(config, folder / "home", Silent())
    assert 0 < summary.counts.resumed < summary.counts.total
    assert results(tmp_path / "out") == results(folder / "alone")


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (Hopeless, OutOfResourcesError, "lost 3 times while it loaded the model .no memory"),
        (Different, UsageError, r"(?s)worker on elsewhere.*kernels: .* there, \"other\" now"),
    ],
)
def test_a_fleet_that_can_not_do_it(
    folder: Path, tmp_path: Path, kind: type[LocalFleet], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(job(folder, tmp_path / "out"), folder, kind)
