"""A job shared by several processes: every row once, groups together, and joined as if one process had run it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.config import InputConfig, MergeConfig
from batchgen.errors import OutputMismatchError, UsageError
from batchgen.io.partition import Partition, plan_partition
from batchgen.io.readers import open_rows
from batchgen.io.shards import shard_folder
from batchgen.io.sources import part_files
from batchgen.io.store import Store
from batchgen.job.merge import merge_shards
from batchgen.protocol.request import RawRow
from tests.unit.test_job import BAD, GOOD, job, line, run, write

SHARDS = 3


def row(number: int, text: str, **body: Any) -> RawRow:
    return RawRow(number, {"custom_id": f"r{number}", "body": {"prompt": text, **body}})


def sizes(rows: list[RawRow], number: int) -> list[int]:
    partition = plan_partition(rows, number)
    found = Counter(map(partition.shard_of, rows))
    return [found[index] for index in range(number)]


def shards_of_groups(partition: Partition, rows: list[RawRow], group: Callable[[RawRow], object]) -> list[set[int]]:
    found: dict[object, set[int]] = {}
    for each in rows:
        found.setdefault(group(each), set()).add(partition.shard_of(each))
    return list(found.values())


def test_small_groups_stay_together_and_shards_are_of_a_size() -> None:
    rows = [row(number, f"document {number % 250} " * 60 + f"question {number}") for number in range(1000)]
    partition = plan_partition(rows, 4)
    assert all(len(shards) == 1 for shards in shards_of_groups(partition, rows, lambda r: r.line % 250))
    assert min(sizes(rows, 4)) > 150


@pytest.mark.parametrize("beginning", ["be nice. ", "eight examples of sums. " * 200, ""])
def test_what_all_requests_begin_with_is_no_reason_to_give_them_to_one(beginning: str) -> None:
    rows = [row(number, f"{beginning}question {number} " * 1 + "x" * 600) for number in range(1000)]
    assert min(sizes(rows, 8)) > 80


def test_one_prompt_many_times_is_shared_too() -> None:
    assert min(sizes([row(number, "the same", seed=number) for number in range(1000)], 8)) > 80


def test_groups_below_a_common_beginning_stay_together() -> None:
    system = "you are a helpful assistant. " * 40
    rows = [row(number, f"{system}document {number % 200} " + "lorem " * 400 + f"{number}") for number in range(1000)]
    partition = plan_partition(rows, 4)
    assert all(len(shards) == 1 for shards in shards_of_groups(partition, rows, lambda r: r.line % 200))


@given(st.lists(st.text(max_size=5), max_size=50), st.integers(1, 7))
def test_every_row_is_in_one_shard_and_the_same_by_every_reading(texts: list[str], number: int) -> None:
    rows = [row(at, text) for at, text in enumerate(texts, 1)]
    first, second = plan_partition(rows, number), plan_partition(iter(rows), number)
    assert first.digest == second.digest
    for each in rows:
        assert first.shard_of(each) == second.shard_of(each) in range(number)


def test_the_digest_tells_inputs_apart() -> None:
    rows = [row(number, str(number)) for number in range(9)]
    names = {plan_partition(some, 3).digest for some in (rows, rows[:-1], rows[::-1], [row(0, "9"), *rows[1:]])}
    assert len(names) == 4


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the input and the output of one process, in every form."""
    folder = tmp_path_factory.mktemp("whole")
    lines: list[str | bytes] = [text for bad, _ in BAD for text in (bad,)] + [json.dumps(good) for good in GOOD]
    lines += [json.dumps(line(f"more {number}", prompt=f"the {number % 4}", seed=number)) for number in range(40)]
    lines += [json.dumps(line("more 3", prompt="taken", extra_column=1))]
    source = write(folder / "in.jsonl", lines)
    for name in ("out", "out.jsonl"):
        run(job(tiny_model, source, folder / name), folder)
    return folder


@pytest.fixture(scope="module")
def shards(tiny_model: Path, whole: Path) -> list[Path]:
    """The outputs of three processes over the same input."""
    config = job(tiny_model, whole / "in.jsonl", whole / "merged")
    return [run_shard(config, whole, index) for index in range(SHARDS)]


def run_shard(config: Any, folder: Path, index: int) -> Path:
    output = shard_folder(config.output.output_file, index, SHARDS)
    output_config = replace(config.output, output_file=output)
    run(replace(config, output=output_config, num_shards=SHARDS, shard_index=index), folder)
    return Path(output)


