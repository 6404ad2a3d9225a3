"""What the shell offers for a value. Where nothing is offered, it completes names of files by itself."""

from __future__ import annotations

import os.path
from pathlib import Path

__all__ = ["complete_alias", "complete_output"]


def complete_alias(incomplete: str) -> list[str]:
    """Aliases of embedded models."""
    from batchgen.checkpoint.store import ALIASES

    return [alias for alias in ALIASES if alias.startswith(incomplete)]


def complete_output(incomplete: str) -> list[str]:
    """What run-batch has written or writes, in the folder that was typed so far."""
    from batchgen.io.claim import outputs_in

    folder = os.path.dirname(incomplete)  # noqa: PTH120 - as it was typed, with a leading ./ and without a last /
    names = [os.path.join(folder, path.name) for path in outputs_in(Path(folder))]  # noqa: PTH118
    return [name for name in names if name.startswith(incomplete)]
