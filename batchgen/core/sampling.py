"""How the next token of a sequence is chosen: the effective values, after all defaults are applied."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SamplingParams"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The effective sampling settings of one sequence.

    Every value is final: defaults of the request format, of the model's `generation_config.json` and of the run have
    been applied, and ranges were checked, before an instance is made.

    Logits are changed before a token is chosen, in this order: the mask of the sequence's guide, `logit_bias`,
    `min_tokens`, `repetition_penalty`, `frequency_penalty` and `presence_penalty`. `ops.Program.sample` has the
    formulas. The log-probabilities that a result carries are those of the logits before any of it.
    """

    max_tokens: int
    """Tokens to generate at most; 0 only scores or embeds the prompt."""
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
    frequency_penalty: float = 0.0
    """Taken off a token's logit once for each time that it was generated."""
    presence_penalty: float = 0.0
    """Taken off a token's logit if it was generated."""
    repetition_penalty: float = 1.0
    """Divides the logit, or multiplies it where it is negative, of each token of the prompt and the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit); no id twice."""
    min_tokens: int = 0
    """No token of `stop_token_ids` is chosen before so many tokens were generated. At most `max_tokens`."""
    logprobs: int | None = None
    """How many of the most probable tokens are reported beside each generated one; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""
    prompt_logprobs_start: int = 0
    """Tokens of the prompt that those begin after: of what stands before nothing is read, so the cache may have it."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"need 0 <= min_tokens <= max_tokens, got {self.min_tokens} and {self.max_tokens}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be in [0, 2**64), got {self.seed}")
        if not self.repetition_penalty > 0.0:
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")

    @property
    def greedy(self) -> bool:
        """Whether the next token is the arg-max of the changed logits."""
        return self.temperature == 0.0 or self.top_p == 0.0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether the choice depends on how often tokens occurred before."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
