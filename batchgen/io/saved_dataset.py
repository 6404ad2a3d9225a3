"""Folders that Hugging Face datasets has saved with `save_to_disk`, and what all of its datasets are as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.table import PIECE_ROWS, Table, pieces

if TYPE_CHECKING:
    import datasets

__all__ = ["chosen_split", "dataset_table", "is_saved", "quiet_datasets", "quiet_hub", "saved_files", "saved_table"]

_DICT, _STATE = "dataset_dict.json", "state.json"


def is_saved(source: str) -> bool:
    """Whether a path is the folder of a saved `Dataset` or `DatasetDict`."""
    folder = Path(source)
    return (folder / _DICT).is_file() or (folder / _STATE).is_file()


def saved_files(source: str) -> list[str]:
    """The files of such a folder, without those that datasets keeps there of what was made of it."""
    return sorted(str(path) for path in Path(source).rglob("[!.]*") if path.is_file() and path.name[:6] != "cache-")


@contextmanager
def saved_table(config: InputConfig) -> Iterator[Table]:
    """A saved dataset, or one split of several. Raises `UsageError` where it can't be read."""
    source = config.input_file
    folder = Path(source)
    if (folder / _DICT).is_file():
        splits = json.loads((folder / _DICT).read_bytes())["splits"]
        folder /= chosen_split(source, splits, config.split)
    elif config.split is not None:
        raise UsageError(f"input {source}: is one saved dataset without splits; leave out --split")
    import datasets

    with quiet_datasets():
        try:
            dataset = datasets.load_from_disk(str(folder))
        except Exception as error:
            # What a damaged folder makes it raise is of many kinds.
            raise UsageError(f"input {source}: cannot be read as a saved dataset: {error}") from error
    yield dataset_table(dataset)


def dataset_table(dataset: datasets.Dataset) -> Table:
    """A dataset as it is stored: images and sounds stay bytes and paths."""

    def batches() -> Iterator[pa.RecordBatch]:
        for table in dataset.with_format("arrow").iter(PIECE_ROWS):
            for batch in table.to_batches():
                yield from pieces(batch)

    return Table(dataset.features.arrow_schema, lambda: dataset.num_rows, batches)


def chosen_split(source: str, splits: Sequence[str], chosen: str | None) -> str:
    """The split that the settings name, else the only one."""
    if chosen is None and len(splits) == 1:
        return splits[0]
    if chosen is not None and chosen in splits:
        return chosen
    said = "has several splits" if chosen is None else f"has no split {chosen!r}"
    raise UsageError(f"input {source}: {said}; give --split with one of: {', '.join(splits)}")


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Without the progress bars of the library, which would run into our own display."""
    import datasets

    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with quiet_hub():
            yield
    finally:
        if not hidden:
            datasets.enable_progress_bars()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Without the progress bars of the hub's client."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()
