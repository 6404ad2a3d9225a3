"""The scheduler and the KV manager as they are, over a runner that does nothing but tell the time.

Everything is counted in grains of 16 tokens: a block holds one, a sequence generates one in a step, and a step stands
for 16 steps of a run. So a hundred thousand requests take seconds; what is left out is what happens within a grain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice

from batchgen.core.bound import ModelCost, Rates, Work, bound_s
from batchgen.core.kv_manager import KVManager
from batchgen.core.policy import Policy
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import Answer, Capacity, StepPlan, StepResult
from batchgen.engine import Engine

__all__ = ["GRAIN", "Machine", "Outcome", "Request", "simulate"]

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
class Machine:
    """A model on a machine: what a step costs there."""

    cost: ModelCost
    rates: Rates
    overhead_s: float
    """Of a step, whatever is in it."""

    def step_s(self, plan: StepPlan) -> float:
        """Seconds of one of the steps that a plan of grains stands for: each has a token of each grain."""
        cost, rates = self.cost, self.rates
        linear = 2 * (cost.linear_weights * plan.num_tokens + cost.head_weights * len(plan.sampled)) / rates.linear
        depth = sum(one.stop * (one.stop + 1) - one.start * (one.start + 1) for one in plan.scheduled) // 2
        attention = cost.attention_operations * GRAIN * depth / rates.attention
        return max(linear, cost.weight_bytes / rates.bandwidth) + attention + self.overhead_s


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

    def __init__(self, capacity: Capacity, machine: Machine) -> None:
        self.capacity = capacity
        self.seconds = 0.0
        self.ends: dict[int, int] = {}
        """seq_id -> grains of prompt and output together, of sequences that stop before their limit."""
        self._machine = machine

    def begin(self, plan: StepPlan) -> Answer:
        self.seconds += GRAIN * self._machine.step_s(plan)
        result = StepResult([_END if one.stop + 1 == self.ends.get(one.seq_id) else 0 for one in plan.sampled])
        return lambda: result

    def close(self) -> None:
        pass


def simulate(
    requests: Iterable[Request],
    capacity: Capacity,
    machine: Machine,
    policy: Policy,
    manager: Callable[[int, int, PrefixIndex], KVManager] = KVManager,
) -> Outcome:
    """Run the requests to the end. `capacity` counts grains, so its block size is 1."""
    clock = _Clock(capacity, machine)
    scheduler = Scheduler(capacity, manager(capacity.num_blocks, capacity.block_size, PrefixIndex()), policy)
    most_blocks = 0
    for outcomes in Engine(scheduler, clock).run(_windows(requests, clock)):
        most_blocks = max(most_blocks, scheduler.stats().blocks_used)
        for sequence in outcomes:
            if not isinstance(sequence, Sequence):
                raise ValueError(f"a request needs {sequence.blocks_needed} of {capacity.num_blocks} blocks")
            clock.ends.pop(sequence.seq_id, None)
    stats = scheduler.stats()
    return Outcome(
        seconds=clock.seconds,
        bound_s=bound_s(_in_tokens(stats.work), machine.cost, machine.rates),
        computed=stats.computed_tokens,
        needed=stats.work.tokens,
        preemptions=stats.preemptions,
        most_blocks=most_blocks,
    )


def _in_tokens(grains: Work) -> Work:
    """The same work in tokens. Each token of a grain sees those of the grains before, and half of its own."""
    return Work(
        distinct_tokens=GRAIN * grains.distinct_tokens,
        distinct_depth=GRAIN * GRAIN * grains.distinct_depth,
        sampled_tokens=GRAIN * grains.sampled_tokens,
        later_tokens=GRAIN * grains.later_tokens,
        later_depth=GRAIN * GRAIN * grains.later_depth,
        steps=GRAIN * grains.steps,
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
