"""A whole job on a tiny model: every row answered once, in order, in every form of output."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anthropic.types.messages import MessageBatchIndividualResponse
from filelock import FileLock
from openai.types import Completion
from openai.types.chat import ChatCompletion

from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.core.step import Answer, StepPlan
from batchgen.errors import InvalidInputError, OutputLockedError, OutputMismatchError, StalledError, UsageError
from batchgen.job import Summary, run_job
from batchgen.job.calibration import calibrate
from batchgen.model import calibration
from batchgen.model.runner import Runner
from batchgen.progress import Progress
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import GenRequest
from batchgen.text.prompt import Prompter

LONG_PROMPT = "the sea " * 80


class Silent:
    """A reporter that keeps the last progress."""

    progress: Progress | None = None

    def stage(self, text: str) -> None:
        pass

    def update(self, progress: Progress) -> None:
        self.progress = progress

    def close(self) -> None:
        pass


def line(custom_id: object, *, chat: bool = False, **body: Any) -> dict[str, Any]:
    text = body.pop("prompt", "the sea")
    content = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**content, "max_tokens": 6, **body}}


GOOD = [
    line("chat", chat=True, temperature=0),
    line("two", n=2, seed=3),
    line("list", prompt=["the", "sea"], temperature=0),
    line("ids", prompt=[1, 2, 3], temperature=0),
    line("stop", stop=["e"], temperature=0, max_tokens=20),
    line(7, temperature=0.5, top_k=5, top_p=0.9, min_p=0.01),
    line("unseeded"),
]
BAD: list[tuple[str | bytes, str]] = [
    ("{nonsense", "invalid_json_line"),
    (b'{"custom_id": "\xff"}', "invalid_json_line"),
    ("[1, 2]", "invalid_json_line"),
    (json.dumps(line("chat")), "duplicate_custom_id"),
    (json.dumps(line("hot", temperature=9)), "invalid_value"),
    (json.dumps(line("text-k", top_k="5")), "invalid_type"),
    (json.dumps(line("flow", stream=True)), "stream_not_supported"),
    (json.dumps(line("odd", wat=1)), "unsupported_parameter"),
    (json.dumps({"custom_id": "url", "method": "POST", "url": "/v1/x", "body": {}}), "unsupported_url"),
    (json.dumps(line("verb") | {"method": "GET"}), "unsupported_method"),
    (json.dumps({"custom_id": "none", "url": "/v1/completions", "body": {}}), "missing_required_field"),
    (json.dumps(line("other", model="gpt-x")), "model_mismatch"),
    (json.dumps(line("long", prompt=LONG_PROMPT)), "context_length_exceeded"),
    (
        json.dumps(
            {"custom_id": "t", "url": "/v1/chat/completions", "body": {"messages": [{"role": "nobody", "content": ""}]}}
        ),
        "invalid_chat_template_input",
    ),
]


def job(tiny_model: Path, source: Path, target: Path, **changes: Any) -> JobConfig:
    return JobConfig(
        model=ModelConfig(model=str(tiny_model)),
        engine=EngineConfig(
            max_model_len=128, kv_cache_memory=4 << 20, threads=1, max_num_batched_tokens=64, max_num_seqs=16
        ),
        input=InputConfig(input_file=str(source), **changes.pop("input", {})),
        output=OutputConfig(output_file=str(target), **changes.pop("output", {})),
        **changes,
    )


def run(config: JobConfig, tmp_path: Path) -> Summary:
    return run_job(config, tmp_path / "home", Silent())


def write(path: Path, lines: list[str | bytes]) -> Path:
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in lines))
    return path


def answers(folder: Path) -> dict[str, Any]:
    """Results by custom_id, without what tells runs and places apart."""
    rows = datasets.Dataset.from_file(str(folder / "part-00000.arrow"))
    found = {}
    for row in rows:
        choices = row["response"]["choices"] if row["error"] is None else row["error"]["code"]
        found[row["custom_id"]] = (row["status_code"], row["text"], choices, row["prompt_tokens"])
    return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good lines between bad ones, a blank line, a byte order mark, and no newline at the end."""
    lines: list[str | bytes] = []
    for number, (bad, _) in enumerate(BAD):
        if number < len(GOOD):
            lines.append(json.dumps(GOOD[number]))
        lines.append(bad)
    lines[0] = b"\xef\xbb\xbf" + str(lines[0]).encode()
    return write(tmp_path_factory.mktemp("in") / "mixed.jsonl", [lines[0], "", *lines[1:]])


