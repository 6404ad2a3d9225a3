"""Perplexity of a text: the arithmetic, and what the command prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.bench.quality import perplexity_of, windows_of
from batchgen.core.logprobs import TokenLogprobs
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.errors import UsageError


class Uniform:
    """Gives every token but the first of a prompt the probability 1/8, and finishes the last prompt first."""

    def generate(self, prompts: Iterable[SequenceOf[int]], params: Iterable[SamplingParams]) -> Iterator[Sequence]:
        done = [Sequence(i, p, s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
        for sequence in reversed(done):
            sequence.prompt_logprobs += [TokenLogprobs(token, -math.log(8), 1) for token in sequence.prompt[1:]]
            yield sequence


@given(st.integers(2, 60), st.integers(2, 9), st.sampled_from([None, 7]))
def test_windows_hold_the_text(count: int, length: int, begin: int | None) -> None:
    head = [] if begin is None else [begin]
    text = head + list(range(100, 100 + count))
    windows = windows_of(text, length, begin)
    assert all(2 <= len(window) <= length for window in windows)
    assert all(window[: len(head)] == head for window in windows)
    kept = [token for window in windows for token in window[len(head) :]]
    assert kept == text[len(head) :][: len(kept)]
    assert len(kept) >= count - 1  # a last token that nothing stands before is not predicted


def test_perplexity_is_the_inverse_of_the_mean_probability() -> None:
    windows = windows_of(list(range(10)), 4, None)
    result = perplexity_of(Uniform(), windows)
    assert result.tokens == 10 - len(windows)
    assert result.value == pytest.approx(8)


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(UsageError, match="fewer than two tokens"):
        windows_of([5], 4, None)
