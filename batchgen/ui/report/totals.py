"""What the runs of an output add up to."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from batchgen.ui import words
from batchgen.ui.report.content import Report

__all__ = ["Part", "RunLine", "Tile", "headline", "run_lines", "sharing_parts", "time_parts"]

Runs = SequenceOf[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that is seen first."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a whole. `left` and `width` in percent of it."""

    name: str
    amount: float
    left: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run in the table of runs."""

    number: int
    shard: str | None
    began: float
    state: str
    seconds: float
    rows: int
    computed_tokens: int
    output_tokens: int
    preemptions: int
    efficiency: float | None


def headline(report: Report) -> list[Tile]:
    """The figures that are seen first; those of time are left out where no run told of itself."""
    figures, runs = report.figures, report.runs
    of_all = "" if report.rows_total in (None, figures.rows) else f"of {report.rows_total:,} read so far"
    failed = f"{figures.failed / figures.rows:.1%}" if figures.failed else ""
    tiles = [
        Tile("Rows answered", f"{figures.rows - figures.failed:,}", of_all),
        Tile("Rows failed", f"{figures.failed:,}", failed),
        Tile("Prompt tokens", words.short(figures.prompt_tokens), _found(figures.cached_tokens, figures.prompt_tokens)),
        Tile("Output tokens", words.short(figures.output_tokens)),
    ]
    if (seconds := _sum(runs, "elapsed_s")) > 0:
        together = "added up over shards" if any(run["shard"] is not None for run in runs) else ""
        tiles += [
            Tile("Generation time", words.duration(seconds), together or f"in {len(runs)} runs" * (len(runs) > 1)),
            Tile("Output tokens/s", words.short(_sum(runs, "output_tokens") / seconds)),
        ]
        # Of what a run that was stopped had read, it needed an unknown part.
        whole = [run for run in runs if run["state"] == "finished" and run["progress"]["needed_tokens"]]
        if whole:
            redundancy = _sum(whole, "computed_tokens") / _sum(whole, "needed_tokens")
            tiles.append(Tile("Computed ÷ needed", f"{redundancy:.3f}", "tokens; 1 is the least"))
        if known := [run for run in runs if run["bound_s"] is not None and _seconds(run)]:
            share = sum(run["bound_s"] for run in known) / sum(map(_seconds, known))
            tiles.append(Tile("Efficiency", f"{share:.0%}", "of what the machine was measured to reach"))
    return tiles


def time_parts(runs: Runs) -> list[Part]:
    """Where the seconds of all workers went, from the loading of the model on."""
    kernels, scheduling = _sum(runs, "kernels_s"), _sum(runs, "scheduling_s")
    before = sum(
        run["workers"] * seconds for run in runs for stage, seconds in run["stages"].items() if stage != "generating"
    )
    return _parts(
        {
            "kernels": kernels,
            "scheduling": scheduling,
            "all else (text, arrays, writing)": max(0.0, sum(map(_seconds, runs)) - kernels - scheduling),
            "before generation (loading the model)": before,
        }
    )


def sharing_parts(report: Report) -> list[Part]:
    """Prompt tokens of the answered rows: found in the cache, or computed."""
    cached, prompt = report.figures.cached_tokens, report.figures.prompt_tokens
    return _parts({"found in the cache": cached, "computed": max(0, prompt - cached)})


def run_lines(runs: Runs) -> list[RunLine]:
    """A line for each run."""
    lines = []
    for number, run in enumerate(runs, 1):
        told, bound = run["progress"], run["bound_s"]
        lines.append(
            RunLine(
                number=number,
                shard=run["shard"],
                began=run["began"],
                state=run["state"],
                seconds=told["elapsed_s"],
                rows=told["rows_done"] - told["rows_resumed"],
                computed_tokens=told["computed_tokens"],
                output_tokens=told["output_tokens"],
                preemptions=told["preemptions"],
                efficiency=bound / _seconds(run) if bound is not None and _seconds(run) else None,
            )
        )
    return lines


def _seconds(run: Mapping[str, Any]) -> float:
    """Of generation, of all workers."""
    return float(run["progress"]["elapsed_s"] * run["workers"])


def _sum(runs: Runs, name: str) -> float:
    return float(sum(run["progress"][name] for run in runs))


def _parts(amounts: Mapping[str, float]) -> list[Part]:
    """Empty where there is nothing to share out."""
    total, left, parts = sum(amounts.values()), 0.0, []
    for name, amount in amounts.items() if total else ():
        parts.append(Part(name, amount, 100 * left / total, 100 * amount / total))
        left += amount
    return parts


def _found(cached: int, prompt: int) -> str:
    return f"{cached / prompt:.0%} found in the cache" if prompt else ""
