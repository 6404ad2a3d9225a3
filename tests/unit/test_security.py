"""What a job never does: open what requests name, write where models lie, take a model from a path in a line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pytest

from batchgen.config import InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.errors import UsageError
from batchgen.job import run_job
from tests.unit.test_job import Silent, job, line, run, write


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """What this process opens, lists or connects to meanwhile."""
    seen: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in {"open", "os.listdir", "os.scandir", "socket.connect", "subprocess.Popen"}:
            seen.append(f"{event} {arguments}")

    sys.addaudithook(hook)  # it stays for the life of the process
    try:
        yield seen
    finally:
        watching = False


def test_paths_in_requests_are_never_opened(tiny_model: Path, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.write_text("{{ secret }}")
    path, url = str(bait), f"file://{bait}"
    image = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": path}]
    schema = {"type": "object", "properties": {"a": {"$ref": url}}}
    lines = [
        line(path, prompt=path),
        line("model", model=path),
        line("image", chat=True, messages=[{"role": "user", "content": image}]),
        line("template", chat=True, chat_template=path),
        line("variables", chat=True, chat_template_kwargs={"path": path}),
        line("documents", chat=True, documents=[{"path": path}]),
        line("tools", chat=True, tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}]),
        line(
            "schema",
            chat=True,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        ),
        line("grammar", structured_outputs={"grammar": path}),
        line("file", input_file_id=path, metadata={"path": path}),
    ]
    source = write(tmp_path / "in.jsonl", [json.dumps(request) for request in lines])
    with opened_files() as seen:
        run(job(tiny_model, source, tmp_path / "out"), tmp_path)
    assert any("in.jsonl" in entry for entry in seen)
    assert [entry for entry in seen if "bait" in entry or entry.startswith(("socket", "subprocess"))] == []
    rows = datasets.Dataset.from_file(str(tmp_path / "out" / "part-00000.arrow"))
    assert len(rows) == len(lines)


@pytest.mark.parametrize("ending", ["", "/", "/model.gguf"])
def test_a_model_that_the_lines_name_by_its_path_is_not_loaded(tiny_model: Path, tmp_path: Path, ending: str) -> None:
    source = write(tmp_path / "in.jsonl", [json.dumps(line("1", model=f"{tiny_model}{ending}"))])
    config = JobConfig(
        model=ModelConfig(),
        engine=job(tiny_model, source, source).engine,
        input=InputConfig(input_file=str(source)),
        output=OutputConfig(output_file=str(tmp_path / "out")),
    )
    with pytest.raises(UsageError, match="paths that requests name are not opened"):
        run_job(config, tmp_path / "home", Silent())


def test_a_read_only_model_folder_and_a_home_that_cannot_be_written(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    model.chmod(0o555)
    home = tmp_path / "file" / "home"
    home.parent.write_text("no folder")  # unlike a mode, this stops root too
    source = write(tmp_path / "in.jsonl", [json.dumps(line("1", temperature=0))])
    summary = run_job(job(model, source, tmp_path / "out"), home, Silent())
    assert (summary.counts.completed, summary.exit_code) == (1, 0)
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before
