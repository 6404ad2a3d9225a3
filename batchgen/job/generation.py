"""The part of a job in which rows are computed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import orjson

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig, JobConfig
from batchgen.core.sequence import Sequence
from batchgen.engine import Engine
from batchgen.errors import UsageError
from batchgen.io.sink import Sink
from batchgen.job.arrivals import Arrival
from batchgen.job.finding import names_of_run
from batchgen.job.loading import LoadedEngine, load_engine
from batchgen.job.summary import Counts, Effort
from batchgen.job.tracking import Frontend, Tracker
from batchgen.job.watchdog import Watchdog
from batchgen.job.worker import RunnerInThread, Worker
from batchgen.progress import Progress, Reporter
from batchgen.protocol.parse import Parser
from batchgen.protocol.response import Responder
from batchgen.protocol.result import ResultRow
from batchgen.text.grammar import Grammars
from batchgen.text.sampling import SamplingDefaults
from batchgen.text.schema_check import SchemaChecks
from batchgen.text.tokenizer import end_token_ids
from batchgen.text.tools import Tools

__all__ = ["Generation", "load"]

_logger = logging.getLogger(__name__)


def load(checkpoint: Checkpoint, config: EngineConfig, worker: Worker) -> LoadedEngine:
    """Load a model in the worker's thread."""
    return worker.call(load_engine, checkpoint, config)


class Generation:
    """Rows through a loaded model to the sink."""

    def __init__(
        self,
        config: JobConfig,
        loaded: LoadedEngine,
        worker: Worker,
        sink: Sink,
        counts: Counts,
        rows_total: Callable[[], int | None],
        reporter: Reporter,
    ) -> None:
        self.engine: Engine = loaded.engine(RunnerInThread(loaded.runner, worker))
        self.elapsed_s = 0.0
        self._loaded = loaded
        self._log_requests = config.log_requests
        self._counts = counts
        self._sink = sink
        self._reporter = reporter
        self._rows_total = rows_total
        responder = Responder(sink.manifest.run_id, sink.manifest.created)
        frontend = _frontend(config, loaded, responder)
        self._grammars = frontend.grammars
        self._window = config.input.window
        self._tracker = Tracker(frontend, self._emit, self._window, loaded.runner.capacity.max_num_seqs)

    def run(self, rows: Iterable[Arrival], watchdog: Watchdog) -> None:
        """Run all rows that are not done; each one's result goes to the sink. `watchdog` hears of all that moves."""
        with closing(self._grammars):
            self._run(rows, watchdog)

    def _run(self, rows: Iterable[Arrival], watchdog: Watchdog) -> None:
        began = time.monotonic()
        moved: object = None
        if self._log_requests:
            rows = map(_logged, rows)
        for outcomes in self.engine.run(self._tracker.windows(rows), self._window):
            for outcome in outcomes:
                if isinstance(outcome, Sequence):
                    self._tracker.finished(outcome)
                else:
                    self._tracker.refused(outcome)
            self._sink.tick()
            self.elapsed_s = time.monotonic() - began
            progress = self._progress()
            if moved != (moved := (progress.computed_tokens, progress.rows_done)):
                watchdog.alive()
            self._reporter.update(progress)
        self.elapsed_s = time.monotonic() - began

    def effort(self, home: Path) -> Effort:
        """Where the time went; the machine's rates are those kept in `home`."""
        return Effort(
            scheduling_s=self.engine.scheduling_s,
            kernels_s=self._loaded.runner.kernel_s,
            bound_s=self._loaded.bound_s(self.engine.stats().work, home),
        )

    def _emit(self, number: int, digest: str, row: ResultRow) -> None:
        counts = self._counts
        if row.error is None:
            counts.completed += 1
            counts.prompt_tokens += row.prompt_tokens or 0
            counts.cached_tokens += row.cached_tokens or 0
            counts.completion_tokens += row.completion_tokens or 0
        else:
            counts.failed += 1
            said = row.error.message if self._log_requests else f"{row.error.code} {row.error.param or ''}"
            _logger.debug("line %d: %s", row.line, said)
        self._sink.append(number, digest, row)

    def _progress(self) -> Progress:
        stats, counts = self.engine.stats(), self._counts
        return Progress(
            rows_total=self._rows_total(),
            rows_done=counts.total,
            rows_failed=counts.failed,
            rows_resumed=counts.resumed,
            running=stats.running,
            waiting=stats.waiting,
            kv_used=stats.blocks_used / stats.blocks_total,
            prompt_tokens=counts.prompt_tokens,
            computed_tokens=stats.computed_tokens,
            cached_tokens=counts.cached_tokens,
            output_tokens=stats.generated_tokens,
            distinct_tokens=stats.work.distinct_tokens,
            needed_tokens=stats.work.tokens,
            steps=stats.steps,
            preemptions=stats.preemptions,
            elapsed_s=self.elapsed_s,
            kernels_s=self._loaded.runner.kernel_s,
            scheduling_s=self.engine.scheduling_s,
        )


def _logged(arrival: Arrival) -> Arrival:
    if not arrival.done:
        row = arrival.row
        _logger.info("line %d: request %s", row.line, orjson.dumps(row.data, default=str).decode())
    return arrival


def _frontend(config: JobConfig, loaded: LoadedEngine, responder: Responder) -> Frontend:
    checkpoint, tokenizer = loaded.checkpoint, loaded.tokenizer
    if tokenizer is None:
        raise UsageError(f"{checkpoint.name} has no tokenizer; name one with --tokenizer")
    max_model_len = loaded.runner.max_model_len
    sampling = SamplingDefaults(
        checkpoint.generation_config, end_token_ids(checkpoint, tokenizer), max_model_len, config.engine.seed
    )
    return Frontend(
        parser=Parser(config.input.lenient),
        tokenizer=tokenizer,
        prompter=loaded.prompter,
        sampling=sampling,
        grammars=Grammars(tokenizer, sampling.end_ids, loaded.vocab_size),
        schemas=SchemaChecks(),
        tools=Tools.of_model(loaded.prompter.template, tokenizer),
        responder=responder,
        model=checkpoint.name,
        served=None if config.input.ignore_request_model else names_of_run(checkpoint, config.model),
    )
