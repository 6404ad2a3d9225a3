"""Datasets of the hub as input, and outputs pushed there: the real libraries against a hub on this machine."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from batchgen.config import InputConfig
from batchgen.io.hub_dataset import HubDataset, hub_dataset_of
from batchgen.io.tables import is_table, open_table
from tests.fake_hub import TOKEN, FakeHub, fake_hub
from tests.hub_process import HubProcess, hub_environment, hub_process
from tests.unit.test_job import job, run

FEATURES = datasets.Features(
    {
        "q": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "tags": datasets.List(datasets.Value("string")),
    }
)


def rows(prefix: str, count: int) -> datasets.Dataset:
    made = {
        "q": [f"{prefix}{n}" for n in range(count)],
        "label": [n % 2 for n in range(count)],
        "tags": [["x"]] * count,
    }
    return datasets.Dataset.from_dict(made, features=FEATURES)


def parquet(dataset: datasets.Dataset) -> bytes:
    file = io.BytesIO()
    dataset.to_parquet(file)
    return file.getvalue()


CARD = b"""---
configs:
- config_name: one
  data_files:
  - {split: train, path: one/train-*}
  - {split: test, path: one/test.parquet}
- config_name: two
  data_files: two/*.parquet
---
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with fake_hub() as made:
        files = {"README.md": CARD, "two/0.parquet": parquet(rows("two", 3)), "one/test.parquet": parquet(rows("t", 2))}
        files |= {f"one/train-{n}.parquet": parquet(rows(f"train{n}-", 2)) for n in range(2)}
        lines = b'{"q": "first"}\n{"q": "second"}\n'
        made.add("org/data", {**files, "more/lines.jsonl": lines})
        yield made


@pytest.fixture(scope="module")
def process(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with hub_process(hub, tmp_path_factory.mktemp("hf")) as made:
        yield made


READ = """
from batchgen.config import InputConfig
from batchgen.io.readers import count_rows, open_rows
from batchgen.io.schema import passed_through
from batchgen.io.tables import input_identity
config = InputConfig(input_file=source, prompt_column="q", **settings)
prompts = [row.data["body"]["prompt"] for row in open_rows(config)]
passed = passed_through(config)
result = {
    "prompts": prompts,
    "count": count_rows(config),
    "identity": input_identity(config),
    "names": passed.names,
    "classes": str((passed.metadata or {}).get(b"huggingface")),
}
"""


def read(process: HubProcess, source: str, **settings: Any) -> Any:
    return process.run(READ, source=source, settings=settings)


@pytest.mark.parametrize(
    ("source", "settings", "prompts"),
    [
        ("", {"subset": "one", "split": "train"}, ["train0-0", "train0-1", "train1-0", "train1-1"]),
        ("@main/", {"subset": "one", "split": "train[1:3]"}, ["train0-1", "train1-0"]),
        ("", {"subset": "two"}, ["two0", "two1", "two2"]),
        ("/one/test.parquet", {}, ["t0", "t1"]),
        ("@main/one/train-*.parquet", {}, ["train0-0", "train0-1", "train1-0", "train1-1"]),
        ("/more/lines.jsonl", {}, ["first", "second"]),
    ],
)
def test_reading(process: HubProcess, source: str, settings: dict[str, Any], prompts: list[str]) -> None:
    found = read(process, f"hf://datasets/org/data{source}", **settings)
    assert found["prompts"] == prompts
    assert found["count"] == len(prompts)
    assert found["identity"] is not None
    if not source.endswith(".jsonl"):
        assert found["names"] == ["label", "tags"]
        assert '"names":["no","yes"]' in found["classes"].replace(" ", "")


@pytest.mark.parametrize(
    ("source", "settings", "said"),
    [
        ("data", {}, r"available configs: \['one', 'two'\] \(--subset and --split say"),
        ("data", {"subset": "one"}, "has several splits; give --split with one of: train, test"),
        ("data", {"subset": "one", "split": "dev"}, "dev"),
        ("data@other", {"subset": "one", "split": "train"}, "Revision 'other' doesn't exist"),
        ("nothing", {}, "doesn't exist on the Hub or cannot be accessed"),
        ("data/none.jsonl", {}, "cannot be opened"),
        ("data/none-*.parquet", {}, "there is no file"),
        ("data/one/test.parquet", {"split": "train"}, "leave out --split"),
    ],
)
def test_what_cannot_be_read(process: HubProcess, source: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RuntimeError, match=f"UsageError: input hf://datasets/org/{source.replace('*', '.')}: .*{said}"):
        read(process, f"hf://datasets/org/{source}", **settings)


def test_the_identity_is_that_of_the_commit(process: HubProcess) -> None:
    repository = process.hub.add("org/moving", {"a.parquet": parquet(rows("a", 1))})
    first = read(process, "hf://datasets/org/moving")["identity"]
    assert read(process, "hf://datasets/org/moving")["identity"] == first
    repository.commit({"a.parquet": parquet(rows("b", 1))})
    assert read(process, "hf://datasets/org/moving")["identity"] != first


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("hf://datasets/org/data", HubDataset("org/data", None)),
        ("hf://datasets/plain@v1/", HubDataset("plain", "v1")),
        ("hf://datasets/org/data@refs/convert/parquet", HubDataset("org/data", "refs/convert/parquet")),
        ("hf://datasets/org/data@v1/folder/x.jsonl", None),
        ("hf://datasets/org/data/x.parquet", None),
        ("hf://buckets/org/data", None),
        ("org/data", None),
    ],
)
def test_addresses(source: str, found: HubDataset | None) -> None:
    assert hub_dataset_of(source) == found
    assert found is None or is_table(InputConfig(input_file=source))


PROMPTS = {"prompt_template": "Whisper {{ q }}{{ 1 // 0 if q is none }}", "system_prompt": "Keep the secret"}


@pytest.fixture(scope="module")
def output(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers to a saved dataset, one of its rows refused; beside them the same in single files."""
    folder = tmp_path_factory.mktemp("pushed")
    made = {"q": ["secret 0", None, "secret 2", "secret 3"], "label": [0, 1, 0, 1], "tags": [["x"]] * 4}
    datasets.Dataset.from_dict(made, features=FEATURES).save_to_disk(folder / "in")
    for name in ("out", "out.parquet", "out.arrow", "out.jsonl"):
        run(job(tiny_model, folder / "in", folder / name, input=PROMPTS), folder)
    return folder / "out"


PUSH = """
import os
from pathlib import Path
os.environ["HF_TOKEN"] = token
from batchgen.integrations.hub import HubTarget, check_target, push_output
target = HubTarget(repository, private=private)
check_target(target, output)
result = push_output(Path(output), target)
"""
BACK = """
import datasets
dataset = datasets.load_dataset(repository, split="train", download_mode="reuse_cache_if_exists")
result = {"rows": [dict(row) for row in dataset], "features": str(dataset.features)}
"""


def push(process: HubProcess, output: Path, repository: str, *, token: str = TOKEN, private: bool = False) -> Any:
    return process.run(PUSH, output=str(output), repository=repository, token=token, private=private)


@pytest.mark.parametrize("name", ["out", "out.parquet", "out.arrow"])
def test_an_output_is_pushed_and_read_back(process: HubProcess, output: Path, name: str) -> None:
    source = output.with_name(name)
    url = push(process, source, f"someone/{name}", private=True)
    repository = process.hub.repositories[f"someone/{name}"]
    assert url == f"{process.hub.url}/datasets/someone/{name}/commit/{repository.head}"
    assert repository.private
    assert set(repository.files) == {"README.md", "data/train-00000-of-00001.parquet"}

    back = process.run(BACK, repository=f"someone/{name}")
    with open_table(InputConfig(input_file=str(source))) as table:
        written = [row for batch in table.batches() for row in batch.to_pylist()]
    assert back["rows"] == [{**row, "response": json.loads(row["response"] or "null")} for row in written]
    assert [row["text"] is None for row in back["rows"]] == [False, True, False, False]
    assert "ClassLabel(names=['no', 'yes'])" in back["features"]
    assert not list(output.parent.glob("**/push-*"))


