"""The page itself: templates filled with a report's content. Everything that comes from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from batchgen.ui import words
from batchgen.ui.report.charts import Chart, Series, histogram, line_chart, preemptions
from batchgen.ui.report.content import SHARED_UP_TO, Report
from batchgen.ui.report.timeline import timeline
from batchgen.ui.report.totals import headline, run_lines, sharing_parts, time_parts

__all__ = ["render"]

_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Characters that show nothing, end the text for a reader of HTML, or turn the order of what follows them."""


def render(report: Report, now: float | None = None) -> str:
    """The whole page. `now`: seconds since the epoch, shown as the time it was made."""
    environment = Environment(
        loader=PackageLoader("batchgen.ui.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters |= {"count": _count, "share": _share, "seconds": _seconds, "time": _clock, "value": _value}
    script, style = _resource("script.js"), _resource("style.css")
    figures = report.figures
    return environment.get_template("page.html").render(
        report=report,
        figures=figures,
        made=time.time() if now is None else now,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        headline=headline(report),
        charts=_charts(report.runs),
        time_parts=time_parts(report.runs),
        sharing_parts=sharing_parts(report),
        shared_classes=tuple(zip(_class_names(), figures.shared, strict=True)),
        histograms=[
            one
            for one in (
                histogram("prompt-lengths", "Prompt tokens of a row", figures.prompt_lengths),
                histogram("output-lengths", "Output tokens of a row", figures.output_lengths),
            )
            if one is not None
        ],
        runs=run_lines(report.runs),
    )


def _charts(runs: SequenceOf[Mapping[str, Any]]) -> list[Chart]:
    time_axis = timeline(runs)
    if time_axis is None:
        return []
    throughput = line_chart(
        time_axis,
        "throughput",
        "Throughput",
        "Tokens a second. Computed ones went through the model, prompts included; output ones were generated.",
        [Series("computed", "computed", words.short), Series("output", "output", words.short)],
        [Series("prompts answered", "prompt", words.short), Series("rows", "rows", _rate)],
    )
    occupancy = line_chart(
        time_axis,
        "occupancy",
        "Batch occupancy",
        "Sequences that run, of --max-num-seqs, and tokens of a step, of --max-num-batched-tokens.",
        [Series("sequences", "running", _share), Series("tokens of a step", "step", _share)],
        [Series("sequences waiting", "waiting", words.short)],
        top=1.0,
    )
    kv = line_chart(
        time_axis,
        "kv",
        "KV cache in use",
        "Blocks that running sequences hold. Marks on the axis: sequences that were preempted for want of blocks.",
        [Series("blocks", "kv", _share)],
        marks=preemptions(time_axis),
    )
    return [chart for chart in (throughput, occupancy, kv) if chart is not None]


def _class_names() -> list[str]:
    _, least, *others = (f"{end:.0%}" for end in SHARED_UP_TO)
    return ["nothing", f"up to {least}", *(f"to {end}" for end in others)]


def _resource(name: str) -> str:
    return (files("batchgen.ui.report") / "templates" / name).read_text(encoding="utf-8")


def _visible(value: Any) -> Any:
    """A text without characters that could hide or turn what is shown; our own markup is left alone."""
    return _UNSEEN.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _count(number: int | None) -> str:
    return "\u2013" if number is None else f"{number:,}"


def _share(part: float) -> str:
    """Percent, with a digit more where it is small."""
    return f"{part:.1%}" if 0 < part < 0.0995 else f"{part:.0%}"


def _rate(number: float) -> str:
    return f"{number:.2f}" if number < 10 else words.short(number)


def _seconds(seconds: float) -> str:
    return words.duration(seconds) if seconds >= 60 else f"{seconds:.2f} s"


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment))


def _value(value: Any) -> str:
    """A setting in words."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
