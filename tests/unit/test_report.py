"""`batchgen report`: figures equal the rows, pictures equal the figures, and no text of a model becomes part of the
page."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from batchgen.errors import UsageError
from batchgen.io.figures import DETAILS
from batchgen.io.history import run_files, write_run
from batchgen.io.schema import result_schema
from batchgen.io.shards import shard_folder
from batchgen.job import gathering, run_job
from batchgen.job.gathering import row_figures
from batchgen.job.history import Samples
from batchgen.job.reporting import report_of
from batchgen.progress import Progress
from batchgen.ui.report import Report, render
from batchgen.ui.report.charts import histogram, quantile
from batchgen.ui.report.timeline import timeline
from batchgen.ui.report.totals import run_lines, time_parts
from tests.reports import HOSTILE, a_report, row, some_run, told
from tests.unit.test_job import BAD, GOOD, Silent, job, line, run, write

VOID = frozenset({"meta", "link", "input"})


@dataclass
class Page(HTMLParser):
    """Elements with their attributes and the text within; fails where tags don't match."""

    source: str
    found: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def shape(self) -> Counter[tuple[str, str]]:
        """How many elements there are of each name, with the names of their attributes."""
        return Counter((tag, " ".join(attributes)) for tag, attributes in self.found)


def test_a_page_is_whole_and_needs_nothing_beside_itself() -> None:
    source = render(a_report([row(1), row(2, "no", "invalid_value")], some_run(), some_run(5.0, 1)), now=0.0)
    page = Page(source)
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.found:
        assert attributes.keys() & {"src", "srcset", "action"} == set()
        assert (attributes.get("href") or "#") in {"#", "#rows", "data:,"}
        for name in {"aria-labelledby", "for"} & attributes.keys():
            assert set((attributes[name] or "").split()) <= set(ids)
    assert not re.search(r"url\(|@import|https?://", source)
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    (policy,) = [one["content"] for one in page.all("meta") if "http-equiv" in one]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{hashed}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")


def test_the_time_of_several_workers_is_added_up() -> None:
    """Two workers that were as busy as one: the same efficiency, the same shares of the time, the same occupancy."""
    alone = some_run()
    both = {**alone, "workers": 2, "bound_s": 2.0, "progress": dict(alone["progress"])}
    both["progress"] |= {name: 2 * alone["progress"][name] for name in ("kernels_s", "scheduling_s")}
    both["samples"] = {**alone["samples"], "running": [2 * some for some in alone["samples"]["running"]]}
    assert [part.width for part in time_parts([alone])] == [part.width for part in time_parts([both])]
    assert [line.efficiency for line in run_lines([alone])] == [line.efficiency for line in run_lines([both])]
    one, two = timeline([alone]), timeline([both])
    assert one is not None
    assert two is not None
    assert one.means["running"] == pytest.approx(two.means["running"])


