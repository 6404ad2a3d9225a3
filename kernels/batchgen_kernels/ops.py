"""The seam between a decoder and the kernels that compute it.

A decoder is recorded once, at load, as a `Program`: a straight list of ops over bound buffers. Each step replays it
over one ragged `Batch`. Three programs exist or will exist behind this one interface: plain torch
(`reference.TorchProgram`, the oracle), native code for the CPU (`cpu.NativeProgram`), and Triton for GPUs.

Symbols in shapes: T tokens of a step, S sequences, R rows whose next token is wanted, H hidden width, V vocabulary,
Hq query heads, Hk key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "Activation",
    "Ahead",
    "Batch",
    "Buffer",
    "CollectiveProgram",
    "Extent",
    "KVCache",
    "LinearWeight",
    "LogitChanges",
    "LogprobRows",
    "Logprobs",
    "Operand",
    "Precision",
    "Program",
    "Replayed",
    "RotaryTable",
    "SamplingRows",
    "Shape",
    "Timed",
]

Activation = Literal["silu", "gelu_tanh"]
Precision = Literal["float32", "int8"]
"""How a linear computes. int8, for K a multiple of 64, on each row v of activations (a token) and of the weight (an
output channel):

1. each 64 values of v are rotated by the orthonormal Walsh-Hadamard matrix in natural order: six butterfly stages
   (a, b) -> (a + b, a - b) at distances 1, 2, 4, .. 32, in float32, then a product with 1/8;
2. scale = max |v| / 127 in float32, and q = v * (127 / max |v|), rounded to nearest, halves to even; a row of zeros has
   scale 0 and q = 0. So |q| <= 127.

out = (sum over k of q_x q_w, exact in int32) * scale_x * scale_w + bias, products from left to right in float32."""


class Extent(Enum):
    """Which count of a batch is the leading dimension of a buffer."""

    TOKENS = "tokens"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Shape:
    """Upper bounds of every batch, for the sizes of workspaces and of the KV cache."""

    max_tokens: int
    max_seqs: int
    """Also the bound of R."""
    num_blocks: int
    block_size: int
    max_blocks_per_seq: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's ragged batch. All arrays are C-contiguous int32."""

    tokens: npt.NDArray[np.int32]
    """[T] token ids, sequence after sequence."""
    positions: npt.NDArray[np.int32]
    """[T] position of each token in its sequence."""
    slots: npt.NDArray[np.int32]
    """[T] block id * block_size + offset: where the token's key and value go."""
    query_start: npt.NDArray[np.int32]
    """[S + 1] sequence s owns tokens [query_start[s], query_start[s + 1])."""
    context_lens: npt.NDArray[np.int32]
    """[S] positions [0, context_lens[s]) are in the cache once this step's keys are written; the last token of
    sequence s has position context_lens[s] - 1."""
    block_tables: npt.NDArray[np.int32]
    """[S, W] block ids, padded with 0; entry p // block_size holds position p."""
    rows: npt.NDArray[np.int32]
    """[R] indices into T: the tokens whose logits are wanted, those after which a next token is drawn first. May be
    empty."""
    follows: npt.NDArray[np.int32] | None = None
    """[T] which row of the last `Ahead.begin_sample` chose the token, -1 where `tokens` has it. None: -1 for all."""


