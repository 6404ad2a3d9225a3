"""The display: speeds, words, the live lines at 80 columns, log lines."""

from __future__ import annotations

import io
import json
import logging
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from batchgen import ui
from batchgen.progress import Progress
from batchgen.ui import words
from batchgen.ui.rates import Rates, RateWindow
from batchgen.ui.tables import print_wrapped, show_inspection

BUSY = Progress(
    rows_total=1_000_000,
    rows_done=123_456,
    rows_failed=1234,
    running=1024,
    waiting=16384,
    kv_used=1.0,
    prompt_tokens=123_456_789,
    computed_tokens=99_999_999,
    cached_tokens=100_000_000,
    output_tokens=98_765_432,
    preemptions=4321,
    elapsed_s=36_000.0,
)


def at(seconds: float, **counts: int) -> Progress:
    return Progress(rows_total=100, elapsed_s=seconds, **counts)


def test_rates_are_those_of_the_last_seconds() -> None:
    window = RateWindow(10.0)
    window.push(at(0))
    assert window.rates() == Rates()
    for second in range(1, 41):  # 100 tokens a second for 30 s, then 10
        tokens = 100 * min(second, 30) + 10 * max(0, second - 30)
        window.push(at(second, computed_tokens=2 * tokens, output_tokens=tokens, rows_done=second))
    assert window.rates() == Rates(computed=20.0, output=10.0, remaining_s=60.0)


def test_resumed_rows_do_not_count_as_speed() -> None:
    window = RateWindow(10.0)
    window.push(at(0, rows_done=90))
    window.push(at(10, rows_done=90))
    assert window.rates().remaining_s is None
    window.push(at(20, rows_done=95))
    assert window.rates().remaining_s == 20.0


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999.6, "1000"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (99_999, "100k"),
        (999_960, "1.00M"),
        (2e9, "2.00G"),
    ],
)
def test_short(number: float, text: str) -> None:
    assert words.short(number) == text


@given(st.floats(0, 9.9e11))
def test_short_is_short_and_close(number: float) -> None:
    text = words.short(number)
    assert len(text) <= 5
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    assert float(text.rstrip("kMG")) * unit == pytest.approx(number, rel=0.006, abs=0.5)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03")])
def test_duration(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def shown(progress: Progress, width: int) -> list[str]:
    """The lines that are left on a terminal of this width."""
    screen = Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False)
    reporter = ui.LiveReporter(screen)
    reporter.stage("generating")
    reporter.update(replace(progress, elapsed_s=0.0, rows_done=0, rows_failed=0, computed_tokens=0, output_tokens=0))
    reporter.update(progress)
    reporter.close()
    reporter.close()
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().rstrip("\n").split("\n")]


def test_the_busiest_state_at_80_columns() -> None:
    bar, *lines = shown(BUSY, 80)
    assert bar == "━━━━╸" + " " * 36 + "123456/1000000 rows (12%) left 71:43:03"
    assert lines == [
        "tok/s computed 2778 out 2743 | running 1024 waiting 16384 | KV 100%",
        "1234 failed | tokens in 123M (81% cached) out 98.8M | 4321 preempted",
        "generating",
    ]


def test_a_usual_state_at_80_columns() -> None:
    usual = replace(BUSY, rows_total=332, rows_done=117, rows_failed=0, running=128, waiting=87, kv_used=0.043)
    usual = replace(usual, elapsed_s=30.0, computed_tokens=18_000, output_tokens=12_000, preemptions=0)
    usual = replace(usual, prompt_tokens=9_000, cached_tokens=1_800, rows_resumed=7)
    assert shown(usual, 80) == [
        "━━━━━━━━━━━━━━━━╸" + " " * 32 + "117/332 rows (35%)    left 0:55",
        "tok/s computed 600 out 400 | running 128 waiting 87 | KV 4% | 7 resumed",
        "tokens in 9000 (20% cached) out 12.0k | generating",
    ]


def test_at_40_columns_there_are_more_lines() -> None:
    assert shown(BUSY, 40) == [
        " 123456/1000000 rows (12%) left 71:43:03",
        "tok/s computed 2778 out 2743",
        "running 1024 waiting 16384 | KV 100%",
        "1234 failed",
        "tokens in 123M (81% cached) out 98.8M",
        "4321 preempted | generating",
    ]


def test_at_200_columns_it_is_as_at_100() -> None:
    assert shown(BUSY, 200) == shown(BUSY, 100)
    assert len(shown(BUSY, 200)) == 3


@pytest.mark.parametrize("width", [20, 33, 40, 60, 80, 81, 99, 120, 200])
def test_no_line_is_too_long_and_nothing_is_cut(width: int) -> None:
    lines = shown(BUSY, width)
    assert all(len(line) <= width for line in lines)
    if width >= 40:
        text = "\n".join(lines)
        assert "…" not in text
        for part in ("123456/1000000 rows (12%)", "left 71:43:03", "tok/s computed 2778 out 2743", "4321 preempted"):
            assert part in text


def test_at_the_end_speeds_are_those_of_the_whole_run() -> None:
    text = "\n".join(shown(Progress(rows_total=9, rows_done=9, computed_tokens=90, output_tokens=60, elapsed_s=30), 80))
    assert "9/9 rows (100%)" in text
    assert "after 0:30" in text
    assert "tok/s computed 3 out 2" in text


def test_an_unknown_total_and_an_idle_engine() -> None:
    text = "\n".join(shown(Progress(rows_done=3, elapsed_s=61.0), 80))
    assert "3 rows" in text
    assert "after 1:01" in text
    assert "running" not in text
    assert "failed" not in text