def test_every_picture_has_words_and_every_table_heads() -> None:
    page = Page(render(a_report([row(1)], some_run()), now=0.0))
    pictures = page.all("svg")
    assert len(pictures) >= 5
    assert all(one.get("aria-label") or one.get("aria-hidden") == "true" for one in pictures)
    assert all("scope" in one for one in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_part_of_the_page(text: str) -> None:
    """Everywhere where a text from outside is shown: the page has the elements that it has for a harmless one."""

    def page_with(some: str) -> Page:
        rows = [row(1, some, custom_id=some, reason=some), row(2, some, code=some)]
        report = a_report(rows, some_run(), settings={some: some, "list": [some]})
        return Page(render(replace(report, output=some), now=0.0))

    page = page_with(text)
    harmless = "harmless" * (len(text) // 8 + 1)
    assert page.shape == page_with(harmless[: len(text)]).shape
    shown = re.sub("[\x00\u202e\u2066\ufeff]", "\ufffd", text)
    assert page.texts.count(shown) >= 6
    assert not re.search("[\x00\u202a-\u202e\u2066-\u2069\ufeff]", page.source)


@given(st.integers(0, 2**32), st.lists(st.floats(0.5, 400.0), min_size=1, max_size=70))
def test_pictures_over_time_lose_no_token(seed: int, lengths: list[float]) -> None:
    runs = [some_run(min(seconds, 8.0), seed + number) for number, seconds in enumerate(lengths)]
    runs.append(told(Samples(), Progress()))  # stopped before its first step
    drawn = timeline(runs)
    assert drawn is not None
    assert len(drawn.spans) == len(lengths)
    assert drawn.spans[0].start == 0.0
    assert drawn.spans[-1].stop == pytest.approx(1.0)
    for span, told_run in zip(drawn.spans, runs, strict=False):
        intervals = span.intervals.stop - span.intervals.start
        for column, counter in (("computed", "computed_tokens"), ("output", "output_tokens"), ("rows", "rows_done")):
            total = drawn.values[column][span.intervals].sum() * span.seconds / intervals
            assert total == pytest.approx(told_run["progress"][counter], rel=1e-6, abs=1e-6)
        ends, kv = np.diff([0.0, *told_run["samples"]["elapsed_s"]]), told_run["samples"]["kv_used"]
        assert drawn.values["kv"][span.intervals].mean() == pytest.approx(np.average(kv, weights=ends), rel=1e-6)
    assert all(a.stop <= b.start + 1e-9 for a, b in zip(drawn.intervals, drawn.intervals[1:], strict=False))
    assert drawn.means["preemptions"] == pytest.approx(sum(r["progress"]["preemptions"] for r in runs))


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 10**6), min_size=1))
def test_a_histogram_counts_each_row_where_it_belongs(counts: dict[int, int]) -> None:
    drawn = histogram("name", "title", counts)
    assert drawn is not None
    assert len(drawn.bars) <= 34
    assert max(bar.height for bar in drawn.bars) <= 100
    for bar in drawn.bars:
        start, _, stop = bar.label.replace(",", "").partition("\u2013")
        within = range(int(start), int(stop or start) + 1)
        assert bar.count == sum(rows for length, rows in counts.items() if length in within)
    assert sum(bar.count for bar in drawn.bars) == sum(counts.values())


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_quantiles_are_those_of_the_sorted_rows(lengths: list[int], share: float) -> None:
    wanted = np.quantile(lengths, share, method="inverted_cdf")
    assert quantile(Counter(lengths), share) == wanted


def details(count: int, seed: int = 0) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    rows = []
    for number in range(1, count + 1):
        failed = generator.random() < 0.3
        prompt = None if failed else generator.randrange(1, 90)
        rows.append(
            {
                "line": number,
                "status_code": 400 if failed else 200,
                "code": generator.choice(["invalid_value", "invalid_type", "rare"]) if failed else None,
                "finish_reason": None if failed else generator.choice(["stop", "length"]),
                "prompt_tokens": prompt,
                "completion_tokens": None if failed else generator.randrange(40),
                "cached_tokens": None if prompt is None else generator.randrange(prompt + 1),
                "custom_id": f"id-{number}",
                "text": None if failed else "answer " * generator.randrange(400),
                "message": "wrong" if failed else None,
            }
        )
    return rows


@given(st.integers(0, 2**16), st.lists(st.integers(1, 90), min_size=1, max_size=12))
def test_figures_do_not_depend_on_how_rows_are_cut_into_batches(seed: int, sizes: list[int]) -> None:
    rows = details(sum(sizes), seed)
    batches, at = [], 0
    for size in sizes:
        batches.append(pa.RecordBatch.from_pylist(rows[at : at + size], DETAILS))
        at += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_ANSWERS", 10)
        patch.setattr(gathering, "_FAILURES", 12)
        patch.setattr(gathering, "_FAILURES_OF_A_CODE", 5)
        figures = row_figures(batches)
        assert figures == row_figures([pa.RecordBatch.from_pylist(rows, DETAILS)])
    answered = [one for one in rows if one["code"] is None]
    codes = Counter(one["code"] for one in rows if one["code"])
    assert (figures.rows, figures.failed) == (len(rows), codes.total())
    assert {f.code: f.rows for f in figures.failures} == codes
    assert figures.prompt_lengths == Counter(one["prompt_tokens"] for one in answered)
    assert figures.output_lengths == Counter(one["completion_tokens"] for one in answered)
    assert figures.cached_tokens == sum(one["cached_tokens"] for one in answered)
    assert sum(figures.shared) == len(answered)
    assert figures.shared[0] == sum(one["cached_tokens"] == 0 for one in answered)
    shown = Counter(one.code for one in figures.shown)
    assert shown.pop(None, 0) == min(10, len(answered))
    assert shown.total() <= 12
    assert all(rows_of <= 5 for rows_of in shown.values())
    for one in figures.shown:
        whole = rows[one.number - 1]
        assert (one.custom_id, one.code, one.line) == (whole["custom_id"], whole["code"], one.number)
        said = whole["message"] or whole["text"]
        assert (one.text, one.hidden) == (said[:1500], max(0, len(said) - 1500))


