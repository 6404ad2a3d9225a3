"""`batchgen status` and `batchgen inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from batchgen.cli.completion import complete_output
from batchgen.cli.flags import ShowConfig
from batchgen.cli.options import Chosen, options

__all__ = ["Output", "inspect", "status"]

Output = Annotated[
    Path,
    typer.Argument(
        metavar="OUTPUT", help="A folder or a file that run-batch writes or wrote.", autocompletion=complete_output
    ),
]


@options(ShowConfig)
def status(chosen: Chosen, output: Output) -> None:
    """Show how far a job is: running, stopped or finished, with rows, failures and speed.

    Of a job with shards, name the output that they belong to. Nothing is locked or changed.
    """
    from batchgen.job.status import status_of

    found = status_of(output)
    if chosen.make(ShowConfig).json:
        print(json.dumps(found, ensure_ascii=False))
        return
    from batchgen.ui.tables import print_wrapped, status_lines

    for line in status_lines(found):
        print_wrapped(line, 4)


@options(ShowConfig)
def inspect(chosen: Chosen, output: Output) -> None:
    """Show what came out of a job: rows, failures by code, lengths in tokens, and timing."""
    from batchgen.job.inspection import inspect_output

    found = inspect_output(output)
    if chosen.make(ShowConfig).json:
        print(json.dumps(found, ensure_ascii=False))
        return
    from batchgen.ui.tables import show_inspection

    show_inspection(found)
