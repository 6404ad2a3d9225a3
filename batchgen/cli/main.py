"""The program: its commands, and what becomes of an exception."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from batchgen.cli import bench, merge, models, options, plan, push, report, run, show, validate, version
from batchgen.cli.signals import Signals, leave_now
from batchgen.errors import BatchgenError, StalledError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Offline batch inference with language models: a file of requests in, Arrow files out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut long option names off at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run-batch", epilog=options.EPILOG)(run.run_batch)
app.command("plan", epilog=options.EPILOG)(plan.plan)
app.command("validate", epilog=options.EPILOG)(validate.validate)
app.command("merge", epilog=options.EPILOG)(merge.merge)
app.command("push", epilog=options.EPILOG)(push.push)
app.command("status", epilog=options.EPILOG)(show.status)
app.command("inspect", epilog=options.EPILOG)(show.inspect)
app.command("report", epilog=options.EPILOG)(report.report)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")
app.command("version")(version.version)


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=version.show_and_exit),
    ] = False,
) -> None:
    """Options that stand before a command."""


def main() -> None:
    """Run the command line of this process and exit with the code that PROTOCOL names."""
    signals = Signals()
    signals.install()
    try:
        app(prog_name="batchgen")
    except BatchgenError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as ending:
        if ending.code == StalledError.exit_code:
            leave_now(StalledError.exit_code)
        raise
    except Exception as error:
        error.add_note(
            "This is a bug in batchgen. Please report it with the lines above, the command and `batchgen version`."
        )
        raise
    finally:
        signals.leave()
