"""The file that `bench throughput --output-json` writes: the keys of vLLM's file, then what the figures depend on.

schema            `batchgen.bench/1`; another number is another form
elapsed_time ...  figures of the fastest batch size, as vLLM's file has them
points            a batch size each: `max_num_seqs`, the figures of its median run, `runs` with those of each run
workload          the data set's options, and `digest` over all prompts and output lengths
model             name and precision
settings          options of the model and of the engine
engine            what those came to: kernels, sizes
machine, software on what it ran
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from batchgen.bench.datasets import BenchRequest, DatasetConfig
from batchgen.bench.sweep import Point, fastest
from batchgen.config import EngineConfig, ModelConfig
from batchgen.errors import UsageError

__all__ = ["SCHEMA", "Saved", "digest_of", "read_saved", "result_json"]

SCHEMA = "batchgen.bench/1"


def result_json(
    points: SequenceOf[Point],
    *,
    requests: SequenceOf[BenchRequest],
    dataset: DatasetConfig,
    model: ModelConfig,
    settings: EngineConfig,
    engine: Mapping[str, Any],
    machine: Mapping[str, Any],
    load_time: float,
    bound_s: float | None,
) -> dict[str, Any]:
    """A file's content. `load_time`: seconds to the first step; `bound_s`: seconds that the work takes at least."""
    shown = [point.to_json(bound_s) for point in points]
    best = dict(shown[list(points).index(fastest(points))])
    del best["runs"]
    described, hardware = dict(engine), dict(machine)
    name, precision = described.pop("model"), described.pop("precision")
    software = {key: hardware.pop(key) for key in ("python", "system")}
    content = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **best,
        "load_time": load_time,
        "points": shown,
        "workload": {**asdict(dataset), "seed": settings.seed, "digest": digest_of(requests)},
        "model": {"name": name, "precision": precision},
        "settings": {**asdict(model), **asdict(settings)},
        "engine": described,
        "machine": hardware,
        "software": {"batchgen": _version("batchgen"), "torch": _version("torch"), **software},
    }
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))  # paths become texts
    return plain


def digest_of(requests: Iterable[BenchRequest]) -> str:
    """The same for the same prompts and output lengths, and only for those."""
    whole = hashlib.blake2b(digest_size=8)
    for request in requests:
        whole.update(json.dumps([list(request.prompt), request.output_len]).encode())
    return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Saved:
    """A file's content, checked for its form."""

    path: Path
    content: Mapping[str, Any]

    @property
    def points(self) -> dict[int, Mapping[str, Any]]:
        """By batch size."""
        return {point["max_num_seqs"]: point for point in self.content["points"]}

    def __str__(self) -> str:
        model, software = self.content["model"], self.content["software"]
        runs = len(self.content["points"][0]["runs"])
        return f"{self.path}: batchgen {software['batchgen']}, {model['name']} {model['precision']}, runs: {runs}"


def read_saved(path: Path) -> Saved:
    """Read what `bench throughput` wrote. Raises `UsageError` for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise UsageError(
            f"{path}: its schema is {found!r}, not {SCHEMA!r}; write it with bench throughput --output-json"
        )
    return Saved(path, content)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