@dataclass(frozen=True, slots=True)
class LogitChanges:
    """What is done to the logits of rows before a token is chosen.

    Ragged lists: row r has entries [start[r], start[r + 1]). No token id occurs twice in a row's list.
    """

    mask_of: npt.NDArray[np.int32]
    """[R] index into `masks`, -1 where all tokens are allowed."""
    masks: npt.NDArray[np.uint32]
    """[M, ceil(V / 32)]; bit i % 32 of word i // 32 is set where token id i is allowed."""
    bias_start: npt.NDArray[np.int32]
    """[R + 1]"""
    bias_ids: npt.NDArray[np.int32]
    """[B] token ids."""
    bias: npt.NDArray[np.float32]
    """[B] minus infinity bans a token."""
    context_start: npt.NDArray[np.int32]
    """[R + 1]"""
    context_ids: npt.NDArray[np.int32]
    """[C] distinct tokens of prompt and output."""
    context_counts: npt.NDArray[np.int32]
    """[C] how often each was generated."""
    repetition: npt.NDArray[np.float32]
    """[R] above 0; 1 changes nothing."""
    frequency: npt.NDArray[np.float32]
    """[R] 0 changes nothing."""
    presence: npt.NDArray[np.float32]
    """[R] 0 changes nothing."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How to choose the next token of each of the first R rows of logits: one entry a row, all [R]."""

    temperature: npt.NDArray[np.float32]
    """0 is greedy."""
    top_k: npt.NDArray[np.int32]
    """V where all tokens are kept."""
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int64]
    """Position of the token to be drawn: with the seed the counter of the draw."""
    changes: LogitChanges | None = None
    """None: nothing is changed in any row."""


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Which log-probabilities to read from the logits."""

    row: npt.NDArray[np.int32]
    """[Q] rows of the logits."""
    token: npt.NDArray[np.int32]
    """[Q] token ids."""
    top: int
    """K: how many of the most probable tokens to list, in [0, V]."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """What `LogprobRows` asked for."""

    logprob: npt.NDArray[np.float32]
    """[Q] of `token`."""
    rank: npt.NDArray[np.int32]
    """[Q] of `token`, 1 for the most probable; of equals the lower id comes first."""
    top_ids: npt.NDArray[np.int32]
    """[Q, K] in order of rank."""
    top_logprobs: npt.NDArray[np.float32]
    """[Q, K]"""

    @classmethod
    def unwritten(cls, rows: LogprobRows) -> Logprobs:
        """Arrays of the sizes that `rows` ask for, to be filled."""
        count = len(rows.row)
        return cls(
            logprob=np.empty(count, np.float32),
            rank=np.empty(count, np.int32),
            top_ids=np.empty((count, rows.top), np.int32),
            top_logprobs=np.empty((count, rows.top), np.float32),
        )


class Buffer(Protocol):
    """A float32 workspace [max_tokens or max_rows, width]."""

    @property
    def width(self) -> int: ...

    def numpy(self, count: int) -> npt.NDArray[np.float32]:
        """A view of the first `count` rows, [count, width]; valid until the next run."""
        ...


class Operand(Protocol):
    """The left side of a linear, [max_tokens or max_rows, K], in the form that the linear's precision wants: float32,
    or rotated int8 with one scale a row. Written by norm, gated and attention, which quantise on the way."""

    @property
    def width(self) -> int: ...


class LinearWeight(Protocol):
    """A packed weight [N, K] with an optional bias [N]."""

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...


class KVCache(Protocol):
    """Keys and values of one layer for all blocks, in the layout that the attention op reads."""


class RotaryTable(Protocol):
    """Cosines and sines [max positions, D / 2], float32."""


@runtime_checkable
class Timed(Protocol):
    """A program that knows where its time went."""

    def times(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each kind of op so far, those of `run`."""
        ...


class Replayed(Protocol):
    """A recorded program, as it is used step after step."""

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block of every layer's cache, all slots of it, before the next run. The two may be the same."""
        ...

    def run(self, batch: Batch) -> None:
        """Compute all recorded ops for this batch."""
        ...

    def sample(self, logits: Buffer, rows: SamplingRows) -> npt.NDArray[np.int32]:
        """Choose one token a row from the first R rows of the logits, as int32 [R]. The logits stay as they are.

        First, where `rows.changes` has something for a row, its logits x are changed, in float32, each operation
        rounded, in this order:

        a. x = -inf where the mask does not allow the token.
        b. x = x + bias for the tokens of the row's bias list.
        c. For the tokens of its context list: x = x / repetition if x > 0 else x * repetition.
        d. For those that were generated, count times: x = x - frequency * count, then x = x - presence.

        Where no token is left above minus infinity, the lowest id that the mask allows is chosen: the mask comes before
        all bans.

        Greedy (temperature 0): the arg-max, the lowest id on a tie. Otherwise, in this order:

        1. z = (logits - max logits) / temperature.
        2. Keep the top_k largest z; of equal ones the lower ids.
        3. p = softmax of z over the kept tokens. With top_p < 1 keep the shortest prefix, in order of falling p (of
           equal ones the lower id first), whose sum reaches top_p; at least one token.
        4. Keep the tokens with p >= min_p * max p.
        5. The arg-max over the kept tokens of z + g, the lowest id on a tie, where g = -log(-log(u)): Gumbel-max, an
           exact draw from the softmax over the kept tokens.

        u of token id i is (w + 0.5) / 2**32 in float64, never 0 or 1, with the 32-bit word w = word i % 4 of the
        Philox4x32-10 block (Salmon et al., 2011) of

            counter = (i // 4, 0, position & 0xffffffff, position >> 32)
            key     = (seed & 0xffffffff, seed >> 32)

        words in the order of Random123's arrays ctr.v[0..3] and key.v[0..1]. Steps 1 to 5 are defined in real numbers;
        the reference computes them in float64. A program that computes in float32 agrees with it except where two
        candidates, or a sum and its bound, are equal to float32 precision.
        """
        ...

    def logprobs(self, logits: Buffer, rows: LogprobRows) -> Logprobs:
        """Read log-softmax(logits row) = x - log(sum of e^x) at the given tokens and at the most probable ones.

        Defined in real numbers; computed in float64 and rounded to float32. A NaN counts as minus infinity.
        """
        ...


