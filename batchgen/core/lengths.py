"""How many tokens a sequence is still going to generate, as far as the finished ones tell."""

from __future__ import annotations

from math import exp

from batchgen.core.prefix_tree import PrefixNode
from batchgen.core.sequence import FinishReason, Sequence

__all__ = ["LengthEstimator"]

_WEIGHT = 4.0
"""Stops for which what is known of a wider circle counts in a narrower one."""


class LengthEstimator:
    """Expected lengths under a constant chance `r` of stopping at each token.

    The estimate of `r` is stops ÷ tokens, running sequences' tokens included: the maximum likelihood for lengths that
    are exponential and cut off (a running mean of finished lengths would be too low at first, since short ones finish
    first). What sequences with the same beginning did weighs more, and the more the longer that beginning is: each
    node of the prefix tree corrects the rate of its parent, as a gamma prior of weight `_WEIGHT` would. Then a limit of
    `n` further tokens gives (1 - exp(-r n)) / r; as long as nothing has stopped, `n`.
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

    def remaining(self, sequence: Sequence, node: PrefixNode, generated: int) -> float:
        """Tokens that the sequence is expected to generate yet, at most what its limit leaves.

        `generated`: tokens of all sequences so far, those that run included.
        """
        limit = sequence.params.max_tokens - len(sequence.output)
        rate = self._stops / generated if generated else 0.0
        if rate > 0:
            for one in reversed([*node.path()][:-1]):
                rate = (one.stops + _WEIGHT) / (one.generated + _WEIGHT / rate)
        return limit if rate <= 0 else (1 - exp(-rate * limit)) / rate
