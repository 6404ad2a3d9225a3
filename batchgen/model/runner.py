"""The model runner: plans in, chosen tokens out."""

from __future__ import annotations

import logging

import torch

from batchgen.checkpoint.types import Checkpoint, GGUFWeights
from batchgen.config import EngineConfig
from batchgen.core.step import Capacity, StepPlan, StepResult
from batchgen.errors import UsageError
from batchgen.model.batch import make_batch
from batchgen.model.decoder import record_decoder
from batchgen.model.gguf_weights import QUANTIZED
from batchgen.model.machine import free_memory, usable_cores
from batchgen.model.sampling import read_logprobs, sampling_rows
from batchgen.model.sizing import size_cache
from batchgen.model.spec import read_spec
from batchgen.model.weights import open_weights
from batchgen_kernels.ops import Buffer, Precision, Program, Shape
from batchgen_kernels.reference import TorchProgram

__all__ = ["Runner", "load_runner"]

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
        precision: Precision,
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
        self.precision = precision
        """Of the linears."""
        self.vocab_size = logits.width

    @property
    def capacity(self) -> Capacity:
        """What this runner has room for."""
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan and choose the next tokens."""
        if self._program is None or self._logits is None:
            raise RuntimeError("the runner is closed")
        for copy in plan.copies:
            self._program.copy_block(copy.source, copy.target)
        self._program.run(make_batch(plan, self._block_size))
        tokens: list[int] = []
        if plan.sampled:
            tokens = self._program.sample(self._logits, sampling_rows(plan, self.vocab_size)).tolist()
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
    precision = _precision(checkpoint, config)
    size = size_cache(spec, config, precision, free_memory())
    program, kernels_name = _program(size.shape, config)
    logits = record_decoder(program, spec, open_weights(checkpoint, spec), precision, size.max_model_len)
    return Runner(
        program,
        logits,
        size.shape,
        max_model_len=size.max_model_len,
        kv_bytes=size.shape.num_blocks * size.shape.block_size * spec.kv_bytes_per_token,
        kernels_name=kernels_name,
        precision=precision,
    )


def _precision(checkpoint: Checkpoint, config: EngineConfig) -> Precision:
    match config.quantization:
        case "int8":
            return "int8"
        case "none":
            return "float32"
        case "auto":
            weights = checkpoint.weights
            quantized = isinstance(weights, GGUFWeights) and any(t.qtype in QUANTIZED for t in weights.tensors)
            return "int8" if quantized else "float32"


def _program(shape: Shape, config: EngineConfig) -> tuple[Program, str]:
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
