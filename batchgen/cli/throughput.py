"""`batchgen bench throughput` and `batchgen bench compare`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from batchgen.bench.compare import CompareConfig
from batchgen.bench.datasets import DatasetConfig, load_dataset
from batchgen.bench.sweep import RunsConfig, fastest, measure_points, point_lines
from batchgen.cli.environment import home
from batchgen.cli.flags import ShowConfig, StreamConfig
from batchgen.cli.options import Chosen, file_to_write, options
from batchgen.cli.streams import open_streams, write_file
from batchgen.config import EngineConfig, ModelConfig

__all__ = ["compare", "throughput"]

_TOO_SLOW = 3
"""Exit code of `compare` where a speed is under `--fail-below`."""


@options(DatasetConfig, RunsConfig, ModelConfig, EngineConfig, StreamConfig)
def throughput(
    chosen: Chosen,
    output_json: Annotated[
        Path | None,
        file_to_write("output_json", "Write the figures there, the keys of vLLM's file and more, for bench compare."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time went, by kind of op.")] = False,
) -> None:
    """Measure offline throughput: the options and the three lines of `vllm bench throughput`.

    Exactly --output-len tokens are generated for each prompt, greedily, whatever they are. Loading and tokenisation
    are not timed. Of several runs the one in the middle counts, of several batch sizes the fastest.
    """
    dataset, runs, model = chosen.make(DatasetConfig), chosen.make(RunsConfig), chosen.make(ModelConfig)
    sizes = runs.sizes(chosen.make(EngineConfig))
    settings = replace(chosen.make(EngineConfig), max_num_seqs=sizes[-1])
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.bench.saved import result_json
        from batchgen.bench.throughput import Spent, profile_of, warm_up, work_of
        from batchgen.job import open_engine

        reporter.stage("loading model")
        began = time.perf_counter()
        engine = open_engine(model, settings, home())
        load_time = time.perf_counter() - began
        try:
            encode = None if engine.tokenizer is None else engine.encode_prompt
            requests = load_dataset(dataset, vocab_size=engine.vocab_size, encode=encode, seed=settings.seed)
            warm_up(engine, requests)
            before = Spent(engine.runner.op_times(), engine.runner.kernel_s)
            points = measure_points(engine, requests, sizes, runs.num_runs, reporter)
            after = Spent(engine.runner.op_times(), engine.runner.kernel_s)
            result = result_json(
                points,
                requests=requests,
                dataset=dataset,
                model=model,
                settings=settings,
                engine=engine.describe(),
                machine=engine.machine(),
                load_time=load_time,
                bound_s=engine.bound_s(work_of(requests), home()),
            )
        finally:
            engine.close()
    if len(sizes) > 1 or runs.num_runs > 1:
        _echo(point_lines(result["points"]))
    _echo(fastest(points).median.lines())
    if profile:
        _echo(profile_of(before, after, sum(run.elapsed_s for point in points for run in point.runs)))
    if result["efficiency"] is not None:
        typer.echo(f"Efficiency: {result['efficiency']:.1%} of what this machine was measured to reach")
    if output_json is not None:
        write_file("--output-json", output_json, json.dumps(result, indent=4) + "\n")


Result = Annotated[Path, typer.Argument(help="A file of bench throughput --output-json.")]


@options(CompareConfig, ShowConfig)
def compare(chosen: Chosen, before: Result, after: Result) -> None:
    """Compare two saved results: what differs in settings, the ratio of each figure, and whether the runs' spread
    explains it.

    Refuses results of other work, another model or another machine. With --fail-below 0.95 the exit code is 3 where a
    batch size has less than 0.95 times the total tokens a second, and its runs don't overlap with the earlier ones.
    """
    from batchgen.bench.compare import compare as compared

    config = chosen.make(CompareConfig)
    found = compared(before, after, config)
    slow = [] if config.fail_below is None else found.below(config.fail_below)
    if chosen.make(ShowConfig).json:
        typer.echo(json.dumps({**found.to_json(), "failed": bool(slow)}))
    else:
        _echo(found.lines())
        for figure in slow:
            typer.echo(f"failed: {figure.max_num_seqs} sequences at once, {figure.ratio:.3f} < {config.fail_below:g}")
    if slow:
        raise typer.Exit(_TOO_SLOW)


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
