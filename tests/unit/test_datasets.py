"""`integrations.datasets.generate` with the real library: columns, features, the cache by fingerprint, streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pytest

from batchgen import Engine
from batchgen.api.session import Session
from batchgen.config import MergeConfig
from batchgen.errors import ModelNotFoundError, UsageError
from batchgen.integrations.datasets import generate
from batchgen.io.shards import shard_folder
from batchgen.job.merge import merge_shards
from tests.outputs import results
from tests.unit.test_job import job, run

GREEDY = {"max_tokens": 4, "temperature": 0}
FEATURES = datasets.Features(
    {
        "q": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "grid": datasets.Array2D(shape=(2, 2), dtype="int32"),
    }
)
SETTINGS: dict[str, Any] = {
    "max_model_len": 128,
    "kv_cache_memory": 4 << 20,
    "threads": 1,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
}


def rows(count: int = 6) -> dict[str, list[Any]]:
    prompts = ["the sea", None, *(f"the sea {n}" for n in range(count))]
    grids = [np.full((2, 2), n) for n in range(count)]
    return {"q": prompts[:count], "label": [n % 2 for n in range(count)], "grid": grids}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    with Engine(str(tiny_model), **SETTINGS, window=8) as made:
        yield made


@pytest.fixture
def saved(tmp_path: Path) -> datasets.Dataset:
    datasets.Dataset.from_dict(rows(), features=FEATURES).save_to_disk(tmp_path / "saved")
    return datasets.load_from_disk(str(tmp_path / "saved"))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Every model that is loaded."""
    made: list[Session] = []
    load = Session.load

    def noted(session: Session) -> None:
        made.append(session)
        load(session)

    monkeypatch.setattr(Session, "load", noted)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_columns_and_features_stay_and_failed_rows_too(engine: Engine, saved: datasets.Dataset) -> None:
    made = generate(saved, engine=engine, prompt_column="q", sampling=GREEDY)
    assert made.select_columns(saved.column_names).to_dict() == saved.to_dict()
    assert {name: made.features[name] for name in FEATURES} == FEATURES
    assert made.column_names == [*FEATURES, "response", "response_error"]
    assert [answer is None for answer in made["response"]] == [False, True, False, False, False, False]
    assert [error and error["code"] for error in made["response_error"]] == [
        None,
        "missing_required_field",
        *[None] * 4,
    ]
    assert made["response_error"][1]["param"] == "body.prompt"
    assert len(made.cache_files) == 2


def test_answers_are_those_of_run_batch(
    tiny_model: Path, engine: Engine, saved: datasets.Dataset, tmp_path: Path
) -> None:
    template = "{{ label }}{{ 1 // 0 if q is none }}: {{ q }}"
    config = job(tiny_model, tmp_path / "saved", tmp_path / "out", input={"prompt_template": template})
    run(config, tmp_path)
    theirs = datasets.Dataset.from_file(str(tmp_path / "out" / "part-00000.arrow"))
    made = generate(saved, engine=engine, prompt_template=template)
    assert made["response"][:] == theirs["text"][:]
    assert made["response_error"][1]["code"] == theirs["error"][1]["code"] == "invalid_chat_template_input"


def test_a_saved_split_is_run_in_shards_and_grows(tiny_model: Path, tmp_path: Path) -> None:
    def save(count: int, folder: str) -> Path:
        split = datasets.Dataset.from_dict(rows(count), features=FEATURES)
        datasets.DatasetDict({"train": split, "test": split.select([0])}).save_to_disk(tmp_path / folder)
        return tmp_path / folder

    source, settings = save(6, "in"), {"prompt_column": "q", "split": "train"}
    for index in range(2):
        name = shard_folder(str(tmp_path / "all"), index, 2)
        config = job(tiny_model, source, Path(name), input=settings, num_shards=2, shard_index=index)
        assert run(config, tmp_path).counts.total < 6
    merge_shards([tmp_path / "all"], MergeConfig())
    run(job(tiny_model, source, tmp_path / "one", input=settings), tmp_path)
    assert results(tmp_path / "all") == results(tmp_path / "one")
    assert datasets.Dataset.from_file(str(tmp_path / "all" / "part-00000.arrow")).features["label"] == FEATURES["label"]

    summary = run(job(tiny_model, save(8, "in-later"), tmp_path / "one", input=settings), tmp_path)
    assert (summary.counts.total, summary.counts.resumed) == (8, 6)


