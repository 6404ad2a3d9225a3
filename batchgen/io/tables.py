"""Inputs that are tables: Parquet and Arrow files, one or several, and datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.arrow_file import arrow_table
from batchgen.io.hub_dataset import hub_dataset_of, hub_identity, hub_table
from batchgen.io.parquet import parquet_table
from batchgen.io.saved_dataset import is_saved, saved_files, saved_table
from batchgen.io.source import is_stream, source_identity
from batchgen.io.table import Table

__all__ = ["input_identity", "is_table", "open_table"]

_PARQUET = (".parquet", ".pq")
_ENDINGS = (*_PARQUET, ".arrow")
_GLOB = frozenset("*?[")


def is_table(config: InputConfig) -> bool:
    """Whether the input has columns rather than lines.

    Raises `UsageError` for a split or a subset of what is no dataset.
    """
    source = config.input_file
    if hub_dataset_of(source) is not None:
        return True
    saved = is_saved(source)
    if config.subset is not None or (config.split is not None and not saved):
        raise UsageError(f"input {source}: is no dataset that has splits or subsets; leave out --split and --subset")
    return saved or _is_folder(source) or source.endswith(_ENDINGS)


def open_table(config: InputConfig) -> AbstractContextManager[Table]:
    """The table of an input that is one. Raises `UsageError` where it can't be read, also within the context."""
    source = config.input_file
    if (dataset := hub_dataset_of(source)) is not None:
        return hub_table(dataset, config)
    if is_saved(source):
        return saved_table(config)
    files = _files(source)
    return _table_of_file(files[0]) if len(files) == 1 else _table_of_files(source, files)


def input_identity(config: InputConfig) -> str | None:
    """What changes whenever the input does; None where that can't be told. Reads no rows."""
    source = config.input_file
    if (dataset := hub_dataset_of(source)) is not None:
        return hub_identity(dataset, config)
    if is_stream(source) or not (is_saved(source) or _is_folder(source) or _is_pattern(source)):
        return source_identity(source)
    files = saved_files(source) if is_saved(source) else _files(source)
    identities = [(file, source_identity(file)) for file in files]
    if any(identity is None for _, identity in identities):
        return None
    return hashlib.sha256(repr((identities, config.split)).encode()).hexdigest()


def _files(source: str) -> list[str]:
    """The files that a name stands for: itself, those of a folder, or those that a pattern matches."""
    if _is_folder(source):
        found = sorted(str(path) for path in Path(source).iterdir() if path.name.endswith(_ENDINGS))
    elif _is_pattern(source):
        found = sorted(_matches(source))
    else:
        return [source]
    if not found:
        raise UsageError(
            f"input {source}: there is no file that ends in {', '.join(_ENDINGS)}, nor a dataset that was saved with "
            "save_to_disk; JSON lines are given as one file"
        )
    return found


def _is_folder(source: str) -> bool:
    return not is_stream(source) and "://" not in source and Path(source).is_dir()


def _is_pattern(source: str) -> bool:
    return source.endswith(_ENDINGS) and bool(_GLOB & set(source)) and not Path(source).is_file()


def _matches(pattern: str) -> list[str]:
    try:
        import fsspec

        filesystem, path = fsspec.url_to_fs(pattern)
        found = filesystem.glob(path)
        return [filesystem.unstrip_protocol(name) for name in found] if "://" in pattern else found
    except Exception as error:
        # Storage clients have exceptions of their own.
        raise UsageError(f"input {pattern}: cannot be listed: {error}") from error


@contextmanager
def _table_of_files(source: str, files: list[str]) -> Iterator[Table]:
    """The rows of one file after another, under the columns of the first."""
    with _table_of_file(files[0]) as first:
        schema = first.schema

    def count() -> int:
        total = 0
        for file in files:
            with _table_of_file(file) as table:
                total += table.count()
        return total

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            with _table_of_file(file) as table:
                if not table.schema.equals(schema):
                    raise UsageError(
                        f"input {source}: the files have different columns; {file} has {_columns(table.schema)}, "
                        f"{files[0]} has {_columns(schema)}"
                    )
                yield from table.batches()

    yield Table(schema, count, batches)


def _table_of_file(file: str) -> AbstractContextManager[Table]:
    return parquet_table(file) if file.endswith(_PARQUET) else arrow_table(file)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
