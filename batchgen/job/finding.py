"""Which model a run has."""

from __future__ import annotations

from pathlib import Path

from batchgen.checkpoint.hub import is_hub_id
from batchgen.checkpoint.resolve import resolve
from batchgen.checkpoint.store import ALIASES
from batchgen.checkpoint.types import Checkpoint
from batchgen.config import InputConfig, ModelConfig
from batchgen.errors import UsageError
from batchgen.io.readers import models_named

__all__ = ["find_checkpoint", "model_of_run", "names_of_run"]


def model_of_run(model: ModelConfig, source: InputConfig) -> str | None:
    """The model that the command names, else the one that all lines name which name any; None is the default.

    Raises `UsageError` where the lines name a path.
    """
    if model.model is not None or source.ignore_request_model:
        return model.model
    named = models_named(source)
    if len(named) != 1:
        return None
    if named[0] not in ALIASES and (Path(named[0]).expanduser().exists() or not is_hub_id(named[0])):
        raise UsageError(
            f"the lines name the model {named[0]!r}, which is no model id but a path; paths that requests name are not "
            "opened: give it with --model if it is right"
        )
    return named[0]


def find_checkpoint(config: ModelConfig, home: Path) -> Checkpoint:
    """Find the model that the settings name, with whatever they replace of it."""
    return resolve(
        config.model,
        home=home,
        revision=config.revision,
        tokenizer=config.tokenizer,
        load_format=config.load_format,
        generation_config=config.generation_config,
        chat_template=config.chat_template,
    )


def names_of_run(checkpoint: Checkpoint, model: ModelConfig) -> frozenset[str]:
    """Names under which lines may ask for the run's model."""
    return frozenset({checkpoint.name} | ({model.model} if model.model is not None else set()))