@runtime_checkable
class Ahead(Replayed, Protocol):
    """A program that takes a batch whose tokens it has chosen itself, before anybody has read them."""

    def begin_sample(self, logits: Buffer, rows: SamplingRows) -> Callable[[], npt.NDArray[np.int32]]:
        """As `sample`, without waiting for the device; what is returned waits for the tokens."""
        ...


class Program(Replayed, Protocol):
    """Records the ops of one decoder and replays them.

    Methods up to `gather` record; nothing is computed before `run`. Tensors given to the recorder are copied or packed
    into the program's own form; the caller may drop them.
    """

    # -- storage ---------------------------------------------------------------------------------------------------

    def buffer(self, width: int, extent: Extent) -> Buffer:
        """A float32 workspace of `width` columns."""
        ...

    def operand(self, width: int, extent: Extent, precision: Precision) -> Operand:
        """A workspace for the left side of linears with K = `width`. int8 needs width % 64 == 0."""
        ...

    def linear_weight(self, weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision) -> LinearWeight:
        """Pack a weight [N, K] (float32 or bfloat16) and a bias [N]."""
        ...

    def kv_cache(self, num_kv_heads: int, head_dim: int, precision: Precision) -> KVCache:
        """Key and value storage of one layer.

        int8: each key (after its norm and position) and each value, D numbers of one token and head, is quantised as
        steps 1 and 2 of `Precision` say, step 1 only for D a multiple of 64; so is each query before it meets keys.
        Attention reads the numbers times their scales, rotated back. Raises `ValueError` for a form that this program
        has not.
        """
        ...

    def rotary_table(self, cos: torch.Tensor, sin: torch.Tensor) -> RotaryTable:
        """A table of [positions, D / 2] float32 cosines and sines, any scaling already applied."""
        ...

    # -- ops, in recording order -----------------------------------------------------------------------------------

    def embed(self, table: torch.Tensor, scale: float, out: Buffer) -> None:
        """out[t] = table[tokens[t]] * scale. table [V, H] float32 or bfloat16."""
        ...

    def norm(self, x: Buffer, weight: torch.Tensor, eps: float, out: Operand) -> None:
        """RMSNorm: out[t] = x[t] / sqrt(mean(x[t]**2) + eps) * weight. weight [H] float32.

        Zhang and Sennrich, 2019. For models that store weight - 1 the caller adds the one.
        """
        ...

    def norm_add(self, x: Buffer, weight: torch.Tensor, eps: float, residual: Buffer) -> None:
        """residual[t] += RMSNorm(x[t]), the sandwich norm of Gemma 3."""
        ...

    def linear(self, x: Operand, weight: LinearWeight, out: Buffer) -> None:
        """out = x @ weight.T + bias."""
        ...

    def linear_add(self, x: Operand, weight: LinearWeight, residual: Buffer) -> None:
        """residual += x @ weight.T + bias."""
        ...

    def rotate_store(
        self,
        qkv: Buffer,
        cache: KVCache,
        rotary: RotaryTable,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        """Split qkv [T, (Hq + 2 Hk) D] into queries, keys and values; RMSNorm queries and keys per head where weights
        [D] are given; rotate both (RoPE, Su et al. 2021, half-split pairs d and d + D/2); write keys and values to the
        cache at `slots`; leave the rotated queries in qkv's first Hq D columns, in the form in which attention over
        this cache reads them."""
        ...

    def attention(self, qkv: Buffer, cache: KVCache, scale: float, window: int | None, out: Operand) -> None:
        """Causal attention of each token over its own sequence's cached positions, heads grouped Hq / Hk to one.

        A token at position p sees positions [0, p], with a window [max(0, p - window + 1), p].
        Scores are q.k * scale. out [T, Hq D]. Hq follows from out's width.
        """
        ...

    def gated(self, gate_up: Buffer, activation: Activation, out: Operand) -> None:
        """out = act(gate) * up, gate_up [T, 2 F] with gate in the first F columns, out [T, F]."""
        ...

    def gather(self, x: Buffer, out: Buffer) -> None:
        """out[r] = x[rows[r]]; x over tokens, out over rows."""
        ...


class CollectiveProgram(Program, Protocol):
    """A program that is one of several in as many processes, each with a share of the model's heads and columns."""

    def all_reduce(self, x: Buffer) -> None:
        """Record: x becomes the sum of all processes' x. They are torch.distributed's default group."""
        ...
