"""The DAGs of docs/examples under the real Airflow; run by `make test-airflow` with the Python of its own environment.

    check_dag.py FOLDER

FOLDER is the home of Airflow; it has a `bin` with the program `batchgen`, and `dags` with the examples.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

DAY, OTHER_DAY = "2026-01-01", "2026-01-02"
ENDS_AS_TOLD = """#!/bin/sh
code=$(head -n 1 "$1"); sed -i 1d "$1"; echo "a line of the log" >&2; echo "{\\"exit_code\\": $code}"; exit "$code"
"""


class Airflow:
    """The DAGs of the folder, and a way to run one of them to its end."""

    def __init__(self, folder: Path) -> None:
        from airflow.dag_processing.dagbag import BundleDagBag
        from airflow.utils.db import initdb

        initdb()
        dags = folder / "dags"
        bag = BundleDagBag(dag_folder=dags, bundle_path=dags, bundle_name="dags-folder")
        assert not bag.import_errors, bag.import_errors
        self.folder, self.dags = folder, bag.dags

    def run(self, name: str, day: str = DAY) -> tuple[dict[tuple[str, int], str], Callable[..., Any]]:
        """Run all tasks of a DAG; their states by name and index (-1: not mapped), and what reads their XComs."""
        date = datetime.fromisoformat(day).replace(tzinfo=UTC)
        run = self.dags[name].test(logical_date=date, run_conf={"folder": str(self.folder)})
        states = {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}

        def pull(task: str, index: int = -1) -> Any:
            ti = next(ti for ti in run.get_task_instances() if (ti.task_id, ti.map_index) == (task, index))
            return ti.xcom_pull(task_ids=task, map_indexes=index)

        return states, pull


def write_requests(folder: Path, day: str, number: int, tokens: int) -> None:
    """The requests of a day."""
    body = {"messages": [{"role": "user", "content": "Count."}], "max_completion_tokens": tokens, "temperature": 1}
    body |= {"ignore_eos": True}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = (json.dumps(line | {"custom_id": f"r-{i}"}) for i in range(number))
    (folder / f"{day}.jsonl").write_text("\n".join(lines))


def kube_config(folder: Path) -> Path:
    """A configuration that names a cluster nobody will call."""
    path = folder / "kube.json"
    named = {"name": "none"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "none",
        "clusters": [named | {"cluster": {"server": "https://localhost:1"}}],
        "users": [named | {"user": {}}],
        "contexts": [named | {"context": {"cluster": "none", "user": "none"}}],
    }
    path.write_text(json.dumps(config))
    return path


def check_shell_and_pod(airflow: Airflow) -> None:
    """What a cluster would be asked for; there is none here. The shell's task runs, and is skipped when done."""
    dag = airflow.dags["batchgen_nightly"]
    pod = dag.get_task("in_a_pod").build_pod_request_obj()
    assert pod.spec.containers[0].command == ["batchgen"]
    assert pod.spec.termination_grace_period_seconds == 30
    shell = dag.partial_subset("in_a_shell")
    airflow.dags["batchgen_nightly"] = shell
    states, pull = airflow.run("batchgen_nightly")
    assert states["in_a_shell", -1] == "success", states
    assert pull("in_a_shell")["request_counts"]["completed"] == 6
    states, _ = airflow.run("batchgen_nightly")
    assert states["in_a_shell", -1] == "skipped", states


def check_shards(airflow: Airflow) -> None:
    """Mapped tasks, one a shard; then the merged file, and the figures from their XComs."""
    states, pull = airflow.run("batchgen_shards")
    assert set(states.values()) == {"success"}, states
    assert {index for task, index in states if task == "shard"} == {0, 1}
    merged = pull("merge")
    assert (merged["request_counts"]["total"], merged["shards"]) == (6, 2)
    rows = (airflow.folder / f"{DAY}.shared.jsonl").read_text().splitlines()
    assert [json.loads(row)["custom_id"] for row in rows] == [f"r-{i}" for i in range(6)]
    assert pull("figures")["completion_tokens"] == 6 * 8


def check_exit_codes(airflow: Airflow) -> None:
    """A try for each code that was told, none too many, and the state that the operator's table says."""
    from exit_codes_dag import CASES, PROGRAM

    PROGRAM.write_text(ENDS_AS_TOLD)
    PROGRAM.chmod(0o755)
    for case in CASES:
        case.told.write_text("".join(f"{code}\n" for code in (*case.codes, 77)))
        states, pull = airflow.run(case.dag_id)
        assert (states, case.told.read_text()) == ({("only", -1): case.state}, "77\n"), case
        if case.state == "success":
            assert pull("only") == {"exit_code": 0}


def check_kill(airflow: Airflow) -> None:
    """A kill in the middle reaches the program; the retry has the rows that were finished, and ends the job."""
    metrics = airflow.folder / "metrics.json"
    os.environ |= {
        "BATCHGEN_METRICS_FILE": str(metrics),
        "BATCHGEN_MAX_NUM_SEQS": "1",
        "BATCHGEN_SECONDS_PER_SHARD": "0",
    }
    write_requests(airflow.folder, OTHER_DAY, 12, 128)  # seconds of work, so that the kill comes in the middle
    killed_at: list[int] = []

    def kill_when_some_are_done() -> None:
        while not killed_at:
            done = json.loads(metrics.read_text())["progress"]["rows_done"] if metrics.exists() else 0
            if done:
                killed_at.append(done)
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    airflow.dags["batchgen_operator"].get_task("run").retry_delay = timedelta(0)
    watch = threading.Thread(target=kill_when_some_are_done, daemon=True)
    watch.start()
    states, pull = airflow.run("batchgen_operator", OTHER_DAY)
    assert killed_at
    assert set(states.values()) == {"success"}, states
    counts = pull("run")["request_counts"]
    assert counts["completed"] == 12
    assert 0 < counts["resumed"] < 12, counts
    assert pull("figures")["resumed"] == counts["resumed"]


def main(folder: Path) -> None:
    """Raise `AssertionError` where an example does not work."""
    os.environ["KUBECONFIG"] = str(kube_config(folder))
    airflow = Airflow(folder)
    write_requests(folder, DAY, 6, 8)
    check_shell_and_pod(airflow)
    check_shards(airflow)
    check_exit_codes(airflow)
    check_kill(airflow)
    print("4 passed, 0 failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
