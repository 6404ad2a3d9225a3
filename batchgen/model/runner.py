"""The model runner: plans in, chosen tokens out."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig
from batchgen.core.step import Answer, Capacity, StepPlan, StepResult
from batchgen.model.batch import make_batch
from batchgen.model.decoder import Decoder
from batchgen.model.device import choose_device
from batchgen.model.parallel import Ranks, Team
from batchgen.model.pooling import read_pooled
from batchgen.model.prepare import Prepared, prepare
from batchgen.model.sampling import read_logprobs, sampling_rows
from batchgen_kernels.ops import Ahead, Replayed, Timed

__all__ = ["Runner", "load_runner"]


class Runner:
    """`core.step.ModelRunner` over a recorded program."""

    def __init__(self, prepared: Prepared, team: Team | None = None) -> None:
        """`team`: the processes that share the model with this one."""
        shape = prepared.size.shape
        self._program: Replayed | None = prepared.program if team is None else team.leader(prepared.program)
        self._decoder: Decoder | None = prepared.decoder
        self._team = team
        self._ahead = self._program if isinstance(self._program, Ahead) else None
        self._block_size = shape.block_size
        self._capacity = Capacity(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            max_num_seqs=shape.max_seqs,
            max_num_batched_tokens=shape.max_tokens,
            steps_ahead=0 if self._ahead is None else 1,
        )
        self.max_model_len = prepared.size.max_model_len
        """Tokens of one sequence, at most."""
        self.kv_bytes = prepared.size.kv_bytes
        """Memory set aside for keys and values, in each process."""
        self.kernels_name = prepared.kernels_name
        """What computes: `torch`, `native` or `triton`, and on what."""
        self.precision = prepared.precision
        """Of the linears: `int8`, or a floating type."""
        self.kv_precision = prepared.kv_precision
        """Of keys and values."""
        self.threads = prepared.threads
        """That compute, in each process."""
        self.cost = prepared.cost
        """What the model asks of the machine."""
        self.kernel_s = 0.0
        """Seconds in which kernels were at work, or might have been, so far."""
        self._counted_to = 0.0
        """When the last of these seconds ended."""
        self.vocab_size = prepared.decoder.logits.width
        self.hidden_size = prepared.decoder.residual.width

    @property
    def capacity(self) -> Capacity:
        """What this runner has room for."""
        return self._capacity

    def op_times(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each kind of op so far; empty for kernels that don't tell."""
        return self._program.times() if isinstance(self._program, Timed) else {}

    def begin(self, plan: StepPlan) -> Answer:
        """Compute the plan and choose the next tokens. Returns at once where the program goes ahead, and nothing but
        tokens is read."""
        program, decoder = self._program, self._decoder
        if program is None or decoder is None:
            raise RuntimeError("the runner is closed")
        batch = make_batch(plan, self._block_size)
        began = time.perf_counter()
        for copy in plan.copies:
            program.copy_block(copy.source, copy.target)
        program.run(batch)
        if self._ahead is not None and not plan.reads:
            chosen = self._ahead.begin_sample(decoder.logits, sampling_rows(plan, self.vocab_size))
            return partial(self._answer, began, chosen)
        self._count(began)
        tokens: list[int] = []
        if plan.sampled:
            # Made only now: the guides have had all that time for their masks.
            rows = sampling_rows(plan, self.vocab_size)
            began = time.perf_counter()
            tokens = program.sample(decoder.logits, rows).tolist()
            self._count(began)
        logprobs, scores = read_logprobs(program, decoder.logits, plan, tokens)
        result = StepResult(tokens, logprobs, scores, read_pooled(decoder, plan))
        return lambda: result

    def _answer(self, began: float, chosen: Callable[[], npt.NDArray[np.int32]]) -> StepResult:
        tokens = chosen().tolist()
        self._count(began)
        return StepResult(tokens)

    def _count(self, began: float) -> None:
        """Count the time since then, as far as it is not counted yet: steps may overlap."""
        now = time.perf_counter()
        self.kernel_s += now - max(began, self._counted_to)
        self._counted_to = now

    def close(self) -> None:
        """Give back weights, keys and values, and end the other processes."""
        self._program = self._ahead = self._decoder = None
        # A program's ops refer to it. Its memory is wanted back now: on a GPU the next model has no room beside it.
        gc.collect()
        if self._team is not None:
            self._team.close()
            self._team = None


def load_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Load a checkpoint for the settings; see `prepare` for what it raises."""
    if config.tensor_parallel_size == 1:
        return Runner(prepare(checkpoint, config))
    team = Team.start(
        config.tensor_parallel_size, choose_device(config), partial(_prepared_program, checkpoint, config)
    )
    try:
        return Runner(prepare(checkpoint, config, team.ranks), team)
    except BaseException:
        team.close()
        raise


def _prepared_program(checkpoint: Checkpoint, config: EngineConfig, ranks: Ranks) -> Replayed:
    """What the other processes of a team run."""
    return prepare(checkpoint, config, ranks).program
