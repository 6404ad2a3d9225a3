"""The program in plain torch, float32: the oracle of every other one, and what runs where no native code can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.nn import functional

from batchgen_kernels import ops
from batchgen_kernels.draw import read_logprobs, sample_rows

__all__ = ["TorchProgram", "hadamard", "quantize"]

_ROTATED = 64
"""Width of the blocks that the int8 scheme rotates."""
_EXACT = 1024
"""Pairs of int8 values whose products float32 sums exactly."""


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Rotate each 64-wide block of the last dimension; the order of additions is part of the int8 scheme.

    x [..., K] float32, K a multiple of 64. The rotation is its own inverse.
    """
    y = x.reshape(-1, _ROTATED)
    distance = 1
    while distance < _ROTATED:
        pairs = y.view(len(y), _ROTATED // (2 * distance), 2, distance)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y = torch.stack([a + b, a - b], dim=2).view(-1, _ROTATED)
        distance *= 2
    return (y * 0.125).view(x.shape)


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated int8 rows and their scales: x [M, K] float32 -> ([M, K] int8, [M] float32)."""
    return _rounded(hadamard(x))


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 rows with a scale each, as `quantize` gives them, without the rotation."""
    peak = x.abs().amax(dim=-1)
    # A tensor on the left: a number there is multiplied by the reciprocal, which rounds twice.
    inverse = torch.where(peak > 0, torch.full_like(peak, 127.0) / peak, 0.0)
    return torch.round(x * inverse[:, None]).to(torch.int8), peak / 127.0


@dataclass(frozen=True, slots=True)
class _Buffer:
    data: torch.Tensor
    """[max rows, width] float32."""
    extent: ops.Extent

    @property
    def width(self) -> int:
        return self.data.shape[1]

    def numpy(self, count: int) -> npt.NDArray[np.float32]:
        return cast("npt.NDArray[np.float32]", self.data[:count].numpy())


@dataclass(frozen=True, slots=True)
class _Operand:
    values: torch.Tensor
    """[max rows, width] float32 or int8."""
    scales: torch.Tensor | None
    """[max rows] float32 beside int8 values."""
    extent: ops.Extent

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def write(self, x: torch.Tensor) -> None:
        """Take the rows x [M, width] float32, quantised where the precision says so."""
        if self.scales is None:
            self.values[: len(x)] = x
        else:
            self.values[: len(x)], self.scales[: len(x)] = quantize(x)


class _FloatLinear:
    """x @ weight.T + bias, by oneDNN over a weight packed once where torch has it (2 to 5 times as fast)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = None if bias is None else bias.float()
        self._packed = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        dense = weight.float().contiguous()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(dense) if self._packed else dense

    def apply(self, x: _Operand, count: int) -> torch.Tensor:
        """[count, N] float32, count >= 1."""
        return self.product(x.values[:count])

    def product(self, values: torch.Tensor) -> torch.Tensor:
        """values [M, K] float32 -> [M, N] float32."""
        if not self._packed:
            return functional.linear(values, self._weight, self._bias)
        out = torch.ops.mkldnn._linear_pointwise(values, self._weight, self._bias, "none", [], "")
        return cast("torch.Tensor", out)


class _Int8Linear:
    """The int8 scheme of `ops.Precision`.

    Its integer sums come from float32 products of 1024 columns at a time: 1024 * 127**2 < 2**24, so that float32 holds
    each partial sum exactly, in any order. torch's own int8 product (`_int_mm`) saturates on CPUs without VNNI.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = None if bias is None else bias.float()
        values, self._scales = quantize(weight.float())
        self._parts = [_FloatLinear(part.float(), None) for part in torch.split(values, _EXACT, dim=1)]

    def apply(self, x: _Operand, count: int) -> torch.Tensor:
        """[count, N] float32, count >= 1."""
        assert x.scales is not None, "an int8 linear reads an int8 operand"
        columns = torch.split(x.values[:count], _EXACT, dim=1)
        products = [part.product(c.float()).int() for part, c in zip(self._parts, columns, strict=True)]
        out = torch.stack(products).sum(dim=0).float() * x.scales[:count, None] * self._scales
        return out if self._bias is None else out + self._bias


@dataclass(frozen=True, slots=True)
class _KVCache:
    keys: torch.Tensor
    """[blocks, block_size, Hk, D] float32; values likewise."""
    values: torch.Tensor
    precision: ops.Precision

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """What comes back of x [..., D] once it was stored; queries are rounded alike."""
        if self.precision == "float32":
            return x
        rotated = hadamard if x.shape[-1] % _ROTATED == 0 else torch.clone
        q, scales = _rounded(rotated(x.reshape(-1, x.shape[-1])))
        return rotated(q.float() * scales[:, None]).view(x.shape)

    @property
    def heads(self) -> int:
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[3]


@dataclass(frozen=True, slots=True)
class _RotaryTable:
    cos: torch.Tensor
    """[positions, D / 2] float32; sin likewise."""
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Segment:
    """One sequence's part of a step."""

    start: int
    """Its tokens are [start, stop) of the step."""
    stop: int
    context: int
    """Positions in the cache, the step's own included."""
    blocks: torch.Tensor
    """[ceil(context / block_size)] int32."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch as torch sees it."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    segments: tuple[_Segment, ...]
    masks: dict[tuple[int, int, int | None], torch.Tensor | None] = field(default_factory=dict)
    """Attention masks by (queries, context, window): the same in every layer."""

    @classmethod
    def of(cls, batch: ops.Batch, block_size: int) -> _Step:
        tables = torch.from_numpy(batch.block_tables)
        bounds, contexts = batch.query_start.tolist(), batch.context_lens.tolist()
        segments = tuple(
            _Segment(bounds[s], bounds[s + 1], context, tables[s, : -(-context // block_size)])
            for s, context in enumerate(contexts)
        )
        return cls(
            tokens=torch.from_numpy(batch.tokens),
            positions=torch.from_numpy(batch.positions),
            slots=torch.from_numpy(batch.slots),
            rows=torch.from_numpy(batch.rows),
            segments=segments,
        )

    def count(self, extent: ops.Extent) -> int:
        return len(self.tokens if extent is ops.Extent.TOKENS else self.rows)

    def mask(self, queries: int, context: int, window: int | None) -> torch.Tensor | None:
        """[queries, context] bool, true where a query sees a position; None where all are seen."""
        key = (queries, context, window)
        if key not in self.masks:
            self.masks[key] = _mask(queries, context, window)
        return self.masks[key]


def _mask(queries: int, context: int, window: int | None) -> torch.Tensor | None:
    if queries == 1 and (window is None or window >= context):
        return None
    position = torch.arange(context - queries, context)[:, None]
    seen = torch.arange(context) <= position
    return seen if window is None else seen & (torch.arange(context) > position - window)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D]; cos, sin [T, 1, D / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class TorchProgram:
    """`ops.CollectiveProgram` in plain torch on the CPU."""

    def __init__(self, shape: ops.Shape) -> None:
        self._shape = shape
        self._ops: list[Callable[[_Step], None]] = []
        self._caches: list[_KVCache] = []

    # -- storage ---------------------------------------------------------------------------------------------------

    def buffer(self, width: int, extent: ops.Extent) -> _Buffer:
        return _Buffer(torch.zeros(self._bound(extent), width), extent)

    def operand(self, width: int, extent: ops.Extent, precision: ops.Precision) -> _Operand:
        rows = self._bound(extent)
        if precision == "float32":
            return _Operand(torch.zeros(rows, width), None, extent)
        if width % _ROTATED:
            raise ValueError(f"int8 needs a width that is a multiple of {_ROTATED}, got {width}")
        return _Operand(torch.zeros(rows, width, dtype=torch.int8), torch.zeros(rows), extent)

    def linear_weight(
        self, weight: torch.Tensor, bias: torch.Tensor | None, precision: ops.Precision
    ) -> _FloatLinear | _Int8Linear:
        return _FloatLinear(weight, bias) if precision == "float32" else _Int8Linear(weight, bias)

    def kv_cache(self, num_kv_heads: int, head_dim: int, precision: ops.Precision) -> _KVCache:
        # Left empty: pages that no token has reached take no memory.
        size = (self._shape.num_blocks, self._shape.block_size, num_kv_heads, head_dim)
        self._caches.append(_KVCache(torch.empty(size), torch.empty(size), precision))
        return self._caches[-1]

    def rotary_table(self, cos: torch.Tensor, sin: torch.Tensor) -> _RotaryTable:
        return _RotaryTable(cos.float(), sin.float())

    # -- ops -------------------------------------------------------------------------------------------------------

    def embed(self, table: torch.Tensor, scale: float, out: ops.Buffer) -> None:
        target = cast("_Buffer", out)

        def op(step: _Step) -> None:
            target.data[: len(step.tokens)] = functional.embedding(step.tokens, table).float() * scale

        self._ops.append(op)

    def norm(self, x: ops.Buffer, weight: torch.Tensor, eps: float, out: ops.Operand) -> None:
        source, target = cast("_Buffer", x), cast("_Operand", out)

        def op(step: _Step) -> None:
            target.write(_rms_norm(source.data[: step.count(source.extent)], weight, eps))

        self._ops.append(op)

    def norm_add(self, x: ops.Buffer, weight: torch.Tensor, eps: float, residual: ops.Buffer) -> None:
        source, target = cast("_Buffer", x), cast("_Buffer", residual)

        def op(step: _Step) -> None:
            count = step.count(source.extent)
            target.data[:count] += _rms_norm(source.data[:count], weight, eps)

        self._ops.append(op)

    def linear(self, x: ops.Operand, weight: ops.LinearWeight, out: ops.Buffer) -> None:
        source, matrix, target = cast("_Operand", x), cast("_FloatLinear | _Int8Linear", weight), cast("_Buffer", out)

        def op(step: _Step) -> None:
            count = step.count(source.extent)
            if count:
                target.data[:count] = matrix.apply(source, count)

        self._ops.append(op)

    def linear_add(self, x: ops.Operand, weight: ops.LinearWeight, residual: ops.Buffer) -> None:
        source, matrix = cast("_Operand", x), cast("_FloatLinear | _Int8Linear", weight)
        target = cast("_Buffer", residual)

        def op(step: _Step) -> None:
            count = step.count(source.extent)
            if count:
                target.data[:count] += matrix.apply(source, count)

        self._ops.append(op)

    def rotate_store(
        self,
        qkv: ops.Buffer,
        cache: ops.KVCache,
        rotary: ops.RotaryTable,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        source, store, table = cast("_Buffer", qkv), cast("_KVCache", cache), cast("_RotaryTable", rotary)
        heads, head_dim = store.heads, store.head_dim
        q_heads = source.width // head_dim - 2 * heads

        def op(step: _Step) -> None:
            rows = source.data[: len(step.tokens)].view(len(step.tokens), -1, head_dim)
            q, k, v = rows[:, :q_heads], rows[:, q_heads : q_heads + heads], rows[:, q_heads + heads :]
            q = q if q_norm is None else _rms_norm(q, q_norm, eps)
            k = k if k_norm is None else _rms_norm(k, k_norm, eps)
            cos, sin = table.cos[step.positions, None], table.sin[step.positions, None]
            store.keys.view(-1, heads, head_dim)[step.slots] = store.stored(_rotate(k, cos, sin))
            store.values.view(-1, heads, head_dim)[step.slots] = store.stored(v)
            rows[:, :q_heads] = store.stored(_rotate(q, cos, sin))

        self._ops.append(op)

    def attention(
        self, qkv: ops.Buffer, cache: ops.KVCache, scale: float, window: int | None, out: ops.Operand
    ) -> None:
        source, store, target = cast("_Buffer", qkv), cast("_KVCache", cache), cast("_Operand", out)
        heads, head_dim = store.heads, store.head_dim

        def attend(step: _Step, segment: _Segment) -> torch.Tensor:
            """One sequence, [n, Hq D]; the query heads of one key head are laid one below the other."""
            n = segment.stop - segment.start
            keys, values = (
                part.index_select(0, segment.blocks).view(-1, heads, head_dim)[: segment.context].transpose(0, 1)[None]
                for part in (store.keys, store.values)
            )
            rows = source.data[segment.start : segment.stop, : target.width].view(n, heads, -1, head_dim)
            group = rows.shape[2]
            mask = step.mask(n, segment.context, window)
            attended = functional.scaled_dot_product_attention(
                rows.permute(1, 2, 0, 3).reshape(1, heads, group * n, head_dim),
                keys,
                values,
                attn_mask=None if mask is None else mask.repeat(group, 1),
                scale=scale,
            )
            return attended.view(heads, group, n, head_dim).permute(2, 0, 1, 3).reshape(n, target.width)

        def op(step: _Step) -> None:
            if step.segments:
                target.write(torch.cat([attend(step, segment) for segment in step.segments]))

        self._ops.append(op)

    def gated(self, gate_up: ops.Buffer, activation: ops.Activation, out: ops.Operand) -> None:
        source, target = cast("_Buffer", gate_up), cast("_Operand", out)

        def op(step: _Step) -> None:
            gate, up = source.data[: step.count(source.extent)].chunk(2, dim=-1)
            active = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
            target.write(active * up)

        self._ops.append(op)

    def gather(self, x: ops.Buffer, out: ops.Buffer) -> None:
        source, target = cast("_Buffer", x), cast("_Buffer", out)

        def op(step: _Step) -> None:
            target.data[: len(step.rows)] = source.data[step.rows]

        self._ops.append(op)

    def all_reduce(self, x: ops.Buffer) -> None:
        target = cast("_Buffer", x)
        self._ops.append(lambda step: distributed.all_reduce(target.data[: step.count(target.extent)]))

    # -- replay ----------------------------------------------------------------------------------------------------

    def copy_block(self, source: int, target: int) -> None:
        for cache in self._caches:
            for blocks in (cache.keys, cache.values):
                blocks[target] = blocks[source]

    @torch.inference_mode()
    def run(self, batch: ops.Batch) -> None:
        step = _Step.of(batch, self._shape.block_size)
        for op in self._ops:
            op(step)

    def sample(self, logits: ops.Buffer, rows: ops.SamplingRows) -> npt.NDArray[np.int32]:
        return sample_rows(logits.numpy(len(rows.seed)), rows)

    def logprobs(self, logits: ops.Buffer, rows: ops.LogprobRows) -> ops.Logprobs:
        return read_logprobs(logits.numpy(int(rows.row.max(initial=-1)) + 1), rows)

    def _bound(self, extent: ops.Extent) -> int:
        return self._shape.max_tokens if extent is ops.Extent.TOKENS else self._shape.max_seqs
