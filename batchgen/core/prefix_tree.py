"""The tree of beginnings that the sequences of a window share."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from batchgen.core.sequence import Sequence, Status

__all__ = ["PrefixNode", "PrefixTree", "shared_tokens"]

_ITEM = array("I").itemsize


@dataclass(slots=True, eq=False)
class PrefixNode:
    """Whole blocks with which two or more sequences begin; the root stands for none."""

    blocks: int
    """Blocks from the start; the parent has fewer."""
    sample: Sequence | None = None
    """One of those that begin so; None for the root."""
    parent: PrefixNode | None = None
    children: list[PrefixNode] = field(default_factory=list)
    leaves: list[Sequence] = field(default_factory=list)
    """Sequences that share no more than this with any other."""
    users: int = 0
    """Sequences below that wait: they will want these blocks."""
    generated: int = 0
    """Tokens that finished sequences below have generated."""
    stops: int = 0
    """How many of them stopped by themselves, before their limit."""

    def path(self) -> Iterator[PrefixNode]:
        """This node and those above it, the root last."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def covering(self, block: int) -> PrefixNode | None:
        """The node on the path that has block number `block` and its parent does not; None: nobody shares it."""
        if block >= self.blocks:
            return None
        node = self
        while node.parent is not None and node.parent.blocks > block:
            node = node.parent
        return node


class PrefixTree:
    """The shared beginnings of a window.

    Sorting by token ids puts sharers side by side, and what neighbours share tells the whole tree, as the LCP array of
    a suffix array does (Kasai et al., 2001). Beginnings of which one sequence alone knows take no memory: there are
    fewer nodes than sequences, however long these are.
    """

    def __init__(self, window: SequenceOf[Sequence], block_size: int) -> None:
        self.root = PrefixNode(0)
        self.distinct_tokens = 0
        """Prompt tokens after perfect sharing: nodes of the tree of single tokens."""
        self.distinct_depth = 0
        """Sum over those of the positions that each one sees, itself included."""
        self.node_of: dict[int, PrefixNode] = {}
        """seq_id -> the longest beginning that it shares."""
        keys = [(_sortable(sequence.prompt), sequence.seq_id, sequence) for sequence in window]
        keys.sort(key=lambda entry: entry[:2])
        shared = self._count(keys)
        self._build([sequence for _, _, sequence in keys], [tokens // block_size for tokens in shared])

    def nodes(self) -> list[PrefixNode]:
        """All nodes, parents before their children."""
        found = [self.root]
        for node in found:
            found += node.children
        return found

    def sequences(self) -> list[Sequence]:
        """All sequences, in order of arrival."""
        return sorted((one for node in self.nodes() for one in node.leaves), key=lambda one: one.seq_id)

    def forget_sequences(self) -> None:
        """Keep the nodes alone, which outlive the sequences."""
        for node in self.nodes():
            node.leaves, node.sample = [], None

    def _count(self, keys: list[tuple[bytes, int, Sequence]]) -> list[int]:
        """Tokens that each prompt shares with the one before it, then a 0."""
        shared: list[int] = []
        before = b""
        for key, _, _ in keys:
            length, common = len(key) // _ITEM, shared_tokens(before, key)
            self.distinct_tokens += length - common
            self.distinct_depth += (length * (length + 1) - common * (common + 1)) // 2
            shared.append(common)
            before = key
        return [*shared, 0]

    def _build(self, ordered: list[Sequence], shared: list[int]) -> None:
        """`shared[i]`: blocks in common of `ordered[i - 1]` and `ordered[i]`. The path to the latter is a stack."""
        path = [self.root]
        for number, sequence in enumerate(ordered):
            while path[-1].blocks > shared[number]:
                closed = path.pop()
                if path[-1].blocks < shared[number]:
                    path.append(PrefixNode(shared[number], closed.sample))
                _attach(closed, path[-1])
            if path[-1].blocks < shared[number + 1]:
                path.append(PrefixNode(shared[number + 1], sequence))
            path[-1].leaves.append(sequence)
            path[-1].users += sequence.status is Status.WAITING
            self.node_of[sequence.seq_id] = path[-1]
        while len(path) > 1:
            closed = path.pop()
            _attach(closed, path[-1])


def shared_tokens(one: bytes, other: bytes) -> int:
    """How many packed tokens two prompts begin with in common."""
    low, high = 0, min(len(one), len(other)) // _ITEM
    if one[: high * _ITEM] == other[: high * _ITEM]:
        return high
    while high - low > 1:  # the tokens before `low` are equal, those before `high` are not
        middle = (low + high) // 2
        if one[low * _ITEM : middle * _ITEM] == other[low * _ITEM : middle * _ITEM]:
            low = middle
        else:
            high = middle
    return low


def _attach(node: PrefixNode, parent: PrefixNode) -> None:
    node.parent = parent
    parent.children.append(node)
    parent.users += node.users


def _sortable(tokens: SequenceOf[int]) -> bytes:
    """Bytes that compare as the token ids do: fixed width, most significant byte first."""
    packed = array("I", tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()
