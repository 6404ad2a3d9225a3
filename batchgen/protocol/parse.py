"""A row of the input to a checked request, or to the faults it has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from batchgen.protocol.anthropic_request import BLOCK_TAGS, MessageParams, as_sent, chat_body, is_message_request
from batchgen.protocol.bodies import TAGS, ChatBody, CompletionBody, EmbeddingBody
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parameters import changes_nothing, is_known
from batchgen.protocol.request import (
    ChatPrompt,
    EmbeddingRequest,
    Endpoint,
    GenRequest,
    Prompt,
    RawRow,
    SamplingRequest,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)

__all__ = ["Parsed", "Parser", "custom_id_of", "model_of", "shortened"]

_Body = ChatBody | CompletionBody | EmbeddingBody
_BODIES: Mapping[str, type[ChatBody] | type[CompletionBody] | type[EmbeddingBody]] = {
    Endpoint.CHAT: ChatBody,
    Endpoint.COMPLETIONS: CompletionBody,
    Endpoint.EMBEDDINGS: EmbeddingBody,
}
_FIELDS: Mapping[str, frozenset[str]] = {url: frozenset(shape.model_fields) for url, shape in _BODIES.items()}
_WANTED: Mapping[str, str] = {
    "bool_type": "must be true or false",
    "extra_forbidden": "is not supported; remove it",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_type": "must be an integer",
    "less_than_equal": "must be at most {le}",
    "dict_type": "must be an object",
    "literal_error": "must be {expected}",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "too_long": "can have {max_length} entries at most",
    "too_short": "must not be empty",
}
"""What each of pydantic's errors asks for."""
_CODES: Mapping[str, Code] = {
    "extra_forbidden": Code.UNSUPPORTED_PARAMETER,
    "json_schema": Code.INVALID_JSON_SCHEMA,
}
"""Codes of errors that are neither of type nor of value."""
_ADVICE: Mapping[str, str] = {
    "chat_template": "a template is code, which no request may bring: give it with --chat-template"
}
"""What to do instead of sending a parameter, where it is not just to remove it."""
_MOST_FAULTS = 100
"""Faults of a body that are told one by one."""
_EXACT_FLOATS = 2.0**53
"""From here on a float no longer tells neighbouring integers apart."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a row is: a request, or at least one fault."""

    request: GenRequest | None
    faults: tuple[RowFault, ...] = ()
    """All that were found, the first one for the row's result."""
    warnings: tuple[RowFault, ...] = ()
    """Unknown parameters that were left out under `lenient`."""


@dataclass(frozen=True, slots=True)
class Parser:
    """Checks rows. Each row is judged alone: ids that occur twice and foreign model names are the job's to find."""

    lenient: bool = False
    """Leave out unknown parameters with a warning instead of refusing the row."""

    def parse(self, row: RawRow) -> Parsed:
        """All that can be said of one row. Never raises for what a row holds."""
        if row.fault is not None:
            return Parsed(None, (row.fault,))
        data = row.data or {}
        if is_message_request(data):
            return self._parse_message(row, data)
        faults = list(_envelope_faults(data))
        url, body = data.get("url"), data.get("body")
        if not isinstance(url, str) or url not in _BODIES or not isinstance(body, Mapping):
            return Parsed(None, tuple(faults))
        fields = _FIELDS[url]
        warnings: list[RowFault] = []
        for fault, known in _unsupported(body, fields):
            (warnings if self.lenient and not known else faults).append(fault)
        sent = {name: value for name, value in body.items() if value is not None and name in fields}
        try:
            checked = _BODIES[url].model_validate(sent)
        except ValidationError as error:
            faults += _translated(error, "body")
            return Parsed(None, tuple(faults))
        if faults:
            return Parsed(None, tuple(faults))
        return Parsed(_request(row, Endpoint(url), checked, body), (), tuple(warnings))

    def _parse_message(self, row: RawRow, data: Mapping[str, Any]) -> Parsed:
        faults, sent = list(_custom_id_faults(data)), data["params"]
        if not isinstance(sent, Mapping):
            return Parsed(None, (*faults, _wrong_type("params", sent, "an object")))
        sent = {name: value for name, value in sent.items() if value is not None}
        try:
            params = MessageParams.model_validate(sent)
        except ValidationError as error:
            faults += _translated(error, "params")
            return Parsed(None, tuple(faults))
        as_chat = {"custom_id": data.get("custom_id"), "url": Endpoint.CHAT.value, "body": chat_body(params, sent)}
        parsed = self.parse(replace(row, data=as_chat))
        found, warnings = (tuple(as_sent(data, f) for f in some) for some in (parsed.faults, parsed.warnings))
        return Parsed(parsed.request, found, warnings)


