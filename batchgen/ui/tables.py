"""Reports on standard output: tables, and a line for each output."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from batchgen.progress import Progress
from batchgen.ui import words

__all__ = ["print_wrapped", "show_inspection", "status_lines"]

_SPREAD = ("sum", "mean", "min", "p50", "p90", "p99", "max")


def show_inspection(found: Mapping[str, Any]) -> None:
    """Print the tables of an inspected output."""
    console = Console(highlight=False, markup=False)
    rows = found["rows"]
    head = f"{found['output']}: {rows['total']} rows, {rows['completed']} completed, {rows['failed']} failed"
    console.print(head, soft_wrap=True)
    if found["failures"]:
        failures = _table("Failures", "code", "rows", "first line")
        for entry in found["failures"]:
            failures.add_row(entry["code"], str(entry["rows"]), "" if (at := entry["first_line"]) is None else str(at))
        console.print(failures)
    if found["finish_reasons"]:
        reasons = _table("Finished by", "reason", "rows")
        for reason, count in found["finish_reasons"].items():
            reasons.add_row(reason, str(count))
        console.print(reasons)
    known = {name.removesuffix("_tokens"): spread for name, spread in found["lengths"].items() if spread is not None}
    if known:
        lengths = _table("Tokens of a row", "", *known)
        for figure in _SPREAD:
            lengths.add_row(figure, *(f"{spread[figure]:,}" for spread in known.values()))
        console.print(lengths)
    if (timing := found["timing"]) is not None:
        console.print(_timing(timing))


def print_wrapped(line: str, indent: int) -> None:
    """Print a line; on a terminal that it is too long for it goes on below, between words, behind `indent` spaces."""
    console = Console()
    if not console.is_terminal:
        print(line)
        return
    below = " " * min(indent, console.width // 3)
    for piece in textwrap.wrap(line, console.width, subsequent_indent=below, break_on_hyphens=False):
        print(piece)


def status_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """A line for an output, then one for each of its shards."""
    yield _status_line(status)
    for shard in status.get("shards", ()):
        yield f"  {_status_line(shard)}"


def _status_line(status: Mapping[str, Any]) -> str:
    progress = Progress(rows_total=status["rows_total"], rows_done=status["rows_done"])
    parts = [f"{status['output']}: {status['state']}", *filter(None, [status.get("stage")]), words.rows(progress)]
    parts += [*words.some(status["rows_failed"], "failed"), *words.some(status["rows_resumed"], "resumed")]
    if status["output_tokens_per_s"] is not None:
        parts.append(f"tok/s out {words.short(status['output_tokens_per_s'])}")
    if status["remaining_s"] is not None:
        parts.append(f"left {words.duration(status['remaining_s'])}")
    if status["updated"] and status["state"] != "finished":
        parts.append(f"{words.duration(max(0.0, time.time() - status['updated']))} ago")
    return " | ".join(parts)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _timing(timing: Mapping[str, Any]) -> Table:
    table = _table("Last run", "", "value")
    table.show_header = False
    ended = datetime.fromtimestamp(timing["ended"]).isoformat(" ", "seconds")
    table.add_row("generation", words.duration(timing["generation_s"]))
    table.add_row("prompt tokens/s", f"{timing['prompt_tokens_per_s']:,}")
    table.add_row("output tokens/s", f"{timing['output_tokens_per_s']:,}")
    table.add_row("computed tokens", f"{timing['computed_tokens']:,}")
    table.add_row("preemptions", str(timing["preemptions"]))
    table.add_row("ended", ended)
    return table