def test_every_row_has_its_result_in_order(tiny_model: Path, mixed: Path, tmp_path: Path) -> None:
    summary = run(job(tiny_model, mixed, tmp_path / "out"), tmp_path)

    rows = list(datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")))
    assert summary.counts.total == len(rows) == len(GOOD) + len(BAD)
    assert summary.counts.failed == len(BAD)
    assert [row["line"] for row in rows] == sorted({1, *range(3, len(rows) + 2)})
    assert [row["error"]["code"] for row in rows if row["error"]] == [code for _, code in BAD]
    good = [row for row in rows if row["error"] is None]
    assert [row["custom_id"] for row in good] == [str(request["custom_id"]) for request in GOOD]
    for row in good:
        body = row["response"]
        chat = row["custom_id"] == "chat"
        (ChatCompletion if chat else Completion).model_validate(body)
        assert body["usage"]["completion_tokens"] == row["completion_tokens"] > 0
        assert row["finish_reason"] in {"stop", "length"}
    by_id = {row["custom_id"]: row for row in good}
    assert [choice["index"] for choice in by_id["two"]["response"]["choices"]] == [0, 1]
    assert len({choice["text"] for choice in by_id["two"]["response"]["choices"]}) == 2
    assert len(by_id["list"]["response"]["choices"]) == 2
    assert "e" not in by_id["stop"]["text"]
    assert by_id["unseeded"]["response"]["batchgen"]["effective"]["seed"] >= 0


def test_shuffled_lines_and_other_settings_give_the_same_answers(tiny_model: Path, mixed: Path, tmp_path: Path) -> None:
    lines = [text for text in mixed.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n") if b'"long"' not in text]
    whole = [text for text in lines if b'"chat"' not in text or b"messages" in text]  # which duplicate wins is order
    first = write(tmp_path / "a.jsonl", list(whole))
    random.Random(3).shuffle(whole)
    second = write(tmp_path / "b.jsonl", list(whole))
    run(job(tiny_model, first, tmp_path / "a"), tmp_path)
    other = job(tiny_model, second, tmp_path / "b", input={"window": 3})
    run(replace(other, engine=replace(other.engine, max_num_batched_tokens=5, max_num_seqs=5, block_size=4)), tmp_path)
    assert answers(tmp_path / "a") == answers(tmp_path / "b")


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
def test_one_file_holds_the_rows_of_the_shards(tiny_model: Path, mixed: Path, tmp_path: Path, ending: str) -> None:
    errors = tmp_path / "errors.jsonl"
    target = tmp_path / f"out.{ending}"
    run(job(tiny_model, mixed, target, output={"rows_per_shard": 4, "error_file": errors}), tmp_path)
    bookkeeping = f".{target.name}.batchgen"
    made = sorted(path.name for path in tmp_path.iterdir() if path.name != "home")
    assert made == [bookkeeping, "errors.jsonl", target.name]
    kept = [path.name for path in (tmp_path / bookkeeping).rglob("*") if path.is_file()]
    assert sorted(kept) == ["lock", "manifest.json", "progress.json", "run-00000.json"]
    assert len(errors.read_bytes().splitlines()) == len(BAD)
    if ending == "jsonl":
        shaped = [json.loads(text) for text in target.read_bytes().splitlines()]
        assert [row["custom_id"] for row in shaped if row["response"] and row["response"]["status_code"] == 200] == [
            str(request["custom_id"]) for request in GOOD
        ]
        for row in shaped:
            assert (row["response"] is None) == (row["error"] is not None)
            if row["response"] and row["response"]["status_code"] != 200:
                assert row["response"]["body"]["error"]["code"]
        return
    table = pq.read_table(target) if ending == "parquet" else pa.ipc.open_stream(target.read_bytes()).read_all()
    assert table.num_rows == len(GOOD) + len(BAD)
    assert table["line"].to_pylist() == sorted(table["line"].to_pylist())


def test_the_first_readable_line_decides_the_form_of_the_output(tiny_model: Path, tmp_path: Path) -> None:
    asked = {"max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": "the sea"}]}
    long = asked | {"messages": [{"role": "user", "content": LONG_PROMPT}]}
    message, too_long = (json.dumps({"custom_id": name, "params": sent}) for name, sent in (("m", asked), ("l", long)))
    chat = json.dumps({"custom_id": "c", "url": "/v1/chat/completions", "body": asked})

    def rows(*lines: str) -> list[dict[str, Any]]:
        source = write(tmp_path / "in.jsonl", ["{nonsense", *lines])
        run(job(tiny_model, source, tmp_path / "out.jsonl", output={"overwrite": True}), tmp_path)
        return [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]

    *answered, refused = rows(message, chat, too_long)
    results = [MessageBatchIndividualResponse.model_validate(row).result for row in answered[1:]]
    assert [result.type for result in results] == ["succeeded", "succeeded"]
    texts = {row["result"]["message"]["content"][0]["text"] for row in answered[1:]}
    assert refused["result"]["error"]["error"]["type"] == "invalid_request_error"

    *answered, refused = rows(chat, message, too_long)
    assert answered[0].keys() == refused.keys() == {"id", "custom_id", "response", "error"}
    texts |= {row["response"]["body"]["choices"][0]["message"]["content"] for row in answered[1:]}
    assert len(texts) == 1, "the same question in both forms has the same answer"
    assert refused["response"]["body"]["error"]["param"] == "params.messages"


