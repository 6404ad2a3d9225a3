"""`batchgen run-batch`."""

from __future__ import annotations

import json
import logging
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from batchgen.cli.arguments import Source, chosen_input
from batchgen.cli.environment import home
from batchgen.cli.flags import StreamConfig
from batchgen.cli.options import Chosen, file_to_write, options
from batchgen.cli.streams import READER_GONE, abandon_stdout, open_streams, print_summary, write_file
from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.errors import BatchgenError

__all__ = ["default_output", "run_batch"]

_PACKED = frozenset({".gz", ".zst"})


@options(InputConfig, OutputConfig, ModelConfig, EngineConfig, JobConfig, StreamConfig)
def run_batch(
    chosen: Chosen,
    context: typer.Context,
    source: Source = None,
    summary_file: Annotated[Path | None, file_to_write("summary_file", "Write the summary there as well.")] = None,
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
    with open_streams(chosen.make(StreamConfig)) as reporter:
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
    line = json.dumps(summary.to_json(), ensure_ascii=False)
    print_summary(line, to_stderr=output == "-")
    if summary_file is not None:
        write_file("--summary-file", summary_file, line + "\n")
    raise typer.Exit(summary.exit_code)


def default_output(source: str) -> str:
    """The folder for the results of `source`: its name without endings, with `.out`, in the current folder."""
    if source == "-":
        return "stdin.out"
    name = PurePosixPath(source.rstrip("/"))
    if name.suffix in _PACKED:
        name = name.with_suffix("")
    return f"{name.stem}.out"