def test_the_same_call_again_computes_nothing_and_another_one_does(
    tiny_model: Path, saved: datasets.Dataset, loads: list[Session]
) -> None:
    def ask(dataset: datasets.Dataset = saved, **changes: Any) -> datasets.Dataset:
        settings = {"prompt_column": "q", "sampling": GREEDY, **SETTINGS, **changes}
        return generate(dataset, model=str(tiny_model), **settings)

    first = ask()
    assert len(loads) == 1
    again = ask(threads=2, max_num_seqs=8)
    assert len(loads) == 1
    assert again._fingerprint == first._fingerprint
    assert again["response"][:] == first["response"][:]
    later = [again.map(_shout), ask().map(_shout)]
    assert later[0].cache_files == later[1].cache_files

    changes: list[dict[str, Any]] = [
        {"sampling": {"max_tokens": 5, "temperature": 0}},
        {"prompt_column": None, "prompt_template": "{{ q }}"},
        {"system_prompt": "be brief"},
        {"seed": 1},
        {"quantization": "int8"},
        {"output_column": "other"},
        {"dataset": saved.select([2, 1, 0])},
    ]
    fingerprints = {first._fingerprint}
    for number, change in enumerate(changes, 2):
        fingerprints.add(ask(**change)._fingerprint)
        assert len(loads) == number
    assert len(fingerprints) == 1 + len(changes)


def _shout(row: dict[str, Any]) -> dict[str, Any]:
    return {"loud": (row["response"] or "").upper()}


def test_another_model_is_asked_anew(
    tiny_model: Path, saved: datasets.Dataset, tmp_path: Path, loads: list[Session]
) -> None:
    for number in range(2):
        copy = tmp_path / f"model-{number}"
        copy.mkdir()
        for file in tiny_model.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
    changed = copy / "tokenizer_config.json"
    changed.write_text(changed.read_text().replace("<assistant>", "<model>"))
    for number in range(2):
        generate(saved, model=str(tmp_path / f"model-{number}"), prompt_column="q", sampling=GREEDY, **SETTINGS)
    assert len(loads) == 2


def test_a_selection_keeps_its_order(engine: Engine, saved: datasets.Dataset) -> None:
    whole = generate(saved, engine=engine, prompt_column="q", sampling=GREEDY)
    some = generate(saved.select([4, 0]).with_format("numpy"), engine=engine, prompt_column="q", sampling=GREEDY)
    assert some.format["type"] == "numpy"
    assert list(some["response"]) == [whole["response"][4], whole["response"][0]]
    assert list(some["q"]) == ["the sea 2", "the sea"]
    assert generate(saved.select([]), engine=engine, prompt_column="q").column_names == whole.column_names


