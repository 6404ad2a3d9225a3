"""What the scheduler decides by: pure functions, compared with others by `batchgen.bench.simulation`."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from math import exp

from batchgen.core.prefix_tree import PrefixNode, PrefixTree
from batchgen.core.sequence import Sequence

__all__ = ["OFFLINE", "Demand", "Policy", "cheapest", "depth_first_longest_first", "fits_as_expected"]

_MOMENTS = 6

Expected = Callable[[Sequence], float]
"""Tokens that a sequence is expected to generate."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one sequence has of the cache, and what it is going to want."""

    blocks: int
    """That it holds; of a candidate, that are to be taken for it."""
    own: int
    """Of them, those that nobody else holds: they are free when it ends."""
    rate: float
    """Chance that it stops at its next token."""
    limit: int
    """Tokens that it may generate yet."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The decisions of a scheduler that can be taken in more than one way."""

    order: Callable[[PrefixTree, Expected], list[Sequence]]
    """In which order the sequences of a window are begun."""
    fits: Callable[[SequenceOf[Demand], Demand, int, int], bool]
    """(running, candidate, free blocks, block size): whether to admit the candidate beside those that run."""
    victim: Callable[[SequenceOf[Demand]], int]
    """Which of the sequences that a step has not planned yet, in order of admission, gives its blocks back."""


def depth_first_longest_first(tree: PrefixTree, expected: Expected) -> list[Sequence]:
    """A walk down the tree that begins everywhere with what holds the longest output to come.

    Depth first, so that a shared block is used by all its users before others need its place. Longest first, so that
    no long output is begun when the others have ended (LPT, Graham 1969). Equals keep their order of arrival.
    """
    nodes = tree.nodes()
    first: dict[PrefixNode | Sequence, tuple[float, int]] = {}
    for node in reversed(nodes):
        first.update((one, (-expected(one), one.seq_id)) for one in node.leaves)
        members: list[PrefixNode | Sequence] = [*node.leaves, *node.children]
        first[node] = min((first[one] for one in members), default=(0.0, 0))
    order: list[Sequence] = []
    ahead: list[PrefixNode | Sequence] = [tree.root]
    while ahead:
        one = ahead.pop()
        if isinstance(one, Sequence):
            order.append(one)
        else:
            ahead += sorted((*one.leaves, *one.children), key=first.__getitem__, reverse=True)
    return order


def fits_as_expected(running: SequenceOf[Demand], candidate: Demand, free: int, block_size: int) -> bool:
    """Simulate the cache ahead: at no moment are more blocks expected to be in use than there are.

    After t tokens a sequence has grown by t / block size blocks with the probability that it has not stopped, and else
    has given its own back. Moments: in powers of four, and where limits are reached.
    """
    everyone = (*running, candidate)
    left = free - candidate.blocks
    limits = sorted({demand.limit for demand in everyone})
    moments = {*limits[:: -(-len(limits) // _MOMENTS)], limits[-1]}
    moments |= {moment for power in range(_MOMENTS) if (moment := block_size * 4**power) < limits[-1]}
    return all(_growth(everyone, moment, moment / block_size) <= left for moment in sorted(moments))


def _growth(demands: SequenceOf[Demand], moment: int, blocks: float) -> float:
    """Blocks that are expected to be in use after `moment` tokens, less those in use now.

    Lengths vary less than a constant chance of stopping has it: nobody is taken to stop in the first half of the
    expected length, and then twice as many do.
    """
    growth = 0.0
    for demand in demands:
        if demand.limit < moment:
            growth -= demand.own
        else:
            growth += min(1.0, exp(1 - 2 * demand.rate * moment)) * (demand.own + blocks) - demand.own
    return growth


def cheapest(running: SequenceOf[Demand]) -> int:
    """The one with the fewest blocks of its own has the least to compute again; of equals the one admitted last."""
    return min(range(len(running)), key=lambda number: (running[number].own, -number))


OFFLINE = Policy(order=depth_first_longest_first, fits=fits_as_expected, victim=cheapest)
"""What won; the figures are in `docs/performance.md`."""
