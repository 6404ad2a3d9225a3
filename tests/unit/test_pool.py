"""A job whose rows are computed by workers, which may be lost; the workers are in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchgen.config import EngineConfig, JobConfig
from batchgen.errors import OutOfResourcesError, UsageError
from batchgen.integrations.ray.cluster import Share, share_of
from batchgen.job import run_job
from batchgen.job.arrivals import Arrival
from batchgen.job.backlog import Backlog
from batchgen.job.dealing import Dealer
from batchgen.job.fleet import Event, Lost, Orders, Ready
from batchgen.job.pool import crew_of
from batchgen.job.station import Station
from batchgen.protocol.request import RawRow
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
def test_the_same_files_as_alone(
    folder: Path, tmp_path: Path, kind: type[LocalFleet], ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / f"out{ending}"
    summary = run(job(folder, output), folder, kind)
    assert caplog.text.count("was lost with") == (len(Dying.at) if kind is Dying else 0)
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


def test_the_driver_holds_no_more_than_its_window() -> None:
    read = 0

    def rows() -> Iterator[Arrival]:
        nonlocal read
        for number in range(20_000):
            read += 1
            data = {"body": {"prompt": f"{number}", "n": 2, "max_tokens": 5}}
            yield Arrival(number, "", RawRow(number + 1, data), None, None)

    dealer = Dealer(workers=2, full=8)
    dealer.joined(0)
    dealer.joined(1)
    backlog = Backlog(rows(), dealer, window=1000, enough=64)
    answered = 0
    while not backlog.over:
        backlog.read()
        for worker in range(2):
            sent = backlog.rows(dealer.deal(worker, ahead=24))
            # The first row is held to the last, as one may be that takes long.
            for number in [row.number for row in sent if row.number or not backlog.has_room]:
                assert dealer.answered(number)
                backlog.take(number)
                answered += 1
        assert read - answered <= 1000 + 64 + 512
        if not backlog.has_room and dealer.oldest == 0:
            assert read < 2 * (1000 + 64) + 512
            dealer.answered(0)
            backlog.take(0)
            answered += 1
    assert answered == 20_000


def test_what_a_worker_gets_of_a_cluster(caplog: pytest.LogCaptureFixture) -> None:
    cpu = [{"CPU": 16.0, "memory": 64e9}, {"CPU": 8.0, "memory": 32e9}]
    gpu = [{"CPU": 16.0, "GPU": 4.0, "memory": 64e9}] * 2
    engine = EngineConfig()
    assert share_of(cpu, engine, None) == Share(2, 8, 0, {"threads": 8})
    assert share_of(cpu, engine, 4) == Share(4, 4, 0, {"threads": 4, "kv_cache_memory": 8_000_000_000})
    assert share_of(cpu, EngineConfig(threads=3), 1) == Share(1, 3, 0, {"threads": 3})
    assert share_of(gpu, engine, None) == Share(8, 1, 1, {})
    assert share_of(gpu, EngineConfig(tensor_parallel_size=4), None) == Share(2, 1, 4, {})
    assert share_of(gpu, EngineConfig(device="cpu"), None) == Share(2, 16, 0, {"threads": 16})
    assert not caplog.text
    assert share_of(cpu, EngineConfig(threads=8), 4).workers == 4
    assert "4 workers with 8 CPUs each need more than the 24 CPUs" in caplog.text
    with pytest.raises(UsageError, match="no node"):
        share_of([], engine, None)
