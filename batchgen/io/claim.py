"""Whether an output can be written, and that this process alone writes it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from batchgen.config import OutputConfig
from batchgen.errors import OutputLockedError, OutputMismatchError, UsageError
from batchgen.io.durable import identity_of, writing
from batchgen.io.history import run_files
from batchgen.io.manifest import BOOKKEEPING, Manifest, manifest_of, manifest_path
from batchgen.io.shards import Shard
from batchgen.io.sources import remove_temporaries, result_files

__all__ = ["Claim", "claim_output", "is_held", "kept_folder", "outputs_in"]

_ENDINGS = frozenset({".jsonl", ".parquet", ".arrow"})


@dataclass(frozen=True, slots=True)
class Claim:
    """An output that this process holds."""

    folder: Path | None
    """Where rows are kept; None for standard output."""
    target: Path | None
    """The single file to make of them, None where the folder is the output."""
    earlier: Manifest | None
    """What an earlier run has left to go on from."""

    def is_finished(self, now: Manifest, config: OutputConfig) -> bool:
        """Whether all that the run `now` is to do is done."""
        earlier = self.earlier
        if self.folder is None or earlier is None or not earlier.finished:
            return False
        identity = now.input["identity"]
        unchanged = identity is not None and identity == earlier.input.get("identity")
        if not unchanged or (earlier.settings, earlier.layout) != (now.settings, now.layout):
            return False
        if config.retry_failed and earlier.counts["retryable"]:
            return False
        products = {"output_file": self.target, "error_file": config.error_file}
        made = all(_is(path, earlier.products.get(name)) for name, path in products.items() if path is not None)
        return made and all(_size(self.folder / entry["file"]) == entry["bytes"] for entry in earlier.files)

    def prepare(self) -> None:
        """Make the folder ready to be written: without an earlier run to go on from, nothing of one stays.

        Raises `OutputMismatchError` where the rows of an earlier run are needed and gone.
        """
        if self.folder is None:
            return
        earlier = self.earlier
        if earlier is not None and earlier.finished and earlier.counts["rows"] and not result_files(self.folder):
            raise OutputMismatchError(
                f"{self.target or self.folder}: is finished, and what it was made of is gone; the input, a setting or "
                "the file itself has changed since. --overwrite runs everything anew"
            )
        with writing(self.folder):
            if earlier is None:
                # Without the manifest nothing counts, so that a crash in between leaves no half of the results.
                manifest_path(self.folder).unlink(missing_ok=True)
                for path in (*result_files(self.folder), *run_files(self.folder)):
                    path.unlink()
            remove_temporaries(self.folder)


def kept_folder(output: Path) -> Path:
    """Where the rows of an output and its bookkeeping are: the output itself, or a folder beside a single file."""
    return output.with_name(f".{output.name}.batchgen") if output.suffix in _ENDINGS else output


def outputs_in(folder: Path) -> list[Path]:
    """The outputs that lie in a folder, finished or not; shards as what they are named after."""
    kept = (path.parent for path in folder.glob(f"*/{BOOKKEEPING}"))
    found = {Shard(path).output if Shard.is_named(path) else _output_kept_in(path) for path in kept}
    return sorted(found)


def _output_kept_in(folder: Path) -> Path:
    """The inverse of `kept_folder`."""
    name = folder.name.removeprefix(".").removesuffix(".batchgen")
    output = folder.with_name(name) if name else folder
    return output if kept_folder(output) == folder else folder


def is_held(folder: Path) -> bool:
    """Whether a run is writing there now."""
    lock = folder / BOOKKEEPING / "lock"
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def claim_output(config: OutputConfig, input_file: str) -> Iterator[Claim]:
    """Check the output and hold its lock, before anything costly is begun.

    Raises `OutputLockedError` where another run holds it, `OutputMismatchError` where there is something that no run
    of this version can go on from, and `UsageError` where it can't be written.
    """
    if config.error_file is not None:
        _check_error_file(config.error_file, config.output_file, input_file)
    if config.output_file == "-":
        yield Claim(None, None, None)
        return
    output = Path(config.output_file)
    _check_output(output, input_file)
    single = output.suffix in _ENDINGS
    folder = kept_folder(output)
    if not (folder / BOOKKEEPING).exists():
        # Nobody can hold it, and a refusal leaves nothing behind.
        _refuse_foreign_files(folder)
        if not config.overwrite:
            _refuse_unknown_results(output, None)
    with _locked(output, folder / BOOKKEEPING):
        earlier = None if config.overwrite else manifest_of(folder)
        if not config.overwrite:
            _refuse_unknown_results(output, earlier)
        yield Claim(folder, output if single else None, earlier)


@contextmanager
def _locked(output: Path, bookkeeping: Path) -> Iterator[None]:
    lock = FileLock(bookkeeping / "lock")
    with writing(output):
        bookkeeping.mkdir(parents=True, exist_ok=True)
        try:
            # Not for another run, but for `is_held`, which holds the lock for a moment.
            lock.acquire(timeout=0.1, poll_interval=0.02)
        except Timeout as error:
            message = f"{output}: another run is writing there; wait for it or name another output"
            raise OutputLockedError(message) from error
    try:
        yield
    finally:
        lock.release()


def _check_output(output: Path, input_file: str) -> None:
    if _same(output, input_file):
        raise UsageError(f"{output}: the output is the input; name another output")
    _check_folder(output)
    if output.suffix in _ENDINGS and output.is_dir():
        raise UsageError(f"{output}: is a folder; remove it or name another output")
    if output.suffix not in _ENDINGS and output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is a file; name a folder, or a file that ends in {', '.join(sorted(_ENDINGS))}")


def _check_error_file(error_file: Path, output_file: str, input_file: str) -> None:
    if _same(error_file, input_file) or _same(error_file, output_file):
        raise UsageError(f"{error_file}: the error file is the input or the output; name another")
    _check_folder(error_file)
    if error_file.is_dir():
        raise UsageError(f"{error_file}: the error file is a folder; name a file")


def _check_folder(file: Path) -> None:
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: the folder {file.absolute().parent} does not exist; make it first")


def _same(path: Path, other: str) -> bool:
    # Links are followed; a hard link is told by its file.
    second = Path(other)
    return path.resolve() == second.resolve() or (path.is_file() and second.is_file() and path.samefile(second))


def _refuse_foreign_files(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputMismatchError(f"{folder}: the folder holds other files; name an empty or a new folder")


def _refuse_unknown_results(output: Path, manifest: Manifest | None) -> None:
    if output.is_file() and manifest is None:
        raise OutputMismatchError(f"{output}: is there already, and not known to be ours; --overwrite replaces it")


def _is(path: Path, identity: str | None) -> bool:
    return path.is_file() and identity_of(path) == identity


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
