"""One model in several processes: each computes some of the heads and of the MLP's columns (Shoeybi et al.,
Megatron-LM, 2019), and their parts are summed after attention and after the MLP.

The process that is first leads: it has the scheduler, hands each step's batch to the others, and samples.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from batchgen.errors import UsageError
from batchgen.model.decoder import Split
from batchgen.model.sizing import CacheSize
from batchgen.model.spec import DecoderSpec
from batchgen.model.weights import WeightSource
from batchgen_kernels.ops import (
    Batch,
    Buffer,
    CollectiveProgram,
    LogprobRows,
    Logprobs,
    Program,
    Replayed,
    SamplingRows,
)

__all__ = ["ALONE", "Ranks", "ShardedSource", "Team", "shard_spec"]

_HOST = "127.0.0.1"
_PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others: one may load for long, and a leader may have nothing to do."""
_BY_ROWS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
_BY_COLUMNS = frozenset({"o_proj", "down_proj"})


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process among those that share a model."""

    index: int
    size: int
    control: distributed.ProcessGroup | None = None
    """Over the CPU, whatever the tensors are on."""

    def split(self, program: Program) -> Split | None:
        """This process's share of a decoder recorded into `program`; None where it has all of it."""
        if self.size == 1:
            return None
        return Split(self.index == 0, cast("CollectiveProgram", program).all_reduce)

    def agree(self, size: CacheSize) -> CacheSize:
        """The cache that all processes have room for."""
        if self.size == 1:
            return size
        least = torch.tensor([size.shape.num_blocks, size.max_model_len])
        distributed.all_reduce(least, distributed.ReduceOp.MIN, group=self.control)
        num_blocks, max_model_len = least.tolist()
        kv_bytes = size.kv_bytes // size.shape.num_blocks * num_blocks
        return CacheSize(max_model_len, replace(size.shape, num_blocks=num_blocks), kv_bytes)

    def tell(self, message: Any) -> Any:
        """Send the first process's message to all; returns it."""
        box = [message]
        distributed.broadcast_object_list(box, src=0, group=self.control)
        return box[0]


ALONE = Ranks(0, 1)


def shard_spec(spec: DecoderSpec, ranks: Ranks) -> DecoderSpec:
    """The decoder of one process. Raises `UsageError` where the model can't be shared out evenly."""
    counts = {"attention heads": spec.heads, "key/value heads": spec.kv_heads, "MLP columns": spec.intermediate}
    for what, count in counts.items():
        if count % ranks.size:
            raise UsageError(f"--tensor-parallel-size {ranks.size} does not divide the model's {count} {what}")
    return replace(
        spec,
        heads=spec.heads // ranks.size,
        kv_heads=spec.kv_heads // ranks.size,
        intermediate=spec.intermediate // ranks.size,
    )


class ShardedSource:
    """`WeightSource` of one process's share: rows of what makes heads and columns, columns of what takes them in."""

    def __init__(self, source: WeightSource, ranks: Ranks) -> None:
        self._source, self._ranks = source, ranks

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `WeightSource`; `shape` is the share's."""
        index, size = self._ranks.index, self._ranks.size
        module, kind = name.split(".")[-2:]
        if module in _BY_ROWS:
            whole = self._source.tensor(name, (shape[0] * size, *shape[1:]))
            return whole[index * shape[0] : (index + 1) * shape[0]]
        if module in _BY_COLUMNS and kind == "weight":
            whole = self._source.tensor(name, (shape[0], shape[1] * size))
            return whole[:, index * shape[1] : (index + 1) * shape[1]].contiguous()
        whole = self._source.tensor(name, shape)
        # The bias of a sum is added once.
        return torch.zeros_like(whole) if module in _BY_COLUMNS and index else whole


class Team:
    """The leader's side: the other processes, which end with it."""

    def __init__(self, ranks: Ranks, others: Sequence[BaseProcess]) -> None:
        self.ranks = ranks
        self._others = others

    @classmethod
    def start(cls, size: int, device: torch.device, load: Callable[[Ranks], Replayed]) -> Team:
        """Start `size - 1` processes on devices of that type. They load their share with `load`, which is pickled."""
        store = TCPStore(_HOST, 0, size, is_master=True, timeout=_PATIENCE, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        others = [
            context.Process(target=_follow, args=(index, size, device, store.port, load), daemon=True)
            for index in range(1, size)
        ]
        for process in others:
            process.start()
        return cls(_join(0, size, device, store), others)

    def leader(self, program: Replayed) -> Replayed:
        """`program`, in all processes at once."""
        return _Leader(self.ranks, program)

    def close(self) -> None:
        """End the other processes."""
        for process in self._others:
            process.terminate()
            process.join()
        distributed.destroy_process_group()


class _Leader:
    """`Replayed` whose steps the others compute too. Rows of logits are whole in each process; only this one reads."""

    def __init__(self, ranks: Ranks, program: Replayed) -> None:
        self._ranks, self._program = ranks, program

    def copy_block(self, source: int, target: int) -> None:
        self._ranks.tell((source, target))
        self._program.copy_block(source, target)

    def run(self, batch: Batch) -> None:
        self._ranks.tell(batch)
        self._program.run(batch)

    def sample(self, logits: Buffer, rows: SamplingRows) -> npt.NDArray[np.int32]:
        return self._program.sample(logits, rows)

    def logprobs(self, logits: Buffer, rows: LogprobRows) -> Logprobs:
        return self._program.logprobs(logits, rows)


def _join(index: int, size: int, device: torch.device, store: Store) -> Ranks:
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(index)
        backend = "nccl"
    distributed.init_process_group(backend, store=store, rank=index, world_size=size, timeout=_PATIENCE)
    return Ranks(index, size, distributed.new_group(backend="gloo", timeout=_PATIENCE))


def _follow(index: int, size: int, device: torch.device, port: int, load: Callable[[Ranks], Replayed]) -> None:
    """The life of another process: load, then compute what the leader computes until it is ended."""
    ranks = _join(index, size, device, TCPStore(_HOST, port, size, is_master=False, timeout=_PATIENCE))
    program = load(ranks)
    while True:
        match ranks.tell(None):
            case Batch() as batch:
                program.run(batch)
            case (source, target):
                program.copy_block(source, target)
