"""The actor that has a model and computes rows of a distributed job."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace

from batchgen.errors import BatchgenError
from batchgen.job.arrivals import Arrival
from batchgen.job.fleet import LogLine, Orders, Ready, Report
from batchgen.job.station import Station

__all__ = ["StationActor"]


class StationActor:
    """A `Station` in a process of Ray's."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._log = _Collected()
        logger = logging.getLogger("batchgen")
        logger.setLevel(logging.INFO)
        logger.addHandler(self._log)

    def load(self) -> Ready:
        """Load the model. Raises a `BatchgenError` that names this machine where that can't be done."""
        place = socket.gethostname()
        try:
            self._station = Station(self._orders)
        except BatchgenError as error:
            raise type(error)(f"the worker on {place} cannot load the model: {error}") from error
        return replace(self._station.ready(place), log=self._log.taken())

    def turn(self, rows: Sequence[Arrival]) -> Report:
        """See `Station.turn`."""
        report = self._station.turn(rows)
        return replace(report, log=self._log.taken())


class _Collected(logging.Handler):
    """Keeps log lines for the job to show: nobody reads the log of an actor."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(LogLine(record.name, record.levelno, record.getMessage()))

    def taken(self) -> list[LogLine]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines
