"""Rows dealt to workers, of which any may be lost at any time."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.job.dealing import Dealer, Item

FULL = 8


def item(number: int, beginning: str, tokens: int = 10) -> Item:
    return Item(number, beginning.encode(), 1, tokens)


def groups(count: int, size: int) -> list[Item]:
    """Groups of rows with a long common beginning, whose rows lie far from each other."""
    return [item(n, f"{'system prompt ' * 20}{n % count:03}, {n}") for n in range(count * size)]


items = st.lists(
    st.tuples(st.text("ab", max_size=6), st.integers(1, 4), st.integers(0, 300)), min_size=1, max_size=60
).map(lambda rows: [Item(n, text.encode(), samples, tokens) for n, (text, samples, tokens) in enumerate(rows)])


@given(
    items=items,
    workers=st.integers(1, 4),
    deadly=st.sets(st.integers(0, 59), max_size=3),
    windows=st.integers(1, 3),
    chance=st.randoms(use_true_random=False),
)
def test_every_row_is_answered_once_or_kills_three_workers(
    items: list[Item], workers: int, deadly: set[int], windows: int, chance: random.Random
) -> None:
    dealer = Dealer(workers, FULL)
    held: list[set[int]] = [set() for _ in range(workers)]
    deaths: Counter[int] = Counter()
    answered: set[int] = set()
    given_up: set[int] = set()
    random_losses = 10
    size = -(-len(items) // windows)
    coming = [items[at : at + size] for at in range(0, len(items), size)]
    for worker in range(workers):
        dealer.joined(worker)

    def lose(worker: int) -> None:
        there = held[worker] - answered
        deaths.update(there)
        for number in dealer.lost(worker):
            assert there == {number}
            assert deaths[number] >= 3
            given_up.add(number)
        assert dealer.holds(worker) == 0
        held[worker].clear()
        dealer.joined(worker)

    while coming or dealer.oldest is not None:
        if coming and (dealer.oldest is None or chance.random() < 0.2):
            dealer.add(coming.pop(0))
        moved = bool(coming)
        for worker in chance.sample(range(workers), workers):
            new = dealer.deal(worker, chance.choice([1, FULL, 3 * FULL]))
            assert not held[worker] & set(new)
            held[worker] |= set(new)
            open_now = sorted(held[worker] - answered)
            assert dealer.holds(worker) == len(open_now)
            moved |= bool(open_now)
            if deadly.intersection(open_now):
                lose(worker)
            elif open_now and random_losses and chance.random() < 0.05:
                random_losses -= 1
                lose(worker)
            else:
                for number in chance.sample(open_now, chance.randint(0, len(open_now))):
                    assert dealer.answered(number) == (number not in answered)
                    answered.add(number)
        assert moved, "nobody holds a row, and rows are left"
    assert answered | given_up == {one.number for one in items}
    assert not answered & given_up


@given(items=items, workers=st.integers(1, 4), seed=st.integers(0, 99))
def test_only_the_row_that_kills_is_given_up(items: list[Item], workers: int, seed: int) -> None:
    deadly = random.Random(seed).randrange(len(items))
    dealer = Dealer(workers, FULL)
    dealer.add(items)
    for worker in range(workers):
        dealer.joined(worker)
    deaths = 0
    given_up: list[int] = []
    while dealer.oldest is not None:
        for worker in range(workers):
            dealt = dealer.deal(worker, 2 * FULL)
            if deadly in dealt:
                deaths += 1
                given_up += dealer.lost(worker)
                dealer.joined(worker)
            else:
                for number in dealt:
                    dealer.answered(number)
    assert (given_up, deaths) == ([deadly], 3)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_groups_stay_together(workers: int) -> None:
    """A group is split only where a stretch is: between workers, and where one helps another out at the end."""
    rows = groups(count=40, size=25)
    dealer = Dealer(workers, FULL)
    dealer.add(rows)
    seen: dict[int, set[int]] = defaultdict(set)
    for worker, numbers in run(dealer, rows, [1.0] * workers).items():
        for number in numbers:
            seen[number % 40].add(worker)
    assert sum(len(one) for one in seen.values()) <= 40 + workers - 1


def test_one_group_is_for_all() -> None:
    rows = [item(n, f"{'the same for all ' * 50}{n}") for n in range(400)]
    dealer = Dealer(4, FULL)
    dealer.add(rows)
    shares = [len(numbers) for numbers in run(dealer, rows, [1.0] * 4).values()]
    assert min(shares) > 90


@given(
    speeds=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=4),
    tokens=st.lists(st.integers(1, 400), min_size=40, max_size=200),
    errors=st.randoms(use_true_random=False),
)
def test_all_come_to_their_ends_together(speeds: list[float], tokens: list[int], errors: random.Random) -> None:
    """Also where workers differ in speed and rows take other times than estimated: nobody is idle for longer than
    another one takes for what it computes at once, and for one row more."""
    rows = [item(n, f"{errors.randrange(20)} {n}", count) for n, count in enumerate(tokens)]
    dealer = Dealer(len(speeds), FULL)
    dealer.add(rows)
    ends: dict[int, float] = {}
    run(dealer, rows, speeds, errors, ends)
    assert max(ends.values()) - min(ends.values()) <= (FULL + 2) * 1.5 * 500 / min(speeds)


def run(
    dealer: Dealer,
    rows: Sequence[Item],
    speeds: Sequence[float],
    errors: random.Random | None = None,
    ends: dict[int, float] | None = None,
) -> dict[int, list[int]]:
    """Workers that compute one row after another at their speeds. Returns what each one answered first; `ends`: when
    each one had nothing more to do."""
    cost = {one.number: one.output_tokens * (errors.uniform(0.5, 1.5) if errors else 1) for one in rows}
    answered: dict[int, list[int]] = {worker: [] for worker in range(len(speeds))}
    waiting: list[list[int]] = [[] for _ in speeds]
    clock = [(0.0, worker) for worker in range(len(speeds))]
    for worker in range(len(speeds)):
        dealer.joined(worker)
    over = {} if ends is None else ends
    while clock:
        now, worker = heapq.heappop(clock)
        waiting[worker] += dealer.deal(worker, 2 * FULL)
        if not waiting[worker]:
            over[worker] = now
            continue
        number = waiting[worker].pop(0)
        if dealer.answered(number):
            answered[worker].append(number)
            now += cost[number] / speeds[worker]
        heapq.heappush(clock, (now, worker))
    assert dealer.oldest is None
    assert sum(map(len, answered.values())) == len(rows)
    return answered
