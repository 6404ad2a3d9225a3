"""Standard output and standard error of a command."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from batchgen.cli.environment import live_terminal, wants_color
from batchgen.cli.flags import StreamConfig
from batchgen.errors import BatchgenError, UsageError
from batchgen.io.durable import durable_file
from batchgen.progress import Reporter

__all__ = ["READER_GONE", "abandon_stdout", "open_streams", "print_summary", "write_file"]

READER_GONE = 141
"""Exit code where the reader of standard output went away: what the shell shows for a death by SIGPIPE."""


@contextmanager
def open_streams(config: StreamConfig, *others: Reporter) -> Iterator[Reporter]:
    """Logs and progress on standard error while a command works; `others` hear of the progress too.

    A `BatchgenError` that ends the command becomes a log line and the error's exit code; its traceback is shown at
    log level debug.
    """
    from batchgen import ui

    console = ui.stderr_console(live=live_terminal(), color=wants_color())
    level = "error" if config.quiet else config.log_level
    with ui.logs(console, level, config.log_format):
        display = ui.reporter(console, quiet=config.quiet, live=live_terminal() and config.log_format == "text")
        reporter = ui.Together([display, *others])
        try:
            yield reporter
        except BatchgenError as error:
            reporter.close()
            logging.getLogger("batchgen").error("%s", error, exc_info=level == "debug")  # noqa: TRY400
            raise typer.Exit(error.exit_code) from error
        finally:
            reporter.close()


def print_summary(line: str, *, to_stderr: bool) -> None:
    """Print the last line of a job. A reader that went away does not make a finished job a failed one."""
    try:
        print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)
    except BrokenPipeError:
        abandon_stdout()


def abandon_stdout() -> None:
    """Let what is still buffered go nowhere: it would fail once more when Python closes the stream at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_file(option: str, path: Path, text: str) -> None:
    """Write the file that an option names, whole or not at all. Raises `UsageError` where that fails."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            path.write_text(text, encoding="utf-8")
            return
        with durable_file(path.resolve()) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error}") from error
