"""The effective sampling settings: the request's, else the model's defaults, else the format's, cut to the context."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any

from batchgen.core.sampling import SamplingParams
from batchgen.protocol.request import GenRequest, SamplingRequest

__all__ = ["ResolvedSampling", "SamplingDefaults"]

_NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""The format's defaults."""


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Settings for every choice of a request."""

    params: tuple[SamplingParams, ...]
    """In this order: prompt index * `GenRequest.samples` + sample index."""
    effective: Mapping[str, Any]
    """Under the request's names: values in force that the request did not send, or sent otherwise."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a run and its model add to the settings of a request."""

    generation_config: Mapping[str, Any]
    """Values it has apply where the request sends none; if it says `do_sample: false`, its sampling values don't."""
    end_ids: frozenset[int]
    """The model's end tokens."""
    max_model_len: int
    """Tokens of prompt and output together, at most."""
    run_seed: int
    """Requests without a seed derive theirs from it and their custom_id."""

    def resolve(self, request: GenRequest, prompt_lengths: SequenceOf[int]) -> ResolvedSampling:
        """Settings for each sample of each prompt. Every prompt is shorter than `max_model_len`."""
        sent = request.sampling
        values = self._values(sent)
        room = [self.max_model_len - length for length in prompt_lengths]
        limits = [left if sent.max_tokens is None else min(sent.max_tokens, left) for left in room]
        seed = _derived_seed(self.run_seed, request.custom_id) if sent.seed is None else sent.seed
        common = self._common(request, values)
        params = tuple(
            replace(
                common,
                max_tokens=limit,
                min_tokens=min(sent.min_tokens, limit),
                seed=_stream_seed(seed, prompt, sample),
                # A prompt is scored once, whatever the number of its samples.
                prompt_logprobs=_scored(request) if sample == 0 else None,
            )
            for prompt, limit in enumerate(limits)
            for sample in range(request.samples)
        )
        if sent.max_tokens == 0:
            return ResolvedSampling(params, {})
        effective = {
            name: value for name, value in values.items() if getattr(sent, name) is None and value != _NEUTRAL[name]
        }
        if sent.max_tokens is not None and any(limit != sent.max_tokens for limit in limits):
            effective["max_tokens"] = limits[0] if len(set(limits)) == 1 else limits
        if sent.seed is None and not params[0].greedy:
            effective["seed"] = seed
        return ResolvedSampling(params, effective)

    def _common(self, request: GenRequest, values: Mapping[str, Any]) -> SamplingParams:
        sent = request.sampling
        # A grammar that is at its end has nothing but an end token to offer.
        ends = frozenset() if sent.ignore_eos and request.constraint is None else self.end_ids
        # The best of several are chosen by their log-probabilities.
        chosen = 0 if sent.logprobs is None and request.samples > request.n else sent.logprobs
        return SamplingParams(
            max_tokens=0,
            temperature=values["temperature"],
            top_p=values["top_p"],
            top_k=int(values["top_k"]) if values["top_k"] > 0 else None,
            min_p=values["min_p"],
            stop_token_ids=frozenset(sent.stop_token_ids) | ends,
            frequency_penalty=sent.frequency_penalty,
            presence_penalty=sent.presence_penalty,
            repetition_penalty=values["repetition_penalty"],
            logit_bias=sent.logit_bias,
            logprobs=chosen,
            prompt_logprobs_start=sent.prompt_logprobs_start,
        )

    def _values(self, sent: SamplingRequest) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, neutral in _NEUTRAL.items():
            candidates = (getattr(sent, name), self._model_value(name), neutral)
            values[name] = next(value for value in candidates if value is not None)
        return values

    def _model_value(self, name: str) -> Any:
        # The penalty changes greedy answers too.
        sampled = self.generation_config.get("do_sample") is not False or name == "repetition_penalty"
        return self.generation_config.get(name) if sampled else None


def _scored(request: GenRequest) -> int | None:
    """How many of the most probable tokens are wanted beside those of the prompt; None: nothing."""
    asked = (request.sampling.prompt_logprobs, request.sampling.logprobs if request.echo else None)
    return max((top for top in asked if top is not None), default=None)


def _derived_seed(run_seed: int, custom_id: str) -> int:
    """A seed in [0, 2**63) that depends on nothing but the two; a request that sends it gets the same streams."""
    return _hash(f"{run_seed}\0{custom_id}") >> 1


def _stream_seed(seed: int, prompt: int, sample: int) -> int:
    """The generator's key in [0, 2**64): n samples are n streams of one seed, the same in every run."""
    return _hash(f"{seed}\0{prompt}\0{sample}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
