"""The chosen policy against those that lost, in simulated time, and the limits that it keeps to."""

from __future__ import annotations

import random
from functools import cache

import pytest

from batchgen.bench.policies import FILES, POLICIES, compare
from batchgen.bench.simulation import Outcome
from batchgen.bench.tail import levelled

CHOSEN = "…, simulated ahead"
COUNT = 400


@cache
def outcome(name: str, policy: str, *, quarter: bool) -> Outcome:
    if not quarter:
        return compare(name, POLICIES[policy], COUNT, None)
    return compare(name, POLICIES[policy], COUNT, outcome(name, CHOSEN, quarter=False).most_blocks // 4)


@pytest.mark.parametrize("name", FILES)
def test_a_quarter_of_the_cache_leaves_four_fifths_of_the_speed(name: str) -> None:
    room, little = (outcome(name, CHOSEN, quarter=quarter) for quarter in (False, True))
    assert room.redundancy == pytest.approx(1, abs=0.001)
    assert room.seconds / little.seconds > 0.8
    assert little.redundancy < 1.05


def test_skewed_lengths_lose_little_to_the_tail() -> None:
    uniform, skewed = (outcome(name, CHOSEN, quarter=False).efficiency for name in ("uniform", "skewed"))
    assert 0.9 * uniform < skewed < uniform <= 1


@pytest.mark.parametrize("name", ["uniform", "skewed", "forest"])
def test_no_policy_that_lost_is_faster(name: str) -> None:
    best = outcome(name, CHOSEN, quarter=True).seconds
    for policy in POLICIES:
        assert best < 1.01 * outcome(name, policy, quarter=True).seconds, policy


def test_documents_asked_in_any_order_are_read_once() -> None:
    lost = outcome("forest", "order of arrival, age", quarter=True)
    assert lost.redundancy > 2
    assert outcome("forest", CHOSEN, quarter=True).redundancy < 1.05


def test_a_levelled_file_has_the_same_work() -> None:
    requests = list(FILES["skewed"].requests(100, random.Random(0)))
    level = levelled(requests)
    assert len(level) == len(requests)
    for sizes in ([len(one.prompt) for one in level], [one.length for one in level]):
        assert max(sizes) - min(sizes) <= 1
    assert sum(len(one.prompt) for one in level) == sum(len(one.prompt) for one in requests)
    assert sum(one.length for one in level) == sum(one.length for one in requests)
