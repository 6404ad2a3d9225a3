"""How a model's embeddings are made, as sentence-transformers writes it down beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from batchgen.checkpoint.files import read_json
from batchgen.errors import ModelNotFoundError

__all__ = ["read_pooling"]

_KNOWN: Mapping[str, str] = {"mean_tokens": "mean", "lasttoken": "last"}
_PREFIX = "pooling_mode_"


def read_pooling(folder: Path) -> str:
    """`Checkpoint.pooling` by `modules.json` and the pooling module's `config.json`; `last` without them.

    Raises `ModelNotFoundError` where they are damaged.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return "last"
    try:
        modules = {
            str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in orjson.loads(file.read_bytes())
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelNotFoundError(f"{file} is not a list of modules: {error!r}") from error
    if unknown := modules.keys() - {"Transformer", "Pooling", "Normalize"}:
        return "+".join(sorted(unknown))
    if "Pooling" not in modules:
        return "last"
    config = read_json(folder / modules["Pooling"] / "config.json")
    modes = [name.removeprefix(_PREFIX) for name, used in config.items() if name.startswith(_PREFIX) and used is True]
    return "+".join(_KNOWN.get(mode, mode) for mode in modes)
