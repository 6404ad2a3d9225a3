"""Scores, embeddings, penalties and grammars: the same whatever the blocks, budgets and neighbours."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import FinishReason, Pooling, Sequence
from batchgen.core.step import Capacity
from tests.fakes import (
    FakeRunner,
    LateRunner,
    fake_logprobs,
    hidden_state,
    history_after,
    mask_of,
    next_token,
    scheduler_for,
)
from tests.property.test_scheduler import drive

END = 999


class Grammar:
    """Allows one to three tokens at each place, by what came before; after `length` tokens only the end."""

    def __init__(self, seed: int, length: int, *, jumps: bool) -> None:
        self._seed, self._length, self._jumps = seed, length, jumps
        self.pushed: list[int] = []

    def allowed(self, before: SequenceOf[int]) -> list[int]:
        if len(before) >= self._length:
            return [END]
        spread = (self._seed + sum(before) * 7 + len(before) * 3) % 5
        return sorted({(sum(before) + i * spread) % 50 for i in range(3)})

    def mask(self) -> bytes:
        return mask_of(self.allowed(self.pushed))

    def push(self, token: int) -> None:
        assert token in self.allowed(self.pushed)
        self.pushed.append(token)

    def forced(self) -> list[int]:
        known = list(self.pushed)
        while self._jumps and len(known) <= self._length and len(choice := self.allowed(known)) == 1:
            known += choice
        return known[len(self.pushed) :]


class StopAtThree:
    """A stop probe that finds a string at each third token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def push(self, token: int) -> bool:
        self.tokens.append(token)
        return len(self.tokens) % 3 == 0


def expected_guided(prompt: SequenceOf[int], params: SamplingParams, grammar: Grammar) -> list[int]:
    history = b""
    for token in prompt:
        history = history_after(history, token)
    output: list[int] = []
    while len(output) < params.max_tokens and END not in output:
        output.append(next_token(history, params, grammar.allowed(output)))
        history = history_after(history, output[-1])
    return output


@st.composite
def sequences(draw: st.DrawFn) -> list[Sequence]:
    """Sequences of all kinds over prompts that share their beginnings."""
    stems = draw(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=20), min_size=1, max_size=2))
    made = []
    for index in range(draw(st.integers(1, 8))):
        stem = draw(st.sampled_from(stems))
        prompt = [*stem[: draw(st.integers(1, len(stem)))], *draw(st.lists(st.integers(0, 3), max_size=6))]
        kind = draw(st.sampled_from(["plain", "score", "embed", "guided"]))
        max_tokens = 0 if kind == "embed" else draw(st.integers(0 if kind == "score" else 1, 12))
        params = SamplingParams(
            max_tokens=max_tokens,
            seed=draw(st.integers(0, 1)),
            stop_token_ids=frozenset({END}),
            prompt_logprobs=2 if kind == "score" else None,
            prompt_logprobs_start=draw(st.integers(0, len(prompt) + 1)) if kind == "score" else 0,
            logprobs=draw(st.sampled_from([None, 1])),
            repetition_penalty=draw(st.sampled_from([1.0, 1.5])),
            frequency_penalty=draw(st.sampled_from([0.0, 0.5])),
        )
        guide = None
        if kind == "guided":
            guide = Grammar(draw(st.integers(0, 9)), draw(st.integers(1, 8)), jumps=draw(st.booleans()))
        pooling = draw(st.sampled_from(Pooling)) if kind == "embed" else None
        made.append(Sequence(index, prompt, params, guide=guide, pooling=pooling))
    return made


