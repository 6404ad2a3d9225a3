"""An operator of Airflow 3 that runs batchgen on the worker. Copy it into the folder of the DAGs or a package of yours.

A retry goes on where the last try stopped, so a task may be retried, cleared and killed at will.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context, timezone
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

BUSY = 75
FINAL = {2: "usage or model", 3: "too many rows failed", 4: "the input is invalid"}


class BatchgenOperator(BaseOperator):
    """Run a command of batchgen. The XCom is the summary, as a dict; the log of the task has the program's lines.

    | exit code | the task |
    |---|---|
    | 0 | succeeds |
    | `skip_exit_code`, where it is given to the program too | is skipped: there was nothing to do |
    | 75, another run holds the output | comes again after `busy_delay`; that is no retry |
    | 2, 3, 4 | fails at once: a retry would change nothing |
    | 5, 124, 143, 1 and all others | fails, and is retried as its `retries` say |
    """

    template_fields: Sequence[str] = ("arguments", "env")

    def __init__(
        self,
        *,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        program: str = "batchgen",
        skip_exit_code: int | None = None,
        busy_delay: timedelta = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = arguments
        self.env = env
        self.program = program
        self.skip_exit_code = skip_exit_code
        self.busy_delay = busy_delay
        self._process: subprocess.Popen[str] | None = None

    def words(self) -> list[str]:
        """The command line after the program's name."""
        return list(self.arguments)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - what Airflow calls it with
        """Run the program to its end."""
        command = [self.program, *self.words()]
        self.log.info("%s", command)
        # In a session of its own: on_kill reaches it and its children, and the program ends in peace if the worker is
        # killed; the next try then finds the output held and waits.
        self._process = subprocess.Popen(
            command,
            env=os.environ | dict(self.env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        last = ""
        for line in self._process.stdout or ():
            last = line.rstrip("\n")
            self.log.info("%s", last)
        return self._outcome(self._process.wait(), last)

    def on_kill(self) -> None:
        """SIGTERM: the program closes its files within seconds and ends with 143."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _outcome(self, code: int, last: str) -> dict[str, Any]:
        if code == 0:
            return json.loads(last)
        if code == self.skip_exit_code:
            raise AirflowSkipException("there was nothing to do")
        if code == BUSY:
            raise AirflowRescheduleException(timezone.utcnow() + self.busy_delay)
        if code in FINAL:
            raise AirflowFailException(f"exit code {code}, {FINAL[code]}: {last}")
        raise RuntimeError(f"exit code {code}: {last}")


class RunBatchOperator(BatchgenOperator):
    """`batchgen run-batch`, of a whole input or of one shard of it."""

    template_fields: Sequence[str] = ("input_file", "output_file", *BatchgenOperator.template_fields)

    def __init__(
        self,
        *,
        input_file: str,
        output_file: str,
        num_shards: int = 1,
        shard_index: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_file = input_file
        self.output_file = output_file
        self.num_shards = num_shards
        self.shard_index = shard_index

    def words(self) -> list[str]:
        """`run-batch`, its files, its shard, and what `arguments` adds."""
        words = ["run-batch", self.input_file, "-o", self.output_file]
        if self.num_shards > 1:
            words += ["--num-shards", str(self.num_shards), "--shard-index", str(self.shard_index)]
        if self.skip_exit_code is not None:
            words += ["--skip-exit-code", str(self.skip_exit_code)]
        return words + super().words()
