"""The model runner: plans in, chosen tokens out."""

from __future__ import annotations

import logging
import time

import torch

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig
from batchgen.core.bound import ModelCost
from batchgen.core.step import Capacity, StepPlan, StepResult
from batchgen.errors import UsageError
from batchgen.model.batch import make_batch
from batchgen.model.decoder import record_decoder
from batchgen.model.machine import free_memory, usable_cores
from batchgen.model.precision import Precisions, precisions_of
from batchgen.model.sampling import read_logprobs, sampling_rows
from batchgen.model.sizing import size_cache
from batchgen.model.spec import read_spec
from batchgen.model.weights import open_weights
from batchgen_kernels.ops import Buffer, Program, Shape
from batchgen_kernels.reference import TorchProgram

__all__ = ["Runner", "kernels_of", "load_runner", "open_program"]

_logger = logging.getLogger(__name__)


class Runner:
    """`core.step.ModelRunner` over a recorded program."""

    def __init__(
        self,
        program: Program,
        logits: Buffer,
        shape: Shape,
        *,
        max_model_len: int,
        kv_bytes: int,
        kernels_name: str,
        precisions: Precisions,
        threads: int,
        cost: ModelCost,
    ) -> None:
        self._program: Program | None = program
        self._logits: Buffer | None = logits
        self._block_size = shape.block_size
        self._capacity = Capacity(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            max_num_seqs=shape.max_seqs,
            max_num_batched_tokens=shape.max_tokens,
        )
        self.max_model_len = max_model_len
        """Tokens of one sequence, at most."""
        self.kv_bytes = kv_bytes
        """Memory set aside for keys and values."""
        self.kernels_name = kernels_name
        """What computes: `torch`, or `native` and the instruction set."""
        self.precision = precisions.linears
        """Of the linears."""
        self.kv_precision = precisions.kv_cache
        """Of keys and values."""
        self.threads = threads
        """That compute."""
        self.cost = cost
        """What the model asks of the machine."""
        self.kernel_s = 0.0
        """Seconds spent in kernels so far."""
        self.vocab_size = logits.width

    @property
    def capacity(self) -> Capacity:
        """What this runner has room for."""
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan and choose the next tokens."""
        if self._program is None or self._logits is None:
            raise RuntimeError("the runner is closed")
        batch = make_batch(plan, self._block_size)
        rows = sampling_rows(plan, self.vocab_size) if plan.sampled else None
        began = time.perf_counter()
        for copy in plan.copies:
            self._program.copy_block(copy.source, copy.target)
        self._program.run(batch)
        tokens = [] if rows is None else self._program.sample(self._logits, rows).tolist()
        self.kernel_s += time.perf_counter() - began
        logprobs, scores = read_logprobs(self._program, self._logits, plan, tokens)
        return StepResult(tokens, logprobs, scores)

    def close(self) -> None:
        """Give back weights, keys and values."""
        self._program = self._logits = None


def load_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Load a checkpoint for the settings.

    Sets torch's thread count, which is the process's. Raises `UnsupportedModelError` for a model that we don't run,
    `OutOfResourcesError` where memory is too small, `UsageError` where native kernels are demanded and can't run.
    """
    spec = read_spec(checkpoint.config)
    precisions = precisions_of(checkpoint, config)
    size = size_cache(spec, config, precisions, free_memory())
    program, kernels_name = open_program(size.shape, config)
    logits = record_decoder(program, spec, open_weights(checkpoint, spec), precisions, size.max_model_len)
    return Runner(
        program,
        logits,
        size.shape,
        max_model_len=size.max_model_len,
        kv_bytes=size.kv_bytes,
        kernels_name=kernels_name,
        precisions=precisions,
        threads=config.threads or usable_cores(),
        cost=spec.cost(precisions.linears),
    )


def kernels_of(config: EngineConfig) -> str:
    """The name of the kernels that the settings choose. Raises `UsageError` where those that are demanded can't run."""
    return open_program(Shape(1, 1, 1, config.block_size, 1), config)[1]


def open_program(shape: Shape, config: EngineConfig) -> tuple[Program, str]:
    """The program to record into, and the name of its kernels."""
    threads = config.threads or usable_cores()
    if config.kernels != "torch":
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
