"""Settings that a program gives, checked as the command line checks its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from batchgen.errors import UsageError

__all__ = ["checked"]

Config = TypeVar("Config")

_ANY_INTEGER = frozenset({"seed"})
"""Settings that may be negative."""


def checked(config: Config) -> Config:
    """The configuration. Raises `UsageError` naming the first setting whose value is none."""
    hints = get_type_hints(type(config))
    for field in fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if wanted := next(_wanted(field.name, hints[field.name], value), None):
            raise UsageError(f"{field.name} must be {wanted}, found {value!r}")
    return config


def _wanted(name: str, hint: Any, value: Any) -> Iterator[str]:
    """What a value must be, where it is something else."""
    kinds = get_args(hint) if get_origin(hint) is not Literal else (hint,)
    kinds = kinds or (hint,)
    if value is None and type(None) in kinds:
        return
    kind = kinds[0]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            yield f"one of {', '.join(map(repr, get_args(kind)))}"
    elif kind is float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            yield "a number above 0 and up to 1"
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"of type {kind.__name__}"
    elif kind is int and name not in _ANY_INTEGER and value < 1:
        yield "at least 1"
