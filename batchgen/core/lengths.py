"""How long sequences are going to be, as far as the finished ones tell."""

from __future__ import annotations

from math import exp

from batchgen.core.prefix_tree import PrefixNode
from batchgen.core.sequence import FinishReason, Sequence

__all__ = ["LengthEstimator", "expected_tokens"]

_WEIGHT = 4.0
"""Stops for which what is known of a wider circle counts in a narrower one."""


class LengthEstimator:
    """The chance of stopping at the next token, taken to be constant over a sequence.

    The estimate is stops ÷ tokens, running sequences' tokens included: the maximum likelihood for lengths that
    are exponential and cut off (a running mean of finished lengths would be too low at first, since short ones finish
    first). What sequences with the same beginning did weighs more, and the more the longer that beginning is: each
    node of the prefix tree corrects the rate of its parent, as a gamma prior of weight `_WEIGHT` would.
    """

    def __init__(self) -> None:
        self._stops = 0

    def learn(self, sequence: Sequence, node: PrefixNode) -> None:
        """Take a finished sequence; `node` is the longest beginning that it shared with others."""
        stopped = int(sequence.finish_reason is FinishReason.STOP)
        self._stops += stopped
        for one in node.path():
            one.generated += len(sequence.output)
            one.stops += stopped

    def rate(self, node: PrefixNode, generated: int) -> float:
        """The chance that a sequence below `node` stops at its next token; 0 as long as nothing has stopped.

        `generated`: tokens of all sequences so far, those that run included.
        """
        rate = self._stops / generated if generated else 0.0
        if rate > 0:
            for one in reversed([*node.path()][:-1]):
                rate = (one.stops + _WEIGHT) / (one.generated + _WEIGHT / rate)
        return rate


def expected_tokens(rate: float, limit: int) -> float:
    """Tokens that are generated at a constant chance of stopping, up to a limit."""
    return limit if rate <= 0 else (1 - exp(-rate * limit)) / rate
