"""`batchgen plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from batchgen.cli.arguments import Source, chosen_input
from batchgen.cli.environment import home
from batchgen.cli.flags import ShowConfig, StreamConfig
from batchgen.cli.options import Chosen, options
from batchgen.cli.streams import open_streams
from batchgen.config import EngineConfig, InputConfig, ModelConfig

if TYPE_CHECKING:
    from batchgen.job.planning import Outlook

__all__ = ["plan"]


@options(InputConfig, ModelConfig, EngineConfig, ShowConfig, StreamConfig)
def plan(chosen: Chosen, context: typer.Context, source: Source = None) -> None:
    """Say what a run of a file would take, before any weights are loaded: tokens, what requests share, memory, time.

    Times are for this machine, once `batchgen bench calibrate` has measured it: the least that the prompts take, and
    the least with every output at its limit.
    """
    config = chosen.make(InputConfig, input_file=chosen_input(chosen, context, source))
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.job.planning import look_ahead

        reporter.stage("reading input")
        outlook = look_ahead(config, chosen.make(ModelConfig), chosen.make(EngineConfig), home())
    print(
        json.dumps(outlook.to_json(), ensure_ascii=False)
        if chosen.make(ShowConfig).json
        else "\n".join(_lines(outlook))
    )


def _lines(outlook: Outlook) -> list[str]:
    work = outlook.work
    longest = ", ".join(f"{one.tokens:,} (line {one.line}, {one.custom_id})" for one in outlook.longest)
    if outlook.prompts_s is None or outlook.limit_s is None:
        seconds = "unknown: run `batchgen bench calibrate` once on this machine"
    else:
        prompts, limit = f"{outlook.prompts_s:,.1f}", f"{outlook.limit_s:,.1f}"
        seconds = f"at least {prompts} s for the prompts, {limit} s with outputs at their limits"
    needed, cache = f"{outlook.needed_bytes / 2**20:,.1f} MiB", f"{outlook.cache_bytes / 2**20:,.1f} MiB"
    return [
        f"model            {outlook.model}, {outlook.precision}, {outlook.kernels}",
        f"rows             {outlook.rows:,}, of which {outlook.invalid_rows:,} will be refused",
        f"sequences        {outlook.sequences:,}",
        f"prompt tokens    {outlook.prompt_tokens:,}",
        f"distinct tokens  {work.distinct_tokens:,}: {outlook.sharing:.1%} are shared",
        f"output tokens    {work.sampled_tokens:,} at most",
        f"longest prompts  {longest}",
        f"KV memory        {needed} for the largest {outlook.max_num_seqs} at once; {cache} will be set aside",
        f"time             {seconds}",
    ]
