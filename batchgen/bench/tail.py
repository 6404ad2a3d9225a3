"""The files of the simulator, run by a real model: what uneven lengths cost, and a cache of a quarter of the need.

python -m batchgen.bench.tail [--quantization int8] [--requests N]
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import pairwise

from batchgen.api.home import home
from batchgen.bench.policies import FILES
from batchgen.bench.simulation import GRAIN, Request
from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.job.loading import LoadedEngine, open_engine

__all__ = ["Measured", "levelled", "main", "measure"]

_FILES = ("skewed", "forest")


@dataclass(frozen=True, slots=True)
class Measured:
    """How a run went."""

    seconds: float
    bound_s: float | None
    """The least that the same tokens take; None where the machine was not calibrated."""
    redundancy: float
    """Tokens computed ÷ needed."""
    preemptions: int
    most_blocks: int
    """Blocks in use at the worst moment."""
    cache_bytes: int
    num_blocks: int

    def line(self, name: str) -> str:
        """For people."""
        efficiency = "" if self.bound_s is None else f"{self.bound_s / self.seconds:7.1%} efficiency,"
        cache = f"{self.most_blocks:,} of {self.num_blocks:,} blocks"
        return (
            f"{name:24} {self.seconds:7.1f} s,{efficiency} computed ÷ needed {self.redundancy:.3f}, "
            f"{self.preemptions} preemptions, {cache}"
        )


class _Length:
    """`core.sequence.StopProbe`: ends a sequence after so many tokens, as a text of that length would."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def push(self, token: int) -> bool:  # noqa: ARG002
        self._left -= 1
        return self._left <= 0


def levelled(requests: SequenceOf[Request]) -> list[Request]:
    """As many requests with the same work in all, one like the other."""
    output = sum(one.length for one in requests)
    prompt = [grain for one in requests for grain in one.prompt]
    shares = [
        (part * len(prompt) // len(requests), part * output // len(requests)) for part in range(len(requests) + 1)
    ]
    return [
        Request(tuple(prompt[begin:end]), limit=last - first, length=last - first)
        for (begin, first), (end, last) in pairwise(shares)
    ]


def measure(loaded: LoadedEngine, requests: SequenceOf[Request]) -> Measured:
    """Run the requests greedily, each to its length, which the scheduler does not know."""
    engine, most_blocks = loaded.engine(), 0
    window = list(_sequences(requests, loaded.vocab_size))
    began = time.perf_counter()
    for outcomes in engine.run([window]):
        most_blocks = max(most_blocks, engine.stats().blocks_used)
        if not all(isinstance(outcome, Sequence) for outcome in outcomes):
            raise ValueError("the cache is too small for one of the requests alone")
    seconds = time.perf_counter() - began
    stats, capacity = engine.stats(), loaded.runner.capacity
    return Measured(
        seconds=seconds,
        bound_s=loaded.bound_s(stats.work, home()),
        redundancy=stats.computed_tokens / stats.work.tokens,
        preemptions=stats.preemptions,
        most_blocks=most_blocks,
        cache_bytes=loaded.runner.kv_bytes,
        num_blocks=capacity.num_blocks,
    )


def _sequences(requests: SequenceOf[Request], vocab_size: int) -> Iterator[Sequence]:
    for number, request in enumerate(requests):
        prompt = array("I", [(7919 * grain + one) % vocab_size for grain in request.prompt for one in range(GRAIN)])
        params = SamplingParams(max_tokens=GRAIN * request.limit, temperature=0.0)
        yield Sequence(number, prompt, params, _Length(GRAIN * request.length))


def _run(model: ModelConfig, config: EngineConfig, requests: SequenceOf[Request]) -> Measured:
    """With a model of its own, so that every run meets a cache that no other has touched."""
    loaded = open_engine(model, config, home())
    try:
        return measure(loaded, requests)
    finally:
        loaded.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the embedded one")
    parser.add_argument("--quantization", choices=("none", "int8"), default="int8")
    parser.add_argument("--requests", type=int, default=600)
    given = parser.parse_args()
    model, config = ModelConfig(model=given.model), EngineConfig(quantization=given.quantization)
    files = {name: list(FILES[name].requests(given.requests, random.Random(0))) for name in _FILES}
    even = _run(model, config, levelled(files["skewed"]))
    print(even.line("levelled"), flush=True)
    for name, requests in files.items():
        room = _run(model, config, requests)
        print(room.line(name), flush=True)
        if name == "skewed":
            print(f"    {even.seconds / room.seconds:.1%} of the speed of the levelled file", flush=True)
        # The largest one has to fit alone.
        largest = max(len(one.prompt) + one.limit for one in requests) * GRAIN // config.block_size
        quarter = room.cache_bytes // room.num_blocks * max(room.most_blocks // 4, largest)
        little = _run(model, replace(config, kv_cache_memory=quarter), requests)
        print(little.line(f"{name}, a quarter"), flush=True)
        print(f"    {room.seconds / little.seconds:.1%} of the speed with room for all", flush=True)


if __name__ == "__main__":
    main()
