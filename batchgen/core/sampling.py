"""How the next token of a sequence is chosen: the effective values, after all defaults are applied."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SamplingParams"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The effective sampling settings of one sequence.

    Every value is final: defaults of the request format, of the model's `generation_config.json` and of the run have
    been applied, and ranges were checked, before an instance is made.
    """

    max_tokens: int
    """Tokens to generate at most, at least 1."""
    temperature: float = 1.0
    """Logits are divided by this before sampling; 0 is greedy (arg-max, the lowest id wins a tie)."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose probabilities reach this sum; in [0, 1], 0 is greedy."""
    top_k: int | None = None
    """Keep this many of the most probable tokens; None keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the best token's probability; in [0, 1]."""
    seed: int = 0
    """Key of the counter-based generator, in [0, 2**64). One draw uses (seed, position of the drawn token)."""
    stop_token_ids: frozenset[int] = frozenset()
    """A token of this set ends the sequence. It includes the model's end tokens unless the request ignores them."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be in [0, 2**64), got {self.seed}")

    @property
    def greedy(self) -> bool:
        """Whether the next token is the arg-max of the logits."""
        return self.temperature == 0.0 or self.top_p == 0.0 or self.top_k == 1
