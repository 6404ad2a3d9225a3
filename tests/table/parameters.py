"""Parameters of sampling, stopping and limits; those that have no effect, and those that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.table.case import Case, bad, chat, completion


def taken(name: str, *values: Any) -> Iterator[Case]:
    """Each value is taken, by both urls in turn."""
    for number, value in enumerate(values):
        make = (chat, completion)[number % 2]
        yield make(f"{name} {value!r:.120}", {name: value})


def refused(code: str, name: str, *values: Any) -> Iterator[Case]:
    """Each value is refused, by both urls in turn."""
    for number, value in enumerate(values):
        make = (completion, chat)[number % 2]
        yield make(f"{name} {value!r:.120}", {name: value}, **bad(code, f"body.{name}"))


def typed(name: str, *values: Any) -> Iterator[Case]:
    return refused("invalid_type", name, *values)


def ranged(name: str, *values: Any) -> Iterator[Case]:
    return refused("invalid_value", name, *values)


SAMPLING = [
    *taken("temperature", 0, 0.0, 1, 2, 1e-9, None),
    *ranged("temperature", -0.1, 2.1, 1e300),
    *typed("temperature", "0.7", True, [1], {}),
    *taken("top_p", 0, 0.0, 1, 0.5, None),
    *ranged("top_p", -0.01, 1.01),
    *typed("top_p", "1", False),
    *taken("top_k", -1, 0, 1, 5, 10**9, None),
    *ranged("top_k", -2),
    *typed("top_k", 1.5, "5", True),
    *taken("min_p", 0, 1, 0.05, None),
    *ranged("min_p", -0.1, 1.1),
    *typed("min_p", "0"),
    *taken("seed", 0, -1, 2**63 - 1, -(2**63), None),
    *ranged("seed", 2**63),
    *typed("seed", 1.5, "1", True, 1e30),
    completion("drawn with a seed", {"temperature": 1, "seed": 7}),
    completion("drawn without a seed", {"temperature": 1}),
    completion("greedy by top_p", {"temperature": 1, "top_p": 0, "n": 2}, choices=2, tokens=8),
    completion("several", {"n": 3, "temperature": 0.9}, choices=3, tokens=12),
    completion("several of several", {"n": 2, "prompt": ["the sea", "the hat"]}, choices=4, tokens=16),
    chat("most", {"n": 128, "max_tokens": 1}, choices=128, tokens=128),
    *ranged("n", 0, -1, 129),
    *typed("n", 1.0, "1", True),
]

LIMITS = [
    completion("a limit", {"max_tokens": 3}, finish="length", tokens=3),
    completion("the newer limit", {"max_tokens": None, "max_completion_tokens": 2}, tokens=2),
    completion("the newer limit wins", {"max_completion_tokens": 2}, tokens=2),
    completion("a limit beyond the context", {"max_tokens": 10**6, "prompt": [5] * 120}, tokens=8,
               effective={"max_tokens": 8}),
    completion("no limit", {"max_tokens": None, "prompt": [5] * 120}, tokens=8, finish="length"),
    *ranged("max_tokens", -1),
    *typed("max_tokens", 1.5, "4", True, [4]),
    *typed("max_completion_tokens", 2.0),
    chat("nothing to say", {"max_tokens": 0}, **bad("invalid_value", "body.max_tokens")),
    chat("nothing to say, newer", {"max_completion_tokens": 0}, **bad("invalid_value", "body.max_completion_tokens")),
    *taken("ignore_eos", True, False, None),
    *typed("ignore_eos", 1, "true"),
    *taken("skip_special_tokens", False, True),
    *typed("skip_special_tokens", 0),
]  # fmt: skip

STOPS = [
    *taken("stop", "\n\n", ["a", "b"], [], None, list("abcdefghijklmnop"), "größe🙂"),
    *ranged("stop", "", list("abcdefghijklmnopq")),
    *typed("stop", 5, {"a": 1}),
    completion("one of the stops is empty", {"stop": ["a", ""]}, **bad("invalid_value", "body.stop[1]")),
    completion("one of the stops is a number", {"stop": ["a", 5]}, **bad("invalid_type", "body.stop[1]")),
    *taken("include_stop_str_in_output", True, False),
    *typed("include_stop_str_in_output", "yes"),
    *taken("stop_token_ids", [], [5], list(range(300)), None),
    completion("a stop token is negative", {"stop_token_ids": [-1]}, **bad("invalid_value", "body.stop_token_ids[0]")),
    completion("a stop token is text", {"stop_token_ids": ["5"]}, **bad("invalid_type", "body.stop_token_ids[0]")),
    *typed("stop_token_ids", 5, "5"),
    completion("every token stops", {"stop_token_ids": list(range(307))}, finish="stop", tokens=1, text=""),
]  # fmt: skip

OTHERS = [
    *taken("user", "u"),
    *taken("metadata", {"a": "b"}),
    *taken("store", True),
    *taken("service_tier", "flex"),
    *taken("prompt_cache_key", "k"),
    *taken("safety_identifier", "s"),
    *taken("priority", 5),
    *taken("request_id", "r"),
    *taken("modalities", ["text"]),
    chat("sound", {"modalities": ["text", "audio"]}, **bad("unsupported_parameter", "body.modalities")),
    chat("functions", {"functions": [{"name": "f"}]}, **bad("unsupported_parameter", "body.functions")),
    *refused("unsupported_parameter", "tempreature", 1, 2),
    *refused("unsupported_parameter", "use_beam_search", True),
    *refused("unsupported_parameter", "truncate_prompt_tokens", 5),
    *refused("unsupported_parameter", "bad_words", ["x"]),
    *refused("unsupported_parameter", "allowed_token_ids", [5]),
    *refused("unsupported_parameter", "length_penalty", 2.0),
    *refused("unsupported_parameter", "return_token_ids", True),
    *taken("use_beam_search", False),
    *taken("nobody knows it, and it is not sent", None),
    *refused("unsupported_parameter", "x" * 5000, 1),
    *refused("unsupported_parameter", "a.b", 1),
    *refused("unsupported_parameter", "", 1),
    completion("several faults", {"n": 0, "temperature": 9, "wat": 1}, **bad("unsupported_parameter", "body.wat")),
]
