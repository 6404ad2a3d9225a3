"""Models from the model hub, through huggingface_hub and its cache."""

from __future__ import annotations

import re
from pathlib import Path

from batchgen.errors import ModelNotFoundError

__all__ = ["download", "is_commit", "is_hub_id"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
_TEXT_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def is_hub_id(reference: str) -> bool:
    """Whether a reference has the form `name`, `owner/name`, either with `@revision`."""
    return _HUB_ID.fullmatch(reference) is not None and not reference.endswith((".gguf", ".json", ".safetensors"))


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit in full, which always means the same files."""
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def download(repository: str, revision: str | None, *, with_weights: bool) -> Path:
    """The snapshot folder of a hub model in huggingface_hub's cache, fetched as far as it is not there.

    The folder's name is the commit. Raises `ModelNotFoundError` where it can't be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    patterns = [*_TEXT_FILES, *(["*.safetensors"] if with_weights else [])]
    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"])
        if (Path(folder) / "modules.json").is_file():
            snapshot_download(repository, revision=revision, allow_patterns=["*_Pooling/config.json"])
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"the hub gives {repository} only to those who accepted its terms: do so, then log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(f"the hub's {repository} has no revision {revision}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(f"{repository} is neither an alias, nor a folder, nor a model on the hub") from error
    except (OSError, ValueError, RuntimeError) as error:  # what is left: no network, offline mode, an incomplete cache
        raise ModelNotFoundError(
            f"{repository} is neither an alias nor a folder, and the hub could not be asked: {error}"
        ) from error
    return Path(folder)
