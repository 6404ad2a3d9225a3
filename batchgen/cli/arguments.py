"""The argument that commands over an input have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from batchgen.cli.options import Chosen
from batchgen.errors import UsageError

__all__ = ["Source", "chosen_input"]

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT",
        show_default=False,
        help="JSONL, Parquet, Arrow or a dataset: a path, an fsspec address, or - for stdin.",
    ),
]


def chosen_input(chosen: Chosen, context: typer.Context, source: str | None) -> str:
    """The input, by INPUT or by --input-file. Raises `UsageError` where it is given twice or not at all."""
    if source is None:
        source = chosen.values["input_file"]
    elif (origin := context.get_parameter_source("input_file")) is not None and origin.name == "COMMANDLINE":
        raise UsageError("the input is given twice, as INPUT and as --input-file; leave one out")
    if source is None:
        raise UsageError("no input: name a file, an fsspec address, or - for standard input")
    return source
