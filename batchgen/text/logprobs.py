"""Log-probabilities of token ids to those of pieces of text."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from batchgen.core.logprobs import TokenLogprobs
from batchgen.protocol.result import ScoredToken
from batchgen.text.tokenizer import Tokenizer

__all__ = ["score_prompt", "score_tokens"]


def score_tokens(tokenizer: Tokenizer, entries: Iterable[TokenLogprobs], top: int) -> list[ScoredToken]:
    """Tokens with their bytes, each with at most `top` of the most probable ones."""
    return [_scored(tokenizer, entry, top) for entry in entries]


def score_prompt(
    tokenizer: Tokenizer, prompt: SequenceOf[int], entries: Iterable[TokenLogprobs], top: int
) -> list[ScoredToken]:
    """The tokens of a prompt, of which the last ones have entries: nothing comes before the first one."""
    scored = score_tokens(tokenizer, entries, top)
    before = prompt[: len(prompt) - len(scored)]
    return [*(ScoredToken(token, tokenizer.token_bytes(token), None) for token in before), *scored]


def _scored(tokenizer: Tokenizer, entry: TokenLogprobs, top: int) -> ScoredToken:
    shown = tuple(
        ScoredToken(token, tokenizer.token_bytes(token), logprob, rank)
        for rank, (token, logprob) in enumerate(entry.top[:top], start=1)
    )
    return ScoredToken(entry.token, tokenizer.token_bytes(entry.token), entry.logprob, entry.rank, shown)
