"""`batchgen run-batch`."""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from batchgen.cli.arguments import Source, chosen_input
from batchgen.cli.environment import array_index, home
from batchgen.cli.flags import PushConfig, StreamConfig
from batchgen.cli.options import Chosen, file_to_write, given, options
from batchgen.cli.push import checked_target, push_after
from batchgen.cli.record import JobRecord
from batchgen.cli.streams import READER_GONE, abandon_stdout, open_streams
from batchgen.config import DistributedConfig, EngineConfig, InputConfig, JobConfig, ModelConfig, OutputConfig
from batchgen.errors import BatchgenError, UsageError
from batchgen.io.shards import shard_folder

if TYPE_CHECKING:
    from batchgen.job.crew import OpenCrew
    from batchgen.ui.metrics import MetricsFile

__all__ = ["default_output", "run_batch"]

_PACKED = frozenset({".gz", ".zst"})
_PATTERN = frozenset("*?[")


@options(InputConfig, OutputConfig, ModelConfig, EngineConfig, JobConfig, DistributedConfig, PushConfig, StreamConfig)
def run_batch(
    chosen: Chosen,
    context: typer.Context,
    source: Source = None,
    summary_file: Annotated[Path | None, file_to_write("summary_file", "Write the summary there as well.")] = None,
    metrics_file: Annotated[
        Path | None,
        file_to_write("metrics_file", "Keep the state there while the job runs: .prom for Prometheus, or .json."),
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", hidden=True)] = False,
) -> None:
    """Run all requests of a file through a model and write every result to Arrow files.

    The last line of standard output is a summary in JSON (with -o - the results are there, and the summary ends
    standard error).
    """
    source = chosen_input(chosen, context, source)
    output, shard_index = _shard(chosen, context, chosen.values["output_file"] or default_output(source))
    config = chosen.make(
        JobConfig,
        model=chosen.make(ModelConfig),
        engine=chosen.make(EngineConfig),
        input=chosen.make(InputConfig, input_file=source),
        output=chosen.make(OutputConfig, output_file=output),
        shard_index=shard_index,
    )
    crew = _crew(chosen.make(DistributedConfig))
    record = JobRecord(output, summary_file, _metrics(metrics_file, output))
    with record.kept(), open_streams(chosen.make(StreamConfig), *record.reporters) as reporter:
        if trust_remote_code:
            _refuse_unpinned_code(config.model)
            logging.getLogger(__name__).warning("--trust-remote-code has no effect: code of checkpoints is never run")
        from batchgen.job import run_job

        target = checked_target(chosen.make(PushConfig), output, config.num_shards)
        try:
            summary = run_job(config, home(), reporter, crew)
        except BrokenPipeError as error:
            if output != "-":
                raise BatchgenError(f"a pipe or a connection broke: {error}") from error
            abandon_stdout()
            raise typer.Exit(READER_GONE) from error
        told, exit_code = summary.to_json(), summary.exit_code
        if target is not None and not summary.too_many_failed:
            pushed, refused = push_after(target, output, reporter)
            told, exit_code = told | pushed, refused or exit_code
    record.ended(told, exit_code)
    raise typer.Exit(exit_code)


def _crew(config: DistributedConfig) -> OpenCrew | None:
    """Who computes; None: this process."""
    if config.distributed == "none":
        if config.ray_address is not None or config.num_workers is not None:
            raise UsageError("--ray-address and --num-workers are for --distributed ray")
        return None
    from batchgen.integrations.ray.fleet import ray_crew

    return ray_crew(config.ray_address, config.num_workers)


def default_output(source: str) -> str:
    """The folder for the results of `source`: its name without endings, with `.out`, in the current folder; of a
    pattern, the name of the folder that it is in."""
    if source == "-":
        return "stdin.out"
    name = PurePosixPath(source.rstrip("/"))
    while _PATTERN & set(name.name):
        name = name.parent
    if name.suffix in _PACKED:
        name = name.with_suffix("")
    return f"{name.stem or 'input'}.out"


def _shard(chosen: Chosen, context: typer.Context, output: str) -> tuple[str, int]:
    """The output and the index of this process's shard; those of the whole job where there is one shard."""
    number, index = chosen.values["num_shards"], chosen.values["shard_index"]
    if number > 1 and not given(context, "shard_index"):
        index = array_index()
        if index is None:
            raise UsageError(
                f"--num-shards {number}: which of them is this? Give --shard-index, or run in a Kubernetes job with "
                "completion mode Indexed or in a Slurm array"
            )
    if not 0 <= index < number:
        raise UsageError(f"shard {index} of {number}: the index must be from 0 to {number - 1}")
    if number == 1:
        return output, index
    if output == "-" or chosen.values["error_file"] is not None or chosen.values["order"] != "input":
        raise UsageError(
            "a shard has a folder in the input's order: leave out -o - and --order; merge has --error-file"
        )
    return shard_folder(output, index, number), index


def _refuse_unpinned_code(model: ModelConfig) -> None:
    """Code from the hub can change under its name: trust is for one commit."""
    from batchgen.checkpoint.hub import is_commit
    from batchgen.checkpoint.store import ALIASES

    reference = model.model
    if reference is None or reference in ALIASES or Path(reference).exists():
        return
    if not is_commit(model.revision or reference.partition("@")[2]):
        raise UsageError(
            f"--trust-remote-code: {reference} can change under its name; name the commit that you have read: "
            f"{reference.partition('@')[0]}@COMMIT, 40 hexadecimal digits"
        )


def _metrics(path: Path | None, output: str) -> MetricsFile | None:
    if path is None:
        return None
    if path.suffix not in {".prom", ".json"}:
        raise UsageError(f"--metrics-file {path}: must end in .prom or .json")
    from batchgen.ui.metrics import MetricsFile

    return MetricsFile(path, output)
