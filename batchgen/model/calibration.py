"""What this machine reaches with the kernels of a run, measured on the ops of a program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from batchgen.config import EngineConfig
from batchgen.core.bound import Rates
from batchgen.core.step import ScheduledSequence, StepPlan
from batchgen.model.batch import make_batch
from batchgen.model.device import choose_device, own_dtype
from batchgen.model.gpu import check_interpreter, program_name
from batchgen.model.prepare import open_program
from batchgen_kernels.ops import Batch, Extent, Precision, Program, Shape

__all__ = ["PRECISIONS", "Measured", "measure_rates"]

PRECISIONS: Sequence[Precision] = ("float32", "int8")

_SECONDS = 0.5
"""For each of the three rates, at least; the best of the calls within it counts, which nobody disturbed."""
_WEIGHTS = 8
"""Different ones in turn, so that they come from memory as those of a model do."""
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What is measured: so large that the machine is as fast as it gets."""

    width: int
    columns: int
    full_steps: tuple[int, ...]
    """Tokens of a step."""
    context: int
    chunk: int
    """The last tokens of the context, whose attention is computed."""
    heads: int
    kv_heads: int
    head_dim: int


_CPU = _Sizes(1024, 4096, (64, 256), 1024, 512, 9, 3, 64)
_GPU = _Sizes(4096, 14_336, (2048, 8192), 8192, 2048, 32, 8, 128)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a kind of kernels reaches."""

    kernels: str
    precision: str
    """Of the linears: `int8`, or a floating type."""
    rates: Rates


def measure_rates(config: EngineConfig, precision: Precision) -> Measured:
    """The rates of the kernels that the settings choose. Takes some seconds and 200 MiB, on a GPU 2 GiB.

    Raises `UsageError` where the kernels that are demanded can't run.
    """
    return _bench(config).measure(precision)


@dataclass(frozen=True, slots=True)
class _Bench:
    sizes: _Sizes
    dtype: torch.dtype
    open: Callable[[Shape], tuple[Program, str]]
    wait: Callable[[], None]
    """Until the device is done."""

    def measure(self, precision: Precision) -> Measured:
        kernels, linear, bandwidth = self._linears(precision)
        label = "int8" if precision == "int8" else str(self.dtype).removeprefix("torch.")
        # A run with int8 linears may have either cache: the quicker one is the limit.
        attention = max(map(self._attention, {"float32", precision}))
        return Measured(kernels, label, Rates(linear=linear, attention=attention, bandwidth=bandwidth))

    def _linears(self, precision: Precision) -> tuple[str, float, float]:
        """Name of the kernels, operations a second in a full step, bytes of weights a second in an empty one."""
        sizes, most = self.sizes, max(self.sizes.full_steps)
        blocks = -(-most // _BLOCK)
        program, name = self.open(Shape(most, 1, blocks, _BLOCK, blocks))
        x = program.operand(sizes.width, Extent.TOKENS, precision)
        program.norm(program.buffer(sizes.width, Extent.TOKENS), torch.ones(sizes.width), 1e-6, x)
        out = program.buffer(sizes.columns, Extent.TOKENS)
        generator = torch.Generator().manual_seed(0)
        for _ in range(_WEIGHTS):
            weight = torch.randn(sizes.columns, sizes.width, generator=generator)
            program.linear(x, program.linear_weight(weight, None, precision), out)
        weights = _WEIGHTS * sizes.width * sizes.columns
        linear = max(2 * weights * tokens / self._best(program, _batch(0, tokens)) for tokens in sizes.full_steps)
        weight_bytes = weights * (1 if precision == "int8" else self.dtype.itemsize)
        return name, linear, weight_bytes / self._best(program, _batch(0, 1))

    def _attention(self, of_cache: Precision) -> float:
        """Operations a second over the end of a prompt, whose beginning is in the cache."""
        sizes, blocks = self.sizes, self.sizes.context // _BLOCK
        program, _ = self.open(Shape(sizes.chunk, 1, blocks, _BLOCK, blocks))
        qkv = program.buffer((sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim, Extent.TOKENS)
        cache = program.kv_cache(sizes.kv_heads, sizes.head_dim, of_cache)
        angles = torch.zeros(sizes.context, sizes.head_dim // 2)
        program.embed(torch.zeros(1, qkv.width), 1.0, qkv)
        program.rotate_store(qkv, cache, program.rotary_table(angles.cos(), angles.sin()), None, None, 1e-6)
        for _ in range(_WEIGHTS):
            attended = program.operand(sizes.heads * sizes.head_dim, Extent.TOKENS, "float32")
            program.attention(qkv, cache, sizes.head_dim**-0.5, None, attended)
        for start in range(0, sizes.context, sizes.chunk):
            program.run(_batch(start, sizes.chunk))
        positions = (sizes.context * (sizes.context + 1) - start * (start + 1)) // 2
        operations = _WEIGHTS * 4 * sizes.heads * sizes.head_dim * positions
        return operations / self._best(program, _batch(start, sizes.chunk))

    def _best(self, program: Program, batch: Batch) -> float:
        """Seconds of the quickest of several runs."""
        program.run(batch)
        self.wait()
        times: list[float] = []
        while sum(times) < _SECONDS:
            began = time.perf_counter()
            program.run(batch)
            self.wait()
            times.append(time.perf_counter() - began)
        return min(times)


def _bench(config: EngineConfig) -> _Bench:
    device = choose_device(config)
    if device.type == "cpu" and config.kernels != "triton":
        return _Bench(_CPU, torch.float32, partial(open_program, config=config), lambda: None)
    check_interpreter(device)
    from batchgen_kernels.triton.program import TritonProgram  # imports triton

    dtype = own_dtype(device)

    def opened(shape: Shape) -> tuple[Program, str]:
        return TritonProgram(shape, device, dtype), program_name(device, dtype)

    if device.type == "cpu":
        return _Bench(_CPU, dtype, opened, lambda: None)
    return _Bench(_GPU, dtype, opened, torch.cuda.synchronize)


def _batch(start: int, count: int) -> Batch:
    """One sequence that computes positions [start, start + count)."""
    table = tuple(range(-(-(start + count) // _BLOCK)))
    one = ScheduledSequence(seq_id=0, start=start, tokens=[0] * count, block_table=table, sampling=None)
    return make_batch(StepPlan((one,)), _BLOCK)
