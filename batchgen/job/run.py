"""One `run-batch`, from the input's first byte to the summary."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import InputConfig, JobConfig, ModelConfig
from batchgen.core.sequence import Sequence
from batchgen.engine import Engine
from batchgen.errors import InvalidInputError, UsageError
from batchgen.io.ids import SeenIds
from batchgen.io.readers import count_rows, first_rows, open_rows
from batchgen.io.reorder import InputOrder
from batchgen.io.schema import passed_through, result_schema
from batchgen.io.sink import Sink, claim_output, open_sink
from batchgen.io.source import is_stream
from batchgen.job.finding import find_checkpoint, model_of_run, names_of_run
from batchgen.job.intake import AnyModel, FirstNamedModel
from batchgen.job.loading import LoadedEngine, load_engine
from batchgen.job.summary import Counts, Summary, failures_exceed
from batchgen.job.tracking import Frontend, Tracker
from batchgen.job.validate import Validation
from batchgen.job.watchdog import Watchdog
from batchgen.progress import Progress, Reporter
from batchgen.protocol.anthropic_request import is_message_request
from batchgen.protocol.lines import LineFormat
from batchgen.protocol.parse import Parser
from batchgen.protocol.request import RawRow
from batchgen.protocol.response import Responder
from batchgen.protocol.result import ResultRow
from batchgen.text.sampling import SamplingDefaults
from batchgen.text.tokenizer import end_token_ids

__all__ = ["run_job"]

_logger = logging.getLogger(__name__)
_ROWS_ASKED = 1000
"""Rows that are asked for the form of the file; lines that are no JSON say nothing."""


def run_job(config: JobConfig, home: Path, reporter: Reporter) -> Summary:
    """Run every request of the input and write every result.

    Raises a `BatchgenError` for what ends the job; whatever was finished before that, or before an interrupt, is kept
    in the output's shards.
    """
    began = time.monotonic()
    with claim_output(config.output, config.input.input_file) as place:
        reporter.stage("reading input")
        if config.strict:
            _refuse_faulty_input(config.input, config.model)
        rows_total = count_rows(config.input)
        config = replace(config, model=replace(config.model, model=model_of_run(config.model, config.input)))
        reporter.stage("loading model")
        checkpoint = find_checkpoint(config.model, home)
        loaded = load_engine(checkpoint, config.engine)
        try:
            run = _fingerprint(config, loaded)
            run_id = hashlib.blake2b(repr(run).encode(), digest_size=8).hexdigest()
            schema = result_schema(config.output.response_as, passed_through(config.input))
            sink = open_sink(place, config.output, schema, run_id, run, _line_format(config))
            frontend = _frontend(config, loaded, Responder(run_id, int(time.time())))
            reporter.stage("generating")
            generation = _Generation(config, frontend, loaded.engine(), sink, reporter, rows_total)
            try:
                with Watchdog(config.stall_timeout, generation.engine.describe) as watchdog:
                    generation.run(watchdog)
            except BaseException:
                sink.stop()
                raise
            sink.finish()
        finally:
            loaded.close()
    return Summary(
        counts=generation.counts,
        stats=generation.engine.stats(),
        generation_s=generation.elapsed_s,
        elapsed_s=time.monotonic() - began,
        output=config.output.output_file,
        model=checkpoint.name,
        kernels=loaded.runner.kernels_name,
        precision=loaded.runner.precision,
        too_many_failed=failures_exceed(generation.counts, config.max_failed),
    )


class _Generation:
    """The part of a job in which rows are computed."""

    def __init__(
        self,
        config: JobConfig,
        frontend: Frontend,
        engine: Engine,
        sink: Sink,
        reporter: Reporter,
        rows_total: int | None,
    ) -> None:
        self.counts = Counts()
        self.engine = engine
        self.elapsed_s = 0.0
        self._config = config
        self._frontend = frontend
        self._sink = sink
        self._reporter = reporter
        self._rows_total = rows_total
        self._in_order = InputOrder() if config.output.order == "input" else None

    def run(self, watchdog: Watchdog) -> None:
        """Run all rows of the input; each one's result goes to the sink. `watchdog` hears of all that moves."""
        began = time.monotonic()
        moved: object = None
        with SeenIds() as seen:
            tracker = Tracker(self._frontend, seen, self._emit, self._config.input.window)
            rows = open_rows(self._config.input)
            if self._config.log_requests:
                rows = _logged(rows)
            for outcomes in self.engine.run(tracker.windows(rows)):
                for outcome in outcomes:
                    if isinstance(outcome, Sequence):
                        tracker.finished(outcome)
                    else:
                        tracker.refused(outcome)
                self.elapsed_s = time.monotonic() - began
                progress = self._progress()
                if moved != (moved := (progress.computed_tokens, progress.rows_done)):
                    watchdog.alive()
                self._reporter.update(progress)
        self.elapsed_s = time.monotonic() - began
        assert not self._in_order, "a row of the input has no result"

    def _emit(self, number: int, row: ResultRow) -> None:
        counts = self.counts
        if row.error is None:
            counts.completed += 1
            counts.prompt_tokens += row.prompt_tokens or 0
            counts.cached_tokens += row.cached_tokens or 0
            counts.completion_tokens += row.completion_tokens or 0
        else:
            counts.failed += 1
            said = row.error.message if self._config.log_requests else f"{row.error.code} {row.error.param or ''}"
            _logger.debug("line %d: %s", row.line, said)
        for ready in (row,) if self._in_order is None else self._in_order.push(number, row):
            self._sink.append(ready)

    def _progress(self) -> Progress:
        stats, counts = self.engine.stats(), self.counts
        return Progress(
            rows_total=self._rows_total,
            rows_done=counts.total,
            rows_failed=counts.failed,
            running=stats.running,
            waiting=stats.waiting,
            kv_used=stats.blocks_used / stats.blocks_total,
            prompt_tokens=counts.prompt_tokens,
            computed_tokens=stats.computed_tokens,
            cached_tokens=counts.cached_tokens,
            output_tokens=stats.generated_tokens,
            preemptions=stats.preemptions,
            elapsed_s=self.elapsed_s,
        )


