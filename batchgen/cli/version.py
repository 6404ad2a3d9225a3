"""`batchgen version` and `batchgen --version`."""

from __future__ import annotations

import platform

import typer

__all__ = ["show_and_exit", "version"]


def version() -> None:
    """Show the versions that matter in a bug report."""
    for package in ("batchgen", "torch", "transformers", "tokenizers", "pyarrow", "datasets"):
        typer.echo(f"{package} {_installed(package)}")
    typer.echo(f"python {platform.python_version()} on {platform.platform()}")


def show_and_exit(wanted: bool) -> None:
    """Callback of `--version`."""
    if wanted:
        typer.echo(f"batchgen {_installed('batchgen')}")
        raise typer.Exit


def _installed(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
