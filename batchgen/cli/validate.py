"""`batchgen validate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from batchgen.cli.arguments import Source, chosen_input
from batchgen.cli.environment import home
from batchgen.cli.flags import ReportConfig, StreamConfig
from batchgen.cli.options import Chosen, options
from batchgen.cli.streams import READER_GONE, abandon_stdout, open_streams
from batchgen.config import InputConfig, ModelConfig
from batchgen.errors import InvalidInputError

if TYPE_CHECKING:
    from batchgen.job.validate import LineFault, Validation

__all__ = ["validate"]


@options(InputConfig, ModelConfig, ReportConfig, StreamConfig)
def validate(chosen: Chosen, context: typer.Context, source: Source = None) -> None:
    """Find every fault of every line before anything is run: what `run-batch` would refuse, and why.

    Without a model the form of the lines is checked, ids that occur twice, and that all name one model. With --model
    or --tokenizer also the chat template, token ids, the context length and grammars; weights are never loaded. Ends
    with exit code 4 if any line has a fault.
    """
    config = chosen.make(InputConfig, input_file=chosen_input(chosen, context, source))
    report = chosen.make(ReportConfig)
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.job.validate import Validation

        reporter.stage("reading input")
        validation = Validation.of(config, chosen.make(ModelConfig), report.max_model_len, home())
        show, show_summary = (_json, _json_summary) if report.format == "json" else (_text, _text_summary)
        try:
            for found in validation.faults():
                print(show(found, config.input_file))
            print(show_summary(validation), flush=True)
        except BrokenPipeError as error:
            abandon_stdout()
            raise typer.Exit(READER_GONE) from error
    if validation.invalid_lines:
        raise typer.Exit(InvalidInputError.exit_code)


def _text(found: LineFault, source: str) -> str:
    kind = "warning: " if found.warning else ""
    return f"{source}:{found.line}: {kind}{found.fault.code}: {found.fault.message}"


def _json(found: LineFault, source: str) -> str:  # noqa: ARG001
    fault = found.fault
    shown = {
        "line": found.line,
        "custom_id": found.custom_id,
        "severity": "warning" if found.warning else "error",
        "code": fault.code,
        "field": fault.param,
        "message": fault.message,
    }
    return json.dumps(shown, ensure_ascii=False)


def _text_summary(done: Validation) -> str:
    faults = ", ".join(f"{count} x {code}" for code, count in done.by_code.most_common())
    warnings = f"; {done.warnings} warnings" if done.warnings else ""
    return f"{done.lines} lines, {done.invalid_lines} invalid{': ' if faults else ''}{faults}{warnings}"


def _json_summary(done: Validation) -> str:
    shown = {
        "status": "invalid" if done.invalid_lines else "valid",
        "lines": done.lines,
        "invalid_lines": done.invalid_lines,
        "faults": dict(done.by_code.most_common()),
        "warnings": done.warnings,
    }
    return json.dumps(shown)
