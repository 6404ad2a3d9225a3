"""The part of a job in which rows are computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path

from batchgen.config import InputConfig, ModelConfig
from batchgen.core.sequence import Sequence
from batchgen.engine import Engine
from batchgen.errors import UsageError
from batchgen.job.arrivals import Arrival
from batchgen.job.finding import names_of_run
from batchgen.job.loading import LoadedEngine
from batchgen.job.passing import Emit, counted, logged, progress_of
from batchgen.job.summary import Counts, Effort
from batchgen.job.tracking import Frontend, Tracker
from batchgen.progress import Progress
from batchgen.protocol.parse import Parser
from batchgen.protocol.response import Responder
from batchgen.text.grammar import Grammars
from batchgen.text.sampling import SamplingDefaults
from batchgen.text.schema_check import SchemaChecks
from batchgen.text.tokenizer import end_token_ids
from batchgen.text.tools import Tools

__all__ = ["Generation", "make_frontend"]


class Generation:
    """Rows through a loaded model to whoever takes their results."""

    def __init__(
        self,
        loaded: LoadedEngine,
        engine: Engine,
        frontend: Frontend,
        emit: Emit,
        counts: Counts,
        rows_total: Callable[[], int | None],
        *,
        window: int,
        log_requests: bool = False,
    ) -> None:
        """`emit` takes the results as they finish. `window`: see `Tracker`."""
        self.engine = engine
        self.elapsed_s = 0.0
        self._first_step_s: float | None = None
        self._loaded = loaded
        self._log_requests = log_requests
        self._counts = counts
        self._rows_total = rows_total
        self._window = window
        emit = counted(emit, counts, log_requests=log_requests)
        self._tracker = Tracker(frontend, emit, window, loaded.runner.capacity.max_num_seqs)

    def steps(self, rows: Iterable[Arrival | None]) -> Generator[Progress, None, None]:
        """Run all rows that are not done, step by step; where the run stands after each."""
        began = time.monotonic()
        if self._log_requests:
            rows = logged(rows)
        with closing(self._tracker.windows(rows)) as windows:
            for outcomes in self.engine.run(windows, self._window):
                for outcome in outcomes:
                    if isinstance(outcome, Sequence):
                        self._tracker.finished(outcome)
                    else:
                        self._tracker.refused(outcome)
                self.elapsed_s = time.monotonic() - began
                progress = self._progress()
                if self._first_step_s is None and progress.running:
                    self._first_step_s = self.elapsed_s
                yield progress
        self.elapsed_s = time.monotonic() - began

    def effort(self, home: Path) -> Effort:
        """Where the time went; the machine's rates are those kept in `home`."""
        return Effort(
            seconds=self.elapsed_s,
            scheduling_s=self.engine.scheduling_s,
            kernels_s=self._loaded.runner.kernel_s,
            bound_s=self._loaded.bound_s(self.engine.stats().work, home),
            hidden_scheduling_s=self.engine.hidden_s,
            first_step_s=self._first_step_s,
        )

    def _progress(self) -> Progress:
        return progress_of(
            self.engine.stats(),
            self._counts,
            self._rows_total(),
            elapsed_s=self.elapsed_s,
            kernels_s=self._loaded.runner.kernel_s,
            scheduling_s=self.engine.scheduling_s,
        )


def make_frontend(loaded: LoadedEngine, model: ModelConfig, source: InputConfig, responder: Responder) -> Frontend:
    """What turns rows into token ids and back for a loaded model. Its grammars are to be closed in the end.

    Raises `UsageError` for a model without tokenizer.
    """
    checkpoint, tokenizer = loaded.checkpoint, loaded.tokenizer
    if tokenizer is None:
        raise UsageError(f"{checkpoint.name} has no tokenizer; name one with --tokenizer")
    max_model_len = loaded.runner.max_model_len
    sampling = SamplingDefaults(
        checkpoint.generation_config, end_token_ids(checkpoint, tokenizer), max_model_len, loaded.config.seed
    )
    return Frontend(
        parser=Parser(source.lenient),
        tokenizer=tokenizer,
        prompter=loaded.prompter,
        sampling=sampling,
        grammars=Grammars(tokenizer, sampling.end_ids, loaded.vocab_size),
        schemas=SchemaChecks(),
        tools=Tools.of_model(loaded.prompter.template, tokenizer),
        responder=responder,
        model=checkpoint.name,
        served=None if source.ignore_request_model else names_of_run(checkpoint, model),
    )