def test_columns_of_parquet_become_requests_and_are_passed_through(tiny_model: Path, tmp_path: Path) -> None:
    table = pa.table({"question": ["the sea", "the hat"], "text": ["mine", "yours"], "weight": [1.5, None]})
    pq.write_table(table, tmp_path / "in.parquet")
    config = job(
        tiny_model,
        tmp_path / "in.parquet",
        tmp_path / "out",
        input={"prompt_template": "{{ question }}?", "system_prompt": "be brief"},
    )
    run(config, tmp_path)
    rows = list(datasets.Dataset.from_file(str(tmp_path / "out" / "part-00000.arrow")))
    assert [row["custom_id"] for row in rows] == ["row-1", "row-2"]
    assert [(row["input_text"], row["weight"], row["question"]) for row in rows] == [
        ("mine", 1.5, "the sea"),
        ("yours", None, "the hat"),
    ]
    assert all(row["status_code"] == 200 for row in rows)


def test_outputs_are_guarded(tiny_model: Path, mixed: Path, tmp_path: Path) -> None:
    config = job(tiny_model, mixed, tmp_path / "out")
    (tmp_path / "out" / ".batchgen").mkdir(parents=True)
    with FileLock(tmp_path / "out" / ".batchgen" / "lock"), pytest.raises(OutputLockedError, match="another run"):
        run(config, tmp_path)
    run(config, tmp_path)
    with pytest.raises(OutputMismatchError, match="--overwrite"):
        run(replace(config, engine=replace(config.engine, seed=9)), tmp_path)
    before = answers(tmp_path / "out")
    run(job(tiny_model, mixed, tmp_path / "out", output={"overwrite": True}), tmp_path)
    assert answers(tmp_path / "out") == before
    with pytest.raises(UsageError, match="the output is the input"):
        run(job(tiny_model, mixed, mixed), tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("keep me")
    with pytest.raises(OutputMismatchError, match="other files"):
        run(job(tiny_model, mixed, tmp_path / "full", output={"overwrite": True}), tmp_path)


def test_strict_names_the_faulty_lines_and_does_no_work(tiny_model: Path, mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"line 3: invalid_json_line"):
        run(job(tiny_model, mixed, tmp_path / "out", strict=True), tmp_path)


@pytest.mark.parametrize(("allowed", "code"), [(None, 0), ("13", 3), ("14", 0), ("50%", 3), ("70%", 0)])
def test_failures_decide_the_exit_code(
    tiny_model: Path, mixed: Path, tmp_path: Path, allowed: str | None, code: int
) -> None:
    assert run(job(tiny_model, mixed, tmp_path / "out", max_failed=allowed), tmp_path).exit_code == code


def test_an_interrupt_keeps_what_was_finished(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line(str(i), temperature=0)) for i in range(40)])

    class Impatient(Silent):
        def update(self, progress: Progress) -> None:
            if progress.rows_done >= 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(job(tiny_model, source, tmp_path / "out"), tmp_path / "home", Impatient())
    rows = datasets.Dataset.from_file(str(tmp_path / "out" / ".batchgen" / "rows-00000.arrow"))
    assert len(rows) >= 10
    manifest: Mapping[str, Any] = json.loads((tmp_path / "out" / ".batchgen" / "manifest.json").read_text())
    assert (manifest["finished"], sum(file["rows"] for file in manifest["files"])) == (False, len(rows))


def test_a_stalled_job_keeps_what_was_finished(tiny_model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line(str(i), temperature=0)) for i in range(40)])

    class Stuck(Silent):
        def update(self, progress: Progress) -> None:
            while progress.rows_done >= 10:
                pass

    with pytest.raises(StalledError, match="the same command goes on"):
        run_job(job(tiny_model, source, tmp_path / "out", stall_timeout=0.3), tmp_path / "home", Stuck())
    assert len(datasets.Dataset.from_file(str(tmp_path / "out" / ".batchgen" / "rows-00000.arrow"))) >= 10


