"""Which block holds the keys and values of which tokens after which beginning."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from hashlib import blake2b

from batchgen.core.block_pool import Block

__all__ = ["BlockKey", "PrefixIndex"]


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Names the contents of one full block: its tokens, and by the parent's digest everything before them."""

    digest: bytes
    parent: bytes
    tokens: bytes
    """The block's token ids as packed int64."""


class PrefixIndex:
    """Chained block hashes to blocks, as vLLM's automatic prefix caching has them.

    A hit compares the tokens and the parent's digest too, so that a digest alone never decides whose keys are read.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[BlockKey, Block]] = {}
        self._keys: dict[int, BlockKey] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def key(parent: BlockKey | None, tokens: SequenceOf[int]) -> BlockKey:
        """The key of a full block of `tokens` that follows the block of `parent`."""
        before = b"" if parent is None else parent.digest
        packed = array("q", tokens).tobytes()
        return BlockKey(blake2b(before + packed, digest_size=16).digest(), before, packed)

    def find(self, key: BlockKey) -> Block | None:
        """The block that holds this content, held by tables or free."""
        entry = self._entries.get(key.digest)
        return entry[1] if entry is not None and entry[0] == key else None

    def publish(self, key: BlockKey, block: Block) -> None:
        """From now on this content is found in `block`, unless another block has it already."""
        if key.digest not in self._entries:
            self._entries[key.digest] = (key, block)
            self._keys[block.block_id] = key

    def forget(self, block: Block) -> None:
        """The block's contents are about to be overwritten."""
        key = self._keys.pop(block.block_id, None)
        if key is not None:
            del self._entries[key.digest]

    def published(self) -> Iterator[tuple[BlockKey, Block]]:
        """All entries."""
        return iter(self._entries.values())
