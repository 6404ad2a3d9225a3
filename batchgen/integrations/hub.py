"""A finished output as a dataset on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from batchgen.config import InputConfig
from batchgen.errors import BatchgenError, HubUnavailableError, UsageError
from batchgen.integrations.card import card_of
from batchgen.io.claim import kept_folder
from batchgen.io.durable import writing
from batchgen.io.manifest import BOOKKEEPING, Manifest, manifest_of
from batchgen.io.saved_dataset import quiet_hub
from batchgen.io.single_file import row_groups
from batchgen.io.tables import open_table

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

__all__ = ["HubTarget", "check_target", "push_output"]

_CARD = "README.md"
_DATA = "data/train-{:05d}-of-{:05d}.parquet"
_GROUPS_OF_FILE = 8
"""Row groups, of 64 MiB of Arrow data each."""
_TRY_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_MEANINGS: Mapping[int, str] = {
    401: "the hub does not know the token; log in with `hf auth login` or set HF_TOKEN",
    403: "the token may not write there; use one that may write, or name a repository of yours",
    404: "there is no such user or organisation, or the token may not see it",
}
_TAG = "batchgen"
"""By it a card is known as ours."""


@dataclass(frozen=True, slots=True)
class HubTarget:
    """Where results go on the hub."""

    repository: str
    """`OWNER/NAME` or `NAME`, of a dataset; made where there is none."""
    private: bool = False


def check_target(target: HubTarget, output: str) -> None:
    """Find out before a job begins what would keep its results from the hub at its end.

    Raises `UsageError` for an output without columns, and where there is no token or a wrong one. A hub that can't be
    reached now may be there by then.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(target.repository)
    except HFValidationError as error:
        raise UsageError(f"--push-to-hub {target.repository}: {error}") from error
    if output == "-" or output.endswith(".jsonl"):
        raise UsageError(f"{output}: the hub gets columns; write a folder, a .parquet or an .arrow file to push it")
    with suppress(HubUnavailableError), _explained(target):
        HfApi().whoami()


def push_output(output: Path, target: HubTarget) -> str:
    """Upload a finished output with a card, as one commit, in place of what was pushed there before; its address.

    What is there already is not sent again. Raises `UsageError` where there is no finished output, or the hub refuses;
    `HubUnavailableError` where it can't be reached. The output stays as it is.
    """
    from huggingface_hub import HfApi

    manifest = _finished(output)
    message = f"Results of batchgen, run {manifest.run_id}"
    api = HfApi()
    with writing(output), TemporaryDirectory(dir=kept_folder(output) / BOOKKEEPING, prefix="push-") as folder:
        files = _parquet_files(output, Path(folder))
        with _explained(target):
            name = api.create_repo(
                target.repository, repo_type="dataset", private=target.private, exist_ok=True
            ).repo_id
            there = _files_there(api, name, target)
        operations = _operations(files, card_of(output, manifest, name, _TAG), there)
        with _explained(target), quiet_hub():
            commit = api.create_commit(name, operations, commit_message=message, repo_type="dataset")
    return str(commit.commit_url)


def _finished(output: Path) -> Manifest:
    folder = kept_folder(output)
    manifest = manifest_of(folder) if folder.is_dir() else None
    if manifest is None or not output.exists():
        raise UsageError(f"{output}: there are no results of batchgen")
    if output.suffix == ".jsonl":
        raise UsageError(
            f"{output}: the hub gets columns; run with -o a folder, .parquet or .arrow to push the results"
        )
    if not manifest.finished:
        raise UsageError(f"{output}: is not finished; run the same command again, then push")
    return manifest


def _files_there(api: HfApi, name: str, target: HubTarget) -> list[str]:
    """The repository's files. Refuses one that is not ours to replace, or not as private as was asked for."""
    from huggingface_hub import DatasetCard

    info = api.dataset_info(name)
    there = [file.rfilename for file in info.siblings or ()]
    if target.private and not info.private:
        raise UsageError(f"{name} is there already and public; make it private, or name another repository")
    if _CARD in there and _TAG not in (DatasetCard.load(name).data.tags or ()):
        raise UsageError(f"{name} has a card that batchgen has not written; name another repository")
    return there


def _operations(files: list[Path], card: str, there: list[str]) -> list[CommitOperationAdd | CommitOperationDelete]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    names = {_DATA.format(number, len(files)): file for number, file in enumerate(files)}
    before, after = _DATA.split("{", 1)[0], ".parquet"
    old = [name for name in there if name.startswith(before) and name.endswith(after) and name not in names]
    return [
        CommitOperationAdd(_CARD, card.encode()),
        *(CommitOperationAdd(name, str(file)) for name, file in names.items()),
        *(CommitOperationDelete(name) for name in old),
    ]


def _parquet_files(output: Path, folder: Path) -> list[Path]:
    """The output's rows as Parquet files, equal for equal rows."""
    made: list[Path] = []
    with open_table(InputConfig(input_file=str(output))) as table:
        groups = row_groups(table.batches())
        first = next(groups, table.schema.empty_table())
        groups = chain([first], groups)
        for group in groups:
            made.append(folder / f"{len(made)}.parquet")
            with pq.ParquetWriter(made[-1], table.schema) as file:
                for piece in chain([group], islice(groups, _GROUPS_OF_FILE - 1)):
                    file.write_table(piece)
    return made


@contextmanager
def _explained(target: HubTarget) -> Iterator[None]:
    """Say what it means that the hub or the way to it failed."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    what = f"{target.repository} on the hub"
    try:
        yield
    except BatchgenError:
        raise
    except LocalTokenNotFoundError as error:
        raise UsageError(f"{what}: there is no token; log in with `hf auth login` or set HF_TOKEN") from error
    except HfHubHTTPError as error:
        status, said = error.response.status_code, " ".join(str(error).split())
        if status in _TRY_LATER:
            raise HubUnavailableError(f"{what}: the hub answered with {status}; try again later: {said}") from error
        meaning = _MEANINGS.get(status, f"the hub refused with {status}")
        raise UsageError(f"{what}: {meaning}: {said}") from error
    except Exception as error:
        # No network, offline mode, an upload that broke off: the libraries beneath have exceptions of their own.
        raise HubUnavailableError(f"{what}: cannot be reached: {error or type(error).__name__}") from error
