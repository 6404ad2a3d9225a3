"""What this process may use of the machine: cores and memory, as affinity and control groups (1 and 2) limit them; and
what kind of machine it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

__all__ = ["cpu_name", "free_memory", "total_memory", "usable_cores"]

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CPU_INFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """What the processor calls itself; where it does not, its architecture."""
    named = (line.partition(":")[2].strip() for line in _lines(_CPU_INFO) if line.startswith("model name"))
    return next(named, platform.machine())


def total_memory() -> int:
    """Bytes of the machine's memory."""
    return int(psutil.virtual_memory().total)


def usable_cores() -> int:
    """Cores that this process may run on, at least 1; a fractional quota is rounded up."""
    cores = [len(os.sched_getaffinity(0))]
    for group in _groups("cpu"):
        one = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        match _words(group / "cpu.max") or one:
            case [quota, period] if quota.isdecimal():  # else `max` or -1: no limit
                cores.append(-(-int(quota) // int(period)))
    return max(1, min(cores))


def free_memory() -> int:
    """Bytes that this process can take before it swaps or is ended."""
    free = [int(psutil.virtual_memory().available)]
    for group in _groups("memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = "".join(_words(group / limit_name)), "".join(_words(group / used_name))
            if limit.isdecimal() and used.isdecimal():
                free.append(int(limit) - int(used) + _reclaimable(group))
    return max(0, min(free))


def _groups(controller: str) -> Iterator[Path]:
    """Folders of this process's control groups for a controller, and of their ancestors."""
    for line in _lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _reclaimable(group: Path) -> int:
    """Bytes of file pages that count as used but are given up under pressure."""
    counts = (line.split() for line in _lines(group / "memory.stat"))
    return sum(int(value) for name, value in counts if name in {"inactive_file", "total_inactive_file"})


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    """Lines of a file, none where it cannot be read: a machine without that controller."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
