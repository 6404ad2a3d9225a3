"""Finished sequences to what a response shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batchgen.core.sequence import Sequence
from batchgen.protocol.request import GenRequest, TextPrompt
from batchgen.protocol.result import Choice, Embeddings, PromptScores, ScoredToken
from batchgen.text.embedding import normalised
from batchgen.text.logprobs import score_prompt, score_tokens
from batchgen.text.tokenizer import Tokenizer

__all__ = ["choice_logprobs", "embeddings", "mean_logprob", "prompt_scores", "shown_choices"]


def choice_logprobs(tokenizer: Tokenizer, request: GenRequest, sequence: Sequence) -> tuple[ScoredToken, ...] | None:
    """The log-probabilities of an answer's tokens, None where the request asks for none."""
    top = request.sampling.logprobs
    return None if top is None else tuple(score_tokens(tokenizer, sequence.logprobs, top))


def mean_logprob(sequence: Sequence) -> float:
    """What the best of several samples are chosen by; 0 for a sequence without log-probabilities."""
    return sum(entry.logprob for entry in sequence.logprobs) / max(1, len(sequence.logprobs))


def shown_choices(request: GenRequest, choices: Mapping[int, Choice], means: Mapping[int, float]) -> tuple[Choice, ...]:
    """Of each prompt's samples the n most probable ones, best first; all of them, as they are, where n were made."""
    if request.samples == request.n:
        return tuple(choices[index] for index in sorted(choices))
    shown: list[Choice] = []
    for prompt in range(len(request.prompts)):
        own = range(prompt * request.samples, (prompt + 1) * request.samples)
        best = sorted(own, key=lambda index: (-means[index], index))[: request.n]
        shown += (replace(choices[index], index=prompt * request.n + rank) for rank, index in enumerate(best))
    return tuple(shown)


def prompt_scores(
    tokenizer: Tokenizer, request: GenRequest, firsts: Mapping[int, Sequence]
) -> tuple[PromptScores, ...]:
    """What is shown of each prompt, empty where nothing is. `firsts`: the first sample of each prompt."""
    sent = request.sampling
    if not request.echo and sent.prompt_logprobs is None:
        return ()

    def scored(sequence: Sequence, top: int) -> tuple[ScoredToken, ...]:
        return tuple(score_prompt(tokenizer, sequence.prompt, sequence.prompt_logprobs, top))

    return tuple(
        PromptScores(
            text=_text(tokenizer, request, index, sequence) if request.echo else "",
            echoed=scored(sequence, sent.logprobs) if request.echo and sent.logprobs is not None else (),
            tokens=None if sent.prompt_logprobs is None else scored(sequence, sent.prompt_logprobs),
        )
        for index, sequence in sorted(firsts.items())
    )


def embeddings(request: GenRequest, model: str, firsts: Mapping[int, Sequence]) -> Embeddings:
    """The answer to a request for embeddings. `firsts`: the sequence of each prompt."""
    assert request.embedding is not None
    dimensions = request.embedding.dimensions
    sequences = [sequence for _, sequence in sorted(firsts.items())]
    return Embeddings(
        request=request,
        model=model,
        vectors=tuple(normalised(one.pooled, dimensions) for one in sequences if one.pooled is not None),
        prompt_tokens=sum(len(sequence.prompt) for sequence in sequences),
        cached_tokens=sum(sequence.cached for sequence in sequences),
    )


def _text(tokenizer: Tokenizer, request: GenRequest, index: int, sequence: Sequence) -> str:
    prompt = request.prompts[index]
    if isinstance(prompt, TextPrompt):
        return prompt.text
    return tokenizer.decode(sequence.prompt, skip_special_tokens=request.sampling.skip_special_tokens)