@pytest.mark.parametrize("asked", [False, True])
def test_log_lines_hold_no_text_of_requests_unless_asked(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    secret = "xyzzy"
    rows = [
        line("1", prompt=secret, temperature=0),
        line("2", prompt=secret, temperature=secret),
        line("3", wat=secret),
    ]
    source = write(tmp_path / "in.jsonl", [*map(json.dumps, rows), f"{secret} is no JSON"])
    with caplog.at_level(logging.DEBUG):
        run(job(tiny_model, source, tmp_path / "out", log_requests=asked, input={"lenient": True}), tmp_path)
    assert (secret in caplog.text) == asked
    assert "line 2: " in caplog.text
    assert "body.wat is unknown" in caplog.text


def test_the_same_greedy_request_is_computed_once_and_answered_each_time(tiny_model: Path, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "seed": 5},  # a greedy request has no use for it
        {"temperature": 0, "n": 3},
        {"temperature": 0, "stop": ["e"]},
        {"temperature": 0, "stop": ["e"]},
        {"temperature": 0, "max_tokens": 5},
        {"temperature": 1},
        {"temperature": 1},
    ]
    rows = [json.dumps(line(f"r{number}", prompt="x" * 20, **body)) for number, body in enumerate(asked)]
    together = run(job(tiny_model, write(tmp_path / "in.jsonl", list(rows)), tmp_path / "out"), tmp_path)
    alone: dict[str, Any] = {}
    generated: list[int] = []
    for number, row in enumerate(rows):
        source = write(tmp_path / f"{number}.jsonl", [row])
        stats = run(job(tiny_model, source, tmp_path / f"out-{number}"), tmp_path).stats
        assert stats is not None
        generated.append(stats.generated_tokens)
        alone |= answers(tmp_path / f"out-{number}")
    assert answers(tmp_path / "out") == alone
    # Row 1 comes with row 0 and row 4 with row 3; the three samples of row 2 are one.
    assert together.stats is not None
    assert together.stats.generated_tokens == sum(generated) - generated[1] - generated[4]
    assert generated[2] == generated[0]
    assert together.stats.work.distinct_tokens == 20


def test_the_summary_tells_where_the_time_went(
    tiny_model: Path, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(job(tiny_model, mixed, tmp_path / "a"), tmp_path).to_json()
    assert before["efficiency"] is before["time"]["bound_s"] is None
    assert before["redundancy"] >= 1

    monkeypatch.setattr(calibration, "_SECONDS", 0.001)
    monkeypatch.setattr(calibration, "_WEIGHTS", 1)
    assert len(list(calibrate(EngineConfig(threads=1), tmp_path / "home"))) == 2
    summary = run(job(tiny_model, mixed, tmp_path / "b"), tmp_path)
    effort, told = summary.effort, summary.to_json()
    assert effort is not None
    assert effort.bound_s is not None
    assert effort.bound_s > 0
    assert told["efficiency"] == round(effort.bound_s / summary.generation_s, 3)
    parts = [told["time"][name] for name in ("kernels_s", "scheduling_s", "host_s")]
    assert sum(parts) == pytest.approx(summary.generation_s, abs=0.01)


def test_steps_are_computed_while_rows_are_encoded(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, begin = Prompter.encode, Runner.begin
    computing = Event()

    def encode_in_time(prompter: Prompter, request: GenRequest) -> list[Sequence[int]] | RowFault:
        assert int(request.custom_id) < 40 or computing.wait(60), "nothing is computed before all are encoded"
        return encode(prompter, request)

    def begin_told(runner: Runner, plan: StepPlan) -> Answer:
        computing.set()
        return begin(runner, plan)

    monkeypatch.setattr(Prompter, "encode", encode_in_time)
    monkeypatch.setattr(Runner, "begin", begin_told)
    source = write(tmp_path / "in.jsonl", [json.dumps(line(str(n), temperature=0)) for n in range(200)])
    summary = run(job(tiny_model, source, tmp_path / "out"), tmp_path)
    assert summary.counts.completed == 200
    assert summary.effort is not None
    assert summary.effort.first_step_s is not None
    assert summary.effort.first_step_s < summary.generation_s
    assert summary.effort.hidden_scheduling_s is not None
    assert summary.effort.hidden_scheduling_s > 0
