"""What machines were measured to reach, kept in the home folder."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from batchgen.config import EngineConfig
from batchgen.core.bound import Rates
from batchgen.errors import UsageError
from batchgen.model.calibration import PRECISIONS, measure_rates
from batchgen.model.device import gpu_name
from batchgen.model.machine import cpu_name, usable_cores

__all__ = ["calibrate", "known_rates"]

_logger = logging.getLogger(__name__)


def known_rates(home: Path, config: EngineConfig, kernels: str, precision: str, threads: int) -> Rates | None:
    """The rates of this kind of machine, or of the GPU that the settings choose; None where `batchgen bench calibrate`
    was not run on one."""
    known = _read(home).get(_key(config, kernels, precision, threads))
    return None if known is None else Rates(**known)


def calibrate(config: EngineConfig, home: Path) -> Iterator[str]:
    """Measure this machine with the settings' kernels and threads, in every precision, and keep the rates; yields a
    line about each.

    Raises `UsageError` where kernels that are demanded can't run, or the home folder can't be written.
    """
    threads = config.threads or usable_cores()
    for precision in PRECISIONS:
        found = measure_rates(config, precision)
        rates = found.rates
        known = _read(home) | {_key(config, found.kernels, found.precision, threads): asdict(rates)}
        _write(home, json.dumps(known, indent=4) + "\n")
        yield (
            f"{found.precision}: linears {rates.linear / 1e9:,.0f} GOP/s, "
            f"attention {rates.attention / 1e9:,.0f} GOP/s, weights {rates.bandwidth / 1e9:,.1f} GB/s "
            f"({found.kernels}, {threads} threads)"
        )


def _write(home: Path, text: str) -> None:
    file = _file(home)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error}") from error


def _file(home: Path) -> Path:
    return home / "calibration.json"


def _read(home: Path) -> dict[str, Any]:
    try:
        known = json.loads(_file(home).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _logger.warning("%s cannot be read, so the machine counts as not calibrated: %s", _file(home), error)
        return {}
    return known if isinstance(known, dict) else {}


def _key(config: EngineConfig, kernels: str, precision: str, threads: int) -> str:
    return f"{gpu_name(config) or cpu_name()}, {threads} threads, {kernels}, {precision}"
