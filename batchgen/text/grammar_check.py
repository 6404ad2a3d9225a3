"""Checks grammars in a process of its own, so that one which takes too long ends that process and nothing else.

Run as a script. It reads lines of JSON: first the limits and the model's special tokens and vocabulary size,
`{"seconds", "bytes", "special", "vocab_size"}`, then constraints as in `protocol.constraints`, `{"kind", "text",
"strict", "whitespace"}`. It answers each of those with a line: `{"grammar": …}` in llguidance's own notation, or
`{"error": …}`. The library knows no time limit, and a thread can't be ended.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

if TYPE_CHECKING:  # of the library's stub alone
    from llguidance._lib import JsonCompileOptions


def convert(kind: str, text: str, strict: bool, whitespace: str | None) -> str:
    """A constraint in llguidance's notation. Raises `ValueError` where it can't be read."""
    match kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(text, *_json_options(strict, whitespace))
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            # JSON's strings are Lark's, but for one character that Lark wants escaped.
            quoted = (json.dumps(choice).replace("\x7f", "\\u007f") for choice in json.loads(text))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(quoted)}")
        case _:
            return grammar_from("grammar", text)


def _json_options(strict: bool, whitespace: str | None) -> tuple[JsonCompileOptions, JsonCompileOptions]:
    """Options that a schema may replace under `x-guidance`, and those that it may not.

    Free whitespace is what small models lose themselves in, and leaves few tokens to skip ahead over.
    """
    defaults: JsonCompileOptions = {"lenient": not strict, "coerce_one_of": not strict}
    if whitespace is None:
        return {**defaults, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}, {}
    if not whitespace:
        return defaults, {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return defaults, {"whitespace_pattern": whitespace}


class _Bytes:
    """A tokenizer of single bytes and special tokens: quick to make, and grammars compile against it as against any."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, special: list[str]) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *(name.encode() for name in special)]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _answer(tokenizer: LLTokenizer, kind: str, text: str, strict: bool, whitespace: str | None) -> dict[str, str]:
    try:
        grammar = convert(kind, text, strict, whitespace)
    except ValueError as error:
        return {"error": str(error)}
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    return {"error": matcher.get_error()} if matcher.is_error() else {"grammar": grammar}


def main() -> None:
    """Answer until the input ends."""
    model = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_AS, (model["bytes"], model["bytes"]))
    backend = TokenizerWrapper(_Bytes(model["special"]))
    tokenizer = LLTokenizer(backend, n_vocab=max(model["vocab_size"], len(backend.tokens)))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, model["seconds"])  # its signal ends the process
        answer = _answer(tokenizer, **json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
