"""Settings, checked and frozen. The command line, the environment and a configuration file all end here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "DistributedConfig",
    "EngineConfig",
    "InputConfig",
    "JobConfig",
    "MergeConfig",
    "ModelConfig",
    "OutputConfig",
]

Dtype = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]
Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["none", "auto", "int8"]
KVCacheDtype = Literal["auto", "float32", "int8"]
LoadFormat = Literal["auto", "dummy"]
Kernels = Literal["auto", "native", "torch", "triton"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and which of its parts are replaced."""

    model: str | None = None
    """A folder, a GGUF file, a hub id (with `@revision`) or an alias; None: what the lines name, else the default."""
    tokenizer: str | None = None
    """A folder or hub id to take the tokenizer from; None: the model's."""
    revision: str | None = None
    chat_template: str | None = None
    """A file with a Jinja template, or the template itself."""
    generation_config: str = "auto"
    """`auto`: the model's; `none`: ignore it; else a folder."""
    load_format: LoadFormat = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine runs."""

    device: Device = "auto"
    """`cuda` is an NVIDIA GPU, or an AMD one; `auto`: a GPU where one can be used, else the CPU."""
    dtype: Dtype = "auto"
    """`auto`: float32 on the CPU, on a GPU the checkpoint's own type."""
    quantization: Quantization = "none"
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: the model's context length."""
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 1024
    block_size: int = 16
    kv_cache_dtype: KVCacheDtype = "auto"
    """Of keys and values; `auto`: int8 where linears are int8 and heads have at most 128 numbers, else float32."""
    kv_cache_memory: int | None = None
    """Bytes for keys and values; None: a share of what is free."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory for weights, workspaces, keys and values together."""
    tensor_parallel_size: int = 1
    """Processes that share the heads and columns of the model, each with a GPU of its own where there are GPUs."""
    enable_prefix_caching: bool = True
    seed: int = 0
    """The run's seed: requests without one derive theirs from it and their custom_id."""
    threads: int | None = None
    """None: the cores that this process may use."""
    kernels: Kernels = "auto"
    """`native`, `torch` (the reference), `triton` (GPUs), or `auto`: the device's fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputConfig:
    """Where requests come from and how rows become requests."""

    input_file: str
    """A path, `-` for standard input, an fsspec address, or `hf://datasets/OWNER/NAME[@REVISION]`."""
    split: str | None = None
    """Of a dataset that has several; of the hub's also a part of one, such as `train[:100]`."""
    subset: str | None = None
    """The hub dataset's configuration, where it has several."""
    messages_column: str = "messages"
    prompt_column: str | None = None
    prompt_template: str | None = None
    system_prompt: str | None = None
    id_column: str | None = None
    sampling: Mapping[str, Any] | None = None
    """Parameters, by OpenAI's names, for those requests that don't have them."""
    lenient: bool = False
    """Accept unknown parameters with a warning instead of an error row."""
    ignore_request_model: bool = False
    window: int = 16384
    """Requests held in memory at once, and so the span within which they are ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Where results go."""

    output_file: str
    """A folder, or a `.jsonl`, `.parquet` or `.arrow` file, or `-`."""
    error_file: Path | None = None
    line_format: Literal["auto", "openai", "anthropic", "vllm"] = "auto"
    """Shape of JSON lines; `auto`: Anthropic's where the first readable line of the input has that form, else
    OpenAI's."""
    order: Literal["input", "completion"] = "input"
    response_as: Literal["json", "string"] = "json"
    overwrite: bool = False
    resume_anyway: bool = False
    """Keep the rows of an earlier run with other settings beside the new ones."""
    retry_failed: bool = True
    """Try rows again that failed for a reason that may be gone."""
    rows_per_shard: int = 10_000
    seconds_per_shard: float = 20.0
    """A finished row is safe on disk after this time and that of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """A whole `run-batch`."""

    model: ModelConfig
    engine: EngineConfig
    input: InputConfig
    output: OutputConfig
    max_failed: str | None = None
    """`N` or `P%`: more failed rows than that end with exit code 3; None: only if all rows failed."""
    strict: bool = False
    """End with exit code 4, before any work, if a line is invalid."""
    stall_timeout: float | None = None
    """Seconds without a token or a finished row after which the job ends with exit code 124; None: never."""
    log_requests: bool = False
    """Log requests and the faults of rows with their text, which log lines otherwise never hold."""
    num_shards: int = 1
    """Processes that share the input."""
    shard_index: int = 0
    """Which of them this is, in [0, num_shards)."""
    skip_exit_code: int | None = None
    """The exit code where there was nothing to do; None: 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedConfig:
    """Who computes the rows of a `run-batch`. Answers don't depend on it."""

    distributed: Literal["none", "ray"] = "none"
    ray_address: str | None = None
    """Of the cluster; None: the one that Ray finds, else one that is started on this machine."""
    num_workers: int | None = None
    """Processes with a model; None: one for each GPU, or for each node of a cluster without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """A whole `merge`."""

    merged_file: str | None = None
    """The output that the shards become; None: the one that they are named after."""
    error_file: Path | None = None
    overwrite: bool = False
    merge_anyway: bool = False
    """Also shards whose settings differ."""
