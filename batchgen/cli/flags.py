"""Help text, short names and checks of the flags, by configuration class and field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from batchgen.bench.compare import CompareConfig
from batchgen.bench.datasets import DatasetConfig
from batchgen.bench.quality import QualityConfig
from batchgen.bench.sweep import RunsConfig
from batchgen.cli.completion import complete_alias
from batchgen.cli.environment import array_size
from batchgen.config import (
    Device,
    DistributedConfig,
    EngineConfig,
    InputConfig,
    JobConfig,
    Kernels,
    MergeConfig,
    ModelConfig,
    OutputConfig,
)

__all__ = ["FLAGS", "CalibrateConfig", "Flag", "PageConfig", "PushConfig", "ReportConfig", "ShowConfig", "StreamConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What goes to standard error."""

    quiet: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """How `validate` judges and what it prints."""

    format: Literal["text", "json"] = "text"
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """Where `run-batch` uploads its results when they are finished."""

    push_to_hub: str | None = None
    private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateConfig:
    """What `bench calibrate` measures: the rates depend on all of it."""

    threads: int | None = None
    kernels: Kernels = "auto"
    device: Device = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowConfig:
    """How a command shows what it found."""

    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageConfig:
    """Where `report` puts its page."""

    report_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What a configuration field does not say about its flag."""

    help: str
    names: tuple[str, ...] = ()
    """Empty: `--field-name`, for a bool also `--no-field-name`."""
    minimum: float | None = None
    maximum: float | None = None
    parser: Callable[[Any], Any] | None = None
    metavar: str | None = None
    complete: Callable[[str], list[str]] | None = None
    """What the shell offers; None: choices, else names of files."""


def byte_size(value: str | int) -> int:
    """Bytes of a size such as `4GiB`, `500MB` or `1073741824`."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = TypeAdapter(ByteSize).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{value!r} is not a size; write for example 4GiB, 500MB or a number of bytes") from error
    if size < 1:
        raise ValueError("must be at least one byte")
    return size


def json_object(value: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """A JSON object; a mapping of the configuration file as it is."""
    if isinstance(value, Mapping):
        return value
    try:
        found = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"{value!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{value!r} is no JSON object")
    return found


def failure_limit(value: str | int) -> str:
    """`N` or `P%`, unchanged."""
    if not re.fullmatch(r"\d+|\d+(\.\d+)?%", str(value)):
        raise ValueError(f"{value!r} is neither a number of rows nor a percentage such as 5%")
    return str(value)


def exit_code(value: str | int) -> int:
    """A code that a process can end with, beside 0."""
    if not re.fullmatch(r"\d{1,3}", str(value)) or not 1 <= int(value) <= 255:
        raise ValueError(f"{value!r} is no exit code between 1 and 255")
    return int(value)


def shard_count(value: str | int) -> int:
    """A number of shards; `auto` asks the scheduler."""
    if value == "auto":
        if (count := array_size()) is None:
            raise ValueError("auto: this is no task of a Slurm array; give the number of shards")
        return count
    if not re.fullmatch(r"[1-9]\d*", str(value)):
        raise ValueError(f"{value!r} is neither a number of shards nor auto")
    return int(value)


_MODEL: Mapping[str, Flag] = {
    "model": Flag(
        help="A folder, a GGUF file, a hub id (with @revision) or an alias. "
        "Default: the one that all lines name, else the embedded model.",
        complete=complete_alias,
    ),
    "tokenizer": Flag(help="A folder or hub id to take the tokenizer from. Default: the model's."),
    "revision": Flag(help="Branch, tag or commit of the hub id."),
    "chat_template": Flag(help="A Jinja file, or the template itself. Default: the model's."),
    "generation_config": Flag(help="Where default sampling values come from: auto (the model), none, or a folder."),
    "load_format": Flag(help="dummy: random weights, for benchmarks."),
}

