"""How many tokens a second an engine makes of a set of requests that it has from the start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any, Protocol

from batchgen.bench.datasets import BenchRequest
from batchgen.core.bound import Work, work_of_output
from batchgen.core.prefix_tree import PrefixTree
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.errors import UsageError
from batchgen.progress import Progress, Reporter

__all__ = ["GeneratingEngine", "Spent", "Throughput", "measure", "profile_of", "warm_up", "work_of"]


class GeneratingEngine(Protocol):
    """The part of an engine that is measured."""

    def generate(self, prompts: Iterable[SequenceOf[int]], params: Iterable[SamplingParams]) -> Iterator[Sequence]:
        """Run prompts of token ids; yield each sequence when it is finished."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What was measured. Seconds of generation only: loading and tokenisation are not in it."""

    elapsed_s: float
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens that admission found in the cache."""
    preemptions: int

    def lines(self) -> tuple[str, str, str]:
        """The three lines that `vllm bench throughput` prints."""
        figures = self.to_json()
        per_second = ", ".join(
            f"{figures[key]:.2f} {unit}"
            for key, unit in (
                ("requests_per_second", "requests/s"),
                ("tokens_per_second", "total tokens/s"),
                ("output_tokens_per_second", "output tokens/s"),
            )
        )
        return (
            f"Throughput: {per_second}",
            f"Total num prompt tokens:  {self.prompt_tokens}",
            f"Total num output tokens:  {self.output_tokens}",
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of vLLM's `--output-json`, then ours."""
        total = self.prompt_tokens + self.output_tokens
        return {
            "elapsed_time": self.elapsed_s,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "requests_per_second": self.num_requests / self.elapsed_s,
            "tokens_per_second": total / self.elapsed_s,
            "output_tokens_per_second": self.output_tokens / self.elapsed_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "preemptions": self.preemptions,
        }


@dataclass(frozen=True, slots=True)
class Spent:
    """What kernels did up to one moment."""

    ops: Mapping[str, tuple[int, float]]
    """Calls and seconds by kind; empty where they don't tell."""
    kernel_s: float
    """Seconds of everything that kernels did."""


def profile_of(before: Spent, after: Spent, elapsed_s: float) -> list[str]:
    """Lines that tell where the time of a run went, the longest first; `elapsed_s`: seconds of the run."""
    kernel_s = after.kernel_s - before.kernel_s
    parts = [("outside kernels", 0, elapsed_s - kernel_s)]
    for name, (calls, seconds) in after.ops.items():
        earlier_calls, earlier_s = before.ops.get(name, (0, 0.0))
        parts.append((name, calls - earlier_calls, seconds - earlier_s))
    parts.append(("other kernels", 0, elapsed_s - sum(seconds for _, _, seconds in parts)))
    return [
        f"{name:16} {calls or '':>8} {seconds:9.3f} s {seconds / elapsed_s:6.1%}"
        for name, calls, seconds in sorted(parts, key=lambda part: -part[2])
    ]


def warm_up(engine: GeneratingEngine, requests: SequenceOf[BenchRequest]) -> None:
    """Generate a few tokens, so that what is built at the first step is not timed."""
    # Fewer tokens than a block: nothing of it stays in the prefix cache.
    short = BenchRequest(requests[0].prompt[-8:], min(4, requests[0].output_len))
    for _ in _generate(engine, [short]):
        pass


def measure(engine: GeneratingEngine, requests: SequenceOf[BenchRequest], reporter: Reporter) -> Throughput:
    """Time the generation of exactly `output_len` tokens for every request, greedily.

    Raises `UsageError` where the engine did not generate what was asked for.
    """
    progress = Progress(rows_total=len(requests))
    began = time.perf_counter()
    for sequence in _generate(engine, requests):
        progress = _after(progress, sequence, time.perf_counter() - began)
        reporter.update(progress)
    wanted = sum(request.output_len for request in requests)
    if progress.rows_done != len(requests) or progress.output_tokens != wanted:
        raise UsageError(
            f"the engine generated {progress.output_tokens} of {wanted} tokens for {progress.rows_done} of "
            f"{len(requests)} prompts; do they fit --max-model-len and --kv-cache-memory?"
        )
    return Throughput(
        elapsed_s=progress.elapsed_s,
        num_requests=progress.rows_done,
        prompt_tokens=progress.prompt_tokens,
        output_tokens=progress.output_tokens,
        cached_tokens=progress.cached_tokens,
        preemptions=progress.preemptions,
    )


def work_of(requests: SequenceOf[BenchRequest]) -> Work:
    """What the requests can't do without."""
    params = [SamplingParams(max_tokens=request.output_len) for request in requests]
    sequences = [Sequence(i, request.prompt, params[i]) for i, request in enumerate(requests)]
    tree = PrefixTree(sequences, block_size=1)
    work = Work(distinct_tokens=tree.distinct_tokens, distinct_depth=tree.distinct_depth)
    for request in requests:
        work += work_of_output(len(request.prompt), request.output_len)
    return work


def _generate(engine: GeneratingEngine, requests: SequenceOf[BenchRequest]) -> Iterator[Sequence]:
    prompts = (request.prompt for request in requests)
    params = (SamplingParams(max_tokens=request.output_len, temperature=0.0) for request in requests)
    return engine.generate(prompts, params)


def _after(progress: Progress, sequence: Sequence, elapsed_s: float) -> Progress:
    return replace(
        progress,
        rows_done=progress.rows_done + 1,
        prompt_tokens=progress.prompt_tokens + len(sequence.prompt),
        computed_tokens=progress.computed_tokens + len(sequence.prompt) - sequence.cached + len(sequence.output) - 1,
        cached_tokens=progress.cached_tokens + sequence.cached,
        output_tokens=progress.output_tokens + len(sequence.output),
        preemptions=progress.preemptions + sequence.preemptions,
        elapsed_s=elapsed_s,
    )
