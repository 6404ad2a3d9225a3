"""Stop strings and end tokens, case by case; the properties are in tests/property/test_detok.py."""

from __future__ import annotations

import pytest

from batchgen.core.sampling import SamplingParams
from batchgen.protocol.request import SamplingRequest
from batchgen.text.detok import decode_output, watcher
from batchgen.text.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_level

END = 2
PARAMS = SamplingParams(max_tokens=100, stop_token_ids=frozenset({END}))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(), {})


def run(tokenizer: Tokenizer, ids: list[int], *stops: str, include: bool = False) -> tuple[str, int]:
    """The final text, and how many tokens were taken."""
    sent = SamplingRequest(stop=stops, include_stop_str_in_output=include)
    probe = watcher(tokenizer, sent, PARAMS)
    assert probe is not None
    for taken, token in enumerate(ids, 1):
        if probe.push(token):
            return probe.finish(), taken
    return probe.finish(), len(ids)


def single(tokenizer: Tokenizer, text: str) -> int:
    (token,) = tokenizer.encode(text)
    return token


def test_inside_a_token_and_in_the_first_one(tokenizer: Tokenizer) -> None:
    the = single(tokenizer, " the")
    assert run(tokenizer, [the, the], "h") == (" t", 1)
    assert run(tokenizer, [the, the], "h", include=True) == (" th", 1)


def test_over_three_tokens(tokenizer: Tokenizer) -> None:
    ids = [single(tokenizer, char) for char in "xyz!"]
    assert run(tokenizer, ids, "xyz") == ("", 3)
    assert run(tokenizer, ids, "yz!") == ("x", 4)


def test_the_match_completed_first_wins_then_the_one_that_starts_first(tokenizer: Tokenizer) -> None:
    ids = [single(tokenizer, char) for char in "qrsu"]
    assert run(tokenizer, ids, "qrsu", "rs") == ("q", 3)
    assert run(tokenizer, ids, "rs", "qrs") == ("", 3)


def test_an_almost_complete_stop_string_stays_in_the_text(tokenizer: Tokenizer) -> None:
    assert run(tokenizer, tokenizer.encode("stop her"), "stop here") == ("stop her", len(tokenizer.encode("stop her")))


def test_the_end_token_adds_no_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the cat"), END]
    assert run(tokenizer, ids, "dog", "</s>") == ("the cat", len(ids))
    assert decode_output(tokenizer, ids, PARAMS) == "the cat"
    assert decode_output(tokenizer, ids, PARAMS, skip_special_tokens=False) == "the cat"
    ignored = SamplingParams(max_tokens=100)
    assert decode_output(tokenizer, ids, ignored, skip_special_tokens=False) == "the cat</s>"
    assert decode_output(tokenizer, ids, ignored) == "the cat"
    assert decode_output(tokenizer, [], PARAMS) == ""


def test_a_stop_string_completed_by_held_back_text_is_found_at_the_end(tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("👩")[:-1]
    probe = watcher(tokenizer, SamplingRequest(stop=("\ufffd",)), PARAMS)
    assert probe is not None
    assert not any(probe.push(token) for token in [*tokenizer.encode("cat"), *half])
    assert (probe.finish(), probe.matched) == ("cat", "\ufffd")


def test_no_stop_strings_no_probe(tokenizer: Tokenizer) -> None:
    assert watcher(tokenizer, SamplingRequest(), PARAMS) is None