def test_the_card_tells_how_and_how_it_went_but_no_prompt(process: HubProcess, output: Path) -> None:
    push(process, output, "someone/carded")
    card = process.hub.repositories["someone/carded"].files["README.md"].decode()
    manifest = json.loads((output / ".batchgen" / "manifest.json").read_text())
    for told in (
        "| model | `tiny` |",
        f"`{manifest['settings']['checkpoint']}`",
        f"| kernels | `{manifest['engine']['kernels']}` |",
        "| precision | `float32` |",
        "| seed | `0` |",
        "| input | `in` |",
        "| rows | 4, of which 1 failed |",
        "| failed with `invalid_chat_template_input` | 1 |",
        "output tokens/s",
        ", 1 threads |",
        "| system prompt | SHA-256 `",
    ):
        assert told in card
    for text in ("secret", "Whisper", "Keep", str(output.parent)):
        assert text not in card


def test_a_second_push_replaces_the_first_and_sends_nothing_twice(process: HubProcess, output: Path) -> None:
    push(process, output, "someone/twice")
    repository = process.hub.repositories["someone/twice"]
    old = {**repository.files, "data/train-00001-of-00002.parquet": b"old", "kept.txt": b"kept"}
    repository.commit(old)
    process.hub.requests.clear()
    push(process, output, "someone/twice")
    assert set(repository.files) == {"README.md", "data/train-00000-of-00001.parquet", "kept.txt"}
    assert not [asked for asked in process.hub.requests if asked.startswith("PUT")]


