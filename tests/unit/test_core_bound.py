"""The bound of a run against figures that were worked out by hand."""

from __future__ import annotations

import pytest

from batchgen.core.bound import ModelCost, Rates, Work, bound_s, work_of_output

COST = ModelCost(
    linear_weights=106_168_320,
    head_weights=28_311_552,
    attention_operations=4 * 30 * 9 * 64,
    weight_bytes=2 * 134_479_872,
)
"""SmolLM2-135M."""
RATES = Rates(linear=300e9, attention=150e9, bandwidth=25e9)


def test_64_random_prompts_of_256_tokens_with_128_out() -> None:
    work = Work(distinct_tokens=64 * 256, distinct_depth=64 * 256 * 257 // 2)
    for _ in range(64):
        work += work_of_output(256, 128)
    assert work.tokens == 64 * (256 + 127)
    assert work.later_depth == 64 * sum(range(257, 257 + 127))
    assert work.steps == 128
    linear = 2 * 106_168_320 * 24_512 + 2 * 28_311_552 * 8_192
    assert linear == pytest.approx(5.67e12, rel=0.01)
    attention = 69_120 * (64 * 32_896 + 64 * 40_640)
    assert bound_s(work, COST, RATES) == pytest.approx(linear / 300e9 + attention / 150e9)


def test_a_long_output_alone_reads_the_weights_at_every_token() -> None:
    work = Work(distinct_tokens=1, distinct_depth=1) + work_of_output(1, 1_000)
    assert bound_s(work, COST, RATES) == pytest.approx(1_000 * 268_959_744 / 25e9)


def test_an_output_of_one_token_computes_nothing_more() -> None:
    assert work_of_output(10, 1) == Work(sampled_tokens=1, steps=1)
    assert work_of_output(10, 0) == Work()
