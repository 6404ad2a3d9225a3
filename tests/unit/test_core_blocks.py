"""Block pool, prefix index and KV manager, one rule at a time."""

from __future__ import annotations

import pytest

from batchgen.core.block_pool import BlockPool
from batchgen.core.kv_manager import KVManager
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.prefix_tree import PrefixNode
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence

ALONE = PrefixNode(0)


def sequence(seq_id: int, prompt: list[int]) -> Sequence:
    return Sequence(seq_id, prompt, SamplingParams(max_tokens=8))


def begin(kv: KVManager, one: Sequence) -> list[int]:
    """Open a sequence and publish all its full blocks; returns its table."""
    one.computed = kv.open(one, kv.match(one), one.length).tokens
    kv.publish(one, one.length, ALONE)
    return list(kv.table(one))


def test_free_blocks_are_taken_in_the_order_in_which_they_were_given_back() -> None:
    pool = BlockPool(4)
    a, b, c = pool.take(), pool.take(), pool.take()
    for block in (b, c, a):
        pool.release(block)
    assert [block.block_id for block in pool.free_blocks()] == [3, 1, 2, 0]
    assert pool.num_free == 4


def test_a_free_block_comes_back_from_the_middle_of_the_list() -> None:
    pool = BlockPool(3)
    middle = pool.blocks()[1]
    pool.share(middle)
    assert [block.block_id for block in pool.free_blocks()] == [0, 2]
    pool.share(middle)
    pool.release(middle)
    assert middle.references == 1
    assert pool.num_free == 2


def test_a_pool_refuses_what_its_callers_must_not_ask() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(IndexError, match="no free block"):
        pool.take()
    pool.release(block)
    with pytest.raises(ValueError, match="free already"):
        pool.release(block)


def test_the_index_tells_equal_tokens_after_different_beginnings_apart() -> None:
    one, two, three = BlockPool(3).blocks()
    index = PrefixIndex()
    first = index.publish(None, b"a", one)
    index.publish(first, b"b", two)
    assert index.find(None, b"b") is None
    index.publish(None, b"b", three)
    found = index.find(first, b"b")
    assert found is not None
    assert found.block is two


def test_the_first_block_with_some_contents_stays_the_one_that_is_found() -> None:
    one, two = BlockPool(2).blocks()
    index = PrefixIndex()
    first = index.publish(None, b"a", one)
    assert index.publish(None, b"a", two) is first
    index.forget(two)
    assert index.find(None, b"a") is first


def test_what_follows_a_forgotten_block_is_never_found_after_another() -> None:
    one, two, three = BlockPool(3).blocks()
    index = PrefixIndex()
    index.publish(index.publish(None, b"a", one), b"b", two)
    index.forget(one)
    again = index.publish(None, b"a", three)
    assert index.find(again, b"b") is None


@pytest.mark.parametrize(("length", "blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_match_leaves_a_token_to_compute(length: int, blocks: int) -> None:
    kv = KVManager(num_blocks=10, block_size=4, index=PrefixIndex())
    begin(kv, sequence(0, list(range(12))))
    assert len(kv.match(sequence(1, list(range(length))))) == blocks


def test_without_an_index_nothing_is_shared() -> None:
    kv = KVManager(num_blocks=10, block_size=2, index=None)
    table = begin(kv, sequence(0, [1, 2, 3, 4, 5]))
    assert not set(table) & set(begin(kv, sequence(1, [1, 2, 3, 4, 5])))


def test_a_beginning_outlives_its_continuations() -> None:
    kv = KVManager(num_blocks=3, block_size=2, index=PrefixIndex())
    old = sequence(0, [1, 2, 3, 4, 5, 6])
    begin(kv, old)
    kv.release(old)
    assert len(kv.match(sequence(1, [1, 2, 3, 4, 5, 6, 7]))) == 3
    begin(kv, sequence(2, [9]))
    assert len(kv.match(sequence(3, [1, 2, 3, 4, 5, 6, 7]))) == 2


def test_blocks_of_generated_tokens_are_found_after_a_preemption() -> None:
    kv = KVManager(num_blocks=4, block_size=2, index=PrefixIndex())
    one = sequence(0, [1, 2, 3])
    begin(kv, one)
    one.output += [4, 5]
    kv.extend(one, one.length)
    kv.publish(one, one.length, ALONE)
    table = list(kv.table(one))
    kv.release(one)
    assert [entry.block.block_id for entry in kv.match(one).entries] == table[:2]


def test_blocks_that_are_not_full_are_not_published() -> None:
    kv = KVManager(num_blocks=4, block_size=4, index=PrefixIndex())
    one = sequence(0, list(range(8)))
    kv.open(one, kv.match(one), one.length)
    kv.publish(one, 7, ALONE)
    assert len(kv.match(sequence(1, list(range(9))))) == 1


def test_a_sequence_has_one_table() -> None:
    kv = KVManager(num_blocks=4, block_size=4, index=None)
    one = sequence(0, [1])
    begin(kv, one)
    with pytest.raises(ValueError, match="holds blocks already"):
        begin(kv, one)


def test_faults_in_the_books_are_found() -> None:
    kv = KVManager(num_blocks=4, block_size=2, index=PrefixIndex())
    one = sequence(0, [1, 2, 3])
    begin(kv, one)
    kv.check_invariants()
    kv._pool.blocks()[0].references = 2
    with pytest.raises(AssertionError, match="1 tables hold it"):
        kv.check_invariants()
