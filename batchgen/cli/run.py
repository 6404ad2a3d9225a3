"""`batchgen run-batch`."""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from batchgen.cli.arguments import Source, chosen_input
from batchgen.cli.environment import home
from batchgen.cli.flags import StreamConfig
from batchgen.cli.options import Chosen, file_to_write, options
from batchgen.cli.record import JobRecord
from batchgen.cli.streams import READER_GONE, abandon_stdout, open_streams
from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.errors import BatchgenError, UsageError

if TYPE_CHECKING:
    from batchgen.ui.metrics import MetricsFile

__all__ = ["default_output", "run_batch"]

_PACKED = frozenset({".gz", ".zst"})


@options(InputConfig, OutputConfig, ModelConfig, EngineConfig, JobConfig, StreamConfig)
def run_batch(
    chosen: Chosen,
    context: typer.Context,
    source: Source = None,
    summary_file: Annotated[Path | None, file_to_write("summary_file", "Write the summary there as well.")] = None,
    metrics_file: Annotated[
        Path | None,
        file_to_write("metrics_file", "Keep the state there while the job runs: .prom for Prometheus, or .json."),
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", hidden=True)] = False,
) -> None:
    """Run all requests of a file through a model and write every result to Arrow files.

    The last line of standard output is a summary in JSON (with -o - the results are there, and the summary ends
    standard error).
    """
    source = chosen_input(chosen, context, source)
    output = chosen.values["output_file"] or default_output(source)
    config = chosen.make(
        JobConfig,
        model=chosen.make(ModelConfig),
        engine=chosen.make(EngineConfig),
        input=chosen.make(InputConfig, input_file=source),
        output=chosen.make(OutputConfig, output_file=output),
    )
    record = JobRecord(output, summary_file, _metrics(metrics_file, output))
    with record.kept(), open_streams(chosen.make(StreamConfig), *record.reporters) as reporter:
        if trust_remote_code:
            logging.getLogger(__name__).warning("--trust-remote-code has no effect: code of checkpoints is never run")
        from batchgen.job import run_job

        try:
            summary = run_job(config, home(), reporter)
        except BrokenPipeError as error:
            if output != "-":
                raise BatchgenError(f"a pipe or a connection broke: {error}") from error
            abandon_stdout()
            raise typer.Exit(READER_GONE) from error
    record.ended(summary.to_json(), summary.exit_code)
    raise typer.Exit(summary.exit_code)


def default_output(source: str) -> str:
    """The folder for the results of `source`: its name without endings, with `.out`, in the current folder."""
    if source == "-":
        return "stdin.out"
    name = PurePosixPath(source.rstrip("/"))
    if name.suffix in _PACKED:
        name = name.with_suffix("")
    return f"{name.stem}.out"


def _metrics(path: Path | None, output: str) -> MetricsFile | None:
    if path is None:
        return None
    if path.suffix not in {".prom", ".json"}:
        raise UsageError(f"--metrics-file {path}: must end in .prom or .json")
    from batchgen.ui.metrics import MetricsFile

    return MetricsFile(path, output)
