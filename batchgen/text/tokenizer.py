"""Text to token ids and back, by the `tokenizers` library alone."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from batchgen.checkpoint.types import Checkpoint
from batchgen.errors import ModelNotFoundError
from batchgen.text.token_bytes import token_bytes

__all__ = ["Tokenizer", "end_token_ids", "load_tokenizer"]


class Tokenizer:
    """A model's tokenizer. Thread-safe: nothing changes after construction."""

    def __init__(self, backend: Backend, config: Mapping[str, Any]) -> None:
        """Take over `backend`, and what `config` (`tokenizer_config.json`) says about special tokens at the ends."""
        # What a tokenizer.json says about cutting and padding is for training; here every token counts.
        backend.no_truncation()
        backend.no_padding()
        if "add_bos_token" in config or "add_eos_token" in config:
            backend.post_processor = _special_ends(backend, config)
        self._backend = backend
        bos = config.get("bos_token")
        bos_id = backend.token_to_id(bos) if bos else None
        self._added_bos = bos_id if bos_id is not None and backend.encode("").ids[:1] == [bos_id] else None
        self.special_ids = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )
        """Tokens that `decode` skips by default."""
        self.byte_ids = _byte_tokens(backend)
        """Tokens of single bytes, `<0x00>` to `<0xFF>`, where the decoder joins runs of them; else empty."""
        self._bytes_of = token_bytes(backend)

    @property
    def added_bos(self) -> int | None:
        """The token that `encode` puts before every text, None where it puts none."""
        return self._added_bos

    @property
    def vocab_size(self) -> int:
        """Tokens that it knows, added ones included. The model's embedding may have more rows."""
        return self._backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text with the special tokens that the model expects around it, and one BOS at most.

        Raises `UnicodeEncodeError` for text with lone surrogates.
        """
        ids = self._ids(text)
        # A prompt that already starts with BOS gets no second one: models have never seen two.
        doubled = self._added_bos is not None and ids[1:2] == [self._added_bos]
        return ids[1:] if doubled else ids

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a rendered chat template, which writes its special tokens itself."""
        return self._ids(text, add_special_tokens=False)

    def decode(self, ids: SequenceOf[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids outside the vocabulary have none."""
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def to_json(self) -> str:
        """The whole tokenizer in the form of a `tokenizer.json`."""
        return self._backend.to_str()

    @property
    def special_names(self) -> list[str]:
        """The special tokens by name."""
        return [token.content for token in self._backend.get_added_tokens_decoder().values() if token.special]

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for, in UTF-8: part of a character, perhaps. Empty for ids outside the vocabulary."""
        return self._bytes_of(token)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact name, None where it has none."""
        return self._backend.token_to_id(token)

    def knows(self, token: int) -> bool:
        """Whether an id stands for a token."""
        return self._backend.id_to_token(token) is not None

    def _ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        text.encode()  # tokenizers answers lone surrogates with a TypeError that says something else
        # A batch of one: `Backend.encode` would keep all other threads from running Python meanwhile.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer, None where it has none. Raises `ModelNotFoundError` for a damaged file."""
    file = checkpoint.tokenizer_file
    if file is None:
        return None
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise ModelNotFoundError(f"{file} is not a tokenizer that can be loaded: {error}") from error
    return Tokenizer(backend, checkpoint.tokenizer_config)


def end_token_ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Tokens after which the model has no more to say.

    Those of the generation configuration, else of the configuration; and the tokenizer's EOS, which fine-tuned chat
    models sometimes name only there.
    """
    text_config = checkpoint.config.get("text_config") or {}
    sources = (checkpoint.generation_config, checkpoint.config, text_config)
    named: int | list[int] = next((ids for source in sources if (ids := source.get("eos_token_id")) is not None), [])
    ids = {named} if isinstance(named, int) else set(named)
    eos = checkpoint.tokenizer_config.get("eos_token")
    if tokenizer is not None and isinstance(eos, str) and (eos_id := tokenizer.token_id(eos)) is not None:
        ids.add(eos_id)
    return frozenset(ids)


def _special_ends(backend: Backend, config: Mapping[str, Any]) -> TemplateProcessing:
    """The post-processor that `add_bos_token` and `add_eos_token` ask for, as transformers builds it."""

    def token(name: str) -> list[tuple[str, int]]:
        text = config.get(f"{name}_token")
        found = backend.token_to_id(text) if isinstance(text, str) and config.get(f"add_{name}_token") else None
        return [] if found is None else [(str(text), found)]

    bos, eos = token("bos"), token("eos")
    single = [*(name for name, _ in bos), "$A", *(name for name, _ in eos)]
    return TemplateProcessing(single=single, special_tokens=[*bos, *eos])


def _byte_tokens(backend: Backend) -> frozenset[int]:
    decoder = backend.decoder
    if decoder is None or b'"ByteFallback"' not in decoder.__getstate__():
        return frozenset()
    names = (f"<0x{byte:02X}>" for byte in range(256))
    return frozenset(token for name in names if (token := backend.token_to_id(name)) is not None)
