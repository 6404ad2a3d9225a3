"""What the answers of a run depend on beside its requests, and whether two runs agree in it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import orjson

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import JobConfig
from batchgen.errors import OutputMismatchError
from batchgen.io.manifest import Manifest

__all__ = ["differences", "new_manifest", "refuse_differences", "settings_of", "shard_name"]

_FREE_ENGINE = frozenset(
    {"max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory", "enable_prefix_caching", "threads"}
)
"""Settings of the engine that change no answer, only the time."""
_FREE_INPUT = frozenset({"input_file", "window"})
"""Settings of the input that change no request: the requests themselves are compared row by row."""

_LAYOUT = ("order", "rows_per_shard", "line_format")


def settings_of(config: JobConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    """What the answers depend on, as far as it is known before the model is loaded. A new setting counts, until it is
    said here that it changes nothing."""
    engine = {name: value for name, value in asdict(config.engine).items() if name not in _FREE_ENGINE}
    rows = {name: value for name, value in asdict(config.input).items() if name not in _FREE_INPUT}
    template = checkpoint.chat_template
    settings = {
        "model": checkpoint.name,
        "checkpoint": checkpoint.fingerprint,
        "pooling": checkpoint.pooling,
        "chat_template": None if template is None else hashlib.sha256(template.encode()).hexdigest(),
        "generation_config": dict(checkpoint.generation_config),
        "response_as": config.output.response_as,
        **engine,
        **rows,
    }
    if config.num_shards > 1:
        settings["shard"] = shard_name(config.shard_index, config.num_shards)
    # As the manifest gives it back, so that the two can be compared.
    read_back: dict[str, Any] = orjson.loads(orjson.dumps(settings))
    return read_back


def shard_name(index: int, number: int) -> str:
    """How the settings name a shard."""
    return f"{index} of {number}"


def new_manifest(
    config: JobConfig, settings: Mapping[str, Any], source: Mapping[str, Any], earlier: Manifest | None
) -> Manifest:
    """The manifest of this run. A run that goes on from an earlier one has its id and its time, so that ids and times
    in results are as if it had never stopped."""
    layout = {name: getattr(config.output, name) for name in _LAYOUT}
    if earlier is not None:
        return Manifest(
            run_id=earlier.run_id,
            created=earlier.created,
            settings=settings,
            layout=layout,
            input=source,
            engine=earlier.engine if settings == earlier.settings else None,
            counts=earlier.counts,
        )
    # Shards of one job have one id.
    shared = {name: value for name, value in settings.items() if name != "shard"}
    run_id = hashlib.blake2b(orjson.dumps(shared), digest_size=8).hexdigest()
    return Manifest(run_id=run_id, created=int(time.time()), settings=settings, layout=layout, input=source)


def refuse_differences(output: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `OutputMismatchError` with every difference where rows of the two would not go together."""
    if found := list(differences(earlier, now)):
        message = f"{output}: has results of a run with other settings; --overwrite replaces them, --resume-anyway "
        raise OutputMismatchError("\n".join([f"{message}keeps them beside the new ones:", *found]))


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A line for each setting that the two have not in common."""
    for name in {**earlier, **now}:
        there, here = (orjson.dumps(settings.get(name)).decode() for settings in (earlier, now))
        if there != here:
            yield f"  {name}: {there} there, {here} now"
