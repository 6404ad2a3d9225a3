"""Lines to requests, or to faults with a code, the field's path and a message that helps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import Parsed, Parser, custom_id_of, shortened
from batchgen.protocol.request import (
    ChatPrompt,
    Endpoint,
    GenRequest,
    RawRow,
    SamplingRequest,
    TextPrompt,
    TokenPrompt,
)

HI: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
PLAIN: Mapping[str, Any] = {"prompt": "Once"}


def line(body: Any, url: Any = "/v1/chat/completions", **envelope: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": url, "body": body} | envelope


def parse(data: Mapping[str, Any], *, lenient: bool = False) -> Parsed:
    return Parser(lenient).parse(RawRow(7, data))


def chat(**parameters: Any) -> Parsed:
    return parse(line({**HI, **parameters}))


def completion(**parameters: Any) -> Parsed:
    return parse(line({**PLAIN, **parameters}, "/v1/completions"))


def good(parsed: Parsed) -> GenRequest:
    assert parsed.faults == ()
    assert parsed.request is not None
    return parsed.request


def only_fault(parsed: Parsed) -> RowFault:
    assert parsed.request is None
    (fault,) = parsed.faults
    assert len(fault.message) < 300
    return fault


def test_a_chat_request_with_everything() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "add"}}]},
        {"role": "tool", "content": "4", "tool_call_id": "c", "name": "add"},
    ]
    sent: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": -(2**63),
        "stop": ["a", "b"],
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    parsed = parse(line({"model": "m", "messages": messages, "n": 3, "max_completion_tokens": 4, **sent}))
    assert good(parsed) == GenRequest(
        custom_id="a",
        line=7,
        endpoint=Endpoint.CHAT,
        model="m",
        prompts=(ChatPrompt(tuple(messages)),),
        n=3,
        sampling=SamplingRequest(**sent | {"max_tokens": 4, "stop": ("a", "b"), "stop_token_ids": (3, 4)}),
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", (TextPrompt("Hi"),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokenPrompt((1, 2)),)),
        ([[1], [2, 3]], (TokenPrompt((1,)), TokenPrompt((2, 3)))),
    ],
)
def test_the_forms_of_a_prompt(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert good(parse(line({"prompt": prompt}, "/v1/completions"))).prompts == prompts


def test_nulls_count_as_not_sent() -> None:
    names = [
        "model",
        "max_tokens",
        "temperature",
        "n",
        "stop",
        "seed",
        "stream",
        "logprobs",
        "tools",
        "nobody_knows_me",
    ]
    assert good(chat(**dict.fromkeys(names))) == good(chat())
    assert good(parse(line(HI, method=None))) == good(chat())


def test_the_method_may_be_left_out() -> None:
    data = line(HI)
    del data["method"]
    assert good(parse(data)) == good(chat())


def test_a_single_stop_string() -> None:
    assert good(chat(stop="end")).sampling.stop == ("end",)


@pytest.mark.parametrize(
    ("custom_id", "text"),
    [("x", "x"), ("", ""), (7, "7"), (-1.5, "-1.5"), (1e-7, "0.0000001"), (2**63, "9223372036854775808")],
)
def test_a_number_as_custom_id_becomes_its_decimal_text(custom_id: Any, text: str) -> None:
    assert good(parse(line(HI, custom_id=custom_id))).custom_id == text


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        ({"url": "/v1/completions", "body": PLAIN}, Code.MISSING_REQUIRED_FIELD, "custom_id"),
        (line(HI, custom_id=None), Code.MISSING_REQUIRED_FIELD, "custom_id"),
        (line(HI, custom_id=True), Code.INVALID_TYPE, "custom_id"),
        (line(HI, custom_id=["a"]), Code.INVALID_TYPE, "custom_id"),
        (line(HI, custom_id=1e17), Code.INVALID_VALUE, "custom_id"),
        (line(HI, custom_id=float("nan")), Code.INVALID_VALUE, "custom_id"),
        (line(HI, method="GET"), Code.UNSUPPORTED_METHOD, "method"),
        (line(HI, method=1), Code.INVALID_TYPE, "method"),
        ({"custom_id": "a", "body": HI}, Code.MISSING_REQUIRED_FIELD, "url"),
        (line(HI, "/v1/audio"), Code.UNSUPPORTED_URL, "url"),
        (line(HI, url=[]), Code.INVALID_TYPE, "url"),
        ({"custom_id": "a", "url": "/v1/completions"}, Code.MISSING_REQUIRED_FIELD, "body"),
        (line("text"), Code.INVALID_TYPE, "body"),
        (line({}), Code.MISSING_REQUIRED_FIELD, "body.messages"),
        (line({"messages": None}), Code.MISSING_REQUIRED_FIELD, "body.messages"),
        (line({}, "/v1/completions"), Code.MISSING_REQUIRED_FIELD, "body.prompt"),
    ],
)
def test_faults_of_the_envelope(data: Mapping[str, Any], code: Code, param: str) -> None:
    fault = only_fault(parse(data))
    assert (fault.code, fault.param) == (code, param)


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], Code.INVALID_VALUE, "body.messages"),
        ("Hi", Code.INVALID_TYPE, "body.messages"),
        (["Hi"], Code.INVALID_TYPE, "body.messages[0]"),
        ([{"content": "Hi"}], Code.MISSING_REQUIRED_FIELD, "body.messages[0].role"),
        ([{"role": 1}], Code.INVALID_TYPE, "body.messages[0].role"),
        ([{"role": ""}], Code.INVALID_VALUE, "body.messages[0].role"),
        ([*HI["messages"], {"role": "user", "content": 5}], Code.INVALID_TYPE, "body.messages[1].content"),
        ([{"role": "user", "content": ["Hi", 3]}], Code.INVALID_TYPE, "body.messages[0].content[1]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "text": ""}]}],
            Code.INVALID_VALUE,
            "body.messages[0].content[0].type",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            Code.MISSING_REQUIRED_FIELD,
            "body.messages[0].content[0].text",
        ),
    ],
)
def test_faults_of_messages(messages: Any, code: Code, param: str) -> None:
    fault = only_fault(parse(line({"messages": messages})))
    assert (fault.code, fault.param) == (code, param)


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (5, Code.INVALID_TYPE, "body.prompt"),
        ({}, Code.INVALID_TYPE, "body.prompt"),
        ([], Code.INVALID_VALUE, "body.prompt"),
        ([[]], Code.INVALID_VALUE, "body.prompt[0]"),
        (["a", 1], Code.INVALID_TYPE, "body.prompt[1]"),
        ([1, "a"], Code.INVALID_TYPE, "body.prompt[1]"),
        ([1, 2.0], Code.INVALID_TYPE, "body.prompt[1]"),
        ([True], Code.INVALID_TYPE, "body.prompt[0]"),
        ([[1], [-1]], Code.INVALID_VALUE, "body.prompt[1][0]"),
    ],
)
def test_faults_of_a_prompt(prompt: Any, code: Code, param: str) -> None:
    fault = only_fault(parse(line({"prompt": prompt}, "/v1/completions")))
    assert (fault.code, fault.param) == (code, param)


@pytest.mark.parametrize(
    ("name", "value", "code", "wanted"),
    [
        ("model", 3, Code.INVALID_TYPE, "a string"),
        ("max_tokens", -1, Code.INVALID_VALUE, "at least 0"),
        ("max_completion_tokens", 2.0, Code.INVALID_TYPE, "an integer"),
        ("max_tokens", "5", Code.INVALID_TYPE, "an integer"),
        ("temperature", "0.7", Code.INVALID_TYPE, "a number"),
        ("temperature", False, Code.INVALID_TYPE, "a number"),
        ("temperature", 2.1, Code.INVALID_VALUE, "at most 2"),
        ("temperature", -0.1, Code.INVALID_VALUE, "at least 0"),
        ("temperature", float("nan"), Code.INVALID_VALUE, "a finite number"),
        ("top_p", 1.01, Code.INVALID_VALUE, "at most 1"),
        ("top_k", -2, Code.INVALID_VALUE, "at least -1"),
        ("top_k", True, Code.INVALID_TYPE, "an integer"),
        ("min_p", 2, Code.INVALID_VALUE, "at most 1"),
        ("seed", 1.5, Code.INVALID_TYPE, "an integer"),
        ("seed", 2**63, Code.INVALID_VALUE, "at most 9223372036854775807"),
        ("n", 0, Code.INVALID_VALUE, "at least 1"),
        ("n", 129, Code.INVALID_VALUE, "at most 128"),
        ("stop", "", Code.INVALID_VALUE, "not be empty"),
        ("stop", list("abcdefghijklmnopq"), Code.INVALID_VALUE, "16 entries at most"),
        ("stop", 5, Code.INVALID_TYPE, "a string or a list of strings"),
        ("stop_token_ids", "5", Code.INVALID_TYPE, "a list"),
        ("ignore_eos", 1, Code.INVALID_TYPE, "true or false"),
        ("frequency_penalty", 2.1, Code.INVALID_VALUE, "at most 2"),
        ("frequency_penalty", False, Code.INVALID_TYPE, "a number"),
        ("presence_penalty", -3, Code.INVALID_VALUE, "at least -2"),
        ("repetition_penalty", 0, Code.INVALID_VALUE, "above 0"),
        ("repetition_penalty", True, Code.INVALID_TYPE, "a number"),
        ("logit_bias", [1], Code.INVALID_TYPE, "an object"),
        ("min_tokens", -1, Code.INVALID_VALUE, "at least 0"),
        ("prompt_logprobs", 21, Code.INVALID_VALUE, "at most 20"),
        ("prompt_logprobs", True, Code.INVALID_TYPE, "an integer"),
    ],
)
def test_faults_of_parameters(name: str, value: Any, code: Code, wanted: str) -> None:
    for parsed in (chat(**{name: value}), completion(**{name: value})):
        fault = only_fault(parsed)
        assert (fault.code, fault.param) == (code, f"body.{name}")
        assert fault.message.startswith(f"body.{name} ")
        assert wanted in fault.message
        assert f"found {shortened(value)}" in fault.message


def test_an_entry_of_a_list_is_named() -> None:
    assert only_fault(chat(stop=["a", ""])).param == "body.stop[1]"
    assert only_fault(chat(stop_token_ids=[1, -1])).param == "body.stop_token_ids[1]"


@pytest.mark.parametrize(
    "neutral",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0},
        {"logprobs": False, "top_logprobs": 0, "echo": False, "stream": False, "suffix": ""},
        {"response_format": {"type": "text"}, "logit_bias": {}, "tools": [], "tool_choice": "none"},
        {"best_of": 1},
        {"best_of": 3, "n": 3},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "s"},
        {"prompt_cache_key": "k", "parallel_tool_calls": False, "stream_options": {"include_usage": True}},
        {"add_generation_prompt": True, "min_tokens": 0, "continue_final_message": False},
    ],
)
def test_parameters_that_change_nothing_are_accepted(neutral: Mapping[str, Any]) -> None:
    n = neutral.get("n", 1)
    assert good(chat(**neutral)) == good(chat(n=n))
    assert good(completion(**neutral)) == good(completion(n=n))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template", "{{ messages }}"),
    ],
)
def test_parameters_that_would_change_the_answer_are_refused_also_when_lenient(name: str, value: Any) -> None:
    body = {**HI, name: value}
    for lenient in (False, True):
        fault = only_fault(parse(line(body), lenient=lenient))
        assert (fault.code, fault.param) == (Code.UNSUPPORTED_PARAMETER, f"body.{name}")


@pytest.mark.parametrize(
    ("parsed", "param", "wanted"),
    [
        (chat(top_logprobs=2), "top_logprobs", "needs logprobs to be true"),
        (chat(logprobs=1), "logprobs", "must be true or false"),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs", "at most 20"),
        (completion(logprobs=True), "logprobs", "must be an integer"),
        (completion(logprobs=21), "logprobs", "at most 20"),
        (completion(best_of=2, n=3), "best_of", "must be at least n, 3"),
        (completion(min_tokens=6, max_tokens=5), "min_tokens", "at most the limit of tokens, 5"),
        (chat(max_tokens=0), "max_tokens", "at least 1"),
        (completion(max_tokens=3, max_completion_tokens=0), "max_completion_tokens", "at least 1"),
        (chat(max_tokens=-1), "max_tokens", "at least 0"),
        (completion(logit_bias={"five": 1}), "logit_bias.five", "must match"),
        (completion(logit_bias={"5": 101}), "logit_bias.5", "at most 100"),
        (completion(logit_bias={"5": "1"}), "logit_bias.5", "a number"),
    ],
)
def test_parameters_that_do_not_go_together(parsed: Parsed, param: str, wanted: str) -> None:
    fault = only_fault(parsed)
    assert fault.param == f"body.{param}"
    assert wanted in fault.message


def test_what_changes_logits_and_what_is_shown_of_them() -> None:
    sent: dict[str, Any] = {
        "frequency_penalty": -2,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100, "12": 1.5},
        "min_tokens": 2,
        "prompt_logprobs": 4,
    }
    expected = SamplingRequest(
        frequency_penalty=-2,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias=((7, -100), (12, 1.5)),
        min_tokens=2,
        prompt_logprobs=4,
    )
    assert good(chat(**sent)).sampling == expected
    assert good(completion(**sent)).sampling == expected
    assert good(chat(logprobs=True)).sampling.logprobs == 0
    assert good(chat(logprobs=True, top_logprobs=5)).sampling.logprobs == 5
    scored = good(completion(max_tokens=0, echo=True, logprobs=1, n=2, best_of=4))
    assert (scored.sampling.max_tokens, scored.sampling.logprobs, scored.echo) == (0, 1, True)
    assert (scored.n, scored.samples) == (2, 4)


def test_special_tokens_are_those_of_the_endpoint() -> None:
    good(chat(add_special_tokens=False))
    good(completion(add_special_tokens=True))
    assert only_fault(chat(add_special_tokens=True)).code is Code.UNSUPPORTED_PARAMETER
    assert only_fault(completion(add_special_tokens=False)).code is Code.UNSUPPORTED_PARAMETER


def test_unknown_parameters_are_refused_or_warned_of() -> None:
    body = {**HI, "tempreature": 0.1}
    fault = only_fault(parse(line(body)))
    assert (fault.code, fault.param) == (Code.UNSUPPORTED_PARAMETER, "body.tempreature")
    assert "--lenient" in fault.message
    parsed = parse(line(body), lenient=True)
    assert good(parsed) == good(chat())
    assert [warning.param for warning in parsed.warnings] == ["body.tempreature"]


@pytest.mark.parametrize("value", [True, 1, "false"])
def test_a_stream_is_refused(value: Any) -> None:
    assert only_fault(chat(stream=value)).code is Code.STREAM_NOT_SUPPORTED


def test_all_faults_are_found_at_once() -> None:
    parsed = parse(line({"messages": [{}], "n": 0, "what": 1}, custom_id=None, method="GET"))
    assert [fault.param for fault in parsed.faults] == [
        "custom_id",
        "method",
        "body.what",
        "body.n",
        "body.messages[0].role",
    ]


def test_a_readers_fault_is_the_rows() -> None:
    fault = RowFault(Code.INVALID_JSON_LINE, "no JSON")
    assert Parser().parse(RawRow(1, None, fault)) == Parsed(None, (fault,))
    assert Parser().parse(RawRow(1, {"custom_id": "a"}, fault)) == Parsed(None, (fault,))


@pytest.mark.parametrize(
    ("data", "found"),
    [(None, None), ({}, None), ({"custom_id": []}, None), ({"custom_id": True}, None), ({"custom_id": 5}, "5")],
)
def test_the_custom_id_of_a_faulty_row(data: Mapping[str, Any] | None, found: str | None) -> None:
    assert custom_id_of(RawRow(1, data)) == found


def test_what_is_passed_through_reaches_the_request() -> None:
    parsed = Parser().parse(RawRow(1, line(HI), extra={"label": 3}))
    assert good(parsed).extra == {"label": 3}


def test_values_in_messages_are_json_and_short() -> None:
    assert shortened(True) == "true"
    assert shortened({"a": None}) == '{"a":null}'
    assert shortened(b"x") == "b'x'"
    assert len(shortened("x" * 1000)) == 60


def test_every_code_has_a_status() -> None:
    assert {code.status for code in Code} == {400, 404, 422, 500}
    assert orjson.dumps(Code.INVALID_TYPE) == b'"invalid_type"'


def test_the_room_is_light() -> None:
    code = "import sys, batchgen.protocol.parse, batchgen.protocol.response; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "pyarrow", "datasets", "numpy"} & set(loaded)
