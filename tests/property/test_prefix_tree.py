"""The tree of a window against its definition, and the order that is made of it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batchgen.core.policy import depth_first_longest_first
from batchgen.core.prefix_tree import PrefixTree
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence, Status

PROMPTS = st.lists(st.lists(st.sampled_from([0, 1, 70_000]), min_size=1, max_size=8).map(tuple), max_size=14)


def make(prompts: list[tuple[int, ...]]) -> list[Sequence]:
    return [Sequence(i, prompt, SamplingParams(max_tokens=1 + i % 5)) for i, prompt in enumerate(prompts)]


def limit(sequence: Sequence) -> float:
    return sequence.params.max_tokens


@given(PROMPTS, st.integers(1, 3), st.sets(st.integers(0, 13)))
def test_the_tree_is_what_its_definition_says(
    prompts: list[tuple[int, ...]], block_size: int, running: set[int]
) -> None:
    sequences = make(prompts)
    for number in running & set(range(len(sequences))):
        sequences[number].status = Status.RUNNING
    tree = PrefixTree(sequences, block_size)

    beginnings = {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert tree.distinct_tokens == len(beginnings)
    assert tree.distinct_depth == sum(map(len, beginnings))
    assert tree.sequences() == sequences
    for one in sequences:
        node = tree.node_of[one.seq_id]
        others = [other for other in sequences if other is not one]
        shared = max((common(one, other) // block_size for other in others), default=0)
        assert node.blocks == shared
        assert [above.blocks for above in node.path()] == sorted({a.blocks for a in node.path()}, reverse=True)
        for block in range(8):
            covering = node.covering(block)
            users = [o for o in sequences if o.status is Status.WAITING and common(one, o) // block_size > block]
            assert (covering is None) == (block >= shared)
            assert covering is None or covering.users == len(users)
    for node in tree.nodes()[1:]:
        assert node.parent is not None
        assert node.parent.blocks < node.blocks
        assert len(node.children) + len(node.leaves) > 1
        assert node.sample is not None
        assert node in tree.node_of[node.sample.seq_id].path()


@given(PROMPTS, st.integers(1, 3))
def test_the_order_is_depth_first_and_longest_first(prompts: list[tuple[int, ...]], block_size: int) -> None:
    sequences = make(prompts)
    order = depth_first_longest_first(PrefixTree(sequences, block_size), limit)
    assert sorted(one.seq_id for one in order) == list(range(len(sequences)))
    # Those that share some blocks follow one another without a gap, and groups come by their longest member.
    for blocks in range(5):
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, one in enumerate(order):
            if len(one.prompt) >= blocks * block_size:
                groups.setdefault(tuple(one.prompt[: blocks * block_size]), []).append(place)
        for places in groups.values():
            assert places == list(range(places[0], places[0] + len(places)))
    alone = [one for one in order if not any(common(one, other) >= block_size for other in order if other is not one)]
    assert all((-limit(a), a.seq_id) < (-limit(b), b.seq_id) for a, b in pairwise(alone))


def common(one: Sequence, other: Sequence) -> int:
    """Tokens that two prompts begin with in common."""
    pairs = list(zip(one.prompt, other.prompt, strict=False))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
