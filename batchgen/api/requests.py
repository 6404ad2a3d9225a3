"""Inputs of `Engine.generate` as rows in batch form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from batchgen.config import InputConfig
from batchgen.io.columns import RowShaper
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import Endpoint, RawRow

__all__ = ["rows_of"]

_CONTENT: Mapping[str, Endpoint] = {
    "messages": Endpoint.CHAT,
    "prompt": Endpoint.COMPLETIONS,
    "input": Endpoint.EMBEDDINGS,
}
"""The field of a body that tells where it belongs."""


def rows_of(inputs: Iterable[Any], source: InputConfig, endpoint: str | None) -> Iterator[RawRow]:
    """A row for each input. An input that is no request is a row with a fault.

    `endpoint`: the url of inputs that don't say it themselves; None: what they hold tells.
    """
    shaper, place = RowShaper(source), None if endpoint is None else Endpoint(endpoint)
    for line, item in enumerate(inputs, 1):
        if isinstance(item, Mapping) and ("body" in item or "params" in item):
            yield shaper.shape(line, item, {})
        else:
            yield _row(line, item, place)


def _row(line: int, item: Any, endpoint: Endpoint | None) -> RawRow:
    data: dict[str, Any] = {"custom_id": f"row-{line}", "method": "POST"}
    body = _body(item, endpoint)
    if isinstance(body, RowFault):
        return RawRow(line, data, body)
    url = endpoint or next((place for name, place in _CONTENT.items() if name in body), None)
    if url is None:
        message = f"the input has none of the keys {', '.join(_CONTENT)}; one of them holds what is asked"
        return RawRow(line, data, RowFault(Code.MISSING_REQUIRED_FIELD, message))
    return RawRow(line, data | {"url": url.value, "body": body})


def _body(item: Any, endpoint: Endpoint | None) -> Mapping[str, Any] | RowFault:
    match item:
        case Mapping():
            return item
        case str() if endpoint is Endpoint.CHAT:
            return {"messages": [{"role": "user", "content": item}]}
        case str() if endpoint is Endpoint.EMBEDDINGS:
            return {"input": item}
        case str():
            return {"prompt": item}
        case SequenceOf() if not isinstance(item, bytes | bytearray | memoryview):
            return {"messages": list(item)}
        case _:
            message = f"an input is a text, a list of messages, or a mapping; found {type(item).__name__}"
            return RowFault(Code.INVALID_TYPE, message)
