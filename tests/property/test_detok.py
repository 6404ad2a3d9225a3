"""Decoding piece by piece gives what decoding at once gives; stop strings are found wherever token edges fall."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from batchgen.text.detok import StopWatcher, TextStream
from batchgen.text.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_fallback, byte_level

KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback}


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind](), {"bos_token": "<s>"})


def byte_token(byte: int) -> int:
    return 4 + byte  # in the byte-fallback tokenizer, after the special tokens


@st.composite
def texts_in_tokens(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A tokenizer's name, and ids: of a text, or any at all, special and unknown ones among them."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    chosen = tokenizer(kind)
    any_ids = st.lists(st.integers(0, chosen.vocab_size + 3), max_size=30)
    alphabet = st.one_of(st.sampled_from("the cat  sat\n日é🙂👩‍👩‍👧\ufffd"), st.characters(exclude_categories=["Cs"]))
    return kind, draw(st.one_of(any_ids, st.text(alphabet, max_size=20).map(chosen.encode)))


def pieces(kind: str, ids: list[int], *, skip: bool) -> list[str]:
    stream = TextStream(tokenizer(kind), skip_special_tokens=skip)
    return [*(stream.push(token) for token in ids), stream.finish()]


@given(texts_in_tokens(), st.booleans())
@example(("byte_fallback", [byte_token(b) for b in "你".encode() + b"\xff"]), True)
@example(("byte_fallback", [1, 260, 260, 263]), True)
def test_pieces_are_the_whole(case: tuple[str, list[int]], skip: bool) -> None:
    kind, ids = case
    whole = tokenizer(kind).decode(ids, skip_special_tokens=skip)
    given_out = pieces(kind, ids, skip=skip)
    assert "".join(given_out) == whole
    # What was given out stays: every prefix of the pieces is a prefix of the text.
    assert all(whole.startswith("".join(given_out[:count])) for count in range(len(given_out)))


@given(st.sampled_from(sorted(KINDS)), st.text("the cat sat日é🙂", max_size=30))
def test_no_replacement_characters_inside_whole_characters(kind: str, text: str) -> None:
    assert not any("\ufffd" in piece for piece in pieces(kind, tokenizer(kind).encode(text), skip=True))


@given(st.lists(st.integers(0, 255), max_size=6))
def test_an_output_that_ends_inside_a_character_says_so(tail: list[int]) -> None:
    ids = [*tokenizer("byte_fallback").encode("at"), *map(byte_token, tail)]
    assert "".join(pieces("byte_fallback", ids, skip=True)) == tokenizer("byte_fallback").decode(ids)


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the match that a reader of the text, character by character, completes first."""
    for end in range(len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return start, end
    return None


@given(
    st.sampled_from(sorted(KINDS)),
    st.text("abst 日🙂", max_size=25),
    st.lists(st.text("abst 日🙂", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
)
def test_text_is_cut_at_the_first_stop_string(kind: str, text: str, stops: list[str], include: bool) -> None:
    ids = tokenizer(kind).encode(text)
    text = tokenizer(kind).decode(ids)
    watcher = StopWatcher(TextStream(tokenizer(kind)), stops, frozenset(), include_stop=include)
    taken = 0
    for token in ids:
        taken += 1
        if watcher.push(token):
            break
    final, match = watcher.finish(), first_stop(text, stops)
    if match is None:
        assert (final, watcher.matched, taken) == (text, None, len(ids))
        return
    start, end = match
    assert (final, watcher.matched) == (text[: end if include else start], text[start:end])
    if kind == "byte_level":
        # Not one token too many: without the last one, the stop string was not there.
        assert taken == 0 or end > len(tokenizer(kind).decode(ids[: taken - 1]).rstrip("\ufffd"))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_time_per_token_does_not_grow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    real = Tokenizer.decode

    def counting(self: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        nonlocal decoded
        decoded += len(ids)
        return real(self, ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    chosen = tokenizer(kind)
    stray = next(i for i in range(4, chosen.vocab_size) if chosen.decode([i]) == "\ufffd")
    ids = chosen.encode("the cat 🙂 ") * 200 + [stray] * 2000 + chosen.encode("the end.")
    decoded = 0
    pieces(kind, ids, skip=True)
    assert decoded < 12 * len(ids)


@given(texts_in_tokens())
def test_the_bytes_of_tokens_are_those_of_the_text(case: tuple[str, list[int]]) -> None:
    kind, ids = case
    together = b"".join(map(tokenizer(kind).token_bytes, ids)).decode(errors="replace")
    text = tokenizer(kind).decode(ids, skip_special_tokens=False)
    if kind == "byte_fallback":
        # It drops a first space, and replaces a whole run of bytes where any of them is no text.
        together = together.removeprefix(" ")
        assume("\ufffd" not in text)
    assert together == text


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(0, 12))
def test_a_match_does_not_count_before_min_tokens(letters: list[str], min_tokens: int) -> None:
    ids = [token for letter in letters for token in tokenizer("byte_level").encode(letter)]
    stream = TextStream(tokenizer("byte_level"))
    watcher = StopWatcher(stream, ["ab", "bbbb"], frozenset(), min_tokens=min_tokens)
    found = next((taken for taken, token in enumerate(ids, 1) if watcher.push(token)), None)
    text = "".join(letters)
    ends = [n for n in range(min_tokens + 1, len(text) + 1) if text[:n].endswith(("ab", "bbbb"))]
    assert found == (ends[0] if ends else None)
    if found is not None:
        assert watcher.finish() == text[: found - (2 if text[:found].endswith("ab") else 4)]
