"""How many rows the input has, counted while the model loads and runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

from batchgen.errors import BatchgenError
from batchgen.io.manifest import Manifest

__all__ = ["RowCount"]

_logger = logging.getLogger(__name__)


class RowCount:
    """Counts in a thread of its own. Called, it gives the number, None until that is known."""

    def __init__(self, count: Callable[[], int | None], manifest: Manifest) -> None:
        """`count` reads the input. The number goes into the manifest too."""
        self._counter = count
        self._manifest = manifest
        self._rows: int | None = None
        Thread(target=self._count, name="count-rows", daemon=True).start()

    def __call__(self) -> int | None:
        return self._rows

    def _count(self) -> None:
        try:
            self._rows = self._counter()
        except BatchgenError as error:  # what is wrong with the input, its reader says
            _logger.debug("rows were not counted: %s", error)
        self._manifest.input = {**self._manifest.input, "rows": self._rows}