_ENGINE: Mapping[str, Flag] = {
    "device": Flag(help="auto: a GPU where one can be used, else the CPU. cuda says what is missing."),
    "dtype": Flag(help="Type of activations and unquantised weights. auto: float32 on the CPU, else the checkpoint's."),
    "quantization": Flag(help="int8: quantise linear weights; auto: int8 where the checkpoint is quantised."),
    "max_model_len": Flag(help="Tokens of prompt and output together. Default: the model's context length.", minimum=1),
    "max_num_seqs": Flag(help="Sequences in one step, at most.", minimum=1),
    "max_num_batched_tokens": Flag(help="Tokens in one step, at most.", minimum=1),
    "block_size": Flag(help="Tokens in a block of the KV cache.", minimum=1),
    "kv_cache_dtype": Flag(
        help="Of keys and values; auto: int8 where linears are int8 and heads small enough, else float32."
    ),
    "kv_cache_memory": Flag(
        help="Memory for keys and values, such as 4GiB. Default: a share of what is free.",
        parser=byte_size,
        metavar="SIZE",
        names=("--kv-cache-memory", "--kv-cache-memory-bytes"),
    ),
    "gpu_memory_utilization": Flag(
        help="Share of a GPU's memory for the model, keys and values.", minimum=0.01, maximum=1
    ),
    "tensor_parallel_size": Flag(
        help="GPUs, or on the CPU processes, that share the model.", names=("--tensor-parallel-size", "-tp"), minimum=1
    ),
    "enable_prefix_caching": Flag(help="Compute shared beginnings of prompts once."),
    "seed": Flag(help="Seed of the run; requests without one derive theirs from it."),
    "threads": Flag(help="Compute threads. Default: the cores that this process may use.", minimum=1),
    "kernels": Flag(help="native, torch (the reference), triton (GPUs), or auto: the device's fastest."),
}

_INPUT: Mapping[str, Flag] = {
    "input_file": Flag(help="The same as INPUT.", names=("--input-file", "-i"), metavar="PATH"),
    "split": Flag(help="Split of a dataset, also train[:100]. Default: the only one.", names=("--split", "--hf-split")),
    "subset": Flag(
        help="Subset (configuration) of a hub dataset. Default: the only one.", names=("--subset", "--hf-subset")
    ),
    "messages_column": Flag(help="Column with the chat messages, for rows that are no batch lines."),
    "prompt_column": Flag(help="Column with a text prompt."),
    "prompt_template": Flag(help="Jinja over the row's columns that makes the user message."),
    "system_prompt": Flag(help="System message for rows that are no batch lines."),
    "id_column": Flag(help="Column with the custom_id."),
    "sampling": Flag(
        help='Parameters for requests that don\'t have them, such as {"max_tokens": 64, "temperature": 0}.',
        parser=json_object,
        metavar="JSON",
    ),
    "lenient": Flag(help="Accept unknown parameters with a warning."),
    "ignore_request_model": Flag(help="Run lines that name another model all the same."),
    "window": Flag(help="Requests in memory at once, and so the span they are ordered within.", minimum=1),
}

_OUTPUT: Mapping[str, Flag] = {
    "output_file": Flag(
        help="A folder for Arrow shards, one .jsonl, .parquet or .arrow file, or - for standard output. "
        "Default: INPUT's name with .out, in the current folder.",
        names=("--output-file", "-o"),
        metavar="PATH",
    ),
    "error_file": Flag(help="A .jsonl file that failed requests go to as well."),
    "line_format": Flag(
        help="Shape of JSON lines. auto: Anthropic's message batches where the input begins so, else OpenAI's batch.",
        names=("--line-format", "--format", "--compat"),
    ),
    "order": Flag(help="Order of the rows: the input's, or as they finish."),
    "response_as": Flag(help="Type of the response column: Arrow's JSON extension or plain string."),
    "overwrite": Flag(help="Run everything anew and replace the results that are at the output."),
    "resume_anyway": Flag(help="Go on from an output that was written with another model or other settings."),
    "retry_failed": Flag(help="Try rows of an earlier run again that failed for a reason that may be gone."),
    "rows_per_shard": Flag(help="Rows in one shard, at most.", minimum=1),
    "seconds_per_shard": Flag(help="A finished row is safe on disk after this time, and that of one step.", minimum=0),
}

_JOB: Mapping[str, Flag] = {
    "max_failed": Flag(
        help="N or P%: end with exit code 3 if more rows failed. Default: only if all did.",
        parser=failure_limit,
        metavar="N|P%",
    ),
    "strict": Flag(help="End with exit code 4, before any work, if a line is invalid."),
    "stall_timeout": Flag(
        help="End with exit code 124 and a dump of the state if no token came for so many seconds.", minimum=0.1
    ),
    "num_shards": Flag(
        help="Processes that share the input, each of which runs one shard; auto: tasks of the Slurm array.",
        parser=shard_count,
        metavar="N|auto",
    ),
    "shard_index": Flag(
        help="Which shard this is, from 0. Default: the index of the Kubernetes indexed job or of the Slurm array.",
        minimum=0,
    ),
    "skip_exit_code": Flag(
        help="Exit code where there was nothing to do, such as 99, by which Airflow marks a task as skipped.",
        parser=exit_code,
        metavar="1-255",
    ),
    "log_requests": Flag(
        help="Log requests and the faults of rows with their text, which log lines otherwise never hold."
    ),
}

_DISTRIBUTED: Mapping[str, Flag] = {
    "distributed": Flag(help="ray: compute on a Ray cluster; files and results are the same as alone."),
    "ray_address": Flag(
        help="The cluster, such as auto or ray://HOST:10001. Default: the one that Ray finds, else one on this machine."
    ),
    "num_workers": Flag(
        help="Workers, each with a model. Default: one for each GPU, or each node of a cluster without.", minimum=1
    ),
}