def test_rows_that_fail_at_once_tell_nothing_of_the_time_that_is_left() -> None:
    text = "\n".join(shown(Progress(rows_total=60, rows_done=5, rows_failed=5, elapsed_s=10.0), 80))
    assert "left" not in text
    assert "5 failed" in text


def test_an_empty_input() -> None:
    assert "0/0 rows" in shown(Progress(rows_total=0), 80)[0]


def test_a_new_stage_begins_anew() -> None:
    """As with `bench throughput`, which runs the same requests several times: time starts at 0 again."""
    screen = Console(file=io.StringIO(), width=80, force_terminal=False, highlight=False)
    reporter = ui.LiveReporter(screen)
    for stage in ("run 1 of 2", "run 2 of 2"):
        reporter.stage(stage)
        for second in range(4):
            reporter.update(at(second, computed_tokens=20 * second, output_tokens=10 * second, rows_done=second))
    reporter.close()
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert "tok/s computed 20 out 10 | tokens in 0 out 30 | run 2 of 2" in text
    assert "left 1:37" in text


@pytest.mark.parametrize(("width", "lines"), [(80, 1), (40, 3), (20, 5)])
def test_long_lines_go_on_between_words(
    width: int, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "time         at least 5.8 s for the prompts, 27.3 s with outputs"
    print_wrapped(line, 13)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_wrapped(line, 13)
    shown_lines = capsys.readouterr().out.splitlines()
    assert len(shown_lines) == lines
    assert all(len(one) <= width for one in shown_lines)
    assert " ".join(shown_lines).split() == line.split()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_tables_of_an_inspection(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    spread = {"sum": 123_456_789, "mean": 1234.5, "min": 1, "p50": 1000, "p90": 2000, "p99": 4000, "max": 131_072}
    show_inspection(
        {
            "output": "out",
            "rows": {"total": 100_000, "completed": 99_999, "failed": 1},
            "failures": [{"code": "context_length_exceeded", "rows": 1, "first_line": 99_000}],
            "finish_reasons": {"stop": 99_999},
            "lengths": {"prompt_tokens": spread, "completion_tokens": spread, "cached_tokens": None},
            "timing": None,
        }
    )
    head, *lines = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert head == "out: 100000 rows, 99999 completed, 1 failed"
    assert all(len(line) <= width and "…" not in line for line in lines)
    assert " sum    123,456,789   123,456,789" in lines
    if width >= 80:
        assert " context_length_exceeded      1        99000" in lines


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_log_line_every_30_seconds_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO, "batchgen"):
        reporter = ui.LineReporter(clock)
        reporter.stage("generating")
        for second in range(71):
            clock.now = float(second)
            reporter.update(at(second, rows_done=second, computed_tokens=20 * second, output_tokens=10 * second))
            reporter.tick()
        reporter.close()
        reporter.close()
    assert caplog.messages == [
        "generating",
        "30/100 rows (30%) | tok/s computed 20 out 10 | left 1:10",
        "60/100 rows (60%) | tok/s computed 20 out 10 | left 0:40",
        "70/100 rows (70%) | tok/s computed 20 out 10 | left 0:30",
    ]


def test_the_heart_beats_while_nothing_moves(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO, "batchgen"):
        reporter = ui.LineReporter(clock)
        reporter.stage("loading model")
        for second in range(65):
            clock.now = float(second)
            reporter.tick()
        reporter.update(at(0, rows_done=3))
        for second in range(65, 95):
            clock.now = float(second)
            reporter.tick()
        reporter.close()
    assert caplog.messages == [
        "loading model",
        "loading model for 0:30",
        "loading model for 1:00",
        "3/100 rows (3%) | tok/s computed - out -",
    ]


class Listener:
    """Notes what it hears; sets `ticked` at the second tick."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ticks = 0
        self.ticked = threading.Event()

    def stage(self, text: str) -> None:
        self.heard.append(text)

    def update(self, progress: Progress) -> None:
        self.heard.append(str(progress.rows_done))

    def close(self) -> None:
        self.heard.append("closed")

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == 2:
            self.ticked.set()


def test_several_reporters_hear_the_same_and_tick_until_they_are_closed() -> None:
    first, second = Listener(), Listener()
    together = ui.Together([first, ui.QuietReporter(), second])
    together.stage("generating")
    together.update(at(1, rows_done=4))
    assert first.ticked.wait(30)
    assert second.ticked.wait(30)
    together.close()
    ticks = first.ticks
    assert first.heard == second.heard == ["generating", "4", "closed"]
    assert not any(thread.name == "batchgen ticker" for thread in threading.enumerate())
    assert first.ticks == ticks


def logged(form: str) -> str:
    screen = Console(file=io.StringIO(), width=20, force_terminal=False)
    before = logging.getLogger("batchgen").level
    assert form in {"text", "json"}
    with ui.logs(screen, "info", "json" if form == "json" else "text"):
        log = logging.getLogger("batchgen.test")
        log.debug("unseen")
        log.info("[bold]not markup[/bold], and longer than the terminal is wide")
        try:
            raise ValueError("odd")
        except ValueError:
            log.exception("failed")
        logging.getLogger("other").info("unseen")
    log.warning("after")
    assert logging.getLogger("batchgen").level == before
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_text_log_lines() -> None:
    first, second, *rest = logged("text").splitlines()
    assert first[8:] == " [bold]not markup[/bold], and longer than the terminal is wide"
    assert second[8:] == " error: failed"
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: odd"


def test_json_log_lines() -> None:
    first, second = (json.loads(line) for line in logged("json").splitlines())
    assert first["message"].startswith("[bold]not markup")
    assert (first["level"], first["logger"]) == ("info", "batchgen.test")
    assert second["level"] == "error"
    assert second["exception"].endswith("ValueError: odd")
