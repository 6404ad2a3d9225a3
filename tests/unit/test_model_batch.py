"""Plans become arrays: against a token-by-token reading of the contract."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from batchgen.core.sampling import SamplingParams
from batchgen.core.step import ScheduledSequence, StepPlan
from batchgen.model.batch import make_batch
from batchgen.model.sampling import sampling_rows

BLOCK = 4


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    rng = random.Random(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.booleans()), min_size=1, max_size=8))
    return StepPlan(
        tuple(
            ScheduledSequence(
                seq_id=i,
                start=start,
                tokens=[rng.randrange(1000) for _ in range(count)],
                # Some tables reach further than the step.
                block_table=[rng.randrange(500) for _ in range(-(-(start + count) // BLOCK) + rng.randrange(3))],
                sampling=SamplingParams(max_tokens=1, seed=2**64 - 1 - i) if sampled else None,
                follows=rng.choice([None, i + 3]) if count == 1 else None,
            )
            for i, (start, count, sampled) in enumerate(sizes)
        )
    )


@given(plans())
def test_arrays_are_what_the_contract_says(plan: StepPlan) -> None:
    batch = make_batch(plan, BLOCK)
    tokens, positions, slots, rows, bounds = [], [], [], [], [0]
    for s in plan.scheduled:
        for offset, token in enumerate(s.tokens):
            position = s.start + offset
            tokens.append(token)
            positions.append(position)
            slots.append(s.block_table[position // BLOCK] * BLOCK + position % BLOCK)
        bounds.append(len(tokens))
        if s.sampling is not None:
            rows.append(len(tokens) - 1)
    assert batch.tokens.tolist() == tokens
    assert batch.positions.tolist() == positions
    assert batch.slots.tolist() == slots
    assert batch.rows.tolist() == rows
    assert batch.query_start.tolist() == bounds
    assert batch.context_lens.tolist() == [s.stop for s in plan.scheduled]
    for s, table in zip(plan.scheduled, batch.block_tables.tolist(), strict=True):
        needed = -(-s.stop // BLOCK)
        assert table == [*s.block_table[:needed], *[0] * (len(table) - needed)]
    follows = [-1 if s.follows is None else s.follows for s in plan.scheduled for _ in s.tokens]
    assert (follows if batch.follows is None else batch.follows.tolist()) == follows
    assert (batch.follows is None) == (set(follows) == {-1})
    arrays = [array for name in batch.__slots__ if (array := getattr(batch, name)) is not None]
    assert all(array.dtype == "int32" and array.flags.c_contiguous for array in arrays)


@given(plans())
def test_rows_draw_the_token_after_their_last(plan: StepPlan) -> None:
    rows = sampling_rows(plan, 1000)
    assert rows.position.tolist() == [s.stop for s in plan.sampled]
    assert rows.seed.tolist() == [s.sampling.seed for s in plan.sampled if s.sampling is not None]


def test_settings_of_rows() -> None:
    settings = [
        SamplingParams(max_tokens=1, temperature=0.5, top_k=7, top_p=0.25, min_p=0.125),
        SamplingParams(max_tokens=1, temperature=0.5, top_k=5000),
        SamplingParams(max_tokens=1, temperature=0.5, top_p=0.0),
        SamplingParams(max_tokens=1, temperature=0.5, top_k=1),
    ]
    plan = StepPlan(tuple(ScheduledSequence(i, 0, [1], [0], p) for i, p in enumerate(settings)))
    rows = sampling_rows(plan, 1000)
    assert rows.temperature.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert rows.top_k.tolist() == [7, 1000, 1000, 1]
    assert rows.top_p.tolist() == [0.25, 1.0, 0.0, 1.0]
    assert rows.min_p.tolist() == [0.125, 0.0, 0.0, 0.0]
