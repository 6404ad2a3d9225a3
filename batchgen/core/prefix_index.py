"""Which block holds the keys and values of which tokens after which beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchgen.core.block_pool import Block

__all__ = ["Entry", "PrefixIndex"]

_ROOT = 0


@dataclass(slots=True, eq=False)  # frozen would make it three times as slow to make
class Entry:
    """One full block whose contents can be shared: its own tokens, after those of all entries before it."""

    number: int
    """Never used for another entry, so that it stands for the whole content up to the end of this block."""
    parent: int
    tokens: bytes
    """The block's token ids, packed."""
    block: Block


class PrefixIndex:
    """A trie over full blocks, kept as one dictionary from (entry before, tokens) to entry.

    As with chained block hashes (vLLM's automatic prefix caching) a step costs O(block size) wherever it is in the
    text. But a chain of digests names another content where two digests are equal; here the dictionary compares the
    tokens, and an entry's number is never given twice, so that nothing can be taken for something else.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, bytes], Entry] = {}
        self._of_block: dict[int, Entry] = {}
        self._sibling: dict[int, Entry] = {}
        """One of the entries after an entry, by the number of the latter."""
        self.last_number = _ROOT
        """Of the entry that was published last."""

    def find(self, before: Entry | None, tokens: bytes) -> Entry | None:
        """The entry of `tokens` right after `before`, None: at the start. Its block is held by tables, or free."""
        return self._entries.get((_number(before), tokens))

    def any_after(self, before: Entry | None) -> Entry | None:
        """One of the entries right after `before`, the same one as long as it is there."""
        return self._sibling.get(_number(before))

    def publish(self, before: Entry | None, tokens: bytes, block: Block) -> Entry:
        """From now on `tokens` after `before` are found in `block`, unless another block holds them already.

        Returns the entry that is found. If `before` was forgotten, nobody finds this one either.
        """
        key = (_number(before), tokens)
        entry = self._entries.get(key)
        if entry is None:
            self.last_number += 1
            entry = self._entries[key] = self._of_block[block.block_id] = Entry(self.last_number, *key, block)
            self._sibling.setdefault(entry.parent, entry)
        return entry

    def forget(self, block: Block) -> None:
        """The block's contents are about to be overwritten. What follows them can't be found any more."""
        entry = self._of_block.pop(block.block_id, None)
        if entry is not None:
            del self._entries[entry.parent, entry.tokens]
            if self._sibling.get(entry.parent) is entry:
                del self._sibling[entry.parent]

    def entries(self) -> Iterator[Entry]:
        """All entries."""
        return iter(self._entries.values())


def _number(entry: Entry | None) -> int:
    return _ROOT if entry is None else entry.number
