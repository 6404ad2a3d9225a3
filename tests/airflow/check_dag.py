"""The DAG of docs/examples under the real Airflow; run by `make test-airflow` with the Python of its own environment.

    check_dag.py FOLDER

FOLDER has the home of Airflow, a `bin` with the program `batchgen`, and the requests of one day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DAY = "2026-01-01"
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def run_task(folder: Path) -> str:
    """Run the task of the shell as `airflow tasks test` does; its log."""
    params = json.dumps({"folder": str(folder)})
    command = [sys.executable, "-m", "airflow", "tasks", "test", "--task-params", params]
    command += ["batchgen_nightly", "in_a_shell", DAY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def write_kube_config(folder: Path) -> Path:
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


def main(folder: Path) -> None:
    """Raise `AssertionError` where the example does not work."""
    os.environ["KUBECONFIG"] = str(write_kube_config(folder))
    from airflow.dag_processing.dagbag import DagBag

    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    bag = DagBag(str(EXAMPLES))
    assert not bag.import_errors, bag.import_errors
    dag = bag.dags["batchgen_nightly"]
    assert sorted(dag.task_ids) == ["in_a_pod", "in_a_shell"]

    # What a cluster would be asked for; there is none here.
    pod = dag.get_task("in_a_pod").build_pod_request_obj()
    assert pod.spec.containers[0].command == ["batchgen"]
    assert pod.spec.termination_grace_period_seconds == 30

    first = run_task(folder)
    answers = folder / f"{DAY}.answers.jsonl"
    assert answers.is_file(), first
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["response"]["status_code"] for row in rows] == [200, 200], rows
    assert '"status": "completed"' in first, first

    again = run_task(folder)
    assert "Skipping" in again, again
    print("the DAG parses, its pod is built, its task ran and was skipped the second time")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
