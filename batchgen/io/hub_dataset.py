"""Whole datasets of the Hugging Face hub: `hf://datasets/OWNER/NAME`, `@REVISION` after it.

The datasets library fetches them and keeps them in its cache, as Arrow files that are memory-mapped. A file within
one is opened like every other address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.saved_dataset import chosen_split, dataset_table, quiet_datasets
from batchgen.io.table import Table

__all__ = ["HubDataset", "hub_dataset_of", "hub_identity", "hub_table"]

_ADDRESS = re.compile(r"hf://datasets/([^/@]+(?:/[^/@]+)?)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?/?")
_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset by name."""

    name: str
    """`OWNER/NAME`, or the `NAME` of one without an owner."""
    revision: str | None


def hub_dataset_of(source: str) -> HubDataset | None:
    """The dataset that an address names as a whole; None for what else there is."""
    found = _ADDRESS.fullmatch(source)
    return None if found is None else HubDataset(found[1], found[2])


@contextmanager
def hub_table(dataset: HubDataset, config: InputConfig) -> Iterator[Table]:
    """One split of it, fetched as far as it is not in the cache. Raises `UsageError` where it can't be had."""
    import datasets

    source, revision = config.input_file, dataset.revision
    with quiet_datasets():
        try:
            split = config.split
            if split is None:
                names = datasets.get_dataset_split_names(dataset.name, config.subset, revision=revision)
                split = chosen_split(source, names, None)
            loaded = datasets.load_dataset(dataset.name, config.subset, split=split, revision=revision)
        except UsageError:
            raise
        except Exception as error:
            # The library, the hub's client and readers of many formats have exceptions of their own.
            said = " ".join(str(error).partition("Example of usage")[0].split())
            raise UsageError(
                f"input {source}: cannot be loaded: {said} (--subset and --split say which part of a dataset is meant)"
            ) from error
    yield dataset_table(loaded)


def hub_identity(dataset: HubDataset, config: InputConfig) -> str | None:
    """The commit, and which part of it is read; None where the hub can't be asked."""
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(dataset.name, revision=dataset.revision, timeout=_TIMEOUT_S).sha
    except Exception:  # noqa: BLE001 - whatever is wrong, reading the dataset will say it
        return None
    return None if commit is None else f"{commit} {config.subset} {config.split}"
