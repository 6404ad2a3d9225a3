"""Reports to make pages of."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from batchgen.job.history import COUNTERS, GAUGES, Samples
from batchgen.progress import Progress
from batchgen.ui.report import Failure, Report, Row, RowFigures

__all__ = ["HOSTILE", "a_report", "row", "some_run", "told"]

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><svg onload=alert(1)>',
    "<!-- --> ]]> </textarea></style>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1) &lt;b&gt; &#60;",
    "a\x00b\u202eright\u2066 to left\ufeff",
    "' onmouseover='alert(1)",
    "\U0001f600 " * 400,
)
"""What a model may write, to break a page or to fool its reader."""


def row(number: int, text: str = "yes", code: str | None = None, custom_id: str | None = None, **more: Any) -> Row:
    return Row(
        number=number,
        line=number,
        custom_id=custom_id or f"id-{number}",
        status_code=200 if code is None else 400,
        code=code,
        finish_reason=None if code else more.get("reason", "stop"),
        prompt_tokens=None if code else 5,
        completion_tokens=None if code else 7,
        cached_tokens=None if code else 2,
        text=text,
        hidden=0,
    )


def told(samples: Samples, last: Progress, **more: Any) -> dict[str, Any]:
    """A run in the form of its file."""
    return {
        "began": 1_700_000_000.0,
        "shard": None,
        "workers": 1,
        "state": "finished",
        "bound_s": 1.0,
        "stages": {"loading model": 2.0},
        "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 64},
        "progress": {name: getattr(last, name) for name in (*COUNTERS, *GAUGES, "needed_tokens")},
        "samples": samples.columns,
        **more,
    }


def some_run(seconds: float = 30.0, seed: int = 0, **more: Any) -> dict[str, Any]:
    generator, samples, state = random.Random(seed), Samples(), Progress()
    while state.elapsed_s < seconds:
        state = replace(
            state,
            elapsed_s=state.elapsed_s + generator.uniform(0.01, 0.4),
            steps=state.steps + 1,
            computed_tokens=state.computed_tokens + generator.randrange(65),
            output_tokens=state.output_tokens + generator.randrange(17),
            rows_done=state.rows_done + generator.randrange(3),
            preemptions=state.preemptions + (generator.random() < 0.05),
            running=generator.randrange(17),
            kv_used=generator.random(),
            needed_tokens=state.computed_tokens,
            kernels_s=state.kernels_s + 0.007,
            scheduling_s=state.scheduling_s + 0.001,
        )
        samples.push(state)
    samples.close(state)
    return told(samples, state, **more)


def a_report(rows: list[Row], *runs: dict[str, Any], settings: dict[str, Any] | None = None) -> Report:
    figures = RowFigures(
        rows=len(rows),
        failures=[Failure(code, n, 1) for code, n in Counter(r.code for r in rows if r.code).items()],
        finish_reasons=Counter(r.finish_reason for r in rows if r.finish_reason),
        prompt_lengths={5: 1},
        output_lengths={7: 1},
        prompt_tokens=5,
        output_tokens=7,
        shown=rows,
    )
    job_settings = {"Job": settings or {}}
    return Report(output="out", state="finished", rows_total=None, figures=figures, runs=runs, settings=job_settings)
