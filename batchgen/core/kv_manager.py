"""Block tables: which blocks hold the keys and values of which sequence."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from batchgen.core.block_pool import Block, BlockPool
from batchgen.core.prefix_index import Entry, PrefixIndex
from batchgen.core.prefix_tree import PrefixNode, PrefixTree, shared_tokens
from batchgen.core.sequence import Sequence
from batchgen.core.step import BlockCopy

__all__ = ["KVManager", "Match", "Opened"]

_ITEM = array("I").itemsize


@dataclass(frozen=True, slots=True)
class Match:
    """The beginning of a sequence that lies in the cache already."""

    entries: tuple[Entry, ...]
    source: Entry | None = None
    """A block whose first tokens are the next ones; they are copied, since the rest of the block is another's."""
    copied: int = 0
    """How many tokens that is."""

    def __len__(self) -> int:
        """Blocks matched."""
        return len(self.entries)

    @property
    def idle(self) -> int:
        """How many of the blocks are free now, and so count against the free ones when they are held again."""
        return sum(entry.block.references == 0 for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a new table begins with."""

    tokens: int
    """Tokens whose keys and values it has, or will have once the copy is done."""
    copy: BlockCopy | None


@dataclass(slots=True)
class _Table:
    """The blocks of one sequence. It only grows until it is released."""

    blocks: list[Block] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    published: int = 0
    """Leading blocks that were offered to the index. They are full and never written again."""
    last: Entry | None = None
    """The entry of the last of them, in this block or in another with the same contents."""

    def append(self, block: Block) -> None:
        self.blocks.append(block)
        self.ids.append(block.block_id)


class KVManager:
    """Gives blocks to sequences and shares the full ones by content.

    A block is published when the step that fills it is planned: within that step each layer writes all keys before it
    reads any, so that sequences which start in the same step share it already. Only full blocks are shared; the block
    that a sequence writes next has one owner.
    """

    def __init__(self, num_blocks: int, block_size: int, index: PrefixIndex | None) -> None:
        """`index` None: nothing is shared."""
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, got {block_size}")
        self._pool = BlockPool(num_blocks)
        self._index = index
        self._tables: dict[int, _Table] = {}
        self._computed_number = 0
        """Entries up to this number were computed by committed steps, so that they can be copied."""
        self._packed: dict[int, bytes] = {}
        """Prompts, packed when they were first looked up."""
        self.block_size = block_size

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    @property
    def num_wanted(self) -> int:
        """Free blocks with a beginning that some sequence waits to use."""
        return self._pool.num_wanted

    def blocks_for(self, length: int) -> int:
        """Blocks that hold `length` tokens."""
        return -(-length // self.block_size)

    def missing(self, sequence: Sequence, length: int) -> int:
        """Blocks to take before the sequence's table covers `length` tokens."""
        return self.blocks_for(length) - len(self._tables[sequence.seq_id].blocks)

    def held(self, sequence: Sequence) -> tuple[int, int]:
        """Blocks that a sequence holds, and how many of them nobody else does."""
        blocks = self._tables[sequence.seq_id].blocks
        return len(blocks), sum(block.references == 1 for block in blocks)

    def table(self, sequence: Sequence) -> SequenceOf[int]:
        """Block ids of a sequence that holds blocks. It may grow later, and never changes otherwise."""
        return self._tables[sequence.seq_id].ids

    def match(self, sequence: Sequence) -> Match:
        """The longest run of full blocks from the sequence's start that the cache holds.

        At least one token is left to compute, and all from which something is still to be read.
        """
        if self._index is None:
            return Match(())
        found: list[Entry] = []
        entry: Entry | None = None
        while len(found) < sequence.reusable // self.block_size:
            after = self._index.find(entry, self._tokens(sequence, len(found)))
            if after is None:
                break
            entry = after
            found.append(entry)
        source = self._index.any_after(entry)
        if source is None or source.number > self._computed_number:
            return Match(tuple(found))
        start = len(found) * self.block_size
        stop = min(start + self.block_size, sequence.reusable)
        copied = shared_tokens(_packed(sequence.tokens(start, stop)), source.tokens)
        return Match(tuple(found), source if copied else None, copied)

    def open(self, sequence: Sequence, match: Match, length: int) -> Opened:
        """Start the sequence's table with the matched blocks and reserve the rest for `length` tokens.

        `match` must be of this very moment, and the copy made before anything is written.
        """
        if sequence.seq_id in self._tables:
            raise ValueError(f"sequence {sequence.seq_id} holds blocks already")
        table = self._tables[sequence.seq_id] = _Table(published=len(match))
        for entry in match.entries:
            self._pool.share(entry.block)
            table.append(entry.block)
            table.last = entry
        self.extend(sequence, length)
        copy = None
        if match.source is not None:
            copy = BlockCopy(match.source.block.block_id, table.ids[len(match)], match.copied)
        return Opened(len(match) * self.block_size + match.copied, copy)

    def extend(self, sequence: Sequence, length: int) -> None:
        """Reserve blocks until the table covers `length` tokens. Callers compare `missing` with `num_free` first."""
        table = self._tables[sequence.seq_id]
        for _ in range(self.missing(sequence, length)):
            block = self._pool.take()
            if self._index is not None:
                self._index.forget(block)
            table.append(block)

    def publish(self, sequence: Sequence, stop: int, node: PrefixNode) -> None:
        """Offer the blocks that are full once the tokens before position `stop` are computed, as this step plans.

        `node`: the longest beginning that the sequence shares with others that were planned for.
        """
        table = self._tables[sequence.seq_id]
        full = stop // self.block_size
        if self._index is not None:
            for number in range(table.published, full):
                block = table.blocks[number]
                table.last = self._index.publish(table.last, self._tokens(sequence, number), block)
                if table.last.block is block:
                    block.node = node.covering(number)
        table.published = max(table.published, full)

    def settle(self) -> None:
        """All that was published so far is computed now."""
        if self._index is not None:
            self._computed_number = self._index.last_number

    def adopt(self, tree: PrefixTree) -> None:
        """From now on blocks are kept for the waiting sequences of this tree. Linear in the cache."""
        for block in self._pool.blocks():
            block.node = None
        if self._index is not None:
            ends: dict[PrefixNode, Entry | None] = {tree.root: None}
            for node in tree.nodes():
                self._keep(node, ends)
        self._pool.sort()

    def release(self, sequence: Sequence) -> None:
        """The sequence gives its blocks back. What they hold can be matched until they are taken again.

        The last block goes first, so that a beginning, which others may share, outlives its continuations.
        """
        for block in reversed(self._tables.pop(sequence.seq_id).blocks):
            self._pool.release(block)

    def forget(self, sequence: Sequence) -> None:
        """Forget what was kept to look the sequence up; it is finished."""
        self._packed.pop(sequence.seq_id, None)

    def check_invariants(self) -> None:
        """Raise `AssertionError` where the books don't balance. For tests: the cost is linear in the cache."""
        held = Counter(block.block_id for table in self._tables.values() for block in table.blocks)
        free = [block.block_id for block in self._pool.free_blocks()]
        assert len(free) == len(set(free)) == self._pool.num_free, "the free list is broken"
        assert not held.keys() & set(free), "a held block is free"
        for block in self._pool.free_blocks():
            assert block.spared or not block.users, f"{block} is wanted, and lies among those that nobody wants"
        assert len(held) + len(free) == self.num_blocks, "a block is neither free nor held"
        for block in self._pool.blocks():
            assert block.references == held[block.block_id], f"{block}: {held[block.block_id]} tables hold it"
        for seq_id, table in self._tables.items():
            assert table.ids == [block.block_id for block in table.blocks], f"table of {seq_id}"
            assert len(set(table.ids)) == len(table.ids), f"sequence {seq_id} holds a block twice"
            for block in table.blocks[table.published :]:
                assert block.references == 1, f"{block} is written by {seq_id} and held by another"
        writable = {block.block_id for table in self._tables.values() for block in table.blocks[table.published :]}
        published = Counter(entry.block.block_id for entry in (() if self._index is None else self._index.entries()))
        assert all(count == 1 for count in published.values()), "a block is published twice"
        assert not published.keys() & writable, "a block is published before it is full"

    def _keep(self, node: PrefixNode, ends: dict[PrefixNode, Entry | None]) -> None:
        """Mark the cached blocks of a node; `ends` has the last entry of each node that is cached whole."""
        if node.parent not in ends or node.sample is None or self._index is None:
            return
        entry = ends[node.parent]
        for number in range(node.parent.blocks, node.blocks):
            start = number * self.block_size
            entry = self._index.find(entry, _packed(node.sample.tokens(start, start + self.block_size)))
            if entry is None:
                return
            entry.block.node = node
        ends[node] = entry

    def _tokens(self, sequence: Sequence, number: int) -> bytes:
        """The tokens of the sequence's block `number`, packed. The prompt is packed once."""
        start, stop = number * self.block_size, (number + 1) * self.block_size
        if stop > len(sequence.prompt):
            return _packed(sequence.tokens(start, stop))
        prompt = self._packed.get(sequence.seq_id)
        if prompt is None:
            prompt = self._packed[sequence.seq_id] = _packed(sequence.prompt)
        return prompt[start * _ITEM : stop * _ITEM]


def _packed(tokens: SequenceOf[int]) -> bytes:
    return array("I", tokens).tobytes()