_MERGE: Mapping[str, Flag] = {
    "merged_file": Flag(
        help="A folder, or one .jsonl, .parquet or .arrow file. Default: the output that the shards are named after.",
        names=("--output-file", "-o"),
        metavar="PATH",
    ),
    "error_file": Flag(help="A .jsonl file that failed requests go to as well."),
    "overwrite": Flag(help="Replace the results that are at the output."),
    "merge_anyway": Flag(help="Join shards that were run with different settings or kernels."),
}

_DATASET: Mapping[str, Flag] = {
    "dataset_name": Flag(help="Which prompts."),
    "dataset_path": Flag(help="The file of sharegpt (JSON) or custom (JSON lines)."),
    "num_prompts": Flag(help="Prompts to run, at most.", minimum=1),
    "input_len": Flag(
        help="Tokens of a random prompt after its prefix. Default: 1024, for prefix_repetition 256.",
        names=("--input-len", "--random-input-len", "--prefix-repetition-suffix-len"),
        minimum=0,
    ),
    "output_len": Flag(
        help="Tokens to generate. Default: what the data set says, else 128 for random prompts and 256 for others.",
        names=(
            "--output-len",
            "--random-output-len",
            "--sharegpt-output-len",
            "--custom-output-len",
            "--prefix-repetition-output-len",
        ),
        minimum=1,
    ),
    "prefix_len": Flag(
        help="Tokens that random prompts begin with in common. Default: 0, for prefix_repetition 256.",
        names=("--prefix-len", "--random-prefix-len", "--prefix-repetition-prefix-len"),
        minimum=0,
    ),
    "num_prefixes": Flag(
        help="Different prefixes of prefix_repetition.",
        names=("--num-prefixes", "--prefix-repetition-num-prefixes"),
        minimum=1,
    ),
}

_RUNS: Mapping[str, Flag] = {
    "num_runs": Flag(help="Times that each batch size is measured; more than one show the spread.", minimum=1),
    "sweep_max_num_seqs": Flag(
        help="Batch sizes to measure in place of --max-num-seqs, such as 8,32,128, with a model that is loaded once.",
        metavar="N,N,...",
    ),
}

_COMPARE: Mapping[str, Flag] = {
    "compare_anyway": Flag(help="Compare results of other work, another model or another machine too."),
    "fail_below": Flag(
        help="Exit with code 3 where B / A is less, in total tokens a second.", metavar="RATIO", minimum=0
    ),
}

_QUALITY: Mapping[str, Flag] = {
    "text_file": Flag(help="Text to predict, UTF-8.", metavar="PATH"),
    "window_len": Flag(help="Tokens that are seen at once.", minimum=2),
}

_PUSH: Mapping[str, Flag] = {
    "push_to_hub": Flag(help="Then upload the results as a dataset with a card: OWNER/NAME.", metavar="REPO"),
    "private": Flag(help="Make the uploaded dataset private.", names=("--private",)),
}

_STREAMS: Mapping[str, Flag] = {
    "quiet": Flag(help="No progress, and errors only."),
    "log_format": Flag(help="Form of the log lines on standard error."),
    "log_level": Flag(help="debug also shows tracebacks."),
}

_REPORT: Mapping[str, Flag] = {
    "format": Flag(help="Of the report on standard output; json: an object for each fault, and one for the summary."),
    "max_model_len": _ENGINE["max_model_len"],
}

_PAGE: Mapping[str, Flag] = {
    "report_file": Flag(
        help="The HTML file. Default: OUTPUT's name with .html, in the current folder.",
        names=("--output-file", "-o"),
        metavar="PATH",
    ),
}

_CALIBRATE: Mapping[str, Flag] = {name: _ENGINE[name] for name in ("threads", "kernels")}

FLAGS: Mapping[type, Mapping[str, Flag]] = MappingProxyType(
    {
        ModelConfig: _MODEL,
        EngineConfig: _ENGINE,
        InputConfig: _INPUT,
        OutputConfig: _OUTPUT,
        JobConfig: _JOB,
        DistributedConfig: _DISTRIBUTED,
        MergeConfig: _MERGE,
        DatasetConfig: _DATASET,
        RunsConfig: _RUNS,
        CompareConfig: _COMPARE,
        QualityConfig: _QUALITY,
        StreamConfig: _STREAMS,
        ShowConfig: {"json": Flag(help="One JSON object instead of text.")},
        PageConfig: _PAGE,
        PushConfig: _PUSH,
        ReportConfig: _REPORT,
        CalibrateConfig: _CALIBRATE,
    }
)
"""Every field of these classes that is a flag; the others are other configuration classes."""
