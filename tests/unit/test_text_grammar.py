"""Grammars: every walk over allowed tokens gives what was asked for; what can't be compiled is refused in time."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from batchgen.protocol.constraints import Constraint
from batchgen.protocol.faults import Code, RowFault
from batchgen.text import grammar
from batchgen.text.grammar import Grammars, Guide
from batchgen.text.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_fallback, byte_level

END = 2
KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None, 1.5]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

CHOICES = ["yes", "no", 'a "b"\\\n\x7f', "日🙂", "no way"]


@pytest.fixture(scope="module", params=sorted(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(KINDS[request.param](), {})


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    made = Grammars(tokenizer, frozenset({END}), tokenizer.vocab_size + 40)
    yield made
    made.close()


def guides(grammars: Grammars, kind: Any, text: Any, **options: Any) -> Callable[[], Guide]:
    constraint = Constraint(kind, text if isinstance(text, str) else json.dumps(text), "body.x", **options)
    made = grammars.compile(constraint)
    assert not isinstance(made, RowFault)
    return made


def fault(grammars: Grammars, kind: Any, text: str, **options: Any) -> RowFault:
    refused = grammars.compile(Constraint(kind, text, "body.x", **options))
    assert isinstance(refused, RowFault)
    assert (refused.code, refused.param) == (Code.INVALID_JSON_SCHEMA, "body.x")
    return refused


def allowed(guide: Guide) -> list[int]:
    mask = guide.mask()
    assert mask is not None
    assert len(mask) % 4 == 0
    bits = int.from_bytes(mask, "little")
    return [token for token in range(len(mask) * 8) if bits >> token & 1]


def walk(guide: Guide, seed: int) -> list[int]:
    """Tokens to the end, at random; of those that are forced each is the only one that is allowed."""
    choose = random.Random(seed)
    output: list[int] = []
    while END not in output:
        assert len(output) < 500
        forced = guide.forced()
        for token in forced or [choose.choice(allowed(guide))]:
            if forced:
                assert allowed(guide) == [token]
            guide.push(token)
            output.append(token)
    assert guide.finished
    assert guide.error is None
    return output[:-1]


def valid(answer: str) -> bool:
    jsonschema.validate(json.loads(answer), PERSON)
    return json.dumps(json.loads(answer), ensure_ascii=False).casefold() == answer.casefold() or "\\" in answer


@pytest.mark.parametrize(
    ("kind", "text", "fits"),
    [
        ("json", PERSON, valid),
        ("regex", "(ab|c日)*[0-9]{3}-x?", lambda answer: re.fullmatch("(ab|c日)*[0-9]{3}-x?", answer)),
        ("choice", CHOICES, CHOICES.__contains__),
        ("grammar", 'start: "<" /[a-f]{2,5}/ ">" start?', lambda answer: re.fullmatch("(<[a-f]{2,5}>)+", answer)),
        ("grammar", 'root ::= "a" b\nb ::= "x" | "y" b', lambda answer: re.fullmatch("ay*x", answer)),
    ],
)
def test_every_walk_gives_what_was_asked_for(
    tokenizer: Tokenizer, grammars: Grammars, kind: str, text: Any, fits: Callable[[str], Any]
) -> None:
    make = guides(grammars, kind, text)
    answers = [tokenizer.decode(walk(make(), seed)) for seed in range(12)]
    # A decoder of SentencePiece's kind takes one space off the front: answers begin without one.
    assert all(fits(answer) for answer in answers), answers
    assert len(set(answers)) > 1


def written(grammars: Grammars, tokenizer: Tokenizer, answer: str, schema: Any, **options: Any) -> bool:
    """Whether the grammar of a schema accepts a text."""
    guide = guides(grammars, "json", schema, **options)()
    for byte in answer.encode():
        token = next((t for t in allowed(guide) if single_byte(tokenizer, t) == byte), None)
        if token is None:
            return False
        guide.push(token)
    return guide.finished


def single_byte(tokenizer: Tokenizer, token: int) -> int | None:
    text = tokenizer.decode([260, token], skip_special_tokens=False)[len(tokenizer.decode([260])) :]
    return ord(text) if len(text) == 1 and text.isascii() else None


@pytest.mark.parametrize(
    ("answer", "whitespace"),
    [
        ('{"a": [1, 2]}', None),
        ('{"a":[1,2]}', ""),
        ('{"a":  [1,2]}', "  "),
        ('{ "a"\n:[ 1 ,2]}', "[ \n]?"),
    ],
)
def test_whitespace(answer: str, whitespace: str | None) -> None:
    tokenizer = Tokenizer(byte_level(), {})
    made = Grammars(tokenizer, frozenset({END}), tokenizer.vocab_size)
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    found = {
        spaces: written(made, tokenizer, answer, schema, whitespace=spaces) for spaces in (None, "", "  ", "[ \n]?")
    }
    made.close()
    assert found[whitespace]
    assert not found["" if whitespace is None else None]


def test_answers_to_one_grammar_are_independent(grammars: Grammars) -> None:
    make = guides(grammars, "json", PERSON)
    first, second = make(), make()
    walk(first, 1)
    assert walk(second, 2) == walk(make(), 2)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json", '{"type": "foo"}', "Invalid type: foo"),
        ("json", '{"$ref": "https://example.com/schema.json"}', "example.com"),
        ("json", '{"allOf": [{"type": "string"}, {"type": "null"}]}', "Unsatisfiable"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("grammar", "start: foo", 'unknown name: "foo"'),
        ("grammar", "root ::= foo", "Rule 'foo' not found"),
        ("grammar", "nonsense", "Expected ::="),
        ("grammar", "start: <|nobody|>", "unknown special token"),
        ("grammar", f"start: {'(' * 10_000}", "too deeply nested"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_the_librarys_words(
    grammars: Grammars, kind: str, text: str, said: str
) -> None:
    refused = fault(grammars, kind, text)
    assert said in refused.message
    assert "<state>" not in refused.message


def test_strict_schemas_are_kept_to_in_full_or_refused(grammars: Grammars) -> None:
    unique = '{"type": "array", "uniqueItems": true}'
    assert "uniqueItems" in fault(grammars, "json", unique, strict=True).message
    guides(grammars, "json", unique)


def test_special_tokens_of_the_model_can_be_named(grammars: Grammars) -> None:
    guide = guides(grammars, "grammar", 'start: <|user|> "a"')()
    assert guide.forced()[:1] == [3]


@pytest.mark.parametrize(
    ("kind", "text", "limit", "value", "said"),
    [
        ("json", '{"type": "integer", "multipleOf": 4000037}', "_PROCESSOR_SECONDS", 0.2, "more than 0.2 s"),
        ("regex", "ab" * 8_000_000, "_MEMORY_BYTES", 1 << 29, "more than 0.5 GiB of memory"),
    ],
)
def test_a_grammar_that_takes_too_much_ends_nothing_else(
    kind: str, text: str, limit: str, value: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, limit, value)
    tokenizer = Tokenizer(byte_level(), {})
    made = Grammars(tokenizer, frozenset({END}), tokenizer.vocab_size)
    assert said in fault(made, kind, text).message
    guides(made, "json", PERSON)
    made.close()


def test_a_model_without_an_end_cannot_end_where_a_grammar_does(tokenizer: Tokenizer) -> None:
    endless = Grammars(tokenizer, frozenset(), tokenizer.vocab_size)
    refused = endless.compile(Constraint("choice", '["a"]', "body.guided_choice"))
    assert isinstance(refused, RowFault)
    assert refused.code is Code.UNSUPPORTED_PARAMETER


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows(tokenizer: Tokenizer) -> None:
    made = Grammars(tokenizer, frozenset({END}), tokenizer.vocab_size - 1)
    refused = made.compile(Constraint("choice", '["a"]', "body.guided_choice"))
    made.close()
    assert isinstance(refused, RowFault)
    assert refused.code is Code.UNSUPPORTED_PARAMETER
    assert "vocab size too small" in refused.message


def test_added_tokens_without_a_row_do_not_come() -> None:
    backend = byte_level()
    backend.add_tokens(["zz"])
    made = Grammars(Tokenizer(backend, {}), frozenset({END}), 320)
    guide = guides(made, "regex", "z+")()
    assert 320 not in allowed(guide)
    made.close()


def test_several_end_tokens_leave_a_choice(tokenizer: Tokenizer) -> None:
    made = Grammars(tokenizer, frozenset({END, 1}), tokenizer.vocab_size)
    guide = guides(made, "choice", ["a"])()
    for token in guide.forced() or allowed(guide)[:1]:
        guide.push(token)
    assert (guide.forced(), allowed(guide)) == ((), [1, END])
    made.close()


def test_a_token_that_does_not_fit_is_an_error_and_then_the_end(grammars: Grammars) -> None:
    guide = guides(grammars, "regex", "[0-9]+")()
    guide.push(3)
    assert guide.error
    assert "<state>" not in guide.error
    assert not guide.finished
    assert allowed(guide) == [END]
