"""The fixed set of KV-cache blocks: who holds them, and in which order free ones are taken."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Block", "BlockPool"]


class Block:
    """One block of the cache. `previous` and `next` are the links of the free list, None outside of it."""

    __slots__ = ("block_id", "next", "previous", "references")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.references = 0
        """Block tables that hold this block. 0: it is in the free list, though its contents may still be of use."""
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, references={self.references})"


class BlockPool:
    """All blocks, and the free ones in an intrusive doubly linked list: every operation is O(1).

    Free blocks are taken from the front and given back at the end, so what was used last is overwritten last.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self._blocks = tuple(Block(i) for i in range(num_blocks))
        self._ends = Block(-1)  # sentinel: its next is the front of the free list, its previous the end
        self._ends.next = self._ends.previous = self._ends
        self._free = 0
        for block in self._blocks:
            self._append(block)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        return self._free

    def take(self) -> Block:
        """The free block that was unused longest, with one reference. Its old contents are to be forgotten.

        Raises `IndexError` where no block is free: callers ask `num_free` first.
        """
        block = self._ends.next
        if block is None or block is self._ends:
            raise IndexError("no free block")
        self._unlink(block)
        block.references = 1
        return block

    def share(self, block: Block) -> None:
        """One more table holds the block; a free one comes back to life with its contents."""
        if block.references == 0:
            self._unlink(block)
        block.references += 1

    def release(self, block: Block) -> None:
        """One table less holds the block; the last one frees it."""
        if block.references < 1:
            raise ValueError(f"{block} is free already")
        block.references -= 1
        if block.references == 0:
            self._append(block)

    def blocks(self) -> tuple[Block, ...]:
        """All blocks by id."""
        return self._blocks

    def free_blocks(self) -> Iterator[Block]:
        """Free blocks in the order in which they will be taken."""
        block = self._ends.next
        while block is not None and block is not self._ends:
            yield block
            block = block.next

    def _append(self, block: Block) -> None:
        last = self._ends.previous
        assert last is not None
        block.previous, block.next = last, self._ends
        last.next = self._ends.previous = block
        self._free += 1

    def _unlink(self, block: Block) -> None:
        assert block.previous is not None
        assert block.next is not None
        block.previous.next, block.next.previous = block.next, block.previous
        block.previous = block.next = None
        self._free -= 1
