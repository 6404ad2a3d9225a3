"""`batchgen report`."""

from __future__ import annotations

from pathlib import Path

import typer

from batchgen.cli.flags import PageConfig
from batchgen.cli.options import Chosen, options
from batchgen.cli.show import Output
from batchgen.cli.streams import write_file

__all__ = ["report"]


@options(PageConfig)
def report(chosen: Chosen, output: Output) -> None:
    """Make a page of what came out of a job: speed over time, lengths, shared prefixes, failures, rows to look through.

    One file of HTML that loads nothing from anywhere. It shows up to 300 rows with their text. The output may be
    unfinished; of a job with shards, name the output that they belong to.
    """
    from batchgen.job.reporting import report_of
    from batchgen.ui.report import render

    target = Path(chosen.make(PageConfig).report_file or f"{output.resolve().name}.html")
    write_file("--output-file", target, render(report_of(output)))
    typer.echo(target)