def custom_id_of(row: RawRow) -> str | None:
    """The row's custom_id if one can be found: a string, or a number as its decimal text."""
    match row.data.get("custom_id") if row.data is not None else None:
        case bool():
            return None
        case str() | int() as value:
            return str(value)
        case float() as value if abs(value) < _EXACT_FLOATS:
            return format(Decimal(repr(value)), "f")
        case _:
            return None


def model_of(row: RawRow) -> str | None:
    """The model that a row asks for, None where it names none."""
    body = row.data.get("params" if is_message_request(row.data) else "body") if row.data is not None else None
    model = body.get("model") if isinstance(body, Mapping) else None
    return model if isinstance(model, str) else None


def shortened(value: Any) -> str:
    """A value for a message: as JSON, on one line, and short."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # a value that only a Parquet file can hold, or one that is nested deeper than JSON is written
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _custom_id_faults(data: Mapping[str, Any]) -> Iterator[RowFault]:
    match data.get("custom_id"):
        case None:
            yield _missing("custom_id", "give each line one of its own")
        case float() as value if not abs(value) < _EXACT_FLOATS:
            advice = "is not a number" if math.isnan(value) else "is too large to be exact"
            yield RowFault(
                Code.INVALID_VALUE, f"custom_id {advice}, found {value!r}; write it as a string", "custom_id"
            )
        case bool() as value:
            yield _wrong_type("custom_id", value, "a string or a number")
        case str() | int() | float():
            pass
        case value:
            yield _wrong_type("custom_id", value, "a string or a number")


def _envelope_faults(data: Mapping[str, Any]) -> Iterator[RowFault]:
    yield from _custom_id_faults(data)
    urls = " or ".join(Endpoint)
    match data.get("method"):
        case None | "POST":
            pass
        case str() as method:
            message = f"method must be POST, found {shortened(method)}"
            yield RowFault(Code.UNSUPPORTED_METHOD, message, "method")
        case value:
            yield _wrong_type("method", value, "the string POST")
    match data.get("url"):
        case None:
            yield _missing("url", f"write {urls}")
        case str() as url if url not in _BODIES:
            yield RowFault(Code.UNSUPPORTED_URL, f"url must be {urls}, found {shortened(url)}", "url")
        case str():
            pass
        case value:
            yield _wrong_type("url", value, f"the string {urls}")
    match data.get("body"):
        case None:
            yield _missing("body", "it holds the parameters of the request")
        case Mapping():
            pass
        case value:
            yield _wrong_type("body", value, "an object")


def _unsupported(body: Mapping[str, Any], fields: frozenset[str]) -> Iterator[tuple[RowFault, bool]]:
    """A fault for each parameter that is not supported, and whether it is known all the same."""
    for name, value in body.items():
        if name in fields:
            continue
        path = f"body.{name}"
        if name == "stream":
            if value:
                yield RowFault(Code.STREAM_NOT_SUPPORTED, f"{path}: a batch has no streams; remove it", path), True
        elif not changes_nothing(name, value, body):
            known = is_known(name)
            what = "is not supported with this value" if known else "is no parameter of this url"
            advice = _ADVICE.get(name, "remove it") if known else "remove it, or run with --lenient to leave it out"
            message = f"{path} {what}, found {shortened(value)}; {advice}"
            yield RowFault(Code.UNSUPPORTED_PARAMETER, message, path), known


def _request(row: RawRow, endpoint: Endpoint, body: _Body, sent: Mapping[str, Any]) -> GenRequest:
    custom_id = custom_id_of(row)
    assert custom_id is not None  # the envelope was checked
    if isinstance(body, EmbeddingBody):
        return GenRequest(
            custom_id=custom_id,
            line=row.line,
            endpoint=endpoint,
            model=body.model,
            prompts=_prompts(body.input),
            sampling=SamplingRequest(max_tokens=0),
            embedding=EmbeddingRequest(body.dimensions, body.encoding_format == "base64"),
            extra=row.extra,
        )
    if isinstance(body, ChatBody):
        prompts: tuple[Prompt, ...] = (_chat_prompt(body, sent),)
    else:
        prompts = _prompts(body.prompt)
    return GenRequest(
        custom_id=custom_id,
        line=row.line,
        endpoint=endpoint,
        model=body.model,
        prompts=prompts,
        n=body.n,
        best_of=body.best_of if isinstance(body, CompletionBody) and body.best_of != body.n else None,
        echo=isinstance(body, CompletionBody) and body.echo,
        sampling=_sampling(body),
        constraint=body.constraint,
        extra=row.extra,
    )


def _sampling(body: ChatBody | CompletionBody) -> SamplingRequest:
    return SamplingRequest(
        max_tokens=body.limit,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        include_stop_str_in_output=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=tuple((int(token), bias) for token, bias in body.logit_bias.items()),
        min_tokens=body.min_tokens,
        logprobs=body.wanted_logprobs,
        prompt_logprobs=body.prompt_logprobs,
        prompt_logprobs_start=body.prompt_logprobs_start,
    )


def _chat_prompt(body: ChatBody, sent: Mapping[str, Any]) -> ChatPrompt:
    variables = body.chat_template_kwargs
    if body.reasoning_effort is not None:
        # Templates that can think or not ask for enable_thinking, those with degrees for the effort.
        effort = body.reasoning_effort
        variables = {"enable_thinking": effort != "none"} | variables | {"reasoning_effort": effort}
    # Messages and tools as they were sent: a template may use keys that we know nothing of.
    return ChatPrompt(
        messages=tuple(sent["messages"]),
        tools=_tools(body, sent) if body.tools else None,
        documents=tuple(body.documents),
        variables=variables,
        add_generation_prompt=not body.continue_final_message and body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message,
    )


def _tools(body: ChatBody, sent: Mapping[str, Any]) -> ToolUse:
    definitions, parallel = tuple(sent["tools"]), body.parallel_tool_calls
    match body.tool_choice:
        case "none" | "required" as mode:
            return ToolUse(definitions, mode, parallel=parallel)
        case None | "auto":
            return ToolUse(definitions, parallel=parallel)
        case _:
            return ToolUse(definitions, "required", body.named_tool, parallel=False)


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (TextPrompt(prompt),)
    if isinstance(prompt[0], int):
        return (TokenPrompt(tuple(prompt)),)
    return tuple(TextPrompt(p) if isinstance(p, str) else TokenPrompt(tuple(p)) for p in prompt)


def _translated(error: ValidationError, root: str) -> Iterator[RowFault]:
    for detail in islice(error.errors(include_url=False), _MOST_FAULTS):
        yield _translate(detail, root)
    if (more := error.error_count() - _MOST_FAULTS) > 0:
        yield RowFault(Code.INVALID_VALUE, f"{root} has {more} more faults, which are not listed", root)


def _translate(detail: ErrorDetails, root: str) -> RowFault:
    """One of pydantic's errors in our words."""
    parts = (part for part in detail["loc"] if part not in TAGS and part not in BLOCK_TAGS)
    path = root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    kind = detail["type"]
    if kind == "missing":
        return _missing(path, "this url needs it")
    if kind == "inconsistent":
        path = f"{path}.{detail['ctx']['field']}"
        return RowFault(Code.INVALID_VALUE, f"{path} {detail['msg']}", path)
    wanted = _WANTED[kind].format(**detail.get("ctx", {})) if kind in _WANTED else detail["msg"]
    typed = kind.endswith("_type") or kind == "int_from_float"
    code = _CODES.get(kind, Code.INVALID_TYPE if typed else Code.INVALID_VALUE)
    return RowFault(code, f"{path} {wanted}, found {shortened(detail['input'])}", path)


def _missing(path: str, advice: str) -> RowFault:
    return RowFault(Code.MISSING_REQUIRED_FIELD, f"{path} is missing; {advice}", path)


def _wrong_type(path: str, value: Any, wanted: str) -> RowFault:
    return RowFault(Code.INVALID_TYPE, f"{path} must be {wanted}, found {shortened(value)}", path)
