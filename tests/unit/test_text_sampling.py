"""Which settings are in force, and which streams of random numbers."""

from __future__ import annotations

from typing import Any

import pytest

from batchgen.protocol.request import Endpoint, GenRequest, SamplingRequest, TextPrompt
from batchgen.text.sampling import ResolvedSampling, SamplingDefaults


def resolve(
    custom_id: str = "a",
    n: int = 1,
    lengths: tuple[int, ...] = (10,),
    config: dict[str, Any] | None = None,
    run_seed: int = 0,
    best_of: int | None = None,
    echo: bool = False,
    **sent: Any,
) -> ResolvedSampling:
    request = GenRequest(
        custom_id=custom_id,
        line=1,
        endpoint=Endpoint.COMPLETIONS,
        model=None,
        prompts=tuple(TextPrompt("x") for _ in lengths),
        n=n,
        best_of=best_of,
        echo=echo,
        sampling=SamplingRequest(**sent),
    )
    defaults = SamplingDefaults(config or {}, frozenset({2}), max_model_len=100, run_seed=run_seed)
    return defaults.resolve(request, lengths)


def test_nothing_sent_nothing_configured() -> None:
    (params,) = resolve().params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, None, 0.0)
    assert params.max_tokens == 90
    assert params.stop_token_ids == {2}
    assert resolve().effective.keys() == {"seed"}


def test_the_request_overrides_the_model_which_overrides_the_format() -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    resolved = resolve(config=config, top_p=0.5, seed=1)
    (params,) = resolved.params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 20)
    assert resolved.effective == {"temperature": 0.6, "top_k": 20}


def test_a_model_that_does_not_sample_has_no_sampling_defaults() -> None:
    resolved = resolve(config={"do_sample": False, "temperature": 0.6}, seed=1)
    assert resolved.params[0].temperature == 1.0
    assert resolved.effective == {}


def test_zero_sent_is_not_nothing_sent() -> None:
    resolved = resolve(config={"temperature": 0.6}, temperature=0)
    assert resolved.params[0].greedy
    assert resolved.effective == {}


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_of_all(top_k: int) -> None:
    assert resolve(config={"top_k": 20}, top_k=top_k).params[0].top_k is None


def test_max_tokens_is_cut_to_the_context() -> None:
    assert resolve(max_tokens=90, seed=1).effective == {}
    cut = resolve(max_tokens=91, seed=1)
    assert cut.params[0].max_tokens == cut.effective["max_tokens"] == 90
    assert resolve(max_tokens=80, lengths=(10, 50), seed=1).effective == {"max_tokens": [80, 50]}


def test_end_tokens() -> None:
    assert resolve(stop_token_ids=(7,)).params[0].stop_token_ids == {2, 7}
    assert resolve(stop_token_ids=(7,), ignore_eos=True).params[0].stop_token_ids == {7}


def test_streams_are_in_choice_order_and_all_differ() -> None:
    resolved = resolve(n=2, lengths=(10, 20), seed=-5)
    assert [params.max_tokens for params in resolved.params] == [90, 90, 80, 80]
    assert len({params.seed for params in resolved.params}) == 4
    assert resolved == resolve(n=2, lengths=(10, 20), seed=-5, custom_id="other", run_seed=9)
    assert resolve(n=1, seed=-5).params[0] == resolved.params[0]


def test_a_derived_seed_depends_on_run_and_custom_id_and_can_be_sent() -> None:
    seeds = {resolve(custom_id=name, run_seed=run).params[0].seed for name in "ab" for run in (0, 1)}
    assert len(seeds) == 4
    derived = resolve(n=3)
    assert resolve(n=3, custom_id="z", seed=derived.effective["seed"]).params == derived.params


def test_seeds_are_the_same_on_every_machine() -> None:
    assert resolve(custom_id="row-1").effective == {"seed": 5819962331590022567}
    assert resolve(seed=0).params[0].seed == 13433632324308434416


def test_the_model_s_repetition_penalty_counts_for_greedy_answers_too() -> None:
    config = {"do_sample": False, "repetition_penalty": 1.1}
    resolved = resolve(config=config, seed=1)
    assert resolved.params[0].repetition_penalty == 1.1
    assert resolved.effective == {"repetition_penalty": 1.1}
    sent = resolve(config=config, seed=1, repetition_penalty=1.0)
    assert (sent.params[0].repetition_penalty, sent.effective) == (1.0, {})


def test_min_tokens_is_cut_with_the_limit() -> None:
    params = resolve(seed=1, max_tokens=500, min_tokens=400, lengths=(90,)).params[0]
    assert (params.max_tokens, params.min_tokens) == (10, 10)


def test_samples_are_made_for_the_best_and_prompts_scored_once() -> None:
    resolved = resolve(seed=1, n=2, best_of=4, echo=True, logprobs=3, prompt_logprobs=1, lengths=(5, 6))
    assert len({p.seed for p in resolved.params}) == 8
    assert [p.prompt_logprobs for p in resolved.params] == [3, None, None, None] * 2
    assert [p.logprobs for p in resolved.params] == [3] * 8
    assert [p.logprobs for p in resolve(seed=1, best_of=2).params] == [0, 0]
