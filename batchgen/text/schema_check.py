"""Whether a finished answer keeps to its JSON schema, also to what a grammar can't express."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

__all__ = ["SchemaChecks"]

_KEPT = 512
_MOST_REFERENCES = 100_000
"""References that one check follows. A short schema can ask for 2**n of them."""


class SchemaChecks:
    """Checks answers. What was made of a schema is kept for the next answer to it."""

    def __init__(self) -> None:
        self._of = lru_cache(_KEPT)(_Check)

    def mismatch(self, schema: str, answer: str) -> str | None:
        """What of a whole answer breaks its schema, None where nothing does."""
        try:
            return self._of(schema).mismatch(answer)
        except Exception as error:  # noqa: BLE001 - a schema is foreign: whatever it raises is no fault of the answer's
            return f"the answer could not be checked against its schema: {_short(str(error))}"


class _Check:
    def __init__(self, text: str) -> None:
        # Here, since runs without schemas don't need them.
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend, validator_for
        from referencing import Registry

        schema = orjson.loads(text)
        known = validator_for(schema, default=Draft202012Validator)
        follow = known.VALIDATORS["$ref"]

        def counted(validator: Any, ref: Any, instance: Any, schema: Any) -> Iterator[Any]:
            self._left -= 1
            if self._left < 0:
                raise ValueError(f"it takes more than {_MOST_REFERENCES} references")
            return follow(validator, ref, instance, schema) or iter(())

        def additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
            if "patternProperties" not in schema:
                yield from known.VALIDATORS["additionalProperties"](validator, allowed, instance, schema)

        # Patterns are the grammar's business. Here they would be Python's, which differ and can take for ever.
        rules = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"), _skipped)
        # References are looked for in the schema alone, never fetched.
        validator = extend(known, rules | {"additionalProperties": additional, "$ref": counted})
        self._validator = validator(schema, registry=Registry())
        self._left = 0

    def mismatch(self, answer: str) -> str | None:
        self._left = _MOST_REFERENCES
        error = next(self._validator.iter_errors(orjson.loads(answer)), None)
        return None if error is None else f"the answer breaks its schema at {error.json_path}: {_short(error.message)}"


def _skipped(*_: Any) -> tuple[()]:
    return ()


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
