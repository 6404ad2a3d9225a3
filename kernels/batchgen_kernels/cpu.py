"""The native program for the CPU: `ops.Program` over the extension module."""

from __future__ import annotations

from dataclasses import fields
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from batchgen_kernels import ops

try:
    from batchgen_kernels import _native
except ImportError as error:
    _NATIVE_MISSING: str | None = f"the native extension is not there: {error}"
else:
    _NATIVE_MISSING = None

__all__ = ["NativeProgram", "available", "instruction_sets", "unavailable_reason"]

_ROTATED = 64
_WIDEST_QUANTIZED = 32_768
_WIDEST_QUANTIZED_HEAD = 1_024
_LANES = 16
"""Positions, and components, that an int8 cache keeps together."""


def available() -> bool:
    """Whether this installation and this machine can run native programs."""
    return _NATIVE_MISSING is None


def unavailable_reason() -> str | None:
    """Why not, None where they can."""
    return _NATIVE_MISSING


def instruction_sets() -> list[str]:
    """What this machine can run, best first; empty without the extension."""
    return _native.instruction_sets() if available() else []


class NativeProgram:
    """`ops.Program` in native code. A request's bits depend on the request, the weights and the instruction set: not
    on the batch, its chunks, the blocks or the number of threads."""

    def __init__(self, shape: ops.Shape, threads: int, instruction_set: str | None = None) -> None:
        """`instruction_set`: one of `instruction_sets()`, None for the best."""
        self._program = _native.Program(
            shape.max_tokens, shape.max_seqs, shape.num_blocks, shape.block_size, threads, instruction_set
        )
        self._shape = shape
        self._caches: list[_native.Cache] = []

    @property
    def name(self) -> str:
        """The instruction set in use."""
        return self._program.instruction_set

    def times(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each kind of op so far."""
        return {kind: (calls, nanoseconds / 1e9) for kind, calls, nanoseconds in self._program.times()}

    # -- storage ---------------------------------------------------------------------------------------------------

    def buffer(self, width: int, extent: ops.Extent) -> ops.Buffer:
        return self._program.buffer(width, extent is ops.Extent.ROWS)

    def operand(self, width: int, extent: ops.Extent, precision: ops.Precision) -> ops.Operand:
        quantized = precision == "int8"
        if quantized and (width % _ROTATED or width > _WIDEST_QUANTIZED):
            raise ValueError(
                f"int8 needs a width that is a multiple of {_ROTATED} and at most {_WIDEST_QUANTIZED}, got {width}"
            )
        return self._program.operand(width, extent is ops.Extent.ROWS, quantized)

    def linear_weight(
        self, weight: torch.Tensor, bias: torch.Tensor | None, precision: ops.Precision
    ) -> ops.LinearWeight:
        given = None if bias is None else _floats(bias)
        if precision == "int8":
            return self._program.linear_i8(_floats(weight), given)
        if weight.dtype is torch.bfloat16:
            return self._program.linear_bf16(_bits(weight), given)
        return self._program.linear_f32(_floats(weight), given)

    def kv_cache(self, num_kv_heads: int, head_dim: int, precision: ops.Precision) -> ops.KVCache:
        quantized = precision == "int8"
        if quantized and (head_dim % _LANES or head_dim > _WIDEST_QUANTIZED_HEAD):
            raise ValueError(
                f"an int8 cache needs heads of a multiple of {_LANES} and at most {_WIDEST_QUANTIZED_HEAD} numbers, "
                f"got {head_dim}"
            )
        if quantized and self._shape.block_size % _LANES:
            raise ValueError(
                f"an int8 cache needs blocks of a multiple of {_LANES} tokens, got {self._shape.block_size}"
            )
        self._caches.append(self._program.cache(num_kv_heads, head_dim, quantized))
        return self._caches[-1]

    def rotary_table(self, cos: torch.Tensor, sin: torch.Tensor) -> ops.RotaryTable:
        return self._program.rotary(_floats(cos), _floats(sin))

    # -- ops -------------------------------------------------------------------------------------------------------

    def embed(self, table: torch.Tensor, scale: float, out: ops.Buffer) -> None:
        if table.dtype is torch.bfloat16:
            self._program.embed_bf16(_bits(table), scale, _buffer(out))
        else:
            self._program.embed_f32(_floats(table), scale, _buffer(out))

    def norm(self, x: ops.Buffer, weight: torch.Tensor, eps: float, out: ops.Operand) -> None:
        self._program.norm(_buffer(x), _floats(weight), eps, _operand(out))

    def norm_add(self, x: ops.Buffer, weight: torch.Tensor, eps: float, residual: ops.Buffer) -> None:
        self._program.norm_add(_buffer(x), _floats(weight), eps, _buffer(residual))

    def linear(self, x: ops.Operand, weight: ops.LinearWeight, out: ops.Buffer) -> None:
        self._program.linear(_operand(x), _linear(weight, x.width, out.width), _buffer(out), False)

    def linear_add(self, x: ops.Operand, weight: ops.LinearWeight, residual: ops.Buffer) -> None:
        self._program.linear(_operand(x), _linear(weight, x.width, residual.width), _buffer(residual), True)

    def rotate_store(
        self,
        qkv: ops.Buffer,
        cache: ops.KVCache,
        rotary: ops.RotaryTable,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        self._program.rotate_store(
            _buffer(qkv),
            cast("_native.Cache", cache),
            cast("_native.Rotary", rotary),
            None if q_norm is None else _floats(q_norm),
            None if k_norm is None else _floats(k_norm),
            eps,
        )

    def attention(
        self, qkv: ops.Buffer, cache: ops.KVCache, scale: float, window: int | None, out: ops.Operand
    ) -> None:
        self._program.attention(_buffer(qkv), cast("_native.Cache", cache), scale, window or 0, _operand(out))

    def gated(self, gate_up: ops.Buffer, activation: ops.Activation, out: ops.Operand) -> None:
        self._program.gated(_buffer(gate_up), activation == "gelu_tanh", _operand(out))

    def gather(self, x: ops.Buffer, out: ops.Buffer) -> None:
        self._program.gather(_buffer(x), _buffer(out))

    # -- replay ----------------------------------------------------------------------------------------------------

    def copy_block(self, source: int, target: int) -> None:
        for cache in self._caches:
            for blocks in cache.numpy():
                blocks[target] = blocks[source]

    def run(self, batch: ops.Batch) -> None:
        self._program.run(
            batch.tokens,
            batch.positions,
            batch.slots,
            batch.query_start,
            batch.context_lens,
            batch.block_tables,
            batch.rows,
        )

    def sample(self, logits: ops.Buffer, rows: ops.SamplingRows) -> npt.NDArray[np.int32]:
        changes = None
        if (c := rows.changes) is not None:
            changes = _native.Changes(*(getattr(c, field.name) for field in fields(c)))
        return self._program.sample(
            _buffer(logits), rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seed, rows.position, changes
        )

    def logprobs(self, logits: ops.Buffer, rows: ops.LogprobRows) -> ops.Logprobs:
        answer = ops.Logprobs.unwritten(rows)
        self._program.logprobs(
            _buffer(logits),
            rows.row,
            rows.token,
            answer.logprob,
            answer.rank,
            answer.top_ids,
            answer.top_logprobs,
        )
        return answer


def _floats(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    return cast("npt.NDArray[np.float32]", tensor.detach().float().contiguous().numpy())


def _bits(tensor: torch.Tensor) -> npt.NDArray[np.uint16]:
    """The bit patterns of a bfloat16 tensor."""
    return cast("npt.NDArray[np.uint16]", tensor.detach().contiguous().view(torch.uint16).numpy())


def _buffer(buffer: ops.Buffer) -> _native.Buffer:
    return cast("_native.Buffer", buffer)


def _operand(operand: ops.Operand) -> _native.Operand:
    return cast("_native.Operand", operand)


def _linear(weight: ops.LinearWeight, width: int, out_width: int) -> _native.Linear:
    if (weight.in_features, weight.out_features) != (width, out_width):
        raise ValueError(f"a weight {weight.out_features} x {weight.in_features} between widths {width}, {out_width}")
    return cast("_native.Linear", weight)
