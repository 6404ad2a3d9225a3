"""DAGs that show what the operator makes of an exit code: a program that ends as it is told, one DAG for each case."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG
from airflow_operator import BatchgenOperator

HOME = Path(os.environ["AIRFLOW_HOME"])
PROGRAM = HOME / "bin" / "ends-as-told"


@dataclass(frozen=True)
class Case:
    """The codes that tries end with, one after another, and what becomes of the task."""

    codes: tuple[int, ...]
    state: str
    retries: int = 2

    @property
    def dag_id(self) -> str:
        return f"exit_{'_'.join(map(str, self.codes))}"

    @property
    def told(self) -> Path:
        """The file that the program takes its code from; it takes a line each time."""
        return HOME / f"{self.dag_id}.codes"


CASES = (
    Case((2,), "failed"),
    Case((3,), "failed"),
    Case((4,), "failed"),
    Case((99,), "skipped"),
    Case((5, 124, 0), "success"),
    Case((75, 75, 0), "success", retries=0),
)

for case in CASES:
    with DAG(case.dag_id, schedule=None, start_date=datetime(2026, 1, 1)):
        BatchgenOperator(
            task_id="only",
            program=str(PROGRAM),
            arguments=[str(case.told)],
            skip_exit_code=99,
            busy_delay=timedelta(seconds=1),
            retries=case.retries,
            retry_delay=timedelta(0),
        )
