"""Lines and envelopes: good, odd, hostile."""

from __future__ import annotations

from typing import Any

from tests.table.case import ONCE, Case, bad, line, raw

URL = "/v1/completions"
NO_JSON = bad("invalid_json_line", status=422)
REPEATED = "twice"


def request(custom_id: Any, **changes: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": dict(ONCE)} | changes


def without(key: str, custom_id: str) -> dict[str, Any]:
    return {name: value for name, value in request(custom_id).items() if name != key}


def numbered(name: str, custom_id: Any, found: str) -> Case:
    return line(name, request(custom_id), custom_id=found)


def changed(name: str, code: str, param: str, **changes: Any) -> Case:
    return line(name, request(name, **changes), **bad(code, param))


def text(custom_id: str) -> bytes:
    return b'{"custom_id": "%s", "url": "/v1/completions", "body": {"prompt": "the sea", "max_tokens": 2}}' % (
        custom_id.encode()
    )


ENVELOPES = [
    numbered("id is a number", 17, "17"),
    numbered("id is negative", -3, "-3"),
    numbered("id is zero", 0, "0"),
    numbered("id is a fraction", 1.5, "1.5"),
    numbered("id is tiny", 1e-7, "0.0000001"),
    numbered("id is large", 2**63, "9223372036854775808"),
    numbered("id is empty", "", ""),
    numbered("id has letters of all kinds", "größe 日本 🙂 \u202e", "größe 日本 🙂 \u202e"),
    numbered("id has control characters", "a\u0000b\n\tc", "a\u0000b\n\tc"),
    numbered("id is long", "x" * 5000, "x" * 5000),
    numbered("id looks like JSON", '{"a": 1}', '{"a": 1}'),
    line("id is null", request(None), **bad("missing_required_field", "custom_id", "give each line one")),
    line("id is missing", without("custom_id", ""), **bad("missing_required_field", "custom_id")),
    line("id is true", request(True), **bad("invalid_type", "custom_id")),
    line("id is a list", request(["a"]), **bad("invalid_type", "custom_id")),
    line("id is an object", request({}), **bad("invalid_type", "custom_id")),
    line("id is too large", request(1e17), **bad("invalid_value", "custom_id", "write it as a string")),
    line("an id for the first time", request(REPEATED)),
    line("an id again", request(REPEATED), **bad("duplicate_custom_id", "custom_id", "was used on line")),
    line("a number's id again", request("17"), **bad("duplicate_custom_id", "custom_id")),
    line("a faulty line's id", request("odd", method="GET"), **bad("unsupported_method", "method")),
    line("a faulty line's id again", request("odd"), **bad("duplicate_custom_id", "custom_id")),
    line("no method", without("method", "no method")),
    line("method is null", request("method is null", method=None)),
    changed("method is GET", "unsupported_method", "method", method="GET"),
    changed("method is small", "unsupported_method", "method", method="post"),
    changed("method is a number", "invalid_type", "method", method=5),
    line("no url", without("url", "no url"), **bad("missing_required_field", "url", "/v1/chat/completions")),
    changed("url is null", "missing_required_field", "url", url=None),
    changed("url is unknown", "unsupported_url", "url", url="/v1/responses"),
    changed("url is a whole address", "unsupported_url", "url", url="https://api.openai.com/v1/completions"),
    changed("url has a slash", "unsupported_url", "url", url="/v1/completions/"),
    changed("url is empty", "unsupported_url", "url", url=""),
    changed("url is a list", "invalid_type", "url", url=[]),
    line("no body", without("body", "no body"), **bad("missing_required_field", "body")),
    changed("body is null", "missing_required_field", "body", body=None),
    changed("body is text", "invalid_type", "body", body="the sea"),
    changed("body is a list", "invalid_type", "body", body=[]),
    changed("body is a number", "invalid_type", "body", body=5),
    changed("body is empty", "missing_required_field", "body.prompt", body={}),
    changed("body is of the other url", "unsupported_parameter", "body.prompt", url="/v1/chat/completions"),
    line("further keys", request("further keys", label=[1, None], weight=0.5)),
    changed("model is a number", "invalid_type", "body.model", body={**ONCE, "model": 5}),
    line(
        "model is another",
        request("model is another", body={**ONCE, "model": "gpt-4o"}),
        **bad("model_mismatch", "body.model", "--ignore-request-model", status=404),
    ),
    changed("stream", "stream_not_supported", "body.stream", body={**ONCE, "stream": True}),
    line("no stream", request("no stream", body={**ONCE, "stream": False, "stream_options": None})),
    raw("spaces around", b"  \t" + text("spaces around") + b"  \t", "spaces around"),
    raw("ends like on Windows", text("ends like on Windows") + b"\r", "ends like on Windows"),
    raw("escapes", text(r"esc\u0061pe\ud83d\ude42"), "escape🙂"),
    raw("a key twice", text("one").replace(b'"url"', b'"custom_id": "two", "url"'), "two"),
    raw("a number", b"5", **NO_JSON),
    raw("a list", b"[1, 2]", **bad("invalid_json_line", None, "must be a JSON object", status=422)),
    raw("a string", b'"text"', **NO_JSON),
    raw("null", b"null", **NO_JSON),
    raw("no JSON", b"hello", **NO_JSON),
    raw("cut off", text("x")[:50], **NO_JSON),
    raw("one too many", text("x") + b"}", **NO_JSON),
    raw("two on a line", text("x") + b" " + text("y"), **NO_JSON),
    raw("a comma too many", text("x").replace(b"}}", b"},}"), **NO_JSON),
    raw("Python's quotes", b"{'custom_id': 'x'}", **NO_JSON),
    raw("a comment", text("x") + b" // x", **NO_JSON),
    raw("no UTF-8", text("x").replace(b"sea", b"\xff\xfe"), **bad("invalid_json_line", None, "not UTF-8", status=422)),
    raw("UTF-16", text("x").decode().encode("utf-16-le").replace(b"\n", b""), **NO_JSON),
    raw("cut within a character", text("x").replace(b"sea", "日".encode()[:2]), **NO_JSON),
    raw("half a surrogate pair", text("x").replace(b"sea", rb"\ud800"), **NO_JSON),
    raw("not a number", text("x").replace(b": 2", b": NaN"), **NO_JSON),
    raw("infinity", text("x").replace(b": 2", b": 1e999"), **NO_JSON),
    raw("null bytes", b"\0" * 100, **NO_JSON),
    raw("a control character within a string", text("x").replace(b"sea", b"s\x01a"), **NO_JSON),
    raw("deep lists", b"[" * 100_000, **NO_JSON),
    raw("deep objects", text("x").replace(b": 2", b": " + b'{"a":' * 500 + b"1" + b"}" * 500), **NO_JSON),
    raw("a byte order mark later on", b"\xef\xbb\xbf" + text("x"), **NO_JSON),
]
