"""The public names and their signatures. A change here is a change for every program that uses them: say so in the
changelog, and keep what was there working where that can be."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import batchgen
from batchgen.api import engine
from batchgen.config import EngineConfig, InputConfig, ModelConfig

SURFACE = """\
Engine
  model: str | None = None
  * tokenizer: str | None = None
  * revision: str | None = None
  * chat_template: str | None = None
  * generation_config: str = auto
  * load_format: LoadFormat = auto
  * device: Device = auto
  * dtype: Dtype = auto
  * quantization: Quantization = none
  * max_model_len: int | None = None
  * max_num_seqs: int = 128
  * max_num_batched_tokens: int = 1024
  * block_size: int = 16
  * kv_cache_dtype: KVCacheDtype = auto
  * kv_cache_memory: int | None = None
  * gpu_memory_utilization: float = 0.9
  * tensor_parallel_size: int = 1
  * enable_prefix_caching: bool = True
  * seed: int = 0
  * threads: int | None = None
  * kernels: Kernels = auto
  * lenient: bool = False
  * ignore_request_model: bool = False
  * window: int = 16384
  * home: str | os.PathLike[str] | None = None
  -> None
Engine.generate
  self
  inputs: Iterable[Input]
  sampling: Mapping[str, Any] | None = None
  * order: Order = input
  * endpoint: Endpoint | None = None
  * progress: bool = False
  -> Generator[Result, None, None]
Engine.run_table
  self
  table: pa.Table | pa.RecordBatch
  * prompt_column: str | None = None
  * messages_column: str = messages
  * prompt_template: str | None = None
  * system_prompt: str | None = None
  * id_column: str | None = None
  * sampling: Mapping[str, Any] | None = None
  * response_as: ResponseAs = string
  * progress: bool = False
  -> pa.Table
Engine.fingerprint
  self
  -> str
Engine.load
  self
  -> None
Engine.close
  self
  -> None
Result
  * index: int
  * custom_id: str
  * text: str | None
  * finish_reason: str | None
  * prompt_tokens: int | None
  * completion_tokens: int | None
  * cached_tokens: int | None
  * error: ResultError | None
  * response: dict[str, Any] | None
  -> None
ResultError
  * code: str
  * message: str
  * param: str | None
  -> None
__version__: str
Endpoint = Literal['/v1/chat/completions', '/v1/completions', '/v1/embeddings']
Input = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
Message = Mapping[str, Any]
Order = Literal['input', 'completion']
ResponseAs = Literal['json', 'string']
"""


def surface() -> Iterator[str]:
    """Every public name, with the signatures of classes and methods a parameter a line."""
    for name in sorted(batchgen.__all__):
        value = getattr(batchgen, name)
        if not inspect.isclass(value):
            yield f"{name}: {type(value).__name__}"
            continue
        yield from signature(name, value)
        for member, function in vars(value).items():
            if inspect.isfunction(function) and not member.startswith("_"):
                yield from signature(f"{name}.{member}", function)
    for alias in ("Endpoint", "Input", "Message", "Order", "ResponseAs"):
        yield f"{alias} = {getattr(engine, alias)}".replace("typing.", "").replace("collections.abc.", "")


def signature(name: str, function: Any) -> Iterator[str]:
    found = inspect.signature(function)
    yield name
    for parameter in found.parameters.values():
        mark = "* " if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
        yield f"  {mark}{parameter}".replace("'", "")
    yield f"  -> {found.return_annotation}"


def test_the_public_surface_is_what_it_was() -> None:
    assert "\n".join(surface()) == SURFACE.strip()


def test_settings_are_those_of_run_batch() -> None:
    def of(config: Any) -> dict[str, Any]:
        return {field.name: (field.default, field.type) for field in fields(config)}

    offered = of(ModelConfig) | of(EngineConfig) | of(InputConfig)
    taken = inspect.signature(batchgen.Engine).parameters
    assert taken.keys() - offered.keys() == {"home"}
    assert {name: (p.default, p.annotation) for name, p in taken.items() if name != "home"} == {
        name: offered[name] for name in taken if name != "home"
    }
    assert of(ModelConfig).keys() | of(EngineConfig).keys() <= taken.keys()
