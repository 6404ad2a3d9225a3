"""Log lines, as text or as one JSON object a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal

from rich.console import Console
from rich.text import Text

__all__ = ["JsonFormatter", "TextFormatter", "logs"]

LogFormat = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    """`12:34:56 message`, with the level in front of the message where it is not info."""

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """The line without a traceback."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{self.formatTime(record, self.datefmt)} {level}{record.message}"

    def usesTime(self) -> bool:  # noqa: N802 - the name is logging's
        """Whether `formatMessage` needs the time; it formats it itself."""
        return False


class JsonFormatter(logging.Formatter):
    """One object: time (ISO 8601, UTC), level, logger, message; `progress` and `exception` where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record. `extra={"progress": {...}}` of the logging call becomes the key `progress`."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (progress := getattr(record, "progress", None)) is not None:
            entry["progress"] = progress
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class _ConsoleHandler(logging.Handler):
    """Prints above a live display."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = Text(self.format(record), style=_style(record.levelno))
            self._console.print(text, soft_wrap=True)
        except Exception:  # noqa: BLE001 - as every logging handler: a line that can't be written must not end the job
            self.handleError(record)


def _style(level: int) -> str:
    if level >= logging.ERROR:
        return "red"
    return "yellow" if level >= logging.WARNING else ""


@contextmanager
def logs(console: Console, level: str, form: LogFormat) -> Iterator[None]:
    """Send this package's log lines from `level` up, other libraries' warnings and Python's to the console."""
    handler = _ConsoleHandler(console)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root, own = logging.getLogger(), logging.getLogger("batchgen")
    before = own.level
    root.addHandler(handler)
    own.setLevel(level.upper())
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        own.setLevel(before)
        root.removeHandler(handler)
