"""The scheduler and the KV manager as they are, over a runner that does nothing but tell the time.

Everything is counted in grains of 16 tokens: a block holds one, a sequence generates one in a step, and a step stands
for 16 steps of a run. So a hundred thousand requests take seconds; what is left out is what happens within a grain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice

from batchgen.core.kv_manager import KVManager
from batchgen.core.policy import Policy
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import Capacity, StepPlan, StepResult
from batchgen.engine import Engine

__all__ = ["GRAIN", "CostModel", "Outcome", "Request", "simulate"]

GRAIN = 16
"""Tokens."""
_END = 1
_WINDOW = 16_384


@dataclass(frozen=True, slots=True)
class Request:
    """What a run would meet, in grains."""

    prompt: SequenceOf[int]
    """Contents of each grain."""
    limit: int
    """Grains that it may generate: what the scheduler knows."""
    length: int
    """Grains that it will generate, at most `limit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """What a step costs: a roofline over linears and weights, and attention beside it."""

    linear_operations: float
    """Of one token: two for each weight of the linears, the head included."""
    weight_bytes: float
    attention_operations: float
    """Of one token for each position that it sees."""
    linear_rate: float
    """Operations a second; attention's likewise."""
    attention_rate: float
    bandwidth: float
    """Bytes a second."""
    overhead_s: float
    """Of a step, whatever is in it."""

    def seconds(self, tokens: int, positions: int) -> float:
        """Of one step with `tokens` tokens that see `positions` positions in all."""
        linear = max(tokens * self.linear_operations / self.linear_rate, self.weight_bytes / self.bandwidth)
        return linear + positions * self.attention_operations / self.attention_rate + self.overhead_s

    def bound(self, tokens: int, positions: int) -> float:
        """Of any number of steps, were all of them full and free of overhead."""
        linear = tokens * self.linear_operations / self.linear_rate
        return linear + positions * self.attention_operations / self.attention_rate


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a simulated run went."""

    seconds: float
    bound_s: float
    """With every distinct token computed once in full steps."""
    computed: int
    """Grains; needed likewise."""
    needed: int
    preemptions: int
    most_blocks: int
    """Blocks in use at the worst moment."""

    @property
    def efficiency(self) -> float:
        """Bound ÷ time."""
        return self.bound_s / self.seconds

    @property
    def redundancy(self) -> float:
        """Computed ÷ needed."""
        return self.computed / self.needed


class _Clock:
    """`core.step.ModelRunner`: ends each sequence at its length, and adds up what the steps would take."""

    def __init__(self, capacity: Capacity, cost: CostModel) -> None:
        self.capacity = capacity
        self.seconds = 0.0
        self.ends: dict[int, int] = {}
        """seq_id -> grains of prompt and output together, of sequences that stop before their limit."""
        self._cost = cost

    def execute(self, plan: StepPlan) -> StepResult:
        positions = 0
        chosen: list[int] = []
        for scheduled in plan.scheduled:
            positions += len(scheduled.tokens) * (scheduled.start + scheduled.stop + 1) // 2
            if scheduled.sampling is not None:
                chosen.append(_END if scheduled.stop + 1 == self.ends.get(scheduled.seq_id) else 0)
        self.seconds += GRAIN * self._cost.seconds(plan.num_tokens, GRAIN * positions)
        return StepResult(chosen)

    def close(self) -> None:
        pass


def simulate(
    requests: Iterable[Request],
    capacity: Capacity,
    cost: CostModel,
    policy: Policy,
    manager: Callable[[int, int, PrefixIndex], KVManager] = KVManager,
) -> Outcome:
    """Run the requests to the end. `capacity` counts grains, so its block size is 1."""
    clock = _Clock(capacity, cost)
    scheduler = Scheduler(capacity, manager(capacity.num_blocks, capacity.block_size, PrefixIndex()), policy)
    generated = positions = most_blocks = 0
    for outcomes in Engine(scheduler, clock).run(_windows(requests, clock)):
        most_blocks = max(most_blocks, scheduler.stats().blocks_used)
        for sequence in outcomes:
            if not isinstance(sequence, Sequence):
                raise ValueError(f"a request needs {sequence.blocks_needed} of {capacity.num_blocks} blocks")
            clock.ends.pop(sequence.seq_id, None)
            prompt, output = len(sequence.prompt), len(sequence.output)
            generated += output - 1
            positions += (output - 1) * prompt + output * (output - 1) // 2
    stats = scheduler.stats()
    needed = stats.distinct_tokens + generated
    return Outcome(
        seconds=clock.seconds,
        bound_s=cost.bound(GRAIN * needed, GRAIN * GRAIN * (stats.distinct_depth + positions)),
        computed=stats.computed_tokens,
        needed=needed,
        preemptions=stats.preemptions,
        most_blocks=most_blocks,
    )


def _windows(requests: Iterable[Request], clock: _Clock) -> Iterator[list[Sequence]]:
    numbered = enumerate(requests)
    while taken := list(islice(numbered, _WINDOW)):
        window = []
        for number, request in taken:
            params = SamplingParams(max_tokens=request.limit, temperature=0.0, stop_token_ids=frozenset({_END}))
            window.append(Sequence(number, request.prompt, params))
            if request.length < request.limit:
                clock.ends[number] = len(request.prompt) + request.length
        yield window
