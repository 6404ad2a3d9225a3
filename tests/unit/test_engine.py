"""The loop over scheduler and runner: what the host does while the runner computes."""

from __future__ import annotations

from collections.abc import Iterator

from batchgen.core.sampling import SamplingParams
from batchgen.core.step import Answer, Capacity, StepPlan, StepResult
from batchgen.engine import Engine
from tests.fakes import FakeRunner, Sequence, expected_output, scheduler_for

CAPACITY = Capacity(num_blocks=20, block_size=4, max_num_seqs=2, max_num_batched_tokens=16)


class Diary(FakeRunner):
    """Notes what happens when; computes only when it is asked for the answer."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)
        self.events: list[str] = []

    def begin(self, plan: StepPlan) -> Answer:
        self.events.append("begin")

        def answer() -> StepResult:
            self.events.append("answer")
            return super(Diary, self).begin(plan)()

        return answer


def test_results_are_handled_and_windows_read_while_the_next_step_is_computed() -> None:
    runner = Diary()
    scheduler, _ = scheduler_for(CAPACITY, None)
    params = [SamplingParams(max_tokens=count) for count in (1, 3, 1, 1)]
    work = [Sequence(i, [i + 1], p) for i, p in enumerate(params)]

    def windows() -> Iterator[list[Sequence]]:
        for begin in (0, 2):
            runner.events.append("read")
            yield work[begin : begin + 2]

    finished = []
    for outcomes in Engine(scheduler, runner).run(windows()):
        runner.events += [f"finished {outcome.seq_id}" for outcome in outcomes if isinstance(outcome, Sequence)]
        finished += outcomes

    assert runner.events == [
        *("read", "begin", "read", "answer"),
        *("begin", "finished 0", "answer"),
        *("begin", "finished 2", "answer"),
        *("finished 1", "finished 3"),
    ]
    assert [s.output for s in work] == [expected_output(s.prompt, s.params) for s in work]
    assert {outcome.seq_id for outcome in finished if isinstance(outcome, Sequence)} == set(range(4))
