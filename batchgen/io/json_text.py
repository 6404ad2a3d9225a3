"""JSON from outside, within bounds."""

from __future__ import annotations

from typing import Any

import orjson

__all__ = ["TooDeepError", "load_json"]

_MAX_DEPTH = 128
"""Lists and objects within each other, at most. Far more would overflow whatever walks through them later on."""


class TooDeepError(ValueError):
    """JSON that is nested deeper than anything means."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {_MAX_DEPTH} levels")


def load_json(text: bytes | str) -> Any:
    """The value of a JSON text. Of a key that an object has twice the last one counts.

    Raises `TooDeepError`, or `orjson.JSONDecodeError` for what is no JSON.
    """
    value = orjson.loads(text)
    opened = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    # Few texts open so many, and only these have to be walked through.
    if opened > _MAX_DEPTH and _depth_exceeds(value, _MAX_DEPTH):
        raise TooDeepError
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = [item for item in inner if isinstance(item, dict | list)]
    return bool(level)
