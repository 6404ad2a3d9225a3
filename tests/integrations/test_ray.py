"""A real Ray cluster on this machine: two CPUs, a worker on each."""

from __future__ import annotations

import gc
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen import Engine
from batchgen.config import JobConfig
from batchgen.errors import UsageError
from batchgen.integrations.ray import TableWorker
from batchgen.integrations.ray.fleet import ray_crew
from batchgen.io.manifest import manifest_of
from batchgen.job import run_job
from batchgen.progress import Progress
from tests.crash import Silent, job, stored_rows, write_requests
from tests.outputs import results

ROOT = Path(__file__).resolve().parents[2]
ROWS = 400
WORKERS = 2
COMMON = "--max-model-len 64 --kv-cache-memory 4MiB --max-num-seqs 8 --threads 1 --window 32"
SETTINGS: Mapping[str, Any] = {"max_model_len": 64, "kv_cache_memory": 4 << 20, "max_num_seqs": 8, "threads": 1}

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning:ray", "ignore::DeprecationWarning:ray", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of the cluster, which this process is connected to."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
        )
        before = signal.getsignal(signal.SIGTERM)
        with warnings.catch_warnings(action="ignore"):
            ray.init(
                address="local",
                num_cpus=WORKERS,
                object_store_memory=100 << 20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            with warnings.catch_warnings(action="ignore"):
                ray.shutdown()
                signal.signal(signal.SIGTERM, before)
                gc.collect()  # handles of the cluster's processes, of which Python warns that they may still run


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with requests, and their results when they are computed without Ray."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "tiny").symlink_to(tiny_model)
    write_requests(folder / "in.jsonl", ROWS)
    run_job(job(folder, folder / "alone"), folder / "home", Silent())
    return folder


def workers() -> list[Any]:
    """Processes of actors that have a model."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "".join(process.cmdline()).startswith("ray::StationActor"):
                found.append(process)
    return found


@dataclass
class Killer(Silent):
    """Kills a worker in the middle of the job."""

    killed: list[int] = field(default_factory=list)

    def update(self, progress: object) -> None:
        assert isinstance(progress, Progress)
        if progress.rows_done and not self.killed:
            victim = workers()[0]
            self.killed.append(victim.pid)
            victim.kill()


def test_a_worker_is_killed_and_no_row_is_lost(
    cluster: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killer = Killer()
    config = job(folder, tmp_path / "out")
    summary = run_job(config, folder / "home", killer, ray_crew(cluster, WORKERS))
    assert killer.killed
    assert "was lost with" in caplog.text
    assert results(tmp_path / "out") == results(folder / "alone")
    assert summary.to_json()["request_counts"]["total"] == len(results(folder / "alone"))
    assert not workers()


def command(source: Path, output: Path, address: str, *more: str) -> list[str]:
    program = "from batchgen.cli.main import main; main()"
    return [
        *(sys.executable, "-c", program, "run-batch", str(source), "-o", str(output)),
        *("--model", str(source.with_name("tiny")), "--distributed", "ray", "--ray-address", address),
        *COMMON.split(),
        *more,
    ]


def test_a_signal_ends_the_job_and_its_workers(cluster: str, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    write_requests(folder / "many.jsonl", 4000)
    with subprocess.Popen(
        command(folder / "many.jsonl", output, cluster, "--num-workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as running:
        assert running.stderr is not None
        assert any("generating" in line for line in running.stderr)
        there = workers()
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 143, err
    assert json.loads(out.splitlines()[-1])["status"] == "interrupted"
    assert len(there) == WORKERS
    _, alive = psutil.wait_procs(there, timeout=30)
    assert not alive
    said = manifest_of(output)
    assert said is not None
    assert not said.finished
    assert stored_rows(output) == said.counts["rows"] < 4000


def test_standard_output_is_the_results_alone(cluster: str, folder: Path) -> None:
    done = subprocess.run(
        command(folder / "in.jsonl", Path("-"), cluster, "--num-workers", "1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    names = [json.loads(line)["custom_id"] for line in done.stdout.splitlines()]
    assert names == [row["custom_id"] for row in results(folder / "alone")]
    assert json.loads(done.stderr.splitlines()[-1])["status"] == "completed"


def test_a_worker_without_the_model_says_so(cluster: str, tmp_path: Path) -> None:
    from batchgen.integrations.ray.fleet import RayFleet
    from batchgen.job.fleet import Orders

    config: JobConfig = job(tmp_path, tmp_path / "out")
    orders = Orders(model=config.model, engine=config.engine, input=config.input, home=tmp_path, run_id="", created=0)
    fleet = RayFleet(cluster, 1, orders)
    try:
        fleet.start(0)
        with pytest.raises(UsageError, match=r"the worker on .* cannot load the model: .*tiny"):
            fleet.wait(60.0)
    finally:
        fleet.close()


TABLE = pa.table(
    {
        "id": [f"q{n:02}" for n in range(60)],
        "question": [f"the sea {n % 30}" for n in range(60)],
        "n": range(60),
    }
)
SAMPLING = {"max_tokens": 5, "temperature": 1.0}


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore:The minimum number of concurrent actors:UserWarning:ray")  # of so few rows
def test_the_example_answers_a_dataset(tiny_model: Path, tmp_path: Path) -> None:
    """The same answers as without Ray, whatever the batches; other columns are kept."""
    pq.write_table(TABLE, tmp_path / "questions.parquet")
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "ray_dataset.py"))
    example["main"](str(tmp_path / "questions.parquet"), str(tmp_path / "answers"), str(tiny_model))
    found = pq.read_table(tmp_path / "answers").sort_by("id")
    with Engine(str(tiny_model), threads=1) as engine:
        sampling = {"max_tokens": 16, "temperature": 0.7}
        alone = engine.run_table(TABLE, prompt_column="question", id_column="id", sampling=sampling)
    kept = ["id", "question", "n", "text", "finish_reason", "completion_tokens"]
    assert found.select(kept).to_pylist() == alone.select(kept).to_pylist()


def test_ids_are_of_what_rows_hold(tiny_model: Path) -> None:
    table = TABLE.select(["question", "n"])
    worker = TableWorker(str(tiny_model), engine=SETTINGS, prompt_column="question", sampling=SAMPLING)
    whole = worker(table)
    halves = pa.concat_tables([worker(table.slice(0, 25)), worker(table.slice(25))])
    assert whole.select(["custom_id", "text"]) == halves.select(["custom_id", "text"])
    assert len(set(whole["custom_id"].to_pylist())) == 60
    twice = worker(pa.concat_tables([table.slice(0, 1)] * 2))
    assert len(set(twice["custom_id"].to_pylist())) == 2
