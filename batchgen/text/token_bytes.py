"""The bytes that a single token stands for, which decoding does not tell: a token may be part of a character."""

from __future__ import annotations

import re
from collections.abc import Callable

from tokenizers import Tokenizer as Backend

__all__ = ["token_bytes"]

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(backend: Backend) -> Callable[[int], bytes]:
    """The bytes of a token id, for byte-level tokenizers and for those in SentencePiece's manner, by their decoder."""
    added = {token: entry.content.encode() for token, entry in backend.get_added_tokens_decoder().items()}
    steps = b"" if backend.decoder is None else backend.decoder.__getstate__()
    byte_level, byte_fallback = b'"ByteLevel"' in steps, b'"ByteFallback"' in steps
    of_letter = _byte_letters()

    def bytes_of(token: int) -> bytes:
        name = backend.id_to_token(token)
        if token in added or name is None:
            return added.get(token, b"")
        if byte_level and all(letter in of_letter for letter in name):
            return bytes(of_letter[letter] for letter in name)
        if byte_fallback and (byte := _BYTE.fullmatch(name)):
            return bytes.fromhex(byte[1])
        return name.replace(_SPACE, " ").encode()

    return bytes_of


def _byte_letters() -> dict[str, int]:
    """The letters that stand for bytes in byte-level BPE (Radford et al., GPT-2, 2019): a byte that prints stands for
    itself, the others follow from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
