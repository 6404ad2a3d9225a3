"""How much memory a GPU has left for keys and values, measured by a full step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from batchgen.errors import UsageError
from batchgen.model.machine import free_memory
from batchgen_kernels.ops import Batch, Shape

__all__ = ["Memory", "check_interpreter", "measure", "profile_batch", "program_name"]


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory, in bytes."""

    total: int
    used: int
    """At its peak, by this process and others."""

    def left(self, utilization: float) -> int:
        """What a share of the total leaves beside what is used."""
        return int(self.total * utilization) - self.used


def measure(work: Callable[[], None], device: torch.device) -> Memory:
    """Do the work and read how much memory the device needed for it.

    On the CPU, where Triton is interpreted, what is free afterwards counts as the total.
    """
    if device.type == "cpu":
        work()
        return Memory(free_memory(), 0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    # Other processes, the driver's context, libraries.
    outside = total - free - torch.cuda.memory_reserved(device)
    return Memory(total, torch.cuda.max_memory_allocated(device) + max(outside, 0))


def profile_batch(shape: Shape, max_model_len: int) -> Batch:
    """A step as large as steps get: all tokens, and a next token wanted of as many sequences as possible."""
    tokens = min(shape.max_tokens, shape.max_seqs * max_model_len, shape.num_blocks * shape.block_size)
    # A sequence's tokens begin a block of its own.
    sequences = min(shape.max_seqs, tokens, max(1, shape.num_blocks - tokens // shape.block_size))
    sequences = max(sequences, -(-tokens // max_model_len))
    counts = np.full(sequences, tokens // sequences, dtype=np.int32)
    counts[: tokens % sequences] += 1
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    blocks = -(-counts // shape.block_size)
    first = np.cumsum(blocks) - blocks
    tables = np.minimum(first[:, None] + np.arange(blocks.max()), shape.num_blocks - 1).astype(np.int32)
    positions = (np.arange(tokens) - np.repeat(start[:-1], counts)).astype(np.int32)
    owners = np.repeat(np.arange(sequences), counts)
    return Batch(
        tokens=np.zeros(tokens, dtype=np.int32),
        positions=positions,
        slots=tables[owners, positions // shape.block_size] * np.int32(shape.block_size)
        + positions % np.int32(shape.block_size),
        query_start=start,
        context_lens=counts,
        block_tables=tables,
        rows=start[1:] - np.int32(1),
    )


def check_interpreter(device: torch.device) -> None:
    """Raises `UsageError` where Triton is to compute on the CPU, and not in its interpreter."""
    import triton  # only where it is asked for

    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise UsageError("--kernels triton needs a GPU, or Triton's interpreter: set TRITON_INTERPRET=1")


def program_name(device: torch.device, dtype: torch.dtype) -> str:
    """What computes, for reports: answers depend on the architecture and the type."""
    kind = str(dtype).removeprefix("torch.")
    if device.type == "cpu":
        return f"triton interpreter {kind}"
    properties = torch.cuda.get_device_properties(device)
    return f"triton {getattr(properties, 'gcnArchName', f'sm_{properties.major}{properties.minor}')} {kind}"
