"""`batchgen bench`."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(help="Measure speed.", no_args_is_help=True)


@app.command("throughput")
def throughput() -> None:
    """Measure offline throughput, as `vllm bench throughput` does."""