def _logged(rows: Iterator[RawRow]) -> Iterator[RawRow]:
    for row in rows:
        _logger.info("line %d: request %s", row.line, orjson.dumps(row.data, default=str).decode())
        yield row


def _frontend(config: JobConfig, loaded: LoadedEngine, responder: Responder) -> Frontend:
    checkpoint, tokenizer = loaded.checkpoint, loaded.tokenizer
    if tokenizer is None:
        raise UsageError(f"{checkpoint.name} has no tokenizer; name one with --tokenizer")
    max_model_len = loaded.runner.max_model_len
    sampling = SamplingDefaults(
        checkpoint.generation_config, end_token_ids(checkpoint, tokenizer), max_model_len, config.engine.seed
    )
    for name, value in sampling.unsupported().items():
        _logger.warning("the model's generation_config asks for %s=%s, which is not supported yet", name, value)
    return Frontend(
        parser=Parser(config.input.lenient),
        tokenizer=tokenizer,
        prompter=loaded.prompter,
        sampling=sampling,
        responder=responder,
        model=checkpoint.name,
        served=None if config.input.ignore_request_model else names_of_run(checkpoint, config.model),
    )


def _line_format(config: JobConfig) -> LineFormat:
    chosen = config.output.line_format
    if chosen != "auto":
        return chosen
    first = next((row for row in first_rows(config.input, _ROWS_ASKED) if row.data is not None), None)
    return "anthropic" if first is not None and is_message_request(first.data) else "openai"


def _fingerprint(config: JobConfig, loaded: LoadedEngine) -> dict[str, Any]:
    """Everything that the answers depend on, beside the requests."""
    checkpoint: Checkpoint = loaded.checkpoint
    template = (checkpoint.chat_template or "").encode()
    return {
        "model": checkpoint.name,
        "checkpoint": checkpoint.fingerprint,
        "precision": loaded.runner.precision,
        "kernels": loaded.runner.kernels_name,
        "chat_template": hashlib.sha256(template).hexdigest(),
        "generation_config": dict(checkpoint.generation_config),
        "max_model_len": loaded.runner.max_model_len,
        "seed": config.engine.seed,
    }


def _refuse_faulty_input(config: InputConfig, model: ModelConfig) -> None:
    if is_stream(config.input_file):
        raise UsageError("--strict reads the input twice, which standard input does not allow; give a file")
    models = FirstNamedModel() if model.model is None and not config.ignore_request_model else AnyModel()
    faults = (found for found in Validation(config, models).faults() if not found.warning)
    if faulty := [f"  line {found.line}: {found.fault.code}: {found.fault.message}" for found in islice(faults, 10)]:
        raise InvalidInputError("\n".join([f"{config.input_file} has invalid lines; the first of them:", *faulty]))
