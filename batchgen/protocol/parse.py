"""A row of the input to a checked request, or to the faults it has."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from batchgen.protocol.bodies import IGNORED, NEUTRAL, ChatBody, CompletionBody, SamplingBody
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import (
    ChatPrompt,
    Endpoint,
    GenRequest,
    Prompt,
    RawRow,
    SamplingRequest,
    TextPrompt,
    TokenPrompt,
)

__all__ = ["Parsed", "Parser", "custom_id_of", "shortened"]

_BODIES: Mapping[str, type[ChatBody] | type[CompletionBody]] = {
    Endpoint.CHAT: ChatBody,
    Endpoint.COMPLETIONS: CompletionBody,
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a row is: a request, or at least one fault."""

    request: GenRequest | None
    faults: tuple[RowFault, ...] = ()
    warnings: tuple[RowFault, ...] = ()
    """Parameters that were dropped under `lenient`."""


@dataclass(frozen=True, slots=True)
class Parser:
    """Checks rows. Each row is judged alone: ids that occur twice and foreign model names are the job's to find."""

    lenient: bool = False
    """Drop unknown parameters with a warning instead of refusing the row."""

    def parse(self, row: RawRow) -> Parsed:
        """All that can be said of one row. Never raises for what a row holds."""
        if row.data is None:
            return Parsed(None, (row.fault,) if row.fault is not None else ())
        faults = list(_envelope_faults(row.data))
        url, body = row.data.get("url"), row.data.get("body")
        if not isinstance(url, str) or url not in _BODIES or not isinstance(body, Mapping):
            return Parsed(None, tuple(faults))
        sent, dropped = _drop_what_changes_nothing(body, _BODIES[Endpoint(url)])
        if not self.lenient:
            faults += dropped
        if body.get("stream"):
            faults.append(RowFault(Code.STREAM_NOT_SUPPORTED, "a batch has no streams; remove `stream`", "body.stream"))
        try:
            checked = _BODIES[Endpoint(url)].model_validate(sent)
        except ValidationError as error:
            faults += (_translate(detail) for detail in error.errors(include_url=False, include_context=False))
            return Parsed(None, tuple(faults))
        if faults:
            return Parsed(None, tuple(faults))
        return Parsed(_request(row, Endpoint(url), checked, body), (), tuple(dropped) if self.lenient else ())


def custom_id_of(row: RawRow) -> str | None:
    """The row's custom_id if one can be found: a string, or a number as its decimal text."""
    value = row.data.get("custom_id") if row.data is not None else None
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def shortened(value: Any) -> str:
    """A value for a message: on one line, and short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _envelope_faults(data: Mapping[str, Any]) -> SequenceOf[RowFault]:
    faults: list[RowFault] = []
    custom_id = data.get("custom_id")
    if custom_id is None:
        faults.append(_missing("custom_id", "give each line a custom_id of its own"))
    elif isinstance(custom_id, bool) or not isinstance(custom_id, str | int | float):
        faults.append(_wrong_type("custom_id", custom_id, "a string"))
    method = data.get("method", "POST")
    if method != "POST":
        message = f"method: expected 'POST', found {shortened(method)}"
        faults.append(RowFault(Code.UNSUPPORTED_METHOD, message, "method"))
    url = data.get("url")
    if url is None:
        faults.append(_missing("url", f"one of {', '.join(Endpoint)}"))
    elif not isinstance(url, str) or url not in _BODIES:
        message = f"url: expected one of {', '.join(Endpoint)}, found {shortened(url)}"
        faults.append(RowFault(Code.UNSUPPORTED_URL, message, "url"))
    body = data.get("body")
    if body is None:
        faults.append(_missing("body", "the request's parameters"))
    elif not isinstance(body, Mapping):
        faults.append(_wrong_type("body", body, "an object"))
    return faults


def _drop_what_changes_nothing(
    body: Mapping[str, Any], shape: type[SamplingBody]
) -> tuple[dict[str, Any], list[RowFault]]:
    """The parameters to check, and a fault for each that is not supported. Nulls count as not sent."""
    sent: dict[str, Any] = {}
    unsupported: list[RowFault] = []
    for name, value in body.items():
        if name in shape.model_fields:
            if value is not None:
                sent[name] = value
        elif value is None or name in IGNORED or name == "stream" or _is_neutral(name, value, body):
            continue
        else:
            known = name in NEUTRAL
            advice = "this value is not supported yet" if known else "no such parameter"
            message = f"body.{name}: {advice}, found {shortened(value)}; remove it, or run with --lenient to ignore it"
            unsupported.append(RowFault(Code.UNSUPPORTED_PARAMETER, message, f"body.{name}"))
    return sent, unsupported


def _is_neutral(name: str, value: Any, body: Mapping[str, Any]) -> bool:
    if name == "best_of" and value == body.get("n"):
        return True
    if name == "tool_choice" and not body.get("tools") and value in ("none", "auto"):
        return True
    # 0 == False and 1 == True in Python, not in JSON.
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL.get(name, ())
    )


def _request(row: RawRow, endpoint: Endpoint, body: ChatBody | CompletionBody, sent: Mapping[str, Any]) -> GenRequest:
    custom_id = custom_id_of(row)
    assert custom_id is not None  # the envelope was checked
    if isinstance(body, ChatBody):
        # As they were sent: a template may use keys that we know nothing of.
        prompts: tuple[Prompt, ...] = (ChatPrompt(tuple(sent["messages"])),)
    else:
        prompts = _prompts(body.prompt)
    return GenRequest(
        custom_id=custom_id,
        line=row.line,
        endpoint=endpoint,
        model=body.model,
        prompts=prompts,
        n=body.n,
        sampling=SamplingRequest(
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            seed=body.seed,
            stop=body.stops(),
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            include_stop_str_in_output=body.include_stop_str_in_output,
            skip_special_tokens=body.skip_special_tokens,
        ),
        extra=row.extra,
    )


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (TextPrompt(prompt),)
    if isinstance(prompt[0], int):
        return (TokenPrompt(tuple(prompt)),)
    return tuple(TextPrompt(p) if isinstance(p, str) else TokenPrompt(tuple(p)) for p in prompt)


def _translate(detail: Any) -> RowFault:
    """One of pydantic's errors in our words."""
    path = "body" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"] if not str(part).startswith("<")
    )
    kind: str = detail["type"]
    if kind == "missing":
        return RowFault(Code.MISSING_REQUIRED_FIELD, f"{path} is missing", path)
    typed = kind.endswith("_type") or kind.startswith("union_tag") or kind == "int_from_float"
    wanted = "has the wrong type" if kind.startswith("union_tag") else detail["msg"][:1].lower() + detail["msg"][1:]
    code = Code.INVALID_TYPE if typed else Code.INVALID_VALUE
    return RowFault(code, f"{path}: {wanted}, found {shortened(detail['input'])}", path)


def _missing(path: str, advice: str) -> RowFault:
    return RowFault(Code.MISSING_REQUIRED_FIELD, f"{path} is missing; {advice}", path)


def _wrong_type(path: str, value: Any, wanted: str) -> RowFault:
    return RowFault(Code.INVALID_TYPE, f"{path}: expected {wanted}, found {shortened(value)}", path)
