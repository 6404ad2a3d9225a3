"""What machines were measured to reach, kept in the home folder."""

from __future__ import annotations

import json
import logging
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from batchgen.core.bound import Rates

__all__ = ["known_rates", "remember_rates"]

_logger = logging.getLogger(__name__)
_CPU_INFO = Path("/proc/cpuinfo")


def known_rates(home: Path, kernels: str, precision: str, threads: int) -> Rates | None:
    """The rates of this kind of machine; None where `batchgen bench calibrate` was not run on one."""
    known = _read(home).get(_key(kernels, precision, threads))
    return None if known is None else Rates(**known)


def remember_rates(home: Path, kernels: str, precision: str, threads: int, rates: Rates) -> Path:
    """Keep rates for runs on this kind of machine; returns the file."""
    file = _file(home)
    known = _read(home) | {_key(kernels, precision, threads): asdict(rates)}
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(known, indent=4) + "\n", encoding="utf-8")
    new.replace(file)
    return file


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


def _key(kernels: str, precision: str, threads: int) -> str:
    return f"{_cpu_name()}, {threads} threads, {kernels}, {precision}"


def _cpu_name() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
