"""The extension module: see csrc/module.cpp."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.int8]

def instruction_sets() -> list[str]:
    """What this machine can run, best first."""

def peak(instruction_set: str, int8: bool, threads: int, steps: int, /) -> float:
    """Operations a second that all threads reach on registers, in `steps` loops each; 0 where there are none."""

class Buffer:
    @property
    def width(self) -> int: ...
    def numpy(self, count: int) -> Floats: ...

class Operand:
    @property
    def width(self) -> int: ...
    def numpy(self, count: int) -> Floats: ...
    def quantized(self, count: int) -> tuple[npt.NDArray[np.uint8], Floats]: ...

class Linear:
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...

class Rotary: ...

class Changes:
    def __init__(
        self,
        mask_of: Ints,
        masks: npt.NDArray[np.uint32],
        bias_start: Ints,
        bias_ids: Ints,
        bias: Floats,
        context_start: Ints,
        context_ids: Ints,
        context_counts: Ints,
        repetition: Floats,
        frequency: Floats,
        presence: Floats,
        /,
    ) -> None: ...

class Cache:
    def numpy(self) -> tuple[Floats, Floats] | tuple[npt.NDArray[np.uint8], Bytes, Floats, Floats]: ...

class Program:
    def __init__(
        self,
        max_tokens: int,
        max_seqs: int,
        num_blocks: int,
        block_size: int,
        threads: int,
        instruction_set: str | None,
    ) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    def buffer(self, width: int, rows: bool) -> Buffer: ...
    def operand(self, width: int, rows: bool, quantized: bool) -> Operand: ...
    def linear_f32(self, weight: Floats, bias: Floats | None) -> Linear: ...
    def linear_bf16(self, weight: Bits, bias: Floats | None) -> Linear: ...
    def linear_i8(self, weight: Floats, bias: Floats | None) -> Linear: ...
    def cache(self, kv_heads: int, head_dim: int, quantized: bool) -> Cache: ...
    def rotary(self, cos: Floats, sin: Floats) -> Rotary: ...
    def embed_f32(self, table: Floats, scale: float, out: Buffer) -> None: ...
    def embed_bf16(self, table: Bits, scale: float, out: Buffer) -> None: ...
    def norm(self, x: Buffer, weight: Floats, eps: float, out: Operand) -> None: ...
    def norm_add(self, x: Buffer, weight: Floats, eps: float, residual: Buffer) -> None: ...
    def linear(self, x: Operand, weight: Linear, out: Buffer, add: bool) -> None: ...
    def rotate_store(
        self, qkv: Buffer, cache: Cache, rotary: Rotary, q_norm: Floats | None, k_norm: Floats | None, eps: float
    ) -> None: ...
    def attention(self, qkv: Buffer, cache: Cache, scale: float, window: int, out: Operand) -> None: ...
    def gated(self, gate_up: Buffer, gelu: bool, out: Operand) -> None: ...
    def gather(self, x: Buffer, out: Buffer) -> None: ...
    def run(
        self,
        tokens: Ints,
        positions: Ints,
        slots: Ints,
        query_start: Ints,
        context_lens: Ints,
        block_tables: Ints,
        rows: Ints,
    ) -> None: ...
    def sample(
        self,
        logits: Buffer,
        temperature: Floats,
        top_k: Ints,
        top_p: Floats,
        min_p: Floats,
        seed: npt.NDArray[np.uint64],
        position: npt.NDArray[np.int64],
        changes: Changes | None,
    ) -> Ints: ...
    def logprobs(
        self, logits: Buffer, row: Ints, token: Ints, logprob: Floats, rank: Ints, top_ids: Ints, top_logprobs: Floats
    ) -> None: ...
    def times(self) -> list[tuple[str, int, int]]: ...