@given(
    sequences(),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 12),
    st.integers(0, 10),
    st.booleans(),
    st.sampled_from([(FakeRunner, 0), (FakeRunner, 1), (LateRunner, 1)]),
)
def test_what_is_read_does_not_depend_on_scheduling(
    work: list[Sequence],
    block_size: int,
    seqs: int,
    spare_budget: int,
    spare_blocks: int,
    shared: bool,
    kind: tuple[type[FakeRunner], int],
) -> None:
    most = max(-(-(len(s.prompt) + s.params.max_tokens) // block_size) for s in work)
    capacity = Capacity(
        num_blocks=most + spare_blocks,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + spare_budget,
        steps_ahead=kind[1],
    )
    scheduler, kv = scheduler_for(capacity, PrefixIndex() if shared else None)
    finished, refused = drive(scheduler, kv, kind[0](capacity), [work])
    assert not refused
    assert len(finished) == len(work)
    for s in finished:
        tokens = [*s.prompt, *s.output]
        histories = [b""]
        for token in tokens:
            histories.append(history_after(histories[-1], token))
        split = len(s.prompt)
        scores = [fake_logprobs(histories[p], tokens[p]) for p in range(1, len(tokens))]
        first = max(0, s.params.prompt_logprobs_start - 1)
        assert s.prompt_logprobs == (scores[first : split - 1] if s.params.prompt_logprobs is not None else [])
        assert s.logprobs == (scores[split - 1 :] if s.params.logprobs is not None else [])
        if s.pooling is None:
            assert s.pooled is None
        else:
            wanted = histories[1:] if s.pooling is Pooling.MEAN else histories[-1:]
            assert s.pooled == array("d", [sum(map(hidden_state, wanted))])
        if isinstance(s.guide, Grammar):
            assert s.output == s.guide.pushed == expected_guided(s.prompt, s.params, s.guide)
        elif s.params.max_tokens == 0:
            assert (s.output, s.finish_reason) == ([], FinishReason.LENGTH)
    assert scheduler.stats().generated_tokens == sum(len(s.output) for s in finished)


def test_forced_tokens_take_no_steps_of_their_own() -> None:
    capacity = Capacity(num_blocks=20, block_size=4, max_num_seqs=1, max_num_batched_tokens=8)

    class Sure:
        """1, 2, 3, then the end."""

        def __init__(self) -> None:
            self.rest = [1, 2, 3, END]

        def mask(self) -> bytes:
            return mask_of(self.rest[:1])

        def push(self, token: int) -> None:
            assert token == self.rest.pop(0)

        def forced(self) -> list[int]:
            return list(self.rest)

    scheduler, kv = scheduler_for(capacity, None)
    runner = FakeRunner(capacity)
    params = SamplingParams(max_tokens=10, stop_token_ids=frozenset({END}))
    (finished,), _ = drive(scheduler, kv, runner, [[Sequence(0, [5], params, guide=Sure())]])
    assert finished.output == [1, 2, 3, END]
    assert finished.finish_reason is FinishReason.STOP
    assert runner.steps == 1


def test_forced_tokens_keep_to_the_limit_and_to_stop_strings() -> None:
    capacity = Capacity(num_blocks=20, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)

    class Always:
        """Seven for ever."""

        def mask(self) -> bytes:
            return mask_of([7])

        def push(self, token: int) -> None:
            assert token == 7

        def forced(self) -> list[int]:
            return [7, 7, 7, 7]

    scheduler, kv = scheduler_for(capacity, None)
    work = [
        Sequence(0, [5], SamplingParams(max_tokens=7), guide=Always()),
        Sequence(1, [5], SamplingParams(max_tokens=9), StopAtThree(), guide=Always()),
    ]
    finished, _ = drive(scheduler, kv, FakeRunner(capacity), [work])
    assert {s.seq_id: (len(s.output), s.finish_reason) for s in finished} == {
        0: (7, FinishReason.LENGTH),
        1: (3, FinishReason.STOP),
    }


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_nothing_stops_before_min_tokens(steps_ahead: int) -> None:
    capacity = Capacity(num_blocks=20, block_size=4, max_num_seqs=2, max_num_batched_tokens=8, steps_ahead=steps_ahead)
    scheduler, kv = scheduler_for(capacity, None)
    every = frozenset(range(999))  # so that the first token that may end it does
    work = [
        Sequence(0, [5], SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=every)),
        Sequence(1, [5], SamplingParams(max_tokens=9, min_tokens=4), StopAtThree()),
    ]
    finished, _ = drive(scheduler, kv, FakeRunner(capacity), [work])
    outputs = {s.seq_id: s.output for s in finished}
    assert not every & set(outputs[0][:4])
    assert outputs[0][4] in every
    assert len(outputs[0]) == 5
    assert len(outputs[1]) == 6
