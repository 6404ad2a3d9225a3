"""Result rows, and the bodies in them as the `openai` package reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletion

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.logprobs import chat_logprobs, completion_logprobs
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, TextPrompt
from batchgen.protocol.response import Responder
from batchgen.protocol.result import Choice, Completion, ScoredToken

RESPONDER = Responder("run-1", 1_700_000_000)


def completion(endpoint: Endpoint, effective: Mapping[str, Any] | None = None) -> Completion:
    chat = endpoint is Endpoint.CHAT
    request = GenRequest(
        custom_id="a",
        line=3,
        endpoint=endpoint,
        model=None,
        prompts=(ChatPrompt(({"role": "user", "content": "Hi"},)) if chat else TextPrompt("Hi"),),
        n=2,
        extra={"label": 1},
    )
    choices = (Choice(0, "Hello", "stop", 4, "\n"), Choice(1, "", "length", 6))
    return Completion(
        request=request,
        model="m",
        choices=choices,
        prompt_tokens=9,
        completion_tokens=10,
        cached_tokens=5,
        effective=effective or {},
    )


def test_a_chat_body_is_openais() -> None:
    row = RESPONDER.completed(completion(Endpoint.CHAT))
    body = ChatCompletion.model_validate(row.response, strict=True)
    assert body.to_dict() == row.response, "nothing is added, nothing missing"
    assert (body.object, body.model, body.created) == ("chat.completion", "m", 1_700_000_000)
    assert [(c.index, c.message.content, c.message.refusal, c.finish_reason) for c in body.choices] == [
        (0, "Hello", None, "stop"),
        (1, "", None, "length"),
    ]
    assert body.usage is not None
    assert body.usage.prompt_tokens_details is not None
    assert (body.usage.prompt_tokens, body.usage.completion_tokens, body.usage.total_tokens) == (9, 10, 19)
    assert body.usage.prompt_tokens_details.cached_tokens == 5


def test_a_completion_body_is_openais() -> None:
    row = RESPONDER.completed(completion(Endpoint.COMPLETIONS))
    body = OpenAICompletion.model_validate(row.response, strict=True)
    assert body.to_dict() == row.response
    assert body.object == "text_completion"
    assert [(c.index, c.text, c.logprobs, c.finish_reason) for c in body.choices] == [
        (0, "Hello", None, "stop"),
        (1, "", None, "length"),
    ]


def test_the_columns_are_those_of_the_first_choice() -> None:
    row = RESPONDER.completed(completion(Endpoint.CHAT))
    assert (row.custom_id, row.line, row.status_code, row.text, row.finish_reason) == ("a", 3, 200, "Hello", "stop")
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.error) == (9, 10, 5, None)
    assert row.extra == {"label": 1}


def test_effective_values_are_told_where_there_are_any() -> None:
    response = RESPONDER.completed(completion(Endpoint.CHAT, {"seed": 5})).response
    assert response is not None
    assert response["batchgen"] == {"effective": {"seed": 5}}
    assert ChatCompletion.model_validate(response, strict=True).to_dict() == response
    assert "batchgen" not in (RESPONDER.completed(completion(Endpoint.CHAT)).response or {})


def test_ids_follow_from_run_and_row() -> None:
    def id_of(responder: Responder, made: Completion) -> str:
        response = responder.completed(made).response
        assert response is not None
        return str(response["id"])

    chat, plain = completion(Endpoint.CHAT), completion(Endpoint.COMPLETIONS)
    assert id_of(RESPONDER, chat) == id_of(Responder("run-1", 5), chat)
    assert id_of(RESPONDER, chat) != id_of(Responder("run-2", 5), chat)
    assert id_of(RESPONDER, chat).startswith("chatcmpl-")
    assert id_of(RESPONDER, plain).startswith("cmpl-")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (Code.INVALID_VALUE, 400, "invalid_request_error"),
        (Code.MODEL_MISMATCH, 404, "invalid_request_error"),
        (Code.INTERNAL_ERROR, 500, "server_error"),
    ],
)
def test_a_refused_request(code: Code, status: int, kind: str) -> None:
    fault = RowFault(code, "change it", "body.n")
    row = RESPONDER.refused(4, "b", fault, {"label": 2})
    assert (row.custom_id, row.line, row.status_code, row.text, row.error) == ("b", 4, status, None, fault)
    assert row.extra == {"label": 2}
    error = {"message": "change it", "type": kind, "param": "body.n", "code": code.value}
    assert json.loads(json.dumps(row.response)) == {"error": error}


def test_a_line_that_is_no_request() -> None:
    row = RESPONDER.refused(4, None, RowFault(Code.INVALID_JSON_LINE, "no JSON"))
    assert (row.custom_id, row.status_code, row.response) == (None, 422, None)


def scored(data: bytes, logprob: float | None = -1.0, top: tuple[ScoredToken, ...] = ()) -> ScoredToken:
    return ScoredToken(len(data), data, logprob, 1, top)


def test_bytes_of_characters_that_are_spread_over_tokens() -> None:
    smile = "🙂".encode()
    tokens = [scored(b" a" + smile[:1]), scored(smile[1:3]), scored(smile[3:] + b"b"), scored(b"c")]
    shown = completion_logprobs(tokens, " a🙂bc")
    assert shown["tokens"] == [" a\\xf0", "\\x9f\\x99", "\\x82b", "c"]
    assert shown["text_offset"] == [0, 2, 2, 4]
    assert chat_logprobs(tokens[1:2])["content"][0]["bytes"] == [0x9F, 0x99]


def test_offsets_find_their_way_past_what_the_text_does_not_show() -> None:
    tokens = [scored(b"<s>"), scored(b" the"), scored(b"\xf0"), scored(b" sea"), scored(b"</s>"), scored(b" end")]
    assert completion_logprobs(tokens, "the\ufffd sea end")["text_offset"] == [0, 0, 3, 3, 8, 8]


def test_logprobs_are_finite_and_the_chosen_token_is_among_them() -> None:
    top = (scored(b"x", -0.5), scored(b"y", -math.inf))
    shown = completion_logprobs([scored(b"z", -math.inf, top)], "z")
    assert shown["token_logprobs"] == [-9999.0]
    assert shown["top_logprobs"] == [{"x": -0.5, "y": -9999.0, "z": -9999.0}]
    (entry,) = chat_logprobs([scored(b"z", -math.inf, top)])["content"]
    assert [entry["logprob"], *(other["logprob"] for other in entry["top_logprobs"])] == [-9999.0, -0.5, -9999.0]
