"""Hidden states added up to embeddings."""

from __future__ import annotations

from array import array
from itertools import accumulate

import numpy as np

from batchgen.core.step import StepPlan
from batchgen.model.decoder import Decoder

__all__ = ["read_pooled"]


def read_pooled(decoder: Decoder, plan: StepPlan) -> list[array[float]]:
    """`StepResult.pooled` of a plan that was run.

    States are normed one by one and added one by one, in float64 and in order of position, so that the sum's bits do
    not depend on where a chunk ends.
    """
    if not plan.pooled:
        return []
    states = decoder.residual.numpy(plan.num_tokens)
    ends = {
        s.seq_id: end for s, end in zip(plan.scheduled, accumulate(len(s.tokens) for s in plan.scheduled), strict=True)
    }
    sums = []
    for s, span in plan.pooled:
        total = np.zeros(states.shape[1]) if span.so_far is None else np.array(span.so_far)
        end = ends[s.seq_id]
        for state in states[end - (s.stop - span.start) : end]:
            total += decoder.norm.apply(state)
        sums.append(array("d", total.tobytes()))
    return sums
