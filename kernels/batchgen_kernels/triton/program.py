"""The Triton program: `ops.CollectiveProgram` and `ops.Ahead` on a GPU, or on the CPU under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from batchgen_kernels import ops
from batchgen_kernels.triton import launch
from batchgen_kernels.triton.inputs import Inputs
from batchgen_kernels.triton.plan import AttentionLimits, AttentionPlan, plan_attention
from batchgen_kernels.triton.replay import CudaGraphs, Direct, Replays
from batchgen_kernels.triton.sampling import Sampler
from batchgen_kernels.triton.storage import Buffer, KVCache, LinearWeight, Operand, RotaryTable, pack_linear

__all__ = ["TritonProgram"]

_MAX_PARTIALS = 4096
"""Partial results of attention in one step."""
_INTERPRETED_PROCESSORS = 4
"""The interpreter stands for a small GPU."""
_ROTATED = 64


@dataclass(frozen=True, slots=True)
class _Counts:
    """How far the kernels of a step go: the batch's counts, or those of the ladder's size that it is padded to."""

    tokens: int
    rows: int
    items: tuple[int, ...]
    """One entry for each kind of attention; `merges` likewise."""
    merges: tuple[int, ...]

    def of(self, extent: ops.Extent) -> int:
        return self.tokens if extent is ops.Extent.TOKENS else self.rows


class TritonProgram:
    """Every op in the order recorded, as kernels over one device's memory.

    A request's bits depend on the request alone wherever Triton computes. Matrix products in floats are cuBLAS's, whose
    order of summation may change with the number of rows; int8 ones are exact.
    """

    def __init__(self, shape: ops.Shape, device: torch.device, dtype: torch.dtype) -> None:
        """`dtype`: of weights, activations, keys and values."""
        self._shape = shape
        self._device = device
        self._dtype = dtype
        self._ops: list[Callable[[_Counts], None]] = []
        self._caches: list[KVCache] = []
        self._limits: list[AttentionLimits] = []
        self._partials: tuple[torch.Tensor, torch.Tensor] | None = None
        self._inputs: Inputs | None = None
        self._replays = Replays(shape.max_seqs, CudaGraphs() if device.type == "cuda" else Direct())
        self._sampler = Sampler(device, shape.max_seqs)
        self._processors = _INTERPRETED_PROCESSORS
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count

    # -- storage ---------------------------------------------------------------------------------------------------

    def buffer(self, width: int, extent: ops.Extent) -> Buffer:
        return Buffer(self._zeros(self._bound(extent), width, dtype=self._dtype), extent)

    def operand(self, width: int, extent: ops.Extent, precision: ops.Precision) -> Operand:
        rows = self._bound(extent)
        values = self._zeros(rows, width, dtype=self._dtype)
        if precision == "float32":
            return Operand(values, extent, None, None)
        if width % _ROTATED:
            raise ValueError(f"int8 needs a width that is a multiple of {_ROTATED}, got {width}")
        return Operand(
            values, extent, self._zeros(rows, width, dtype=torch.int8), self._zeros(rows, dtype=torch.float32)
        )

    def linear_weight(self, weight: torch.Tensor, bias: torch.Tensor | None, precision: ops.Precision) -> LinearWeight:
        return pack_linear(weight, bias, precision, self._dtype, self._device)

    def kv_cache(self, num_kv_heads: int, head_dim: int, precision: ops.Precision) -> KVCache:
        dtype = self._dtype
        if precision == "int8":
            dtype = torch.int8
            if head_dim % _ROTATED == 0 and head_dim & (head_dim - 1):
                raise ValueError(f"an int8 cache for heads of {head_dim}: the kernels rotate 64, 128 or 256 numbers")
        slots = self._shape.num_blocks * self._shape.block_size
        self._caches.append(KVCache.empty(slots, num_kv_heads, head_dim, dtype, self._device))
        return self._caches[-1]

    def rotary_table(self, cos: torch.Tensor, sin: torch.Tensor) -> RotaryTable:
        return RotaryTable(self._floats(cos), self._floats(sin))

    def resize_caches(self, num_blocks: int) -> None:
        """Give all caches this many blocks; what they held is lost."""
        self._shape = replace(self._shape, num_blocks=num_blocks)
        self._replays.forget()
        for cache in self._caches:
            cache.resize(num_blocks * self._shape.block_size)

    # -- ops -------------------------------------------------------------------------------------------------------

    def embed(self, table: torch.Tensor, scale: float, out: ops.Buffer) -> None:
        target, own = cast("Buffer", out), table.to(self._device, self._dtype)
        self._ops.append(lambda counts: launch.take_rows(own, self._array("tokens"), target.data, scale, counts.tokens))

    def norm(self, x: ops.Buffer, weight: torch.Tensor, eps: float, out: ops.Operand) -> None:
        source, target, own = cast("Buffer", x), cast("Operand", out), self._floats(weight)

        def op(counts: _Counts) -> None:
            count = counts.of(source.extent)
            launch.norm(source.data, own, target.values, eps, count, add=False)
            launch.quantize(target, count)

        self._ops.append(op)

    def norm_add(self, x: ops.Buffer, weight: torch.Tensor, eps: float, residual: ops.Buffer) -> None:
        source, target, own = cast("Buffer", x), cast("Buffer", residual), self._floats(weight)
        self._ops.append(
            lambda counts: launch.norm(source.data, own, target.data, eps, counts.of(source.extent), add=True)
        )

    def linear(self, x: ops.Operand, weight: ops.LinearWeight, out: ops.Buffer) -> None:
        source, matrix, target = cast("Operand", x), cast("LinearWeight", weight), cast("Buffer", out)
        self._ops.append(lambda counts: launch.linear(source, matrix, target.data, counts.of(source.extent), add=False))

    def linear_add(self, x: ops.Operand, weight: ops.LinearWeight, residual: ops.Buffer) -> None:
        source, matrix, target = cast("Operand", x), cast("LinearWeight", weight), cast("Buffer", residual)
        self._ops.append(lambda counts: launch.linear(source, matrix, target.data, counts.of(source.extent), add=True))

    def rotate_store(
        self,
        qkv: ops.Buffer,
        cache: ops.KVCache,
        rotary: ops.RotaryTable,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        source, store, table = cast("Buffer", qkv), cast("KVCache", cache), cast("RotaryTable", rotary)
        norms = [None if weight is None else self._floats(weight) for weight in (q_norm, k_norm)]
        if (norms[0] is None) != (norms[1] is None):
            raise ValueError("queries and keys are normed together or not at all")

        def op(counts: _Counts) -> None:
            places = (self._array("positions"), self._array("slots"))
            launch.rotate_store(source.data, store, table, norms[0], norms[1], eps, places, counts.tokens)

        self._ops.append(op)

    def attention(
        self, qkv: ops.Buffer, cache: ops.KVCache, scale: float, window: int | None, out: ops.Operand
    ) -> None:
        source, store, target = cast("Buffer", qkv), cast("KVCache", cache), cast("Operand", out)
        kind = self._kind(store, target.width, window)
        if self._partials is None:
            self._partials = (
                self._empty(_MAX_PARTIALS, target.width),
                self._empty(_MAX_PARTIALS, target.width // store.head_dim, 2),
            )
        partials = self._partials

        def op(counts: _Counts) -> None:
            arrays = launch.AttentionArrays(
                positions=self._array("positions"),
                tables=self._array("tables"),
                items=self._array(f"items{kind}")[: counts.items[kind]],
                partial_base=self._array(f"base{kind}"),
                merges=self._array(f"merges{kind}")[: counts.merges[kind]],
            )
            launch.attention(source.data, store, target.values, partials, arrays, scale, window, self._shape.block_size)
            if store.key_scales is not None and store.head_dim % _ROTATED == 0:
                launch.rotate(target.values, counts.tokens)
            launch.quantize(target, counts.tokens)

        self._ops.append(op)

    def gated(self, gate_up: ops.Buffer, activation: ops.Activation, out: ops.Operand) -> None:
        source, target = cast("Buffer", gate_up), cast("Operand", out)

        def op(counts: _Counts) -> None:
            count = counts.of(source.extent)
            launch.gated(source.data, target.values, activation, count)
            launch.quantize(target, count)

        self._ops.append(op)

    def gather(self, x: ops.Buffer, out: ops.Buffer) -> None:
        source, target = cast("Buffer", x), cast("Buffer", out)
        self._ops.append(
            lambda counts: launch.take_rows(source.data, self._array("rows"), target.data, 1.0, counts.rows)
        )

    def all_reduce(self, x: ops.Buffer) -> None:
        target = cast("Buffer", x)
        self._ops.append(lambda counts: distributed.all_reduce(target.data[: counts.of(target.extent)]))

    # -- replay ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def copy_block(self, source: int, target: int) -> None:
        size = self._shape.block_size
        for cache in self._caches:
            for slots in cache.parts():
                slots[target * size : (target + 1) * size] = slots[source * size : (source + 1) * size]

    @torch.inference_mode()
    def run(self, batch: ops.Batch) -> None:
        """Compute all recorded ops. Returns before the device is done."""
        sequences = len(batch.context_lens)
        if sequences and len(batch.rows) <= sequences == len(batch.tokens):
            size = self._replays.size_for(sequences)
            items = size + self._spare_items
            counts = _Counts(size, size, (items,) * len(self._limits), (size,) * len(self._limits))
            self._load(batch, [plan_attention(batch, replace(k, max_items=items)) for k in self._limits], counts)
            self._replays.run(size, lambda: self._compute(counts))
        else:
            plans = [plan_attention(batch, kind) for kind in self._limits]
            counts = _Counts(
                len(batch.tokens),
                len(batch.rows),
                tuple(len(plan.items) for plan in plans),
                tuple(len(plan.merges) for plan in plans),
            )
            self._load(batch, plans, counts)
            self._compute(counts)

    def sample(self, logits: ops.Buffer, rows: ops.SamplingRows) -> npt.NDArray[np.int32]:
        return self.begin_sample(logits, rows)()

    def begin_sample(self, logits: ops.Buffer, rows: ops.SamplingRows) -> Callable[[], npt.NDArray[np.int32]]:
        return self._sampler.begin(cast("Buffer", logits).data, rows)

    def logprobs(self, logits: ops.Buffer, rows: ops.LogprobRows) -> ops.Logprobs:
        return self._sampler.logprobs(cast("Buffer", logits).data, rows)

    def _compute(self, counts: _Counts) -> None:
        for op in self._ops:
            op(counts)

    def _load(self, batch: ops.Batch, plans: list[AttentionPlan], counts: _Counts) -> None:
        if self._inputs is None:
            self._inputs = Inputs(self._input_shapes(), self._device)
        arrays = {
            "tokens": (batch.tokens, counts.tokens, 0),
            "positions": (batch.positions, counts.tokens, 0),
            "slots": (batch.slots, counts.tokens, -1),
            "rows": (batch.rows, counts.rows, 0),
            "tables": (batch.block_tables, len(batch.block_tables), 0),
        }
        for kind, plan in enumerate(plans):
            arrays[f"items{kind}"] = (plan.items, counts.items[kind], -1)
            arrays[f"base{kind}"] = (plan.partial_base, counts.tokens, -1)
            arrays[f"merges{kind}"] = (plan.merges, counts.merges[kind], -1)
        if batch.follows is not None:
            arrays["follows"] = (batch.follows, len(batch.follows), -1)
        self._inputs.fill(arrays)
        if batch.follows is not None:
            tokens, follows = (self._inputs[name][: len(batch.follows)] for name in ("tokens", "follows"))
            chosen = self._sampler.chosen[follows.clamp(min=0)]
            torch.where(follows < 0, tokens, chosen, out=tokens)

    def _input_shapes(self) -> dict[str, tuple[int, ...]]:
        shape = self._shape
        tokens = (max(shape.max_tokens, shape.max_seqs),)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("tokens", "follows", "positions", "slots"), tokens)
        shapes |= {"rows": (shape.max_seqs,), "tables": (shape.max_seqs, shape.max_blocks_per_seq)}
        for kind, limits in enumerate(self._limits):
            shapes[f"items{kind}"] = (limits.max_items, 3 + limits.tile_tokens)
            shapes[f"base{kind}"] = tokens
            shapes[f"merges{kind}"] = (shape.max_seqs, 3)
        return shapes

    # -- helpers ---------------------------------------------------------------------------------------------------

    @property
    def _spare_items(self) -> int:
        """Attention items beyond one for each tile, for contexts that are cut."""
        return 4 * self._processors

    def _kind(self, cache: KVCache, width: int, window: int | None) -> int:
        """The number of the kind of attention with these limits; layers of one kind share a plan."""
        group = width // cache.head_dim // cache.heads
        tile_tokens = launch.attention_tile(cache, self._dtype).rows // group
        if not tile_tokens:
            raise ValueError(f"{group} query heads to a key head are more than a tile of attention holds")
        limits = AttentionLimits(
            split=launch.SPLIT,
            tile_tokens=tile_tokens,
            block_size=self._shape.block_size,
            window=window,
            max_items=-(-self._shape.max_tokens // tile_tokens) + self._shape.max_seqs + self._spare_items,
            max_partials=_MAX_PARTIALS,
            enough_items=-(-2 * self._processors // cache.heads),
        )
        if limits not in self._limits:
            self._limits.append(limits)
        return self._limits.index(limits)

    def _array(self, name: str) -> torch.Tensor:
        assert self._inputs is not None, "a step's arrays are loaded before it is computed"
        return self._inputs[name]

    def _floats(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._device, torch.float32).contiguous()

    def _zeros(self, *size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=self._device)

    def _empty(self, *size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=self._device)

    def _bound(self, extent: ops.Extent) -> int:
        return self._shape.max_tokens if extent is ops.Extent.TOKENS else self._shape.max_seqs
