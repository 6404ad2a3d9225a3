"""The draw of the next token, as `ops.Program.sample` defines it, and log-probabilities: float64 NumPy, the oracle of
the native ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchgen_kernels.ops import LogitChanges, LogprobRows, Logprobs, SamplingRows

__all__ = ["changed", "choose", "philox", "read_logprobs", "sample_rows"]

_ROUNDS = 10
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; 2011).

    counter [..., 4], key [..., 2], result [..., 4]: 32-bit words, each in a uint64.
    """
    c0, c1, c2, c3 = np.moveaxis(counter, -1, 0)
    for turn in range(_ROUNDS):
        k0, k1 = np.moveaxis((key + np.uint64(turn) * _WEYL) & _LOW, -1, 0)
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1)


def sample_rows(logits: npt.NDArray[np.float32], rows: SamplingRows) -> npt.NDArray[np.int32]:
    """`ops.Program.sample` of logits [R, V]."""
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
    settings = zip(*(getattr(rows, name).tolist() for name in names), strict=True)
    chosen = []
    for r, values in enumerate(settings):
        row = logits[r] if rows.changes is None else changed(logits[r], rows.changes, r)
        if row.max(initial=-np.inf) == -np.inf and rows.changes is not None:
            chosen.append(int(np.argmax(_allowed(rows.changes, r, len(row)))))
        else:
            chosen.append(choose(row, **dict(zip(names, values, strict=True))))
    return np.array(chosen, dtype=np.int32)


def changed(logits: npt.NDArray[np.float32], changes: LogitChanges, r: int) -> npt.NDArray[np.float32]:
    """Row r of the logits, [V], as the changes leave it."""
    x = np.where(_allowed(changes, r, len(logits)), logits, np.float32(-np.inf))
    biased = slice(*changes.bias_start[r : r + 2])
    x[changes.bias_ids[biased]] += changes.bias[biased]
    context = slice(*changes.context_start[r : r + 2])
    ids, counts = changes.context_ids[context], changes.context_counts[context]
    repetition = changes.repetition[r]
    y = np.where(x[ids] > 0, x[ids] / repetition, x[ids] * repetition)
    generated = (y - changes.frequency[r] * counts.astype(np.float32)) - changes.presence[r]
    x[ids] = np.where(counts > 0, generated, y)
    return x


def _allowed(changes: LogitChanges, r: int, vocab: int) -> npt.NDArray[np.bool_]:
    """[V] what row r's mask allows."""
    index = changes.mask_of[r]
    if index < 0:
        return np.ones(vocab, dtype=bool)
    words = changes.masks[index].astype("<u4").view(np.uint8)
    return np.unpackbits(words, bitorder="little", count=vocab).astype(bool)


def read_logprobs(logits: npt.NDArray[np.float32], rows: LogprobRows) -> Logprobs:
    """`ops.Program.logprobs` of logits [rows, V]."""
    answer = Logprobs.unwritten(rows)
    for q, (row, token) in enumerate(zip(rows.row.tolist(), rows.token.tolist(), strict=True)):
        x = np.nan_to_num(logits[row].astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        logprobs = x - x.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        order = np.argsort(-x, kind="stable")
        answer.logprob[q] = logprobs[token]
        answer.rank[q] = np.flatnonzero(order == token)[0] + 1
        answer.top_ids[q] = order[: rows.top]
        answer.top_logprobs[q] = logprobs[order[: rows.top]]
    return answer


def choose(
    logits: npt.NDArray[np.float32],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> int:
    """The next token of one row of logits [V]."""
    if temperature == 0.0:
        return int(np.argmax(logits))
    z = (logits.astype(np.float64) - np.float64(logits.max())) / temperature
    kept = _kept(z, top_k, top_p, min_p)
    return int(kept[np.argmax(z[kept] + _gumbel(kept, seed, position))])


def _kept(z: npt.NDArray[np.float64], top_k: int, top_p: float, min_p: float) -> npt.NDArray[np.int64]:
    """The ids that may be drawn, ascending. z [V], at most 0."""
    kept = np.arange(len(z)) if top_k >= len(z) else _largest(z, top_k)
    if top_p < 1.0:
        falling = kept[np.argsort(-z[kept], kind="stable")]
        weights = np.exp(z[falling])
        reached = np.cumsum(weights) >= top_p * weights.sum()
        kept = np.sort(falling[: int(np.argmax(reached)) + 1])
    # The best token has z = 0 and is always kept, so exp(z) is p / max p.
    return kept[np.exp(z[kept]) >= min_p]


def _largest(z: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Ids of the `count` largest values, ascending; of equal values the lower ids."""
    edge = np.partition(z, len(z) - count)[len(z) - count]
    above = np.flatnonzero(z > edge)
    return np.sort(np.concatenate([above, np.flatnonzero(z == edge)[: count - len(above)]]))


def _gumbel(ids: npt.NDArray[np.int64], seed: int, position: int) -> npt.NDArray[np.float64]:
    """-log(-log(u)) of each token id."""
    blocks, block_of_id = np.unique(ids // 4, return_inverse=True)
    counter = np.zeros((len(blocks), 4), dtype=np.uint64)
    counter[:, 0] = blocks
    counter[:, 2:] = position & 0xFFFFFFFF, position >> 32
    words = philox(counter, np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint64))[block_of_id, ids % 4]
    uniform = (words.astype(np.float64) + 0.5) / 2.0**32
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
