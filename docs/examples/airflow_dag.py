"""Two ways to run batchgen from Airflow 3 with its own operators: in a shell on the worker, and in a pod.

Either may be retried and cleared at will: a task that is run again goes on where it stopped. With --skip-exit-code 99
a task that finds everything done is shown as skipped.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

REQUESTS = "{{ params.folder }}/{{ ds }}.jsonl"
ANSWERS = "{{ params.folder }}/{{ ds }}.answers.jsonl"

with DAG(
    "batchgen_nightly",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    params={"folder": "/srv/requests", "model": "smollm2-135m-instruct"},
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
):
    # The last line of standard output is the summary: as a dict it becomes the task's XCom. A shell knows two outcomes
    # beside success, failed and skipped; airflow_operator.py tells more of them apart.
    BashOperator(
        task_id="in_a_shell",
        bash_command=(
            f"exec batchgen run-batch {REQUESTS} -o {ANSWERS} --model {{{{ params.model }}}} "
            "--stall-timeout 1800 --skip-exit-code 99"
        ),
        skip_on_exit_code=99,
        append_env=True,
        output_processor=json.loads,
    )
    KubernetesPodOperator(
        task_id="in_a_pod",
        name="batchgen",
        image="registry.example.com/batchgen:0.1.0",
        cmds=["batchgen"],
        arguments=["run-batch", REQUESTS, "-o", ANSWERS, "--stall-timeout", "1800", "--skip-exit-code", "99"],
        env_vars={"BATCHGEN_HOME": "/models", "BATCHGEN_LOG_FORMAT": "json"},
        skip_on_exit_code=99,
        termination_grace_period=30,
    )
