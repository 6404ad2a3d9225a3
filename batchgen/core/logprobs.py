"""How probable a token was, and how often tokens occurred: what is read from logits, and what changes them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["TokenCounts", "TokenLogprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-softmax of one position's logits at the token that stands there, and at the most probable ones."""

    token: int
    logprob: float
    """Natural logarithm; minus infinity where the logit is."""
    rank: int
    """1 for the most probable token; of equals the lower id comes first."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most probable tokens, in falling order."""


class TokenCounts:
    """The distinct tokens of a context and how often each was generated, as arrays that need no rebuilding."""

    __slots__ = ("_places", "generated", "ids")

    def __init__(self, prompt: Iterable[int]) -> None:
        """Count the tokens of a prompt as not generated."""
        self._places: dict[int, int] = {}
        self.ids = array("i")
        """Distinct token ids, int32, in order of first occurrence."""
        self.generated = array("i")
        """How often each of `ids` was generated."""
        for token in prompt:
            self._place(token)

    def push(self, token: int) -> None:
        """Count a token that was generated."""
        self.generated[self._place(token)] += 1

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self.ids))
        if place == len(self.ids):
            self.ids.append(token)
            self.generated.append(0)
        return place
