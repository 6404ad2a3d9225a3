"""How each kernel is launched: grids, tiles, and the matrix products that torch computes.

Nothing is contracted by the compiler (`enable_fp_fusion`): each operation is rounded, on every GPU alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import triton
import triton.language as tl

from batchgen_kernels import ops
from batchgen_kernels.triton.device import attention as attention_kernels
from batchgen_kernels.triton.device import int8, rotary, rows
from batchgen_kernels.triton.storage import KVCache, LinearWeight, Operand, RotaryTable

__all__ = [
    "SPLIT",
    "AttentionArrays",
    "AttentionTile",
    "attention",
    "attention_tile",
    "gated",
    "linear",
    "norm",
    "quantize",
    "rotate",
    "rotate_store",
    "take_rows",
]

SPLIT = 256
"""Positions of a context in one split of attention."""
_TYPES: Mapping[torch.dtype, tl.dtype] = MappingProxyType(
    {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
)
_COLUMNS = 1024
_ROTATED = 64
_HEADS = 8
"""Heads that one program rotates."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """How much one program of attention has at hand. The same for a prompt's chunk and for a single token: with one
    instruction shape for all a query's bits are the same in both. Single tokens are bound by reading keys and values,
    not by the rows left empty."""

    rows: int
    """Queries times heads."""
    positions: int
    """Keys and values that are read at once."""
    warps: int


@dataclass(frozen=True, slots=True)
class AttentionArrays:
    """What `device.attention` reads of a step, all int32 on the device."""

    positions: torch.Tensor
    tables: torch.Tensor
    items: torch.Tensor
    partial_base: torch.Tensor
    merges: torch.Tensor


def take_rows(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor, scale: float, count: int) -> None:
    """out[i] = source[index[i]] * scale for the first `count` rows."""
    width = source.shape[1]
    block = min(triton.next_power_of_2(width), _COLUMNS)
    if count:
        rows.take_rows[(count, triton.cdiv(width, block))](
            source, index, out, scale, WIDTH=width, BLOCK=block, enable_fp_fusion=False
        )


def norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, count: int, *, add: bool) -> None:
    """RMSNorm of the first `count` rows into `out`, or added to it."""
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    if count:
        rows.norm[(count,)](
            x, weight, out, eps, WIDTH=width, BLOCK=block, ADD=add, num_warps=_warps(block), enable_fp_fusion=False
        )


def gated(gate_up: torch.Tensor, out: torch.Tensor, activation: ops.Activation, count: int) -> None:
    """act(gate) * up of the first `count` rows."""
    width = out.shape[1]
    block = min(triton.next_power_of_2(width), _COLUMNS)
    if count:
        grid = (count, triton.cdiv(width, block))
        rows.gated[grid](gate_up, out, WIDTH=width, GELU=activation == "gelu_tanh", BLOCK=block, enable_fp_fusion=False)


def rotate_store(
    qkv: torch.Tensor,
    cache: KVCache,
    table: RotaryTable,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    places: tuple[torch.Tensor, torch.Tensor],
    count: int,
) -> None:
    """See `ops.Program.rotate_store`; places: positions and slots."""
    half = cache.head_dim // 2
    heads = qkv.shape[1] // cache.head_dim
    if not count:
        return
    quantised = cache.key_scales is not None
    kernel = rotary.rotate_store_int8 if quantised else rotary.rotate_store
    kernel[(count, triton.cdiv(heads, _HEADS))](
        qkv,
        *cache.parts(),
        table.cos,
        table.sin,
        # Never read where there are no norms.
        table.cos if q_norm is None else q_norm,
        table.cos if k_norm is None else k_norm,
        *places,
        eps,
        Q_HEADS=heads - 2 * cache.heads,
        KV_HEADS=cache.heads,
        HALF=half,
        BLOCK=triton.next_power_of_2(half),
        HEADS=_HEADS,
        NORMED=q_norm is not None,
        **({"ROTATED": cache.head_dim % _ROTATED == 0} if quantised else {}),
        enable_fp_fusion=False,
    )


def attention(
    qkv: torch.Tensor,
    cache: KVCache,
    out: torch.Tensor,
    partials: tuple[torch.Tensor, torch.Tensor],
    arrays: AttentionArrays,
    scale: float,
    window: int | None,
    block_size: int,
) -> None:
    """Attention of all items of a plan, then the merge of what was cut."""
    heads = out.shape[1] // cache.head_dim
    block_d, tile = _block_d(cache), attention_tile(cache, qkv.dtype)
    scaled = cache.key_scales is not None
    # With the scales of an int8 cache in them weights are too small for float16.
    weight = torch.bfloat16 if scaled and qkv.dtype is torch.float16 else qkv.dtype
    if len(arrays.items):
        attention_kernels.attend[(len(arrays.items), cache.heads)](
            qkv,
            cache.keys,
            cache.values,
            # Never read where there are none.
            cache.keys if cache.key_scales is None else cache.key_scales,
            cache.values if cache.value_scales is None else cache.value_scales,
            out,
            *partials,
            arrays.items,
            arrays.positions,
            arrays.tables,
            arrays.partial_base,
            arrays.tables.shape[1],
            scale * math.log2(math.e),
            window or 0,
            QKV_WIDTH=qkv.shape[1],
            KV_HEADS=cache.heads,
            GROUP=heads // cache.heads,
            D=cache.head_dim,
            BLOCK_D=block_d,
            BLOCK_SIZE=block_size,
            SPLIT=SPLIT,
            ROWS=tile.rows,
            TILE=tile.positions,
            ITEM=arrays.items.shape[1],
            WINDOWED=window is not None,
            SCALED=scaled,
            DOT=dot_type(qkv.dtype),
            WEIGHT=_TYPES[weight],
            VALUE_DOT=dot_type(weight),
            num_warps=tile.warps,
            num_stages=2,
            enable_fp_fusion=False,
        )
    if len(arrays.merges):
        attention_kernels.merge[(len(arrays.merges), heads)](
            *partials,
            out,
            arrays.merges,
            HEADS=heads,
            D=cache.head_dim,
            BLOCK_D=block_d,
            num_warps=1,
            enable_fp_fusion=False,
        )


def attention_tile(cache: KVCache, dtype: torch.dtype) -> AttentionTile:
    """The largest tile whose numbers stay in registers and shared memory: see `make kernels-report`."""
    size, quantized = _block_d(cache), cache.key_scales is not None
    large = size > 128
    if dtype is torch.float32:
        return AttentionTile((32 if large else 64) // (2 if quantized else 1), 32 if size <= 64 else 16, 8)
    if large:
        return AttentionTile(32 if quantized else 64, 32, 8)
    return AttentionTile(64, 64, 8 if quantized and size == 128 else 4)


def _block_d(cache: KVCache) -> int:
    return max(16, int(triton.next_power_of_2(cache.head_dim)))


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """In what type tiles are multiplied. The interpreter knows no bfloat16 products; float32 gives the same values."""
    if dtype is torch.bfloat16:
        return tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16
    return _TYPES[dtype]


def rotate(x: torch.Tensor, count: int) -> None:
    """Rotate the first `count` rows, 64 numbers at a time, where they lie."""
    block = min(triton.next_power_of_2(x.shape[1]), _COLUMNS)
    if count:
        int8.rotate[(count, triton.cdiv(x.shape[1], block))](x, WIDTH=x.shape[1], BLOCK=block, enable_fp_fusion=False)


def quantize(operand: Operand, count: int) -> None:
    """The int8 form of the first `count` rows, where the operand has one."""
    if operand.quantized is None or not count:
        return
    block = triton.next_power_of_2(operand.width)
    int8.quantize[(count,)](
        operand.values,
        operand.quantized,
        operand.scales,
        WIDTH=operand.width,
        BLOCK=block,
        num_warps=_warps(block),
        enable_fp_fusion=False,
    )


def linear(x: Operand, matrix: LinearWeight, out: torch.Tensor, count: int, *, add: bool) -> None:
    """x @ weight.T + bias of the first `count` rows into `out`, or added to it."""
    if not count:
        return
    target = out[:count]
    if matrix.scales is not None:
        _linear_int8(x, matrix, target, add=add)
    elif add:
        target.addmm_(x.values[:count], matrix.weight.t())
        if matrix.bias is not None:
            target.add_(matrix.bias)
    elif matrix.bias is None:
        torch.mm(x.values[:count], matrix.weight.t(), out=target)
    else:
        torch.addmm(matrix.bias, x.values[:count], matrix.weight.t(), out=target)


def _linear_int8(x: Operand, matrix: LinearWeight, out: torch.Tensor, *, add: bool) -> None:
    if x.quantized is None:
        raise ValueError("an int8 linear reads an int8 operand")
    count, columns = out.shape
    block_m, block_n = (16, 64) if count <= 16 else (64, 64) if count <= 64 else (128, 128)
    int8.linear_int8[(triton.cdiv(count, block_m), triton.cdiv(columns, block_n))](
        x.quantized,
        x.scales,
        matrix.weight,
        matrix.scales,
        matrix.scales if matrix.bias is None else matrix.bias,
        out,
        count,
        K=matrix.in_features,
        N=columns,
        BIASED=matrix.bias is not None,
        ADD=add,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=64,
        num_warps=8 if block_m == 128 else 4,
        num_stages=4,
        enable_fp_fusion=False,
    )


def _warps(block: int) -> int:
    """Warps for a program that holds a whole row: 16 values a thread or so."""
    return min(max(block // 512, 1), 16)
