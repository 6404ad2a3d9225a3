"""What other doors than `run-batch` cost: the same rows through each of them in turn, each time in a new process.

    python -m tests.overhead [--model NAME] [--rows N] [--max-tokens N] [--rounds N]

Prints the median of the seconds from the first row to the last result, without loading, and its ratio to `run-batch`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from batchgen import Engine
from batchgen.api.home import home
from batchgen.config import EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.integrations.ray.fleet import ray_crew
from batchgen.job import run_job
from batchgen.job.crew import OpenCrew
from batchgen.ui import QuietReporter

TOPICS = ("the sea", "a clock", "winter", "bread", "a long road", "glass", "the moon")
MAX_MODEL_LEN = 512


def lines(rows: int, max_tokens: int) -> list[dict[str, Any]]:
    """Chats of different lengths, which all run to their limit."""
    return [
        {
            "custom_id": f"row-{n + 1}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": f"{n}. Tell me about {TOPICS[n % 7]}. " * (1 + n % 5)}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        for n in range(rows)
    ]


def by_run_batch(model: str, source: Path, open_crew: OpenCrew | None = None) -> float:
    """A file in, a folder of Arrow files out."""
    with tempfile.TemporaryDirectory() as folder:
        config = JobConfig(
            model=ModelConfig(model=model),
            engine=EngineConfig(max_model_len=MAX_MODEL_LEN),
            input=InputConfig(input_file=str(source)),
            output=OutputConfig(output_file=f"{folder}/out"),
        )
        summary = run_job(config, home(), QuietReporter(), open_crew)
    assert summary.counts.failed == 0
    return summary.generation_s


def by_ray_worker(model: str, source: Path) -> float:
    """The same with one worker of a Ray cluster that is started here; its start is no part of the seconds."""
    return by_run_batch(model, source, ray_crew(None, 1))


def by_generate(model: str, source: Path) -> float:
    """Batch lines in, results out."""
    requests = [json.loads(line) for line in source.read_text().splitlines()]
    with Engine(model, max_model_len=MAX_MODEL_LEN) as engine:
        engine.load()
        began = time.monotonic()
        results = list(engine.generate(requests))
        took = time.monotonic() - began
    assert not [result for result in results if result.error]
    return took


def by_run_table(model: str, source: Path) -> float:
    """A table of the same requests in, a table out."""
    table = pa.Table.from_pylist([json.loads(line) for line in source.read_text().splitlines()])
    with Engine(model, max_model_len=MAX_MODEL_LEN) as engine:
        engine.load()
        began = time.monotonic()
        made = engine.run_table(table)
        took = time.monotonic() - began
    assert made.column("error").null_count == table.num_rows
    return took


WAYS: Mapping[str, Callable[[str, Path], float]] = MappingProxyType(
    {
        "run-batch": by_run_batch,
        "Engine.generate": by_generate,
        "Engine.run_table": by_run_table,
        "one Ray worker": by_ray_worker,
    }
)
"""The first is what the others are compared with."""


def measure(way: str, model: str, source: Path) -> float:
    """The seconds of one way, in a process of its own."""
    command = [sys.executable, "-m", "tests.overhead", "--way", way, "--model", model, "--source", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def compare(model: str, rows: int, max_tokens: int, rounds: int) -> None:
    """Print a line for each round, then the table."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        source.write_text("".join(json.dumps(line) + "\n" for line in lines(rows, max_tokens)))
        for number in range(rounds):
            # Every other round backwards, so that a machine that slows down slows all of them.
            for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
                seconds[way].append(measure(way, model, source))
            print(*(f"{way} {took[-1]:.2f} s" for way, took in seconds.items()), sep="  ", flush=True)
    base = median(next(iter(seconds.values())))
    for way, took in seconds.items():
        print(f"{way:18} median {median(took):7.2f} s  {100 * (median(took) / base - 1):+6.2f}%")


def main() -> None:
    """Compare all ways; with `--way` measure one in this process."""
    options = argparse.ArgumentParser(prog="python -m tests.overhead")
    options.add_argument("--model", default="smollm2-135m-instruct")
    options.add_argument("--rows", type=int, default=400)
    options.add_argument("--max-tokens", type=int, default=32)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    options.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.way is None:
        compare(chosen.model, chosen.rows, chosen.max_tokens, chosen.rounds)
    else:
        print(WAYS[chosen.way](chosen.model, chosen.source))


if __name__ == "__main__":
    main()
