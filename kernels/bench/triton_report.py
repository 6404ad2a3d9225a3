"""Registers, spills and shared memory of every Triton kernel, compiled ahead of time: no GPU is needed.

    PYTHONPATH=kernels python kernels/bench/triton_report.py [--sm 80 90] [--head-dim 128] [--dtype bfloat16]

The kernels are those that one layer of a decoder, its head and its sampling launch, with the same arguments: the
program runs on tensors without storage and each launch is noted instead of made.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from batchgen_kernels import ops
from batchgen_kernels.ops import Extent
from batchgen_kernels.triton.program import TritonProgram

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCAB = 4096, 14_336, 32, 8, 128_256
SHAPE = ops.Shape(max_tokens=256, max_seqs=64, num_blocks=4096, block_size=16, max_blocks_per_seq=512)
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int8: "i8",
}


@dataclass(frozen=True)
class Launch:
    """One kernel as it is launched."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[str, ...]
    options: tuple[tuple[str, int], ...]


def type_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """Launches within, in order, each kind once; none is made."""
    found: dict[Launch, None] = {}

    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:  # noqa: ARG001
        names = kernel.arg_names
        given = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in names}
        constant = {p.name for p in kernel.params if p.is_constexpr}
        aligned = (
            name
            for name, v in given.items()
            if name not in constant and (isinstance(v, torch.Tensor) or (isinstance(v, int) and v % 16 == 0))
        )
        found[
            Launch(
                kernel,
                tuple((name, type_of(v)) for name, v in given.items() if name not in constant),
                tuple((name, given[name]) for name in names if name in constant),
                tuple(aligned),
                tuple((k, v) for k, v in kwargs.items() if k not in names),
            )
        ] = None

    launches: list[Launch] = []
    with mock.patch.object(JITFunction, "run", note):
        yield launches
    launches += found


def launches_of_a_decoder(head_dim: int, dtype: torch.dtype) -> list[Launch]:
    """All kernels of a layer with every variant of an op, of the head and of sampling."""
    program = TritonProgram(SHAPE, torch.device("meta"), dtype)
    with noted() as launches:
        for precision in ("float32", "int8"):
            record_layer(program, head_dim, precision)
        logits = program.buffer(VOCAB, Extent.ROWS)
        for counts in ([1] * 20, [100, 1, 1]):
            program.run(batch_of(counts))
        rows, changes = settings()
        for call in (
            lambda: program.sample(logits, rows),
            lambda: program.sample(logits, ops.SamplingRows(**rows_as_dict(rows), changes=changes)),
            lambda: program.logprobs(logits, ops.LogprobRows(rows.top_k, rows.top_k, 5)),
        ):
            try:
                call()
            except NotImplementedError:
                continue  # there is no storage to read tokens from
    return launches


