"""`batchgen push`, and `run-batch --push-to-hub`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchgen.cli.completion import complete_output
from batchgen.cli.flags import PushConfig, StreamConfig
from batchgen.cli.options import Chosen, options
from batchgen.cli.streams import open_streams, print_summary
from batchgen.errors import BatchgenError, UsageError

if TYPE_CHECKING:
    from batchgen.integrations.hub import HubTarget
    from batchgen.progress import Reporter

__all__ = ["checked_target", "push", "push_after"]


@options(StreamConfig)
def push(
    chosen: Chosen,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help="A finished folder, .parquet or .arrow file.", autocompletion=complete_output
        ),
    ],
    repository: Annotated[str, typer.Argument(metavar="REPO", help="Name of the dataset on the hub, OWNER/NAME.")],
    private: Annotated[bool, typer.Option("--private", help="Make the dataset private.")] = False,
) -> None:
    """Upload a finished output to the Hugging Face hub, as Parquet files with a card.

    The card says which model, which settings and how the run went, and has no text of requests. What an earlier push
    has put there is replaced. The last line of standard output is a summary in JSON.
    """
    from batchgen.integrations.hub import HubTarget, push_output

    with open_streams(chosen.make(StreamConfig)) as reporter:
        reporter.stage("uploading")
        url = push_output(output, HubTarget(repository, private))
    summary = {"status": "completed", "output": str(output), "pushed_to": url, "exit_code": 0}
    print_summary(json.dumps(summary, ensure_ascii=False), to_stderr=False)


def checked_target(config: PushConfig, output: str, num_shards: int) -> HubTarget | None:
    """Where a run is to push its output, checked before it begins; None where nobody asked for it."""
    if config.push_to_hub is None:
        if config.private:
            raise UsageError("--private goes with --push-to-hub")
        return None
    if num_shards > 1:
        raise UsageError("--push-to-hub pushes whole outputs: let the shards run, then `batchgen merge` and `push`")
    from batchgen.integrations.hub import HubTarget, check_target

    target = HubTarget(config.push_to_hub, config.private)
    check_target(target, output)
    return target


def push_after(target: HubTarget, output: str, reporter: Reporter) -> tuple[dict[str, Any], int]:
    """Upload the output of a run that is over. What to add to its summary, and the exit code: a push that failed
    leaves the results and the summary as they are."""
    from batchgen.integrations.hub import push_output

    reporter.stage("uploading")
    try:
        return {"pushed_to": push_output(Path(output), target)}, 0
    except BatchgenError as error:
        advice = f"the results are kept in {output}; the same command tries to push them again, as does `batchgen push`"
        logging.getLogger("batchgen").error("%s; %s", error, advice)  # noqa: TRY400
        return {"pushed_to": None, "push_error": str(error)}, error.exit_code
