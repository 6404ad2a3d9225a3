"""`batchgen merge`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from batchgen.cli.completion import complete_output
from batchgen.cli.flags import StreamConfig
from batchgen.cli.options import Chosen, options
from batchgen.cli.streams import open_streams, print_summary
from batchgen.config import MergeConfig

__all__ = ["merge"]


@options(MergeConfig, StreamConfig)
def merge(
    chosen: Chosen,
    outputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="OUTPUT",
            help="The folders of all shards, or the output they are named after.",
            autocompletion=complete_output,
        ),
    ],
) -> None:
    """Join the outputs of all shards of a job to the output that one process would have written.

    The shards must be finished, of one input and with the same settings, and no row may be missing or doubled. They
    stay as they are. The last line of standard output is a summary in JSON.
    """
    with open_streams(chosen.make(StreamConfig)) as reporter:
        from batchgen.job.merge import merge_shards

        reporter.stage("merging")
        summary = merge_shards(outputs, chosen.make(MergeConfig))
    print_summary(json.dumps({**summary, "exit_code": 0}, ensure_ascii=False), to_stderr=False)
