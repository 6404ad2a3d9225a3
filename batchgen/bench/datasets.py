"""Prompts to measure with. The names, defaults and forms are those of `vllm bench throughput`.

random             token ids drawn from the whole vocabulary, after an optional common prefix
prefix_repetition  the same with several prefixes, each the beginning of an equal share of the prompts
sharegpt           a JSON list of `{"conversations": [{"value": question}, {"value": answer}, ...]}`
custom             JSON lines: `{"prompt": text, "output_len": n}`, or requests in batch form
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from batchgen.errors import UsageError
from batchgen.protocol.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt

__all__ = ["BenchRequest", "DatasetConfig", "Encode", "load_dataset"]

Encode = Callable[[Prompt], SequenceOf[int]]

_RANDOM_INPUT_LEN = 1024
_REPEATED_INPUT_LEN = _REPEATED_PREFIX_LEN = 256
_RANDOM_OUTPUT_LEN = 128
_CUSTOM_OUTPUT_LEN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """Which prompts, how many and how long. None: what the data set says, else its default.

    Raises `UsageError` where a value does not fit the data set.
    """

    dataset_name: Literal["random", "sharegpt", "custom", "prefix_repetition"] = "random"
    dataset_path: Path | None = None
    num_prompts: int = 1000
    """At most; a file with fewer gives what it has."""
    input_len: int | None = None
    """Tokens of a prompt after its prefix."""
    output_len: int | None = None
    prefix_len: int | None = None
    num_prefixes: int = 10

    def __post_init__(self) -> None:
        name, path = self.dataset_name, self.dataset_path
        if name in {"random", "prefix_repetition"}:
            if path is not None:
                raise UsageError(f"--dataset-name {name} reads no file; say which form {path} has: sharegpt or custom")
        elif path is None:
            raise UsageError(f"--dataset-name {name} needs --dataset-path")
        elif self.input_len is not None or self.prefix_len is not None:
            raise UsageError(f"--input-len and --prefix-len have no meaning for --dataset-name {name}")
        if name == "prefix_repetition" and self.num_prompts < self.num_prefixes:
            raise UsageError(f"--num-prompts {self.num_prompts} is less than --num-prefixes {self.num_prefixes}")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One prompt, and how many tokens to generate for it, exactly."""

    prompt: SequenceOf[int]
    output_len: int


def load_dataset(config: DatasetConfig, *, vocab_size: int, encode: Encode | None, seed: int) -> list[BenchRequest]:
    """The requests of a data set; the same for the same arguments.

    Raises `UsageError` where prompts would be empty, the file is not of its form, or there is no tokenizer for it.
    """
    rng = random.Random(seed)
    match config.dataset_name, config.dataset_path:
        case "random", _:
            return _random(config, vocab_size, rng)
        case "prefix_repetition", _:
            return _prefix_repetition(config, vocab_size, rng)
        case name, Path() as path:
            if encode is None:
                raise UsageError(f"--dataset-name {name} needs a tokenizer, and this model has none")
            rows = _sharegpt(config, path, encode, rng) if name == "sharegpt" else _custom(config, path, encode)
            requests = list(islice(rows, config.num_prompts))
            if requests:
                return requests
    raise UsageError(f"{config.dataset_path}: no prompts in it that can be used as {config.dataset_name}")


def _random(config: DatasetConfig, vocab_size: int, rng: random.Random) -> list[BenchRequest]:
    input_len = _RANDOM_INPUT_LEN if config.input_len is None else config.input_len
    prefix = _tokens(rng, vocab_size, config.prefix_len or 0)
    return [_with_prefix(config, prefix, _tokens(rng, vocab_size, input_len)) for _ in range(config.num_prompts)]


def _prefix_repetition(config: DatasetConfig, vocab_size: int, rng: random.Random) -> list[BenchRequest]:
    prefix_len = _REPEATED_PREFIX_LEN if config.prefix_len is None else config.prefix_len
    input_len = _REPEATED_INPUT_LEN if config.input_len is None else config.input_len
    prefixes = [_tokens(rng, vocab_size, prefix_len) for _ in range(config.num_prefixes)]
    requests = [
        _with_prefix(config, prefix, _tokens(rng, vocab_size, input_len))
        for prefix in prefixes
        for _ in range(config.num_prompts // config.num_prefixes)
    ]
    rng.shuffle(requests)
    return requests


def _tokens(rng: random.Random, vocab_size: int, count: int) -> list[int]:
    return rng.choices(range(vocab_size), k=count)


def _with_prefix(config: DatasetConfig, prefix: list[int], own: list[int]) -> BenchRequest:
    if not prefix and not own:
        raise UsageError("--input-len 0 leaves the prompts empty without --prefix-len")
    return BenchRequest([*prefix, *own], config.output_len or _RANDOM_OUTPUT_LEN)


def _sharegpt(config: DatasetConfig, path: Path, encode: Encode, rng: random.Random) -> Iterator[BenchRequest]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        turns = [entry["conversations"] for entry in entries]
        pairs = [(turn[0]["value"], turn[1]["value"]) for turn in turns if len(turn) >= 2]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{path}: not of the ShareGPT form, a JSON list of {{"conversations": [{{"value": ...}}, ...]}}: {error!r}'
        ) from error
    rng.shuffle(pairs)
    for question, answer in pairs:
        prompt = encode(TextPrompt(question))
        output_len = config.output_len or len(encode(TextPrompt(answer)))
        # The limits of vLLM's benchmark, so that figures compare.
        long_enough = len(prompt) >= 4 and (config.output_len is not None or output_len >= 4)
        if long_enough and len(prompt) <= 1024 and len(prompt) + output_len <= 2048:
            yield BenchRequest(prompt, output_len)


def _custom(config: DatasetConfig, path: Path, encode: Encode) -> Iterator[BenchRequest]:
    for number, row in _json_lines(path):
        body = row.get("body", row)
        prompt = _prompt(body) if isinstance(body, dict) else None
        if prompt is None:
            raise UsageError(
                f"{path}, line {number}: neither a `prompt` (a text or token ids) nor `messages` in it, on its own or "
                "in the `body` of a request"
            )
        sent = (body.get(key) for key in ("output_len", "output_tokens", "max_completion_tokens", "max_tokens"))
        output_len = config.output_len or next((length for length in sent if length is not None), _CUSTOM_OUTPUT_LEN)
        if not isinstance(output_len, int) or output_len < 1:
            raise UsageError(f"{path}, line {number}: the output length must be a positive integer, not {output_len!r}")
        yield BenchRequest(encode(prompt), output_len)


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UsageError(f"{path}, line {number}: not a JSON object")
                yield number, row
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {number}: not JSON: {error}") from error


def _prompt(body: Mapping[str, Any]) -> Prompt | None:
    match body:
        case {"messages": [_, *_] as messages}:
            return ChatPrompt(tuple(messages))
        case {"prompt": str(text)} if text:
            return TextPrompt(text)
        case {"prompt": [int(), *_] as ids}:
            return TokenPrompt(tuple(ids))
        case _:
            return None
