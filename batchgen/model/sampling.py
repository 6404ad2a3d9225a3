"""What a plan wants of the logits, as the arrays that kernels read; and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import accumulate, chain, islice

import numpy as np
import numpy.typing as npt

from batchgen.core.logprobs import TokenLogprobs
from batchgen.core.sampling import SamplingParams
from batchgen.core.step import ScheduledSequence, StepPlan
from batchgen_kernels.ops import Buffer, LogitChanges, LogprobRows, Logprobs, Replayed, SamplingRows

__all__ = ["read_logprobs", "sampling_rows"]

_Ints = npt.NDArray[np.int32]


def sampling_rows(plan: StepPlan, vocab_size: int) -> SamplingRows:
    """How the rows of a plan choose their tokens."""
    wanted = [(s.sampling, s.stop) for s in plan.scheduled if s.sampling is not None]
    return SamplingRows(
        temperature=np.array([0.0 if p.greedy else p.temperature for p, _ in wanted], dtype=np.float32),
        top_k=np.array([min(p.top_k or vocab_size, vocab_size) for p, _ in wanted], dtype=np.int32),
        top_p=np.array([p.top_p for p, _ in wanted], dtype=np.float32),
        min_p=np.array([p.min_p for p, _ in wanted], dtype=np.float32),
        seed=np.array([p.seed for p, _ in wanted], dtype=np.uint64),
        position=np.array([stop for _, stop in wanted], dtype=np.int64),
        changes=_changes(plan, [p for p, _ in wanted], vocab_size),
    )


def _changes(plan: StepPlan, params: SequenceOf[SamplingParams], vocab_size: int) -> LogitChanges | None:
    sampled = plan.sampled
    pairs = list(zip(sampled, params, strict=True))
    if not any(s.guide or s.counts or s.banned or p.logit_bias for s, p in pairs):
        return None
    masks = [None if s.guide is None else s.guide.mask() for s in sampled]
    biases = [list(_biases(s, p, vocab_size)) for s, p in pairs]
    counts = [s.counts for s in sampled]
    given = [mask for mask in masks if mask is not None]
    numbers = iter(range(len(given)))
    return LogitChanges(
        mask_of=np.array([-1 if mask is None else next(numbers) for mask in masks], dtype=np.int32),
        masks=np.frombuffer(b"".join(given), dtype="<u4").reshape(len(given), -(-vocab_size // 32)),
        bias_start=_starts(len(bias) for bias in biases),
        bias_ids=np.array([token for token, _ in chain.from_iterable(biases)], dtype=np.int32),
        bias=np.array([bias for _, bias in chain.from_iterable(biases)], dtype=np.float32),
        context_start=_starts(0 if c is None else len(c.ids) for c in counts),
        context_ids=_joined(c.ids for c in counts if c is not None),
        context_counts=_joined(c.generated for c in counts if c is not None),
        repetition=np.array([p.repetition_penalty for p in params], dtype=np.float32),
        frequency=np.array([p.frequency_penalty for p in params], dtype=np.float32),
        presence=np.array([p.presence_penalty for p in params], dtype=np.float32),
    )


def _biases(s: ScheduledSequence, params: SamplingParams, vocab_size: int) -> Iterator[tuple[int, float]]:
    """Each token at most once; what is banned stays so whatever its bias."""
    if params.logit_bias:
        yield from (entry for entry in params.logit_bias if entry[0] not in s.banned)
    for token in s.banned:
        if token < vocab_size:
            yield token, -np.inf


def _starts(counts: Iterable[int]) -> _Ints:
    return np.fromiter(accumulate(counts, initial=0), dtype=np.int32)


def _joined(lists: Iterable[SequenceOf[int]]) -> _Ints:
    return np.concatenate([np.empty(0, dtype=np.int32), *(np.asarray(part, dtype=np.int32) for part in lists)])


def read_logprobs(
    program: Replayed, logits: Buffer, plan: StepPlan, chosen: SequenceOf[int]
) -> tuple[list[TokenLogprobs | None], list[list[TokenLogprobs]]]:
    """`StepResult.logprobs` and `StepResult.scores` of a plan that was run, with the tokens that were chosen."""
    tops = [s.sampling.logprobs for s in plan.sampled if s.sampling is not None]
    wanted = [(row, token, top) for row, (token, top) in enumerate(zip(chosen, tops, strict=True)) if top is not None]
    scored = chain.from_iterable(((token, span.top) for token in span.tokens) for _, span in plan.scored)
    wanted += ((row, token, top) for row, (token, top) in enumerate(scored, start=len(chosen)))
    if not wanted:
        return [], []
    rows, tokens, most = zip(*wanted, strict=True)
    answer = program.logprobs(
        logits, LogprobRows(np.array(rows, dtype=np.int32), np.array(tokens, dtype=np.int32), max(most))
    )
    entries = _entries(wanted, answer)
    logprobs = [None if top is None else next(entries) for top in tops]
    return logprobs, [list(islice(entries, len(span.tokens))) for _, span in plan.scored]


def _entries(wanted: SequenceOf[tuple[int, int, int]], answer: Logprobs) -> Iterator[TokenLogprobs]:
    columns = (answer.logprob.tolist(), answer.rank.tolist(), answer.top_ids.tolist(), answer.top_logprobs.tolist())
    for (_, token, top), logprob, rank, ids, logprobs in zip(wanted, *columns, strict=True):
        yield TokenLogprobs(token, logprob, rank, tuple(islice(zip(ids, logprobs, strict=True), top)))
