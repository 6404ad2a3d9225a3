"""What precision costs in quality: the perplexity of one text in each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path

from batchgen.bench.throughput import GeneratingEngine
from batchgen.config import EngineConfig
from batchgen.core.sampling import SamplingParams
from batchgen.errors import UsageError

__all__ = ["PRECISIONS", "Perplexity", "QualityConfig", "perplexity_of", "windows_of"]

PRECISIONS = (
    EngineConfig(quantization="none", kv_cache_dtype="float32"),
    EngineConfig(quantization="int8", kv_cache_dtype="float32"),
    EngineConfig(quantization="int8", kv_cache_dtype="int8"),
)
"""Linears and KV cache of each run; the first is what the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityConfig:
    """Which text, and how much of it at once."""

    text_file: Path
    window_len: int = 512
    """Tokens of a window. Windows don't overlap, and nothing is seen beyond them."""


@dataclass(slots=True)
class Perplexity:
    """exp(-mean log-probability) of the tokens of a text, each given those of its window before it."""

    tokens: int = 0
    log_probability: float = field(default=0.0, repr=False)

    def add(self, logprobs: Iterable[float]) -> None:
        """Take the log-probabilities of further tokens."""
        values = list(logprobs)
        self.tokens += len(values)
        self.log_probability += math.fsum(values)

    @property
    def value(self) -> float:
        """The perplexity; at least one token was added."""
        return math.exp(-self.log_probability / self.tokens)


def windows_of(tokens: SequenceOf[int], length: int, begin: int | None) -> list[list[int]]:
    """Cut a text's tokens into windows of `length`, each with the token `begin` before it where there is one.

    Raises `UsageError` for a text of fewer than two tokens.
    """
    head = [] if begin is None else [begin]
    body = list(tokens[len(head) :])
    size = length - len(head)
    cut = [head + body[at : at + size] for at in range(0, len(body), size)]
    kept = [window for window in cut if len(window) > 1]
    if not kept:
        raise UsageError("the text has fewer than two tokens; give a longer one")
    return kept


def perplexity_of(engine: GeneratingEngine, windows: SequenceOf[list[int]]) -> Perplexity:
    """The perplexity of all windows."""
    scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
    total = Perplexity()
    for logprobs in _in_order(engine, windows, scored):
        total.add(logprobs)
    return total


def _in_order(
    engine: GeneratingEngine, windows: SequenceOf[list[int]], params: SamplingParams
) -> Iterator[list[float]]:
    """Log-probabilities of each window; summed in a fixed order, whichever window is done first."""
    found: dict[int, list[float]] = {}
    for sequence in engine.generate(windows, [params] * len(windows)):
        found[sequence.seq_id] = [token.logprob for token in sequence.prompt_logprobs]
    yield from (found[number] for number in range(len(windows)))
