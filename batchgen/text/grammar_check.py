"""Checks grammars in a process of its own, so that one which takes too long ends that process and nothing else.

Run as a script. It reads lines of JSON, `{"kind", "text", "strict", "whitespace"}` as in `protocol.constraints`, and
answers each with a line: `{"grammar": …}` in llguidance's own notation, or `{"error": …}`. A time limit can't be set in
the library, and a thread can't be ended.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from llguidance import LLMatcher, grammar_from

PROCESSOR_SECONDS = 5.0
"""For one grammar. Processor time, not the clock's, so that a busy machine refuses nothing that an idle one takes."""
MEMORY_BYTES = 4 << 30


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


def _json_options(strict: bool, whitespace: str | None) -> tuple[dict[str, object], dict[str, object]]:
    """Options that a schema may replace under `x-guidance`, and those that it may not.

    Free whitespace is what small models lose themselves in, and leaves few tokens to skip ahead over.
    """
    fixed = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    defaults = {} if strict else {"lenient": True, "coerce_one_of": True}
    if whitespace is None:
        return fixed | defaults, {}
    if not whitespace:
        return defaults, {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return defaults, {"whitespace_pattern": whitespace}


def _answer(kind: str, text: str, strict: bool, whitespace: str | None) -> dict[str, str]:
    try:
        grammar = convert(kind, text, strict, whitespace)
    except ValueError as error:
        return {"error": str(error)}
    failed, said = LLMatcher.validate_grammar_with_warnings(grammar)
    return {"error": said[0]} if failed else {"grammar": grammar}


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)  # its signal ends the process
        answer = _answer(**json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
