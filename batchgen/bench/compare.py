"""Two saved results side by side: what differs, by how much, and whether that is more than chance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from batchgen.bench.saved import Saved, read_saved
from batchgen.errors import UsageError

__all__ = ["CompareConfig", "Comparison", "Figure", "compare"]

Verdict = Literal["faster", "slower", "within noise", "noise unknown"]

_FIGURES: Mapping[str, str] = {
    "requests_per_second": "requests/s",
    "tokens_per_second": "total tok/s",
    "output_tokens_per_second": "output tok/s",
}
_SPEED = "total tok/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """How strictly two results are compared."""

    compare_anyway: bool = False
    """Also results of other work, another model or another machine."""
    fail_below: float | None = None
    """The least ratio of total tokens a second with which the command ends well."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one batch size in both results. Spreads: (largest - smallest) / median; None: one run alone."""

    max_num_seqs: int
    name: str
    before: float
    after: float
    ratio: float
    """`after` / `before`: over 1 is faster."""
    spread_before: float | None
    spread_after: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found."""

    before: Saved
    after: Saved
    differences: Mapping[str, tuple[Any, Any]]
    """Of settings and the like, by dotted name."""
    figures: tuple[Figure, ...]

    def below(self, limit: float) -> list[Figure]:
        """Speeds under `limit` times the first result's, except where the runs' spread explains it."""
        return [f for f in self.figures if f.name == _SPEED and f.ratio < limit and f.verdict != "within noise"]

    def lines(self) -> Iterator[str]:
        """The comparison as text."""
        yield f"A  {self.before}"
        yield f"B  {self.after}"
        for name, values in self.differences.items():
            yield f"differs  {name}: {' -> '.join(json.dumps(value) for value in values)}"
        yield f"{'max-num-seqs':>12}  {'figure':<13}{'A':>10}{'spread':>8}{'B':>11}{'spread':>8}{'B / A':>8}"
        for f in self.figures:
            yield (
                f"{f.max_num_seqs:>12}  {f.name:<13}{f.before:>10.2f}{_percent(f.spread_before):>8}"
                f"{f.after:>11.2f}{_percent(f.spread_after):>8}{f.ratio:>8.3f}  {f.verdict}"
            )
        if any(figure.verdict == "noise unknown" for figure in self.figures):
            yield "One run has no spread: with --num-runs 3 in both, chance can be told from change."

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "before": str(self.before.path),
            "after": str(self.after.path),
            "differences": self.differences,
            "figures": [asdict(figure) for figure in self.figures],
        }


def compare(before: Path, after: Path, config: CompareConfig) -> Comparison:
    """Compare two files of `bench throughput --output-json`.

    Raises `UsageError` where one can't be read, where they have no batch size in common, and, unless
    `compare_anyway`, where work, model or machine differ: then a ratio says nothing about settings or versions.
    """
    first, second = read_saved(before), read_saved(after)
    differences = dict(_differences(first.content, second.content))
    refused = [
        f"  {name}: {json.dumps(one)} in {before}, {json.dumps(other)} in {after}"
        for name, (one, other) in differences.items()
        if name == "workload.digest" or name == "model.name" or name.startswith("machine.")
    ]
    if refused and not config.compare_anyway:
        head = "the two don't measure the same work on the same machine; --compare-anyway shows them nevertheless:"
        raise UsageError("\n".join([head, *refused]))
    return Comparison(first, second, differences, tuple(_figures(first, second)))


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for part in ("workload", "model", "settings", "engine", "machine", "software"):
        for name in {**one[part], **other[part]}:
            values = one[part].get(name), other[part].get(name)
            if values[0] != values[1]:
                yield f"{part}.{name}", values


def _figures(before: Saved, after: Saved) -> Iterator[Figure]:
    ours, theirs = before.points, after.points
    pairs = [(size, ours[size], theirs[size]) for size in ours if size in theirs]
    if not pairs:
        raise UsageError(
            f"no batch size is in both: {before.path} has {sorted(ours)}, {after.path} has {sorted(theirs)}; measure "
            "with the same --max-num-seqs or --sweep-max-num-seqs"
        )
    for size, one, other in pairs:
        for key, name in _FIGURES.items():
            runs, later = ([run[key] for run in point["runs"]] for point in (one, other))
            yield Figure(
                max_num_seqs=size,
                name=name,
                before=one[key],
                after=other[key],
                ratio=other[key] / one[key],
                spread_before=_spread(runs, one[key]),
                spread_after=_spread(later, other[key]),
                verdict=_verdict(runs, later),
            )


def _spread(runs: list[float], median: float) -> float | None:
    return None if len(runs) < 2 else (max(runs) - min(runs)) / median


def _verdict(before: list[float], after: list[float]) -> Verdict:
    """Noise, where the ranges of the runs meet. By chance alone three runs lie all beside three others once in ten."""
    if min(len(before), len(after)) < 2:
        return "noise unknown"
    if min(after) > max(before):
        return "faster"
    return "slower" if max(after) < min(before) else "within noise"


def _percent(spread: float | None) -> str:
    return "" if spread is None else f"{spread:.1%}"
