"""The fixed set of KV-cache blocks: who holds them, and in which order free ones are taken."""

from __future__ import annotations

from collections.abc import Iterator

from batchgen.core.prefix_tree import PrefixNode

__all__ = ["Block", "BlockPool"]


class Block:
    """One block of the cache. `previous` and `next` are the links of a free list, None outside of it."""

    __slots__ = ("block_id", "next", "node", "previous", "references", "spared")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.references = 0
        """Block tables that hold this block. 0: it is in a free list, though its contents may still be of use."""
        self.node: PrefixNode | None = None
        """The shared beginning that it holds a part of."""
        self.spared = False
        """It is in the list of free blocks that somebody who waits will want."""
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def users(self) -> int:
        """Waiting sequences that will want its contents."""
        return 0 if self.node is None else self.node.users

    def __repr__(self) -> str:
        return f"Block({self.block_id}, references={self.references})"


class BlockPool:
    """All blocks, and the free ones in intrusive doubly linked lists.

    Free blocks that nobody waits for are taken first, that which was unused longest before the others: O(1). Only when
    there are none the others follow, that with the fewest users first.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self._blocks = tuple(Block(i) for i in range(num_blocks))
        self._plain, self._wanted = _FreeList(), _FreeList()
        for block in self._blocks:
            self._plain.append(block)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        return self._plain.count + self._wanted.count

    @property
    def num_wanted(self) -> int:
        """Free blocks that somebody who waits will want."""
        return self._wanted.count

    def take(self) -> Block:
        """The free block that is needed least, with one reference. Its old contents are to be forgotten.

        Raises `IndexError` where no block is free: callers ask `num_free` first.
        """
        block = self._plain.first()
        if block is None:
            # Of equals that which was given back first: a beginning outlives its continuations.
            block = min(self._wanted, key=lambda one: one.users, default=None)
        if block is None:
            raise IndexError("no free block")
        self._unlink(block)
        block.references = 1
        block.node = None
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

    def sort(self) -> None:
        """Put each free block where it belongs, after users came or went. Linear in the free blocks."""
        for block in [*self._plain, *self._wanted]:
            self._unlink(block)
            self._append(block)

    def blocks(self) -> tuple[Block, ...]:
        """All blocks by id."""
        return self._blocks

    def free_blocks(self) -> Iterator[Block]:
        """Free blocks: those that nobody waits for in the order in which they will be taken, then the others."""
        yield from self._plain
        yield from self._wanted

    def _append(self, block: Block) -> None:
        block.spared = block.users > 0
        (self._wanted if block.spared else self._plain).append(block)

    def _unlink(self, block: Block) -> None:
        (self._wanted if block.spared else self._plain).remove(block)
        block.spared = False


class _FreeList:
    """Blocks from the one that was appended first to the last one; a sentinel links both ends."""

    __slots__ = ("_ends", "count")

    def __init__(self) -> None:
        self._ends = Block(-1)
        self._ends.next = self._ends.previous = self._ends
        self.count = 0

    def __iter__(self) -> Iterator[Block]:
        block = self._ends.next
        while block is not None and block is not self._ends:
            yield block
            block = block.next

    def first(self) -> Block | None:
        return self._ends.next if self.count else None

    def append(self, block: Block) -> None:
        last = self._ends.previous
        assert last is not None
        block.previous, block.next = last, self._ends
        last.next = self._ends.previous = block
        self.count += 1

    def remove(self, block: Block) -> None:
        assert block.previous is not None
        assert block.next is not None
        block.previous.next, block.next.previous = block.next, block.previous
        block.previous = block.next = None
        self.count -= 1
