"""The card of an output on the hub: what made it, with which settings, and how it went. No text of requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from batchgen.io.claim import kept_folder
from batchgen.io.history import read_runs
from batchgen.io.manifest import Manifest
from batchgen.job.inspection import inspect_output

__all__ = ["card_of"]

_PROMPTS = ("system_prompt", "prompt_template")
"""Settings that are text of the prompts."""
_TOLD = frozenset({"model", "checkpoint", "generation_config", "chat_template"})
"""Settings with a line of their own."""
_COLUMNS = """\
`text` is the first answer of a row, `response` the whole OpenAI response body as JSON, `error` the reason where there
is no answer. The columns of the input follow."""


def card_of(output: Path, manifest: Manifest, name: str, tag: str) -> str:
    """The text of the card of an output in the repository `name`, with `tag` among its tags."""
    from huggingface_hub import DatasetCard, DatasetCardData

    data = DatasetCardData(
        pretty_name=name.rpartition("/")[2],
        tags=[tag, "synthetic"],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*.parquet"}]}],
    )
    model, figures = _model_name(manifest.settings["model"]), inspect_output(output)
    rows = figures["rows"]
    text = f"""\
# {name}

Answers of `{model}` to {rows["total"]:,} requests, made by batchgen {_version()}: offline batch inference, one row out
for each row in.
{_COLUMNS}

## How it was made

{_table(_settings(manifest, model))}

## The run

{_table(_figures(figures, manifest, _machine(output)))}
"""
    return str(DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def _settings(manifest: Manifest, model: str) -> Iterator[tuple[str, str]]:
    settings, engine = manifest.settings, manifest.engine or {}
    template = settings["chat_template"]
    yield "model", f"`{model}`"
    yield "revision, or SHA-256 of its files", f"`{settings['checkpoint']}`"
    yield "chat template", "none" if template is None else f"SHA-256 `{template}`"
    yield "sampling defaults of the model", _code(settings["generation_config"])
    yield from ((name.replace("_", " "), _code(value)) for name, value in engine.items())
    yield "input", f"`{_input_name(manifest.input['file'])}`"
    for name, value in settings.items():
        if name in _PROMPTS and value is not None:
            yield name.replace("_", " "), f"SHA-256 `{hashlib.sha256(value.encode()).hexdigest()}`"
        elif name not in _TOLD and name not in engine and value not in (None, "auto", "none") and value is not False:
            yield name.replace("_", " "), _code(value)


def _figures(figures: Mapping[str, Any], manifest: Manifest, machine: str | None) -> Iterator[tuple[str, str]]:
    rows, timing = figures["rows"], figures["timing"]
    yield "rows", f"{rows['total']:,}, of which {rows['failed']:,} failed"
    yield from ((f"failed with `{one['code']}`", f"{one['rows']:,}") for one in figures["failures"])
    yield from ((f"finished by `{reason}`", f"{count:,}") for reason, count in figures["finish_reasons"].items())
    for name, spread in figures["lengths"].items():
        if spread is not None:
            middle = f"mean {spread['mean']:,}, median {spread['p50']:,}, longest {spread['max']:,}"
            yield name.replace("_", " "), f"{spread['sum']:,} ({middle})"
    if timing is not None:
        yield "speed", f"{timing['output_tokens_per_s']:,} output tokens/s over {timing['generation_s']:,} s"
    if machine is not None:
        yield "machine", machine
    yield "run", f"`{manifest.run_id}`"


def _machine(output: Path) -> str | None:
    """Where the last run computed; None where that was not kept."""
    machines = [run["machine"] for run in read_runs(kept_folder(output)) if run.get("machine")]
    if not machines:
        return None
    return f"{machines[-1].get('gpu') or machines[-1]['cpu']}, {machines[-1]['threads']} threads"


def _table(rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _code(value: Any) -> str:
    return f"`{orjson.dumps(value).decode() if isinstance(value, dict) else value}`".replace("|", "\\|")


def _model_name(model: str) -> str:
    """Without the folders of this machine."""
    return PurePosixPath(model).name if model.startswith(("/", ".", "~")) else model


def _input_name(file: str) -> str:
    return file if file.startswith("hf://") else PurePosixPath(file).name


def _version() -> str:
    try:
        return metadata.version("batchgen")
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return "of a source tree"
