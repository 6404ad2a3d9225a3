"""The least time that a set of requests takes on a machine: what a run is measured against."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelCost", "Rates", "Work", "bound_s", "work_of_output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a machine reaches with the kernels of a run, on all threads of the run."""

    linear: float
    """Operations a second of linears at a full step; a multiply-add is two."""
    attention: float
    """The same of attention over a prompt."""
    bandwidth: float
    """Bytes of weights a second where nothing else limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What a model asks of a machine."""

    linear_weights: int
    """Weights of all linears but the head."""
    head_weights: int
    attention_operations: int
    """Of one token for each position that it sees: 4 x layers x query heads x head size."""
    weight_bytes: int
    """That are read in a step, however few tokens it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a set of requests can't do without."""

    distinct_tokens: int = 0
    """Prompt tokens, every shared beginning counted once."""
    distinct_depth: int = 0
    """Sum over those of the positions that each one sees, itself included."""
    sampled_tokens: int = 0
    """Tokens that are chosen, and so rows of the head."""
    later_tokens: int = 0
    """Those of them that are computed too: all but the last of each sequence."""
    later_depth: int = 0
    """Sum over those of the positions that each one sees."""
    steps: int = 0
    """Steps that the longest output takes: one a token."""

    def __add__(self, other: Work) -> Work:
        """Both, side by side: the longest output decides about the steps."""
        return Work(
            distinct_tokens=self.distinct_tokens + other.distinct_tokens,
            distinct_depth=self.distinct_depth + other.distinct_depth,
            sampled_tokens=self.sampled_tokens + other.sampled_tokens,
            later_tokens=self.later_tokens + other.later_tokens,
            later_depth=self.later_depth + other.later_depth,
            steps=max(self.steps, other.steps),
        )

    @property
    def tokens(self) -> int:
        """Tokens to be computed."""
        return self.distinct_tokens + self.later_tokens


def work_of_output(prompt_tokens: int, output_tokens: int) -> Work:
    """What one output takes, after its prompt. Its last token is never computed."""
    later = max(0, output_tokens - 1)
    return Work(
        sampled_tokens=output_tokens,
        later_tokens=later,
        later_depth=later * prompt_tokens + later * (later + 1) // 2,
        steps=output_tokens,
    )


def bound_s(work: Work, cost: ModelCost, rates: Rates) -> float:
    """Seconds: every distinct token once, in steps that are full, and weights read once a step at least."""
    linear = 2 * cost.linear_weights * work.tokens + 2 * cost.head_weights * work.sampled_tokens
    attention = cost.attention_operations * (work.distinct_depth + work.later_depth)
    reading = work.steps * cost.weight_bytes / rates.bandwidth
    return max(linear / rates.linear + attention / rates.attention, reading)