@pytest.mark.parametrize(
    ("fault", "token", "kind", "said"),
    [
        ({}, "", "UsageError", "there is no token; log in"),
        ({}, "hf_wrong", "UsageError", "the hub does not know the token"),
        ({"POST /api/repos/create": 403}, TOKEN, "UsageError", "the token may not write there"),
        ({"POST /api/repos/create": 503}, TOKEN, "HubUnavailableError", "the hub answered with 503; try again later"),
        ({"POST */preupload/*": 403}, TOKEN, "UsageError", "the token may not write there"),
        ({"POST */commit/main": 409}, TOKEN, "UsageError", "the hub refused with 409"),
    ],
)
def test_what_the_hub_refuses(
    process: HubProcess, output: Path, fault: dict[str, int], token: str, kind: str, said: str
) -> None:
    process.hub.faults.update(fault)
    try:
        with pytest.raises(RuntimeError, match=f"{kind}: someone/refused on the hub: {said}"):
            push(process, output, "someone/refused", token=token)
    finally:
        process.hub.faults.clear()


def test_what_is_not_ours_to_replace_is_left_alone(process: HubProcess, output: Path) -> None:
    theirs = process.hub.add("someone/theirs", {"README.md": b"---\ntags: [mine]\n---\n"})
    with pytest.raises(RuntimeError, match="UsageError: someone/theirs has a card that batchgen has not written"):
        push(process, output, "someone/theirs")
    process.hub.add("someone/public", {})
    with pytest.raises(RuntimeError, match="UsageError: someone/public is there already and public"):
        push(process, output, "someone/public", private=True)
    assert len(theirs.commits) == len(process.hub.repositories["someone/public"].commits) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("out.jsonl", "the hub gets columns"), ("none", "there are no results"), ("half", "is not finished")],
)
def test_what_is_no_finished_table_is_refused(process: HubProcess, output: Path, name: str, said: str) -> None:
    if name == "half":
        shutil.copytree(output, output.with_name(name))
        manifest = output.with_name(name) / ".batchgen" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"finished": true', '"finished": false'))
    with pytest.raises(RuntimeError, match=f"UsageError: .*{said}"):
        push(process, output.with_name(name), "someone/nothing")
    assert "someone/nothing" not in process.hub.repositories


def test_a_push_that_failed_is_tried_again_by_the_same_command(
    tiny_model: Path, output: Path, hub: FakeHub, tmp_path: Path
) -> None:
    def try_it(url: str) -> tuple[int, dict[str, Any], str]:
        options = f"--model {tiny_model} --prompt-column q --max-model-len 64 --push-to-hub someone/job"
        code = "from batchgen.cli.main import main; main()"
        command = [sys.executable, "-c", code, "run-batch", str(output.with_name("in")), "-o", str(tmp_path / "out")]
        done = subprocess.run(
            [*command, *options.split()],
            env=hub_environment(url, tmp_path) | {"BATCHGEN_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

    code, summary, said = try_it("http://127.0.0.1:9")
    assert code == summary["exit_code"] == 69
    assert (summary["status"], summary["pushed_to"]) == ("completed", None)
    assert "cannot be reached" in summary["push_error"]
    assert f"the results are kept in {tmp_path / 'out'}; the same command tries to push them again" in said
    code, summary, _ = try_it(hub.url)
    assert code == summary["exit_code"] == 0
    assert summary["request_counts"]["resumed"] == 4
    assert summary["pushed_to"].startswith(f"{hub.url}/datasets/someone/job/commit/")
