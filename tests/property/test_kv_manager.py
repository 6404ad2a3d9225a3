"""A state machine over the KV manager: whatever is opened, computed, grown and released, the books balance."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import product

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from batchgen.core.kv_manager import KVManager, Match
from batchgen.core.prefix_index import Entry, PrefixIndex
from batchgen.core.prefix_tree import PrefixNode
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence

SIZE = 3
TOKENS = st.integers(0, 1)


@dataclass(eq=False)
class Node:
    """The model of the index: a trie whose edges are the tokens of one block."""

    block: int | None = None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)

    def cut(self, blocks: set[int]) -> None:
        """Drop what these blocks held, and so all that follows it."""
        self.children = {tokens: child for tokens, child in self.children.items() if child.block not in blocks}
        for child in self.children.values():
            child.cut(blocks)


class KVManagerMachine(RuleBasedStateMachine):
    """Sequences with a small alphabet come, grow, give way and go over a small cache, beside the model."""

    live = Bundle("live")
    preempted = Bundle("preempted")

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.kv = KVManager(num_blocks=12, block_size=SIZE, index=self.index)
        self.root = Node()
        self.tables: dict[int, list[int]] = {}
        self.ends: dict[int, Node] = {}
        """Where in the trie each sequence's full blocks end."""
        self.next_id = 0

    @rule(target=live, prompt=st.lists(TOKENS, min_size=1, max_size=14))
    def open(self, prompt: list[int]) -> object:
        self.next_id += 1
        return self._begin(Sequence(self.next_id, prompt, SamplingParams(max_tokens=100)))

    @rule(target=live, sequence=consumes(preempted))
    def resume(self, sequence: Sequence) -> object:
        return self._begin(sequence)

    @rule(sequence=live, count=st.integers(1, 14))
    def compute(self, sequence: Sequence, count: int) -> None:
        stop = min(sequence.length, sequence.computed + count)
        self.kv.publish(sequence, stop, PrefixNode(0))
        self.kv.settle()
        for number in range(sequence.computed // SIZE, stop // SIZE):
            new = Node(self.tables[sequence.seq_id][number])
            children = self.ends[sequence.seq_id].children
            self.ends[sequence.seq_id] = children.setdefault(_tokens(sequence, number), new)
        sequence.computed = stop

    @rule(sequence=live, token=TOKENS)
    def grow(self, sequence: Sequence, token: int) -> None:
        if sequence.computed < sequence.length or self.kv.missing(sequence, sequence.length + 1) > self.kv.num_free:
            return
        sequence.output.append(token)
        self.kv.extend(sequence, sequence.length)
        self._note_table(sequence)

    @rule(target=preempted, sequence=consumes(live))
    def preempt(self, sequence: Sequence) -> Sequence:
        self.kv.release(sequence)
        sequence.computed = 0
        del self.tables[sequence.seq_id]
        return sequence

    @rule(sequence=consumes(live))
    def finish(self, sequence: Sequence) -> None:
        self.preempt(sequence)
        self.kv.forget(sequence)

    @invariant()
    def books_balance(self) -> None:
        self.kv.check_invariants()
        held = {block for table in self.tables.values() for block in table}
        assert self.kv.num_blocks - self.kv.num_free == len(held)

    @invariant()
    def index_finds_what_was_computed(self) -> None:
        self._compare(self.root, None)

    def _compare(self, node: Node, entry: Entry | None) -> None:
        for tokens in product((0, 1), repeat=SIZE):
            found = self.index.find(entry, array("I", tokens).tobytes())
            child = node.children.get(tokens)
            assert (child is None) == (found is None)
            if child is not None and found is not None:
                assert child.block == found.block.block_id
                self._compare(child, found)

    def _begin(self, sequence: Sequence) -> object:
        """Open the sequence where the cache has room, as the scheduler does."""
        match, free = self.kv.match(sequence), self.kv.num_free
        assert (self.kv.match(sequence), self.kv.num_free) == (match, free), "a query changed something"
        nodes = self._expected_match(sequence)
        assert [entry.block.block_id for entry in match.entries] == [node.block for node in nodes]
        if self.kv.blocks_for(sequence.length) - len(match) + match.idle > free:
            return multiple()
        self._check_copy(sequence, match, nodes[-1] if nodes else self.root)
        opened = self.kv.open(sequence, match, sequence.length)
        # The machine has no keys to copy: what a copy would bring is computed.
        sequence.computed = len(nodes) * SIZE
        assert opened.tokens == sequence.computed + match.copied < sequence.length
        self.ends[sequence.seq_id] = nodes[-1] if nodes else self.root
        self.tables[sequence.seq_id] = [entry.block.block_id for entry in match.entries]
        self._note_table(sequence)
        return sequence

    def _check_copy(self, sequence: Sequence, match: Match, node: Node) -> None:
        """What is copied lies in a block that follows the matched ones, and ends before the sequence does."""
        if match.source is None:
            assert match.copied == 0
            return
        assert match.source.block.block_id in {child.block for child in node.children.values()}
        held = memoryview(match.source.tokens).cast("I").tolist()
        start = len(match) * SIZE
        stop = start + match.copied
        assert 0 < match.copied < SIZE
        assert held[: match.copied] == sequence.tokens(start, stop)
        assert stop == sequence.length - 1 or held[match.copied] != sequence.tokens(stop, stop + 1)[0]

    def _note_table(self, sequence: Sequence) -> None:
        """Blocks behind those known so far were taken from the free ones: their old contents are gone."""
        known, table = self.tables[sequence.seq_id], list(self.kv.table(sequence))
        assert table[: len(known)] == known, "a table is append-only"
        assert len(table) == self.kv.blocks_for(sequence.length)
        self.root.cut(set(table[len(known) :]))
        self.tables[sequence.seq_id] = table

    def _expected_match(self, sequence: Sequence) -> list[Node]:
        """The longest path of whole blocks, at least one token short of the sequence."""
        nodes: list[Node] = []
        node = self.root
        for number in range((sequence.length - 1) // SIZE):
            child = node.children.get(_tokens(sequence, number))
            if child is None:
                break
            nodes.append(node := child)
        return nodes


def _tokens(sequence: Sequence, number: int) -> tuple[int, ...]:
    return tuple(sequence.tokens(number * SIZE, (number + 1) * SIZE))


TestKVManager = KVManagerMachine.TestCase
