"""Kills runs at random moments and goes on from what they leave: `python -m tests.crash --rounds 50`.

One process imports everything once and forks for each run, so that a round takes as long as the run. Half of the kills
come after a random time, half at a random call that changes the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.io.result_file import open_results
from batchgen.io.sources import result_files
from batchgen.job import run_job
from tests.outputs import results
from tests.tiny_model import make_tiny_model

__all__ = ["main"]

NAMES = ("out", "out.jsonl", "out.parquet", "out.arrow")
CHANGES = ("fsync", "replace", "rename", "unlink")
"""Calls of `os` that make a step on the disk count. `pathlib` makes them too."""


class Silent:
    """A reporter of nothing."""

    def stage(self, text: str) -> None:
        pass

    def update(self, progress: object) -> None:
        pass

    def close(self) -> None:
        pass


def write_requests(path: Path, count: int) -> None:
    """Greedy, seeded and unseeded rows, refused ones, ids that are missing or taken, and what is no request."""
    lines: list[Any] = []
    for number in range(count):
        sampled: dict[str, Any] = [{"temperature": 0}, {"seed": number}, {}][number % 3]
        body = {"prompt": f"the sea {number}", "max_tokens": 1 + number % 7, **sampled}
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}
        match number % 20:
            case 7:
                body["stream"] = True
            case 11:
                del line["custom_id"]
            case 13:
                line["custom_id"] = f"r{number - 1}"
            case 17:
                lines.append("{nonsense")
        lines.append(line)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def job(folder: Path, target: Path, **output: Any) -> JobConfig:
    return JobConfig(
        model=ModelConfig(model=str(folder / "tiny")),
        engine=EngineConfig(max_model_len=64, kv_cache_memory=4 << 20, threads=1, max_num_seqs=8),
        input=InputConfig(input_file=str(folder / "in.jsonl"), window=32),
        output=OutputConfig(output_file=str(target), **output),
    )


@dataclass
class Kills:
    """Where and how the next run is killed."""

    random: random.Random
    whole_s: float
    """Seconds that a run without a kill takes."""
    changes: int = 60
    """Changes on the disk of such a run, about."""

    def next(self) -> Callable[[], None]:
        """What a child does to itself before it runs."""
        if self.random.random() < 0.5:
            seconds = self.random.uniform(0, self.whole_s)
            return lambda: _kill_after(seconds)
        calls = self.random.randrange(self.changes)
        return lambda: _kill_at(calls)


def _kill_after(seconds: float) -> None:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


def _kill_at(calls: int) -> None:
    left = iter(range(calls))

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return change

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))


def run_in_child(config: JobConfig, home: Path, prepare: Callable[[], None] | None = None) -> bool:
    """Whether the run ended well; False where it was killed as it was meant to."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if prepare is not None:
                prepare()
            run_job(config, home, Silent())
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, -signal.SIGKILL}, f"a run ended with {code}"
    return code == 0


def stored_rows(target: Path) -> int:
    """Rows that are safe in an unfinished output, each once."""
    folder = target if not target.suffix else target.with_name(f".{target.name}.batchgen")
    digests: set[str] = set()
    for path in result_files(folder):
        with open_results(path) as file:
            assert file.whole, f"{path} is torn"
            digests.update(name for number, _ in enumerate(file.batches) for name in file.digests_of(number))
    return len(digests)


def main(rounds: int, seed: int, rows: int) -> None:
    """Kill `rounds` runs. Raises `AssertionError` where a row was lost, doubled or changed."""
    from batchgen.job import generation  # noqa: F401 - imported once for all children

    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_tiny_model(folder / "tiny")
        write_requests(folder / "in.jsonl", rows)
        began = time.monotonic()
        assert run_in_child(job(folder, folder / "whole.jsonl"), folder / "home")
        kills = Kills(chosen, time.monotonic() - began)
        assert run_in_child(job(folder, folder / "whole"), folder / "home")
        expected = {name: results(folder / f"whole{Path(name).suffix or ''}") for name in ("out", "out.jsonl")}
        done = outputs = 0
        while done < rounds:
            outputs += 1
            name, order = chosen.choice(NAMES), chosen.choice(["input", "completion"])
            target = folder / f"{outputs}-{name}"
            layout: dict[str, Any] = {"order": order, "seconds_per_shard": 0.02}
            safe = 0
            finished = False
            while not finished and done < rounds:
                layout["rows_per_shard"] = chosen.choice([7, 50, 10_000])
                finished = run_in_child(job(folder, target, **layout), folder / "home", kills.next())
                done += not finished
                if not finished and (target.parent / target.name).exists() and not target.is_file():
                    now = stored_rows(target)
                    assert now >= safe, f"{target}: {safe} rows were safe, {now} are"
                    safe = now
            if not finished:
                assert run_in_child(job(folder, target, **layout), folder / "home")
            found, wanted = results(target), expected["out.jsonl" if name == "out.jsonl" else "out"]
            if order == "completion":
                found, wanted = (sorted(some, key=json.dumps) for some in (found, wanted))
            assert found == wanted, f"{target}: other rows than those of a run that never stopped"
    print(f"{done} runs killed over {outputs} outputs of {len(wanted)} rows: nothing lost, nothing doubled")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rows", type=int, default=300)
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}")
    main(given.rounds, seed, given.rows)