def table(folder: Path) -> pa.Table:
    return pa.concat_tables(pa.ipc.open_stream(path.read_bytes()).read_all() for path in part_files(folder))


def without_place(folder: Path) -> list[dict[str, Any]]:
    """Rows without what depends on what was computed beside them, and on the time."""
    rows: list[dict[str, Any]] = table(folder).drop_columns(["cached_tokens"]).to_pylist()
    for each in rows:
        body = None if each["response"] is None else json.loads(each["response"])
        for name in ("created", "usage"):
            (body or {}).pop(name, None)
        each["response"] = body
    return rows


def test_each_row_of_the_input_is_in_one_shard(whole: Path, shards: list[Path]) -> None:
    lines = [number for shard in shards for number in table(shard)["line"].to_pylist()]
    assert sorted(lines) == [each.line for each in open_rows(InputConfig(input_file=str(whole / "in.jsonl")))]
    assert all(table(shard).num_rows for shard in shards)


def test_joined_they_are_the_output_of_one_process(whole: Path, shards: list[Path]) -> None:
    before = {path: path.read_bytes() for shard in shards for path in part_files(shard)}
    summary = merge_shards([whole / "merged"], MergeConfig())
    assert without_place(whole / "merged") == without_place(whole / "out")
    assert summary["request_counts"]["total"] == table(whole / "out").num_rows
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(OutputMismatchError, match="--overwrite"):
        merge_shards(shards, MergeConfig())
    merge_shards(shards[::-1], MergeConfig(overwrite=True))
    assert without_place(whole / "merged") == without_place(whole / "out")


def test_joined_to_one_file(whole: Path, shards: list[Path]) -> None:
    target, errors = whole / "joined.jsonl", whole / "errors.jsonl"
    merge_shards(shards, MergeConfig(merged_file=str(target), error_file=errors))

    def rows(path: Path) -> list[Any]:
        found = [json.loads(text) for text in path.read_bytes().splitlines()]
        for each in found:
            for name in ("created", "usage"):
                ((each["response"] or {}).get("body") or {}).pop(name, None)
        return found

    assert rows(target) == rows(whole / "out.jsonl")
    assert len(rows(errors)) == len(BAD) + 1


def test_a_finished_whole_is_known_to_an_unshared_run(tiny_model: Path, whole: Path, shards: list[Path]) -> None:
    target = whole / "known"
    merge_shards(shards, MergeConfig(merged_file=str(target)))
    summary = run(job(tiny_model, whole / "in.jsonl", target, skip_exit_code=99), whole)
    assert summary.counts.resumed == summary.counts.total
    assert (summary.stats, summary.exit_code) == (None, 99)


def test_a_merge_that_was_killed_begins_anew_and_leaves_nothing(
    whole: Path, shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = MergeConfig(merged_file=str(tmp_path / "x"))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "finish", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            merge_shards(shards, target)
    merge_shards(shards, target)
    assert without_place(tmp_path / "x") == without_place(whole / "out")
    assert [path.name for path in (tmp_path / "x" / ".batchgen").iterdir() if path.suffix == ".arrow"] == []


def test_what_does_not_go_together_is_refused(
    tiny_model: Path, whole: Path, shards: list[Path], tmp_path: Path
) -> None:
    target = MergeConfig(merged_file=str(tmp_path / "x"))
    with pytest.raises(UsageError, match="1 missing"):
        merge_shards([shards[0], shards[2]], target)
    with pytest.raises(UsageError, match="one comes twice"):
        merge_shards([*shards, shards[0]], target)
    with pytest.raises(UsageError, match="nothing to merge"):
        merge_shards([whole / "out"], target)
    config = job(tiny_model, whole / "in.jsonl", tmp_path / "other")
    seeded = run_shard(replace(config, engine=replace(config.engine, seed=7)), tmp_path, 1)
    with pytest.raises(OutputMismatchError, match="seed: 0 there, 7 now"):
        merge_shards([shards[0], seeded.rename(tmp_path / shards[1].name), shards[2]], target)
    with pytest.raises(UsageError, match="run this shard first"):
        merge_shards([tmp_path / shard_folder("none", 0, 1)], target)


def test_standard_input_cannot_be_shared(tiny_model: Path, tmp_path: Path) -> None:
    config = job(tiny_model, Path("-"), tmp_path / "out")
    with pytest.raises(UsageError, match="standard input"):  # before anything of it is read
        run(replace(config, num_shards=2), tmp_path)
