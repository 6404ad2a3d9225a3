"""Result rows, and the bodies in them as the `openai` package reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletion

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, TextPrompt
from batchgen.protocol.response import Responder
from batchgen.protocol.result import Choice, Completion

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
        request=request, model="m", choices=choices, prompt_tokens=9, cached_tokens=5, effective=effective or {}
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
