"""Native draws have the frequencies of the exact softmax over what is kept, by chi-square."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from batchgen_kernels import ops
from batchgen_kernels.cpu import NativeProgram

VOCAB, ROWS, ROUNDS = 50, 500, 40
LOGITS = (np.random.default_rng(17).standard_normal(VOCAB) * 2).astype(np.float32)
CONTEXT = np.array([int(i) for i in np.argsort(-LOGITS)[:6]], dtype=np.int32)
COUNTS = np.array([0, 1, 2, 0, 5, 1], dtype=np.int32)

Floats = npt.NDArray[np.float64]


def changes(mask: npt.NDArray[np.bool_] | None = None, **penalties: float) -> ops.LogitChanges:
    """The same for all rows: a mask, a bias of 1.5 on token 3, penalties on the six best tokens."""

    def each(value: float) -> npt.NDArray[np.float32]:
        return np.full(ROWS, value, np.float32)

    allowed = np.ones(64, dtype=bool)
    if mask is not None:
        allowed[:VOCAB] = mask
    return ops.LogitChanges(
        mask_of=np.full(ROWS, -1 if mask is None else 0, np.int32),
        masks=np.packbits(allowed, bitorder="little").view("<u4")[None],
        bias_start=np.arange(ROWS + 1, dtype=np.int32),
        bias_ids=np.full(ROWS, 3, np.int32),
        bias=each(1.5),
        context_start=np.arange(ROWS + 1, dtype=np.int32) * np.int32(len(CONTEXT)),
        context_ids=np.tile(CONTEXT, ROWS),
        context_counts=np.tile(COUNTS, ROWS),
        repetition=each(penalties.get("repetition", 1.0)),
        frequency=each(penalties.get("frequency", 0.0)),
        presence=each(penalties.get("presence", 0.0)),
    )


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def only(probabilities: Floats, kept: npt.NDArray[np.bool_]) -> Floats:
    left = np.where(kept, probabilities, 0.0)
    return np.asarray(left / left.sum())


def penalised(repetition: float = 1.0, frequency: float = 0.0, presence: float = 0.0) -> Floats:
    x = LOGITS.astype(np.float64)
    x[3] += 1.5
    for token, count in zip(CONTEXT, COUNTS, strict=True):
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        x[token] -= frequency * count + (presence if count else 0.0)
    return x


BASE = softmax(LOGITS.astype(np.float64))
FALLING = np.argsort(-BASE)
NUCLEUS = np.isin(np.arange(VOCAB), FALLING[: int(np.argmax(np.cumsum(BASE[FALLING]) >= 0.8)) + 1])
EVEN = np.arange(VOCAB) % 2 == 0


@pytest.mark.parametrize(
    ("settings", "change", "expected"),
    [
        ({}, None, BASE),
        ({"temperature": 1.7}, None, softmax(LOGITS.astype(np.float64) / np.float32(1.7))),
        ({"top_k": 7}, None, only(BASE, np.isin(np.arange(VOCAB), FALLING[:7]))),
        ({"top_p": 0.8}, None, only(BASE, NUCLEUS)),
        ({"min_p": 0.1}, None, only(BASE, 0.1 * BASE.max() <= BASE)),
        ({}, changes(repetition=1.6), softmax(penalised(repetition=1.6))),
        ({}, changes(frequency=0.5), softmax(penalised(frequency=0.5))),
        ({}, changes(presence=-1.0), softmax(penalised(presence=-1.0))),
        ({}, changes(EVEN), only(softmax(penalised()), EVEN)),
    ],
    ids=["all", "temperature", "top_k", "top_p", "min_p", "repetition", "frequency", "presence", "mask"],
)
def test_frequencies(settings: dict[str, float], change: ops.LogitChanges | None, expected: Floats) -> None:
    shape = ops.Shape(max_tokens=ROWS, max_seqs=ROWS, num_blocks=1, block_size=16, max_blocks_per_seq=1)
    program = NativeProgram(shape, threads=1)
    buffer = program.buffer(VOCAB, ops.Extent.ROWS)
    buffer.numpy(ROWS)[:] = LOGITS
    counts = np.zeros(VOCAB)
    for number in range(ROUNDS):
        rows = ops.SamplingRows(
            temperature=np.full(ROWS, settings.get("temperature", 1.0), np.float32),
            top_k=np.full(ROWS, settings.get("top_k", VOCAB), np.int32),
            top_p=np.full(ROWS, settings.get("top_p", 1.0), np.float32),
            min_p=np.full(ROWS, settings.get("min_p", 0.0), np.float32),
            seed=np.full(ROWS, 5, np.uint64),
            position=np.arange(ROWS, dtype=np.int64) + number * ROWS,
            changes=change,
        )
        counts += np.bincount(program.sample(buffer, rows), minlength=VOCAB)
    assert not counts[expected == 0].any()
    wanted = expected * ROWS * ROUNDS
    # Cells with few draws are one cell: the chi-square distribution holds for at least five or so in each.
    small = wanted < 5
    cells = [(counts[i], wanted[i]) for i in np.flatnonzero(~small)]
    if wanted[small].sum() >= 5:
        cells.append((counts[small].sum(), wanted[small].sum()))
    statistic = sum((got - want) ** 2 / want for got, want in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty's approximation of the quantile that one of a thousand seeds passes; this seed is fixed.
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < quantile
