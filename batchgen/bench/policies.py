"""The table of policies: those that lost, the one that won, over five kinds of files.

python -m batchgen.bench.policies [--requests N]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from batchgen.bench.simulation import GRAIN, Machine, Outcome, Request, simulate
from batchgen.core.bound import ModelCost, Rates
from batchgen.core.kv_manager import KVManager
from batchgen.core.lengths import expected_tokens
from batchgen.core.policy import OFFLINE, Demand, Policy
from batchgen.core.prefix_tree import PrefixNode, PrefixTree
from batchgen.core.sequence import Sequence
from batchgen.core.step import Capacity

__all__ = ["FILES", "POLICIES", "SMALL_MODEL", "Contender", "compare", "main"]

SMALL_MODEL = Machine(
    cost=ModelCost(
        linear_weights=106_168_320,
        head_weights=28_311_552,
        attention_operations=4 * 30 * 9 * 64,
        weight_bytes=2 * 134_479_872,
    ),
    rates=Rates(linear=300e9, attention=150e9, bandwidth=25e9),
    overhead_s=2e-4,
)
"""SmolLM2-135M in float32 on two cores, as in `docs/performance.md`."""
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 128, 1024

# -- policies that lost --------------------------------------------------------------------------------------------


def in_order_of_arrival(tree: PrefixTree, _expected: object) -> list[Sequence]:
    """As the rows come."""
    return tree.sequences()


def by_token_ids(tree: PrefixTree, _expected: object) -> list[Sequence]:
    """Depth first, and apart from that as the tokens sort."""
    return sorted(tree.sequences(), key=lambda one: tuple(one.prompt))


def longest_first(tree: PrefixTree, expected: Callable[[Sequence], float]) -> list[Sequence]:
    """Whatever they share."""
    return sorted(tree.sequences(), key=lambda one: -expected(one))


def always(_running: SequenceOf[Demand], _candidate: Demand, _free: int, _block_size: int) -> bool:
    """Whenever the prompt fits."""
    return True


def fits_now(running: SequenceOf[Demand], candidate: Demand, free: int, block_size: int) -> bool:
    """Only where all can grow to their expected ends at once, as if nobody ended before."""
    growth = sum(expected_tokens(one.rate, one.limit) for one in (*running, candidate))
    return candidate.blocks + growth / block_size <= free


def last_admitted(running: SequenceOf[Demand]) -> int:
    """The one behind all others."""
    return len(running) - 1


class AgeOnly(KVManager):
    """Evicts what was unused longest, whoever waits for it."""

    def publish(self, sequence: Sequence, stop: int, node: PrefixNode) -> None:
        super().publish(sequence, stop, PrefixNode(0, sample=node.sample))

    def adopt(self, tree: PrefixTree) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its way to evict."""

    policy: Policy
    manager: type[KVManager] = KVManager


_PLAIN = Policy(order=in_order_of_arrival, fits=always, victim=last_admitted)
POLICIES: Mapping[str, Contender] = MappingProxyType(
    {
        "order of arrival, age": Contender(_PLAIN, AgeOnly),
        "token order, age": Contender(replace(_PLAIN, order=by_token_ids), AgeOnly),
        "longest first, age": Contender(replace(_PLAIN, order=longest_first), AgeOnly),
        "depth and longest first, age": Contender(replace(_PLAIN, order=OFFLINE.order), AgeOnly),
        "…, by users": Contender(replace(_PLAIN, order=OFFLINE.order)),
        "…, cheapest victim": Contender(replace(_PLAIN, order=OFFLINE.order, victim=OFFLINE.victim)),
        "…, room for all growth": Contender(replace(OFFLINE, fits=fits_now)),
        "…, simulated ahead": Contender(OFFLINE),
    }
)
"""The last one is `OFFLINE`; each of those before it lacks something, or does it otherwise."""

# -- files ---------------------------------------------------------------------------------------------------------


def uniform(count: int, rng: random.Random) -> Iterator[Request]:
    """256 tokens in, 128 out."""
    for _ in range(count):
        yield Request(_own(rng, 16), limit=8, length=8)


def skewed(count: int, rng: random.Random) -> Iterator[Request]:
    """A quarter may write 1,024 tokens and most of them write far less, the others up to 64."""
    for _ in range(count):
        limit = 64 if rng.random() < 0.25 else rng.randint(1, 4)
        length = min(limit, 1 + int(rng.lognormvariate(2.5, 0.8))) if limit == 64 else limit
        yield Request(_own(rng, 1 + int(rng.lognormvariate(2.3, 0.6))), limit, length)


def one_prefix(count: int, rng: random.Random) -> Iterator[Request]:
    """1,024 tokens in common, 96 of each one's own, about 96 out of at most 256."""
    prefix = _own(rng, 64)
    for _ in range(count):
        yield Request((*prefix, *_own(rng, 6)), limit=16, length=rng.randint(2, 10))


def forest(count: int, rng: random.Random) -> Iterator[Request]:
    """A preamble of 256 tokens, documents of 2,048 with some 40 questions each, in any order."""
    preamble = _own(rng, 16)
    documents = [(*preamble, *_own(rng, 128)) for _ in range(max(1, count // 40))]
    for _ in range(count):
        yield Request((*rng.choice(documents), *_own(rng, 3)), limit=16, length=rng.randint(1, 8))


def long_contexts(count: int, rng: random.Random) -> Iterator[Request]:
    """1,024 to 8,192 tokens in, up to 512 out."""
    for _ in range(count):
        yield Request(_own(rng, rng.randint(64, 512)), limit=32, length=rng.randint(4, 32))


def _own(rng: random.Random, grains: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(1 << 31), k=grains))


@dataclass(frozen=True, slots=True)
class File:
    """A kind of file."""

    requests: Callable[[int, random.Random], Iterator[Request]]
    share: float
    """Of the requests of the whole table, so that each file takes about as long."""


FILES: Mapping[str, File] = MappingProxyType(
    {
        "uniform": File(uniform, 1.0),
        "skewed": File(skewed, 1.0),
        "one prefix": File(one_prefix, 1.0),
        "forest": File(forest, 0.5),
        "long": File(long_contexts, 0.1),
    }
)


def compare(name: str, contender: Contender, count: int, blocks: int | None) -> Outcome:
    """One cell; the same requests for every contender. `blocks` None: room for all."""
    file = FILES[name]
    requests = file.requests(max(1, int(count * file.share)), random.Random(0))
    capacity = Capacity(blocks or 1 << 16, 1, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)
    return simulate(requests, capacity, SMALL_MODEL, contender.policy, contender.manager)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4_000, help="in the largest file")
    count: int = parser.parse_args().requests
    console = Console(width=150)
    table = Table(title=f"bound ÷ time (computed ÷ needed), {count:,} requests", title_justify="left")
    table.add_column("policy")
    room = {name: compare(name, POLICIES["…, simulated ahead"], count, None).most_blocks for name in FILES}
    for name, blocks in room.items():
        table.add_column(f"{name}\n{blocks * GRAIN:,} tokens", justify="right")
        table.add_column("a quarter", justify="right")
    for label, contender in POLICIES.items():
        cells = []
        for name, blocks in room.items():
            for limited in (None, blocks // 4):
                outcome = compare(name, contender, count, limited)
                cells.append(f"{outcome.efficiency:.1%} ({outcome.redundancy:.2f})")
        table.add_row(label, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
