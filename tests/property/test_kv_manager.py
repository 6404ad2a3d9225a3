"""A state machine over the KV manager: whatever is opened, extended, published and released, the books balance."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from batchgen.core.kv_manager import KVManager
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence


class KVManagerMachine(RuleBasedStateMachine):
    """Sequences with small alphabets come, grow and go over a small cache.

    `contents` models what each block would hold: the whole prefix of tokens up to the block's end.
    """

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVManager(num_blocks=12, block_size=3, index=PrefixIndex())
        self.contents: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, list[int]] = {}
        self.next_id = 0

    @rule(target=live, prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def open(self, prompt: list[int]) -> object:
        sequence = Sequence(self.next_id, prompt, SamplingParams(max_tokens=100))
        self.next_id += 1
        match = self.kv.match(sequence)
        free = self.kv.num_free
        assert self.kv.match(sequence) == match, "a query changed something"
        assert self.kv.num_free == free
        if self.kv.blocks_for(sequence.length) - len(match.blocks) + match.idle > free:
            return multiple()
        cached = self.kv.open(sequence, match, sequence.length)
        assert cached == len(match.blocks) * 3 < sequence.length
        for number, block in enumerate(match.blocks):
            assert self.contents[block.block_id] == tuple(prompt[: (number + 1) * 3]), "matched foreign contents"
        sequence.computed = cached
        self.tables[sequence.seq_id] = list(self.kv.table(sequence))
        return sequence

    @rule(sequence=live, count=st.integers(1, 14))
    def compute(self, sequence: Sequence, count: int) -> None:
        stop = min(sequence.length, sequence.computed + count)
        for position in range(sequence.computed, stop):
            block = self.kv.table(sequence)[position // 3]
            self.contents[block] = tuple(sequence.tokens(0, position + 1))
        self.kv.publish(sequence, stop)
        sequence.computed = stop

    @rule(sequence=live, token=st.integers(0, 1))
    def grow(self, sequence: Sequence, token: int) -> None:
        if sequence.computed < sequence.length or self.kv.missing(sequence, sequence.length + 1) > self.kv.num_free:
            return
        sequence.output.append(token)
        self.kv.extend(sequence, sequence.length)
        table = list(self.kv.table(sequence))
        assert table[: len(self.tables[sequence.seq_id])] == self.tables[sequence.seq_id], "a table is append-only"
        self.tables[sequence.seq_id] = table

    @rule(sequence=consumes(live))
    def release(self, sequence: Sequence) -> None:
        self.kv.release(sequence)
        self.kv.drop_keys(sequence)
        del self.tables[sequence.seq_id]

    @invariant()
    def books_balance(self) -> None:
        self.kv.check_invariants()
        assert self.kv.num_blocks - self.kv.num_free == len({b for table in self.tables.values() for b in table})


TestKVManager = KVManagerMachine.TestCase