class Stops(Silent):
    """Has a report made of the output that is being written, then interrupts."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.seen: list[Report] = []

    def update(self, progress: Progress) -> None:
        if progress.rows_done >= len(BAD) + 2:
            self.seen.append(report_of(self.output))
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.parquet"])
def test_the_report_of_a_job_that_went_on(tiny_model: Path, tmp_path: Path, name: str) -> None:
    lines: list[str | bytes] = [json.dumps(good) for good in GOOD]
    source = write(tmp_path / "in.jsonl", [*(bad for bad, _ in BAD), *lines])
    config = job(tiny_model, source, tmp_path / name, output={"seconds_per_shard": 0.0})
    with pytest.raises(KeyboardInterrupt):
        run_job(config, tmp_path / "home", watching := Stops(tmp_path / name))
    (running,) = watching.seen
    assert running.state == "running"
    assert 0 < running.figures.rows <= len(GOOD) + len(BAD)
    assert Page(render(running)).texts.count("running") == 2
    assert report_of(tmp_path / name).state == "stopped"
    run(config, tmp_path)
    report = report_of(tmp_path / name)
    figures = report.figures
    assert (report.state, report.rows_total) == ("finished", len(GOOD) + len(BAD))
    assert {failure.code: failure.rows for failure in figures.failures} == Counter(code for _, code in BAD)
    assert [one["state"] for one in report.runs] == ["stopped", "finished"]
    assert len(figures.shown) == len(GOOD) + len(BAD)
    page = Page(render(report))
    (table,) = [number for number, (_, found) in enumerate(page.found) if found.get("id") == "table"]
    assert sum(tag == "tr" for tag, _ in page.found[table:]) >= len(GOOD) + len(BAD)
    for heading in ("Job", "Engine", "Machine", "Settings that answers depend on"):
        assert heading in page.texts
    for code in {code for _, code in BAD}:
        assert code in page.texts
    assert render(report, now=0.0) == render(report_of(tmp_path / name), now=0.0)


def test_shards_that_are_not_merged_yet(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line(str(i), temperature=0)) for i in range(9)])
    config = job(tiny_model, source, tmp_path / "out")
    for index in range(2):
        output = replace(config.output, output_file=shard_folder(config.output.output_file, index, 2))
        run(replace(config, output=output, num_shards=2, shard_index=index), tmp_path)
    report = report_of(tmp_path / "out")
    assert (report.figures.rows, report.state, len(report.runs)) == (9, "finished", 2)
    assert "added up over shards" in render(report)


def test_a_run_that_was_killed(tiny_model: Path, tmp_path: Path) -> None:
    """Its file says to the end of time that it is running; who holds no lock is not."""
    source = write(tmp_path / "in.jsonl", [json.dumps(line("a", temperature=0))])
    run(job(tiny_model, source, tmp_path / "out"), tmp_path)
    (file,) = run_files(tmp_path / "out")
    write_run(file, {**json.loads(file.read_bytes()), "state": "running"})
    assert [told["state"] for told in report_of(tmp_path / "out").runs] == ["killed"]
    with FileLock(tmp_path / "out" / ".batchgen" / "lock"):
        assert [told["state"] for told in report_of(tmp_path / "out").runs] == ["running"]


def test_an_empty_output_and_one_where_all_failed(tiny_model: Path, tmp_path: Path) -> None:
    config = job(tiny_model, write(tmp_path / "empty.jsonl", []), tmp_path / "empty")
    run(config, tmp_path)
    page = Page(render(report_of(tmp_path / "empty")))
    assert "The output has no rows." in page.texts
    config = job(tiny_model, write(tmp_path / "bad.jsonl", [bad for bad, _ in BAD[:3]]), tmp_path / "bad")
    run(config, tmp_path)
    report = report_of(tmp_path / "bad")
    assert (report.figures.rows, report.figures.failed) == (3, 3)
    assert "invalid_json_line" in Page(render(report)).texts


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_file_alone_has_a_report_too(tmp_path: Path, ending: str) -> None:
    schema = result_schema("string")
    rows = [
        {**one, "error": one["code"] and {"code": one["code"], "message": one["message"]}} for one in details(300, 1)
    ]
    table = pa.Table.from_pylist(rows, schema)
    path = tmp_path / f"moved.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, schema) as stream:
            stream.write_table(table)
    report = report_of(path)
    assert (report.figures.rows, report.state, report.runs) == (300, None, [])
    assert report.figures.failed == sum(one["code"] is not None for one in details(300, 1))
    assert "No run has told of itself here" in render(report)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no results of batchgen"):
        report_of(tmp_path / "none")
