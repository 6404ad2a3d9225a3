"""Log-probabilities in the shapes of the formats: OpenAI's two, and vLLM's for prompts."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any

from batchgen.protocol.result import ScoredToken

__all__ = ["chat_logprobs", "completion_logprobs", "prompt_logprobs"]

_NEAR = 12
"""Bytes to look ahead for a token after what the text shows otherwise."""
_LEAST = -9999.0
"""What the hosted service writes for the logarithm of nothing: JSON has no infinity."""


def chat_logprobs(tokens: Iterable[ScoredToken]) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    content = [_shown(token) | {"top_logprobs": [_shown(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: SequenceOf[ScoredToken], text: str) -> dict[str, Any]:
    """`logprobs` of a text choice. The chosen token is among the most probable ones, or stands behind them."""
    return {
        "text_offset": list(_offsets(tokens, text)),
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "tokens": [token.text for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens],
    }


def prompt_logprobs(tokens: Iterable[ScoredToken]) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token by id, with ranks; the first one follows nothing."""
    return [None if token.logprob is None else _by_id(token) for token in tokens]


def _offsets(tokens: Iterable[ScoredToken], text: str) -> Iterator[int]:
    """Where each token begins in the text, in characters; a token inside a character begins where that does.

    Not all tokens are in the text: special ones are left out, so is what a stop string cut, a first space may be
    dropped, and bytes that are no character were replaced. So each token is looked for near the end of the one before.
    """
    data, place, characters = text.encode("utf-8", "surrogatepass"), 0, 0
    decoder = getincrementaldecoder("utf-8")("surrogatepass")
    for token in tokens:
        yield characters
        piece = token.data[1:] if place == 0 and not data.startswith(token.data[:1]) else token.data
        found = data.find(piece, place, place + len(piece) + _NEAR)
        if found >= 0:
            characters += len(decoder.decode(data[place : found + len(piece)]))
            place = found + len(piece)


def _shown(token: ScoredToken) -> dict[str, Any]:
    return {"token": token.text, "bytes": list(token.data), "logprob": _finite(token.logprob)}


def _by_text(token: ScoredToken) -> dict[str, float | None] | None:
    if token.logprob is None:
        return None
    shown: dict[str, float | None] = {}
    for other in (*token.top, token):
        # Of two tokens that look alike the more probable one is shown.
        shown.setdefault(other.text, _finite(other.logprob))
    return shown


def _by_id(token: ScoredToken) -> dict[str, Any]:
    return {
        str(other.token_id): {"logprob": _finite(other.logprob), "rank": other.rank, "decoded_token": other.text}
        for other in (token, *token.top)
    }


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)
