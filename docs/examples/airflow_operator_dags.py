"""batchgen in Airflow 3 without providers: a nightly file, and one input shared by several tasks.

A downstream task reads the summary from the XCom.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow_operator import BatchgenOperator, RunBatchOperator

REQUESTS = "{{ params.folder }}/{{ ds }}.jsonl"
SETTINGS = ["--model", "{{ params.model }}", "--stall-timeout", "1800", "--max-failed", "5%"]
SHARDS = 2

settings: dict[str, Any] = {
    "schedule": "0 2 * * *",
    "start_date": datetime(2026, 1, 1),
    "catchup": False,
    "params": {"folder": "/srv/requests", "model": "smollm2-135m-instruct"},
    "default_args": {"retries": 3, "retry_delay": timedelta(minutes=5)},
}


@task
def figures(summaries: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Rows and tokens of all tasks before; for a dashboard, a check, a bill."""
    found = list(summaries)
    total = {name: sum(one["request_counts"][name] for one in found) for name in ("total", "failed", "resumed")}
    total |= {name: sum(one["usage"][name] for one in found) for name in ("prompt_tokens", "completion_tokens")}
    print(total)
    return total


with DAG("batchgen_operator", **settings):
    run = RunBatchOperator(
        task_id="run",
        input_file=REQUESTS,
        output_file="{{ params.folder }}/{{ ds }}.answers.jsonl",
        arguments=SETTINGS,
        skip_exit_code=99,
    )
    figures([run.output])

with DAG("batchgen_shards", **settings):
    answers = "{{ params.folder }}/{{ ds }}.shared.jsonl"
    shards = RunBatchOperator.partial(
        task_id="shard",
        input_file=REQUESTS,
        output_file=answers,
        num_shards=SHARDS,
        arguments=SETTINGS,
    ).expand(shard_index=list(range(SHARDS)))
    merged = BatchgenOperator(task_id="merge", arguments=["merge", answers, "--overwrite"])
    shards >> merged
    figures(shards.output)
