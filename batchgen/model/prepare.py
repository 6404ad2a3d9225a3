"""A checkpoint and the settings as a recorded program with its cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig
from batchgen.core.bound import ModelCost
from batchgen.errors import UsageError
from batchgen.model.decoder import Decoder, record_decoder
from batchgen.model.device import choose_device, choose_dtype
from batchgen.model.gpu import check_interpreter, measure, profile_batch, program_name
from batchgen.model.machine import free_memory, usable_cores
from batchgen.model.parallel import ALONE, Ranks, ShardedSource, shard_spec
from batchgen.model.precision import Precisions, precisions_of
from batchgen.model.sizing import CacheSize, fit_cache, shape_of, size_cache, wanted_length
from batchgen.model.spec import DecoderSpec, read_spec
from batchgen.model.weights import WeightSource, open_weights
from batchgen_kernels.ops import Program, Shape
from batchgen_kernels.reference import TorchProgram

__all__ = ["Prepared", "kernels_of", "open_program", "prepare"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program, ready to run."""

    program: Program
    decoder: Decoder
    size: CacheSize
    kernels_name: str
    """What computes: `torch`, `native` or `triton`, and on what."""
    precision: str
    """Of the linears: `int8`, or the type of the program."""
    kv_precision: str
    """Of keys and values, likewise."""
    threads: int
    """That compute, in this process."""
    cost: ModelCost
    """Of the whole model."""


def prepare(checkpoint: Checkpoint, config: EngineConfig, ranks: Ranks = ALONE) -> Prepared:
    """Load a checkpoint, or one process's share of it.

    Sets torch's thread count, which is the process's. Raises `UnsupportedModelError` for a model that we don't run,
    `OutOfResourcesError` where memory is too small, `UsageError` where the settings ask for what can't run.
    """
    whole = read_spec(checkpoint.config)
    spec = shard_spec(whole, ranks)
    source = open_weights(checkpoint, whole)
    weights = source if ranks.size == 1 else ShardedSource(source, ranks)
    device = choose_device(config)
    precisions = precisions_of(checkpoint, config, spec.head_dim)
    loading = _Loading(checkpoint, config, ranks, whole, spec, weights, precisions)
    if device.type == "cuda" or config.kernels == "triton":
        return loading.with_triton(device if device.type == "cpu" else torch.device("cuda", ranks.index))
    return loading.on_the_cpu()


@dataclass(frozen=True, slots=True)
class _Loading:
    checkpoint: Checkpoint
    config: EngineConfig
    ranks: Ranks
    whole: DecoderSpec
    spec: DecoderSpec
    """Of this process's share."""
    weights: WeightSource
    precisions: Precisions

    def on_the_cpu(self) -> Prepared:
        choose_dtype(self.checkpoint, self.config, torch.device("cpu"))  # refuses what the CPU does not compute in
        free = free_memory() // self.ranks.size
        size = self.ranks.agree(size_cache(self.spec, self.config, self.precisions, free))
        program, name = open_program(size.shape, self.config, self.ranks)
        decoder = self._record(program, size.max_model_len, self.precisions)
        return self._prepared(program, decoder, size, name, torch.float32, self.precisions)

    def with_triton(self, device: torch.device) -> Prepared:
        """Record over a small cache, measure what a full step takes, and size the cache by that."""
        check_interpreter(device)
        from batchgen_kernels.triton.program import TritonProgram  # imports triton

        spec, config = self.spec, self.config
        # Whether an int8 cache is faster here nobody has measured: it is for those who ask for it.
        precisions = Precisions(self.precisions.linears, "int8" if config.kv_cache_dtype == "int8" else "float32")
        dtype = choose_dtype(self.checkpoint, config, device)
        length = wanted_length(spec, config)
        blocks = -(-config.max_num_batched_tokens // config.block_size) + config.max_num_seqs
        trial = shape_of(config, blocks, length)
        program = TritonProgram(trial, device, dtype)
        decoder = self._record(program, length, precisions)
        memory = measure(lambda: program.run(profile_batch(trial, length)), device)
        token_bytes = spec.kv_bytes_per_token(precisions.kv_cache)
        if precisions.kv_cache == "float32":
            token_bytes = token_bytes * dtype.itemsize // torch.float32.itemsize
        budget = memory.left(config.gpu_memory_utilization) + trial.num_blocks * trial.block_size * token_bytes
        if config.kv_cache_memory is not None:
            budget = config.kv_cache_memory
        size = self.ranks.agree(fit_cache(spec, config, budget, token_bytes))
        program.resize_caches(size.shape.num_blocks)
        return self._prepared(program, decoder, size, program_name(device, dtype), dtype, precisions)

    def _record(self, program: Program, positions: int, precisions: Precisions) -> Decoder:
        split = self.ranks.split(program)
        return record_decoder(program, self.spec, self.weights, precisions, positions, split)

    def _prepared(
        self,
        program: Program,
        decoder: Decoder,
        size: CacheSize,
        name: str,
        dtype: torch.dtype,
        precisions: Precisions,
    ) -> Prepared:
        shared = "" if self.ranks.size == 1 else f", {self.ranks.size} processes"
        linears, kv_cache = (
            "int8" if precision == "int8" else str(dtype).removeprefix("torch.")
            for precision in (precisions.linears, precisions.kv_cache)
        )
        threads, cost = _threads(self.config, self.ranks), self.whole.cost(precisions.linears)
        return Prepared(program, decoder, size, name + shared, linears, kv_cache, threads, cost)


def kernels_of(checkpoint: Checkpoint, config: EngineConfig) -> tuple[str, str]:
    """The name of the kernels that the settings choose, and of the floating type that they compute a checkpoint in.

    Raises `UsageError` where kernels that are demanded can't run.
    """
    device = choose_device(config)
    dtype = choose_dtype(checkpoint, config, device)
    if device.type == "cuda" or config.kernels == "triton":
        name = program_name(device, dtype)
    else:
        name = open_program(Shape(1, 1, 1, config.block_size, 1), config)[1]
    return name, str(dtype).removeprefix("torch.")


def open_program(shape: Shape, config: EngineConfig, ranks: Ranks = ALONE) -> tuple[Program, str]:
    """The CPU's program to record into, and the name of its kernels."""
    threads = _threads(config, ranks)
    if ranks.size > 1 and config.kernels == "native":
        raise UsageError("--kernels native runs in one process; with --tensor-parallel-size use auto or torch")
    if config.kernels != "torch" and ranks.size == 1:
        from batchgen_kernels import cpu  # loads the native extension

        if cpu.available():
            # One pool only: torch's threads spin after each call and would take the cores from the native ones.
            torch.set_num_threads(1)
            program = cpu.NativeProgram(shape, threads)
            return program, f"native {program.name}"
        if config.kernels == "native":
            raise UsageError(f"--kernels native: {cpu.unavailable_reason()}; use auto or torch")
        _logger.warning("computing with torch: %s", cpu.unavailable_reason())
    torch.set_num_threads(threads)
    return TorchProgram(shape), "torch"


def _threads(config: EngineConfig, ranks: Ranks) -> int:
    return config.threads or max(1, usable_cores() // ranks.size)
