"""Which model a run has."""

from __future__ import annotations

from pathlib import Path

from batchgen.checkpoint.resolve import resolve
from batchgen.checkpoint.types import Checkpoint
from batchgen.config import InputConfig, ModelConfig
from batchgen.io.readers import models_named

__all__ = ["find_checkpoint", "model_of_run", "names_of_run"]


def model_of_run(model: ModelConfig, source: InputConfig) -> str | None:
    """The model that the command names, else the one that all lines name which name any; None is the default."""
    if model.model is not None or source.ignore_request_model:
        return model.model
    named = models_named(source)
    return named[0] if len(named) == 1 else None


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