def rows_as_dict(rows: ops.SamplingRows) -> dict[str, Any]:
    return {name: getattr(rows, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position")}


def record_layer(program: TritonProgram, head_dim: int, precision: ops.Precision) -> None:
    query, qkv_width = HEADS * head_dim, (HEADS + 2 * KV_HEADS) * head_dim
    meta = torch.device("meta")
    residual = program.buffer(HIDDEN, Extent.TOKENS)
    normed = program.operand(HIDDEN, Extent.TOKENS, precision)
    qkv, attended = program.buffer(qkv_width, Extent.TOKENS), program.operand(query, Extent.TOKENS, precision)
    gate_up = program.buffer(2 * INTERMEDIATE, Extent.TOKENS)
    gated = program.operand(INTERMEDIATE, Extent.TOKENS, precision)
    weight, head_weight = torch.empty(HIDDEN, device=meta), torch.empty(head_dim, device=meta)
    program.embed(torch.empty(VOCAB, HIDDEN, device=meta), 1.0, residual)
    program.norm(residual, weight, 1e-5, normed)
    program.norm_add(residual, weight, 1e-5, residual)

    def linear(out: int, width: int) -> ops.LinearWeight:
        return program.linear_weight(torch.empty(out, width, device=meta), torch.empty(out, device=meta), precision)

    program.linear(normed, linear(qkv_width, HIDDEN), qkv)
    cache = program.kv_cache(KV_HEADS, head_dim, precision)
    angles = torch.empty(8192, head_dim // 2, device=meta)
    for norm in (None, head_weight):
        program.rotate_store(qkv, cache, program.rotary_table(angles, angles), norm, norm, 1e-5)
    for window in (None, 4096):
        program.attention(qkv, cache, head_dim**-0.5, window, attended)
    program.linear_add(attended, linear(HIDDEN, query), residual)
    program.linear(normed, linear(2 * INTERMEDIATE, HIDDEN), gate_up)
    for activation in ("silu", "gelu_tanh"):
        program.gated(gate_up, activation, gated)


def batch_of(counts: list[int]) -> ops.Batch:
    """Sequences at a context of 600, computing so many tokens each."""
    total = sum(counts)
    zeros = np.zeros(total, dtype=np.int32)
    contexts = np.full(len(counts), 600, dtype=np.int32)
    return ops.Batch(
        tokens=zeros,
        positions=np.concatenate([np.arange(600 - count, 600) for count in counts]).astype(np.int32),
        slots=zeros,
        query_start=np.cumsum([0, *counts], dtype=np.int32),
        context_lens=contexts,
        block_tables=np.arange(len(counts) * 38, dtype=np.int32).reshape(len(counts), 38),
        rows=np.zeros(1, dtype=np.int32),
    )


def settings() -> tuple[ops.SamplingRows, ops.LogitChanges]:
    floats, ints = np.ones(1, dtype=np.float32), np.ones(1, dtype=np.int32)
    start = np.array([0, 1], dtype=np.int32)
    rows = ops.SamplingRows(floats, ints, floats, floats, np.ones(1, np.uint64), np.ones(1, np.int64))
    masks = np.ones((1, VOCAB // 32), dtype=np.uint32)
    changes = ops.LogitChanges(ints * 0, masks, start, ints, floats, start, ints, ints, floats, floats, floats)
    return rows, changes


def resources(launch: Launch, capability: int) -> tuple[int, int, int]:
    """Registers a thread, bytes spilled a thread, bytes of shared memory a block."""
    names = list(launch.kernel.arg_names)
    source = ASTSource(
        launch.kernel,
        dict(launch.signature) | {name: "constexpr" for name, _ in launch.constants},
        {(names.index(name),): value for name, value in launch.constants},
        {(names.index(name),): [["tt.divisibility", 16]] for name in launch.aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(compiled.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        listing = subprocess.run([tool, "-res-usage", cubin.name], capture_output=True, text=True, check=True).stdout
    usage = dict(re.findall(r"(REG|LOCAL|STACK):(\d+)", listing))
    return int(usage["REG"]), int(usage["LOCAL"]) + int(usage["STACK"]), int(compiled.metadata.shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sm", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--one-each", action="store_true", help="one variant of each kernel")
    arguments = parser.parse_args()
    launches = dict.fromkeys(
        launch
        for head_dim in arguments.head_dim
        for launch in launches_of_a_decoder(head_dim, getattr(torch, arguments.dtype))
    )
    if arguments.one_each:
        launches = {launch.kernel: launch for launch in launches}.values()
    print(f"{'kernel':<14} {'sm':>3} {'registers':>9} {'spilled':>8} {'shared':>7}  variant")
    for launch in launches:
        variant = " ".join(f"{name}={value}" for name, value in (*launch.constants, *launch.options))
        for capability in arguments.sm:
            registers, spilled, shared = resources(launch, capability)
            name = launch.kernel.fn.__name__
            print(f"{name:<14} {capability:>3} {registers:>9} {spilled:>8} {shared:>7}  {variant}", flush=True)


if __name__ == "__main__":
    main()
