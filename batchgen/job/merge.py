"""One output out of the outputs of a job's shards."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from batchgen.config import MergeConfig, OutputConfig
from batchgen.errors import OutputMismatchError, UsageError
from batchgen.io.claim import Claim, claim_output
from batchgen.io.durable import writing
from batchgen.io.history import next_run_file, read_runs, write_run
from batchgen.io.manifest import Manifest, manifest_of
from batchgen.io.result_file import open_results
from batchgen.io.shards import Shard, shards_beside
from batchgen.io.sources import part_files
from batchgen.io.store import Store
from batchgen.job.fingerprint import differences

__all__ = ["merge_shards"]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A shard that is complete."""

    shard: Shard
    manifest: Manifest


def merge_shards(given: SequenceOf[Path], config: MergeConfig) -> dict[str, Any]:
    """Join shards to the output that one process would have written; the summary. The shards stay.

    `given`: all folders of the shards, or the one output that they are named after. Raises `UsageError` where a shard
    is missing or unfinished, `OutputMismatchError` where they do not go together, or a row is missing or doubled.
    """
    began = time.monotonic()
    shards = [_finished(shard) for shard in _named(given)]
    _check_together(shards, config)
    first = shards[0]
    target = config.merged_file or str(first.shard.output)
    output = OutputConfig(output_file=target, error_file=config.error_file, overwrite=config.overwrite)
    manifest = _merged_manifest([shard.manifest for shard in shards])
    if target == "-":
        raise UsageError("merge writes a folder or a file, not standard output")
    with claim_output(output, first.manifest.input["file"]) as claim:
        # What a merge that was killed has left is of no use.
        if claim.earlier is not None and (claim.earlier.finished or "partition" not in claim.earlier.input):
            raise OutputMismatchError(f"{target}: has results already; --overwrite replaces them")
        _join(replace(claim, earlier=None), output, manifest, shards)
    rows, failed = (sum(finished.manifest.counts[name] for finished in shards) for name in ("rows", "failed"))
    return {
        "status": "completed",
        "request_counts": {"total": rows, "completed": rows - failed, "failed": failed},
        "shards": len(shards),
        "output": target,
        "elapsed_s": round(time.monotonic() - began, 3),
    }


def _named(given: SequenceOf[Path]) -> list[Shard]:
    if len(given) == 1 and (beside := shards_beside(given[0])):
        return beside
    try:
        shards = sorted(map(Shard, given), key=lambda shard: shard.index)
    except ValueError as error:
        raise UsageError(f"nothing to merge: {error}; name the shards, or the output that they belong to") from error
    if len({(shard.output.resolve().name, shard.number) for shard in shards}) > 1:
        raise UsageError("the folders are shards of different jobs; merge one job at a time")
    return shards


def _finished(shard: Shard) -> _Finished:
    manifest = manifest_of(shard.path)
    if manifest is None:
        raise UsageError(f"{shard.path}: there are no results; run this shard first")
    if not manifest.finished:
        raise UsageError(f"{shard.path}: is not finished; run the same command again, then merge")
    return _Finished(shard, manifest)


def _check_together(shards: SequenceOf[_Finished], config: MergeConfig) -> None:
    first, number = shards[0].manifest, shards[0].shard.number
    there = [finished.shard.index for finished in shards]
    if there != list(range(number)):
        missing = ", ".join(str(index) for index in range(number) if index not in there) or "none"
        raise UsageError(f"each of {number} shards must be there once; {missing} missing, or one comes twice")
    for finished in shards[1:]:
        now = finished.manifest
        split = [{name: m.input.get(name) for name in ("partition", "total_rows")} for m in (first, now)]
        found = list(differences(*split))
        if not config.merge_anyway:
            found += differences(_shared(first), _shared(now))
        if found:
            said = (
                f"{finished.shard.path} does not go with {shards[0].shard.path}; run the shards on the same input and"
            )
            raise OutputMismatchError("\n".join([f"{said} settings (--merge-anyway joins other settings):", *found]))
    rows = sum(finished.manifest.counts["rows"] for finished in shards)
    if rows != first.input["total_rows"]:
        raise OutputMismatchError(f"the shards have {rows} rows, the input has {first.input['total_rows']}")


def _shared(manifest: Manifest) -> dict[str, Any]:
    """What all shards have in common; a shard without rows has met no engine."""
    settings = {name: value for name, value in manifest.settings.items() if name != "shard"}
    return settings | {"line_format": manifest.input["line_format"]} | dict(manifest.engine or {})


def _merged_manifest(shards: SequenceOf[Manifest]) -> Manifest:
    """That of one process over the whole input."""
    first = shards[0]
    identities = {shard.input.get("identity") for shard in shards}
    return Manifest(
        run_id=first.run_id,
        created=min(shard.created for shard in shards),
        settings={name: value for name, value in first.settings.items() if name != "shard"},
        layout=first.layout,
        engine=next((shard.engine for shard in shards if shard.engine is not None), None),
        input={
            **first.input,
            "rows": first.input["total_rows"],
            # Copies of one file on several machines differ in their times.
            "identity": identities.pop() if len(identities) == 1 else None,
        },
    )


def _join(claim: Claim, config: OutputConfig, manifest: Manifest, shards: SequenceOf[_Finished]) -> None:
    claim.prepare()
    with open_results(part_files(shards[0].shard.path)[0]) as file:
        schema = file.schema
    if schema is None:
        raise OutputMismatchError(f"{shards[0].shard.path} is damaged")
    store = Store(claim, config, schema, manifest, manifest.input["line_format"])
    streams = [
        chain.from_iterable([store.take_over(path) for path in part_files(finished.shard.path)]) for finished in shards
    ]
    before = 0
    for number, stored in enumerate(heapq.merge(*streams, key=attrgetter("line"))):
        if stored.line <= before:
            raise OutputMismatchError(f"line {stored.line} of the input has two results")
        before = stored.line
        store.keep(number, stored.line, stored)
    store.finish()
    assert claim.folder is not None
    with writing(claim.folder):
        for run in chain.from_iterable(read_runs(finished.shard.path) for finished in shards):
            write_run(next_run_file(claim.folder), run)
