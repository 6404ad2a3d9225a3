"""What this machine reaches with the kernels of a run, measured on the ops of a program."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from batchgen.config import EngineConfig
from batchgen.core.bound import Rates
from batchgen.core.step import ScheduledSequence, StepPlan
from batchgen.model.batch import make_batch
from batchgen.model.prepare import open_program
from batchgen_kernels.ops import Batch, Extent, Precision, Program, Shape

__all__ = ["PRECISIONS", "measure_rates"]

PRECISIONS: Sequence[Precision] = ("float32", "int8")

_SECONDS = 0.5
"""For each of the three rates, at least; the best of the calls within it counts, which nobody disturbed."""
_WIDTH, _COLUMNS = 1024, 4096
_WEIGHTS = 8
"""Different ones in turn, so that they come from memory as those of a model do: 128 MiB in float32."""
_FULL_STEPS = (64, 256)
"""Tokens of a step in which linears are as fast as they get."""
_CONTEXT, _CHUNK = 1024, 512
_HEADS, _KV_HEADS, _HEAD_DIM = 9, 3, 64
_BLOCK = 16


def measure_rates(config: EngineConfig, precision: Precision) -> tuple[str, Rates]:
    """The name of the kernels that the settings choose, and their rates. Takes some seconds and 200 MiB.

    Raises `UsageError` where the kernels that are demanded can't run.
    """
    name, linear, bandwidth = _linears(config, precision)
    return name, Rates(linear=linear, attention=_attention(config), bandwidth=bandwidth)


def _linears(config: EngineConfig, precision: Precision) -> tuple[str, float, float]:
    """Name of the kernels, operations a second in a full step, bytes of weights a second in an empty one."""
    blocks = -(-max(_FULL_STEPS) // _BLOCK)
    program, name = open_program(Shape(max(_FULL_STEPS), 1, blocks, _BLOCK, blocks), config)
    x = program.operand(_WIDTH, Extent.TOKENS, precision)
    program.norm(program.buffer(_WIDTH, Extent.TOKENS), torch.ones(_WIDTH), 1e-6, x)
    out = program.buffer(_COLUMNS, Extent.TOKENS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_WEIGHTS):
        weight = torch.randn(_COLUMNS, _WIDTH, generator=generator)
        program.linear(x, program.linear_weight(weight, None, precision), out)
    weights = _WEIGHTS * _WIDTH * _COLUMNS
    linear = max(2 * weights * tokens / _best(program, _batch(0, tokens)) for tokens in _FULL_STEPS)
    weight_bytes = weights * (1 if precision == "int8" else 4)
    return name, linear, weight_bytes / _best(program, _batch(0, 1))


def _attention(config: EngineConfig) -> float:
    """Operations a second over the end of a prompt, whose beginning is in the cache."""
    blocks = _CONTEXT // _BLOCK
    program, _ = open_program(Shape(_CHUNK, 1, blocks, _BLOCK, blocks), config)
    qkv = program.buffer((_HEADS + 2 * _KV_HEADS) * _HEAD_DIM, Extent.TOKENS)
    cache = program.kv_cache(_KV_HEADS, _HEAD_DIM, "float32")
    angles = torch.zeros(_CONTEXT, _HEAD_DIM // 2)
    program.embed(torch.zeros(1, qkv.width), 1.0, qkv)
    program.rotate_store(qkv, cache, program.rotary_table(angles.cos(), angles.sin()), None, None, 1e-6)
    program.run(_batch(0, _CHUNK))
    for _ in range(_WEIGHTS):
        attended = program.operand(_HEADS * _HEAD_DIM, Extent.TOKENS, "float32")
        program.attention(qkv, cache, _HEAD_DIM**-0.5, None, attended)
    start = _CONTEXT - _CHUNK
    positions = (_CONTEXT * (_CONTEXT + 1) - start * (start + 1)) // 2
    return _WEIGHTS * 4 * _HEADS * _HEAD_DIM * positions / _best(program, _batch(start, _CHUNK))


def _batch(start: int, count: int) -> Batch:
    """One sequence that computes positions [start, start + count)."""
    table = tuple(range(-(-(start + count) // _BLOCK)))
    one = ScheduledSequence(seq_id=0, start=start, tokens=[0] * count, block_table=table, sampling=None)
    return make_batch(StepPlan((one,)), _BLOCK)


def _best(program: Program, batch: Batch) -> float:
    """Seconds of the quickest of several runs."""
    program.run(batch)
    times: list[float] = []
    while sum(times) < _SECONDS:
        began = time.perf_counter()
        program.run(batch)
        times.append(time.perf_counter() - began)
    return min(times)
