"""Special tokens at the ends, ids and end tokens; equality with transformers on the embedded models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchgen.checkpoint.types import Checkpoint, GGUFWeights, NoWeights
from batchgen.errors import ModelNotFoundError
from batchgen.text.tokenizer import Tokenizer, end_token_ids, load_tokenizer
from tests.tiny_tokenizers import byte_fallback, byte_level

TRICKY = [
    "",
    " ",
    "  ",
    "Hello world",
    " leading and trailing ",
    "a\n\n\n b\t\tc\r\nd",
    "it's don't I'LL",
    "1234567 3.14 1,000",
    "日本語のテキスト",
    "émigré naïve e\u0301",
    "👩‍👩‍👧 🙂",
    "\u200b\ufeff\ufffd",
    "<|im_start|>user\nhi<|im_end|>",
    "<bos><eos><s></s>",
    "<start_of_turn>user",
    "def f(x):\n    return x ** 2  # done\n",
    "𒀀𒁀 \x00\x01",
    "<0x41>",
    "▁▁x ▁",
]


def checkpoint(**parts: Any) -> Checkpoint:
    empty: dict[str, Any] = {"config": {}, "generation_config": {}, "tokenizer_config": {}, "tokenizer_file": None}
    rest: dict[str, Any] = {"name": "tiny", "chat_template": None, "weights": NoWeights(), "fingerprint": "x"}
    return Checkpoint(**(empty | rest | parts))


def test_one_bos_never_two() -> None:
    tokenizer = Tokenizer(byte_fallback(), {"bos_token": "<s>"})
    bos = tokenizer.token_id("<s>")
    once = tokenizer.encode("the cat")
    assert once[0] == bos
    assert bos not in once[1:]
    assert tokenizer.encode("<s>the cat")[:2] != [bos, bos]
    assert tokenizer.encode("<s>the cat").count(1) == 1
    assert bos not in tokenizer.encode_rendered("the cat")
    assert tokenizer.encode_rendered("<s>the cat").count(1) == 1


def test_a_model_without_bos_keeps_what_the_text_says() -> None:
    tokenizer = Tokenizer(byte_level(), {"bos_token": "<s>"})
    assert tokenizer.encode("<s><s>")[:2] == [1, 1]


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (False, True), (True, True), (False, False)])
def test_the_configuration_says_what_is_added(bos: bool, eos: bool) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": bos, "add_eos_token": eos}
    ids = Tokenizer(byte_fallback(), config).encode("the")
    assert (ids[0] == 1, ids[-1] == 2) == (bos, eos)


def test_nothing_is_cut_or_padded() -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer(backend, {})
    assert tokenizer.decode(tokenizer.encode("the cat sat on the mat")) == "the cat sat on the mat"


def test_texts_are_encoded_as_by_the_library() -> None:
    tokenizer, backend = Tokenizer(byte_fallback(), {}), byte_fallback()
    assert [tokenizer.encode(text) for text in TRICKY] == [backend.encode(text).ids for text in TRICKY]


def test_decoding_skips_special_and_unknown_tokens() -> None:
    tokenizer = Tokenizer(byte_level(), {})
    ids = [1, *tokenizer.encode("cat"), 2, 10_000]
    assert tokenizer.decode(ids) == "cat"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>cat</s>"
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.knows(1)
    assert not tokenizer.knows(tokenizer.vocab_size)


def test_lone_surrogates_are_told_apart() -> None:
    with pytest.raises(UnicodeEncodeError):
        Tokenizer(byte_level(), {}).encode("a\ud800")


def test_end_tokens_of_all_sources() -> None:
    tokenizer = Tokenizer(byte_level(), {})
    assert end_token_ids(checkpoint(), None) == frozenset()
    assert end_token_ids(checkpoint(config={"eos_token_id": 0}), None) == {0}
    assert end_token_ids(checkpoint(config={"text_config": {"eos_token_id": 5}}), None) == {5}
    both = checkpoint(config={"eos_token_id": 5}, generation_config={"eos_token_id": [0, 3]})
    assert end_token_ids(both, None) == {0, 3}
    named = checkpoint(config={"eos_token_id": 3}, tokenizer_config={"eos_token": "</s>"})
    assert end_token_ids(named, tokenizer) == {2, 3}


def test_no_tokenizer_and_a_damaged_one(tmp_path: Path) -> None:
    assert load_tokenizer(checkpoint()) is None
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(checkpoint(tokenizer_file=file))


def assert_like_transformers(model: Checkpoint) -> None:
    from transformers import AutoTokenizer

    assert isinstance(model.weights, GGUFWeights)
    file = model.weights.file
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ours = load_tokenizer(model)
    assert ours is not None
    for text in TRICKY:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_rendered(text) == ids
        if not text.startswith("<bos>"):  # there they give two
            assert ours.encode(text) == theirs(text)["input_ids"]
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.special_ids >= set(theirs.all_special_ids)
    assert end_token_ids(model, ours) == {theirs.eos_token_id}
    named = {key: value for key, value in model.tokenizer_config.items() if isinstance(value, str)}
    assert named.items() <= theirs.special_tokens_map.items()


@pytest.mark.slow
def test_smollm2_is_tokenized_as_by_transformers(smollm2: Checkpoint) -> None:
    assert_like_transformers(smollm2)


@pytest.mark.slow
def test_gemma_is_tokenized_as_by_transformers(gemma3_270m: Checkpoint) -> None:
    assert_like_transformers(gemma3_270m)