def test_rows_in_memory_are_found_again_by_another_process(tiny_model: Path, cache: Path) -> None:
    code = f"""
import datasets
from batchgen.integrations.datasets import generate
from batchgen.io.shards import shard_folder
from batchgen.job.merge import merge_shards
rows = datasets.Dataset.from_dict({{"q": ["the sea", "the"]}})
made = generate(rows, model={str(tiny_model)!r}, home={str(cache)!r}, prompt_column="q", **{SETTINGS!r})
import sys
loaded = "torch" in sys.modules
"""
    here: dict[str, Any] = {}
    exec(code, here)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json; print(json.dumps([loaded, made['response'][:]]))"],
        env={**os.environ, "HF_DATASETS_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert json.loads(done.stdout) == [False, here["made"]["response"][:]], done.stderr


def test_beside_files_that_are_read_only_nothing_is_written(
    engine: Engine, saved: datasets.Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    made = generate(saved, engine=engine, prompt_column="q", sampling=GREEDY)
    assert Path(made.cache_files[1]["filename"]).parent == cache / "batchgen"


def test_without_the_cache_everything_is_computed(engine: Engine, saved: datasets.Dataset) -> None:
    datasets.disable_caching()
    try:
        files = [generate(saved, engine=engine, prompt_column="q", sampling=GREEDY).cache_files[1] for _ in range(2)]
    finally:
        datasets.enable_caching()
    assert files[0] != files[1]
    assert not list(Path(saved.cache_files[0]["filename"]).parent.glob("cache-*"))


def test_a_run_that_breaks_off_leaves_no_answers(engine: Engine, saved: datasets.Dataset) -> None:
    folder = Path(saved.cache_files[0]["filename"]).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "run", Mock(side_effect=RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            generate(saved, engine=engine, prompt_column="q")
    assert not list(folder.glob("*cache-*.arrow*[!k]"))
    assert len(generate(saved, engine=engine, prompt_column="q", sampling=GREEDY)) == 6


def stream(count: int, pulled: list[int]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        pulled.append(number)
        yield {"q": None if number == 1 else f"the sea {number}", "label": number % 2, "grid": np.full((2, 2), number)}


@pytest.mark.parametrize("typed", [True, False])
def test_a_stream_is_answered_as_it_is_read(engine: Engine, *, typed: bool) -> None:
    pulled: list[int] = []
    features = FEATURES if typed else None
    source = datasets.IterableDataset.from_generator(lambda: stream(100_000, pulled), features=features)
    made = generate(source, engine=engine, prompt_column="q", sampling=GREEDY)
    assert not pulled
    first = list(islice(made, 5))
    assert len(pulled) < 1000
    assert [row["label"] for row in first] == [0, 1, 0, 1, 0]
    assert np.asarray(first[4]["grid"]).tolist() == [[4, 4], [4, 4]]
    assert [row["response"] is None for row in first] == [False, True, False, False, False]
    assert first[1]["response_error"]["code"] == "missing_required_field"
    if typed:
        assert {name: made.features[name] for name in FEATURES} == FEATURES
        assert made.features["response"] == datasets.Value("string")


def test_a_stream_gives_the_answers_of_the_whole_set(engine: Engine, saved: datasets.Dataset) -> None:
    whole = generate(saved, engine=engine, prompt_column="q", sampling=GREEDY)
    made = generate(saved.to_iterable_dataset(), engine=engine, prompt_column="q", sampling=GREEDY)
    for _ in range(2):
        assert [row["response"] for row in made] == whole["response"][:]
    assert list(generate(saved.to_iterable_dataset().take(0), engine=engine, prompt_column="q")) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_proc": 4}, "one process sees all rows"),
        ({"model": "x"}, "either engine or model"),
        ({"seed": 1}, "either engine or model"),
        ({"output_column": "label"}, "there is a column 'label' already"),
        ({"prompt_column": "wat"}, "names 'wat'; the columns are: grid, label, q"),
        ({"prompt_template": "{% if %}"}, "not valid Jinja"),
        ({"prompt_column": None}, "no column 'body', 'params' or 'messages'"),
    ],
)
def test_what_cannot_be_asked(
    engine: Engine, saved: datasets.Dataset, loads: list[Session], settings: dict[str, Any], said: str
) -> None:
    for dataset in (saved, saved.to_iterable_dataset()):
        with pytest.raises(UsageError, match=said):
            generate(dataset, **{"engine": engine, "prompt_column": "q", **settings})
    assert not loads


def test_what_is_no_dataset_or_no_model(engine: Engine, saved: datasets.Dataset) -> None:
    with pytest.raises(UsageError, match="not a DatasetDict: choose a split"):
        generate(datasets.DatasetDict({"train": saved}), engine=engine)
    with pytest.raises(ModelNotFoundError):
        generate(saved, model="/nowhere", prompt_column="q")
