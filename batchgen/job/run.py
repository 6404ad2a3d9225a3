"""One `run-batch`, from the input's first byte to the summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig
from batchgen.errors import InvalidInputError, UsageError
from batchgen.io.claim import Claim, claim_output
from batchgen.io.ledger import Ledger
from batchgen.io.manifest import Manifest
from batchgen.io.readers import first_rows, open_rows
from batchgen.io.schema import passed_through, result_schema
from batchgen.io.sink import Sink, open_sink
from batchgen.io.source import is_stream
from batchgen.io.tables import input_identity
from batchgen.job.arrivals import Arrival, arrivals
from batchgen.job.counting import RowCount
from batchgen.job.crew import Assignment, Crew, OpenCrew
from batchgen.job.finding import find_checkpoint, model_of_run
from batchgen.job.fingerprint import new_manifest, refuse_differences, settings_of
from batchgen.job.intake import AnyModel, FirstNamedModel
from batchgen.job.out_of_memory import telling_memory_is_full
from batchgen.job.progress_file import Recording, recorded
from batchgen.job.share import Share, share_of_input
from batchgen.job.summary import Counts, Summary, failures_exceed
from batchgen.job.validate import Validation
from batchgen.progress import Reporter
from batchgen.protocol.anthropic_request import is_message_request
from batchgen.protocol.lines import LineFormat

__all__ = ["run_job"]

_ROWS_ASKED = 1000
"""Rows that are asked for the form of the file; lines that are no JSON say nothing."""
_ADVICE = "finished rows are kept. Lower --window, --max-num-seqs or --kv-cache-memory, or free some, and run again"


def run_job(config: JobConfig, home: Path, reporter: Reporter, open_crew: OpenCrew | None = None) -> Summary:
    """Run every request of the input that has no result yet, and write every result.

    `open_crew`: who computes; None: this process.
    Raises a `BatchgenError` for what ends the job; whatever was finished before that, or before an interrupt, is kept
    in the output, and the same call goes on from there.
    """
    began = time.monotonic()
    with claim_output(config.output, config.input.input_file) as claim:
        reporter.stage("reading input")
        earlier = claim.earlier
        source = _look_at(config, earlier)
        config = replace(config, model=replace(config.model, model=config.model.model or source.get("model")))
        checkpoint = find_checkpoint(config.model, home)
        manifest = new_manifest(config, settings_of(config, checkpoint), source, earlier)
        if earlier is not None and not config.output.resume_anyway:
            refuse_differences(config.output.output_file, earlier.settings, manifest.settings)
        if claim.is_finished(manifest, config.output) and not (config.strict and manifest.counts["failed"]):
            counts, crew = _counts_of(manifest), None
        else:
            if config.strict:
                _refuse_faulty_input(config.input, config.model)
            counts = Counts()
            with telling_memory_is_full(_ADVICE):
                crew = _run(config, checkpoint, claim, manifest, counts, home, open_crew or _alone, reporter)
    engine = manifest.engine or {}
    return Summary(
        counts=counts,
        stats=None if crew is None else crew.stats(),
        effort=None if crew is None else crew.effort(),
        generation_s=0.0 if crew is None else crew.elapsed_s,
        elapsed_s=time.monotonic() - began,
        output=config.output.output_file,
        model=checkpoint.name,
        kernels=engine.get("kernels"),
        precision=engine.get("precision"),
        too_many_failed=failures_exceed(counts, config.max_failed),
        skip_exit_code=config.skip_exit_code,
    )


def _run(
    config: JobConfig,
    checkpoint: Checkpoint,
    claim: Claim,
    manifest: Manifest,
    counts: Counts,
    home: Path,
    open_crew: OpenCrew,
    reporter: Reporter,
) -> Crew | None:
    """Bring the output up to the input; None where that needed no model."""
    claim.prepare()
    share = share_of_input(config)
    passed = passed_through(config.input)
    schema = result_schema(config.output.response_as, passed)
    line_format = _line_format(config)
    manifest.input = {**manifest.input, **share.facts, "line_format": line_format}
    with Ledger() as ledger:
        sink = open_sink(claim, config.output, schema, manifest, line_format)
        try:
            sink.enter_earlier(ledger, retry_failed=config.output.retry_failed)
            columns = {field.name for field in passed}
            rows = _told(arrivals(open_rows(config.input), columns, ledger, share.holds), sink, counts)
            with recorded(reporter, claim.folder, manifest.settings.get("shard")) as recording:
                crew = _generate(config, checkpoint, sink, counts, rows, share, home, open_crew, recording)
        except BaseException:
            sink.stop()
            raise
        manifest.input = {**manifest.input, "rows": counts.total}
        sink.finish()
    return crew


def _generate(
    config: JobConfig,
    checkpoint: Checkpoint,
    sink: Sink,
    counts: Counts,
    rows: Iterator[Arrival],
    share: Share,
    home: Path,
    open_crew: OpenCrew,
    recording: Recording,
) -> Crew | None:
    """Run the rows that have no result; without any, no model is loaded."""
    first = next((row for row in rows if not row.done), None)
    if first is None:
        return None
    # Threads and signals: what a run that finds its output finished does without.
    from batchgen.job.watchdog import Watchdog

    manifest = sink.manifest
    job = Assignment(
        config=replace(config, engine=_engine_config(config.engine, manifest)),
        checkpoint=checkpoint,
        home=home,
        run_id=manifest.run_id,
        created=manifest.created,
        emit=sink.append,
        counts=counts,
        rows_total=RowCount(share.count, manifest),
    )
    recording.stage("loading model")
    with open_crew(job) as crew:
        _compare_engines(config, manifest, crew.facts())
        recording.tell(**crew.about())
        recording.stage("generating")
        with Watchdog(config.stall_timeout, crew.describe) as watchdog:
            moved: object = None
            for progress in crew.steps(chain([first], rows)):
                sink.tick()
                if moved != (moved := (progress.computed_tokens, progress.rows_done)):
                    watchdog.alive()
                recording.update(progress)
    recording.tell(bound_s=crew.effort().bound_s)
    return crew


def _alone(job: Assignment) -> AbstractContextManager[Crew]:
    # Torch and all else that takes seconds to import.
    from batchgen.job.alone import open_alone

    return open_alone(job)


def _told(rows: Iterator[Arrival], sink: Sink, counts: Counts) -> Iterator[Arrival]:
    """The rows; of those that an earlier run has answered the sink is told."""
    for arrival in rows:
        if (stored := arrival.stored) is not None:
            counts.resumed += 1
            counts.failed += stored.failed
            counts.completed += not stored.failed
            sink.keep(arrival.number, arrival.row.line, stored)
        yield arrival


def _look_at(config: JobConfig, earlier: Manifest | None) -> dict[str, Any]:
    """What the manifest says of the input. The model that its lines name is known where the file has not changed."""
    identity = input_identity(config.input)
    known = {} if earlier is None or identity is None or earlier.input.get("identity") != identity else earlier.input
    facts = {"file": config.input.input_file, "identity": identity, "rows": known.get("rows")}
    if config.model.model is None and not config.input.ignore_request_model:
        facts["model"] = known["model"] if "model" in known else model_of_run(config.model, config.input)
    return facts


def _line_format(config: JobConfig) -> LineFormat:
    chosen = config.output.line_format
    if chosen != "auto":
        return chosen
    first = next((row for row in first_rows(config.input, _ROWS_ASKED) if row.data is not None), None)
    return "anthropic" if first is not None and is_message_request(first.data) else "openai"


def _engine_config(config: EngineConfig, manifest: Manifest) -> EngineConfig:
    """The context length of the first run, if it was left to the memory that was free then."""
    if manifest.engine is None or config.max_model_len is not None:
        return config
    return replace(config, max_model_len=manifest.engine["max_model_len"])


def _compare_engines(config: JobConfig, manifest: Manifest, now: Mapping[str, Any]) -> None:
    if manifest.engine is not None and not config.output.resume_anyway:
        refuse_differences(config.output.output_file, manifest.engine, now)
    manifest.engine = now


def _counts_of(manifest: Manifest) -> Counts:
    rows, failed = manifest.counts["rows"], manifest.counts["failed"]
    return Counts(completed=rows - failed, failed=failed, resumed=rows)


def _refuse_faulty_input(config: InputConfig, model: ModelConfig) -> None:
    if is_stream(config.input_file):
        raise UsageError("--strict reads the input twice, which standard input does not allow; give a file")
    models = FirstNamedModel() if model.model is None and not config.ignore_request_model else AnyModel()
    faults = (found for found in Validation(config, models).faults() if not found.warning)
    # Not the faults' messages, which quote the lines: this goes to the log.
    places = (f"  line {found.line}: {found.fault.code} {found.fault.param or ''}".rstrip() for found in faults)
    if faulty := list(islice(places, 10)):
        said = f"{config.input_file} has invalid lines; `batchgen validate` says what to change. The first of them:"
        raise InvalidInputError("\n".join([said, *faulty]))
