"""Which worker gets which rows: the rows that are still to be computed, and who holds which of them.

The rows of a window are sorted by their prompts, so that those that begin alike stand side by side, and cut into one
stretch for each worker, between groups where that is possible. A worker is dealt the front of its own stretch, a little
at a time; when that is used up it takes the rear half of the longest one. So a group is split only where a stretch is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

__all__ = ["Dealer", "Item"]

_BYTES_PER_TOKEN = 4
_SLACK = 0.125
"""Of a stretch: how far its end may move for a place between two groups."""
_MOST_DEATHS = 3
"""Workers that a row may take with it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A row, for the one who deals."""

    number: int
    beginning: bytes
    """What its prompt begins with; rows with a long common beginning are best computed by one worker."""
    samples: int
    """Sequences that it becomes."""
    output_tokens: int
    """Estimated, of all samples."""


@dataclass(slots=True, eq=False)
class _Card:
    """An item in its order, without its beginning."""

    number: int
    samples: int
    cost: float
    """Estimated tokens to be computed, after an equal beginning of the card before."""
    shared: int
    """Bytes that it begins with in common with the card before."""
    holders: list[int] = field(default_factory=list)
    """Workers that compute it: mostly one; at the end another one may have a copy."""
    deaths: int = 0
    """Workers that were lost while they held it."""


class _Hand:
    """What is one worker's."""

    def __init__(self) -> None:
        self.alive = False
        self.held: dict[int, _Card] = {}
        """Dealt and not answered, in the order of dealing."""
        self.samples = 0
        """Sequences that the worker has, running or waiting."""
        self.held_cost = self.stretch_cost = 0.0
        self._stretch: deque[_Card] = deque()
        """To be dealt."""

    @property
    def undealt(self) -> int:
        """Cards of its stretch."""
        return len(self._stretch)

    def take(self, card: _Card) -> None:
        """Hold a card."""
        self.held[card.number] = card
        self.samples += card.samples
        self.held_cost += card.cost

    def drop(self, number: int) -> None:
        """Hold a card no more."""
        card = self.held.pop(number)
        self.samples -= card.samples
        self.held_cost -= card.cost

    def extend(self, cards: Iterable[_Card]) -> None:
        """Cards behind the stretch."""
        for card in cards:
            self._stretch.append(card)
            self.stretch_cost += card.cost

    def put_back(self, cards: SequenceOf[_Card]) -> None:
        """Cards before the stretch."""
        self._stretch.extendleft(reversed(cards))
        self.stretch_cost += sum(card.cost for card in cards)

    def front(self) -> _Card:
        """The next card of the stretch, which is no longer in it."""
        card = self._stretch.popleft()
        self.stretch_cost -= card.cost
        return card

    def rear(self) -> list[_Card]:
        """The rear half of the stretch, at least one card, which are no longer in it."""
        cards = list(self._stretch)
        place = min(next(_places(cards, [self.stretch_cost / 2])), len(cards) - 1)
        self._stretch = deque(cards[:place])
        self.stretch_cost = sum(card.cost for card in cards[:place])
        return cards[place:]


class Dealer:
    """Every item that was added is answered once or given up, whichever workers are lost on the way."""

    def __init__(self, workers: int, full: int) -> None:
        """`workers`: their number; they are named [0, workers), and none is there before it `joined`. `full`: sequences
        that a worker computes at once."""
        self._hands = [_Hand() for _ in range(workers)]
        self._full = full
        self._unanswered: dict[int, _Card] = {}
        """By number, in rising order."""
        self._suspects: deque[_Card] = deque()
        """Two workers were lost that held them. Each is tried once more, by a worker that holds nothing else."""

    @property
    def undealt(self) -> int:
        """Items that no worker has."""
        return len(self._suspects) + sum(hand.undealt for hand in self._hands)

    @property
    def oldest(self) -> int | None:
        """The least number that is not answered."""
        return next(iter(self._unanswered), None)

    def holds(self, worker: int) -> int:
        """Items that the worker has not answered."""
        return len(self._hands[worker].held)

    def add(self, window: SequenceOf[Item]) -> None:
        """Take the next items, in the order of their numbers: each worker's stretch grows by what makes all equally
        long."""
        cards = _sorted(window)
        by_number = {card.number: card for card in cards}
        self._unanswered.update((item.number, by_number[item.number]) for item in window)
        *ends, _ = accumulate(self._wanted(sum(card.cost for card in cards)))
        places = [0, *_places(cards, ends), len(cards)]
        for hand, (start, stop) in zip(self._hands, pairwise(places), strict=True):
            hand.extend(cards[start:stop])

    def joined(self, worker: int) -> None:
        """A worker is there, for the first time or again."""
        self._hands[worker].alive = True

    def deal(self, worker: int, ahead: int) -> list[int]:
        """Numbers for a worker that is to hold `ahead` sequences, fewer where the others would then have less."""
        hand = self._hands[worker]
        if self._suspects and not hand.held:
            return [self._give(worker, self._suspects.popleft())]
        if len(hand.held) == 1 and next(iter(hand.held.values())).deaths >= _MOST_DEATHS - 1:
            return []
        fair = self._fair_share()
        dealt: list[int] = []
        while hand.samples < ahead and hand.held_cost < fair and (card := self._next(hand)) is not None:
            dealt.append(self._give(worker, card))
        if not dealt and not self.undealt and 2 * hand.samples < self._full:
            dealt = [self._give(worker, card) for card in self._copies(worker)]
        return dealt

    def answered(self, number: int) -> bool:
        """An item is answered. False where it was before, by another worker."""
        card = self._unanswered.pop(number, None)
        if card is None:
            return False
        for holder in card.holders:
            self._hands[holder].drop(number)
        return True

    def lost(self, worker: int) -> list[int]:
        """A worker is gone; what it had is dealt again. Returns the numbers that are given up: such a one was the only
        item of its last worker, and two others were lost before."""
        hand = self._hands[worker]
        hand.alive = False
        held = list(hand.held.values())
        again: list[_Card] = []
        given_up: list[int] = []
        for card in held:
            hand.drop(card.number)
            card.holders.remove(worker)
            card.deaths += 1
            if card.holders:
                continue
            if card.deaths < _MOST_DEATHS - 1:
                again.append(card)
            elif card.deaths < _MOST_DEATHS or len(held) > 1:
                self._suspects.append(card)
            else:
                del self._unanswered[card.number]
                given_up.append(card.number)
        hand.put_back(again)
        return given_up

    def _wanted(self, cost: float) -> Iterator[float]:
        """The share of a new window for each worker."""
        loads = [hand.stretch_cost + hand.held_cost for hand in self._hands]
        level = (sum(loads) + cost) / len(loads)
        wanted = [max(0.0, level - load) for load in loads]
        return (cost * one / (sum(wanted) or 1.0) for one in wanted)

    def _fair_share(self) -> float:
        """What each worker holds if all come to their ends together."""
        left = sum(hand.stretch_cost + hand.held_cost for hand in self._hands)
        return left / max(1, sum(hand.alive for hand in self._hands))

    def _next(self, hand: _Hand) -> _Card | None:
        longest = max(self._hands, key=lambda one: one.stretch_cost)
        if not hand.undealt and longest.undealt:
            hand.extend(longest.rear())
        return hand.front() if hand.undealt else None

    def _give(self, worker: int, card: _Card) -> int:
        card.holders.append(worker)
        self._hands[worker].take(card)
        return card.number

    def _copies(self, worker: int) -> list[_Card]:
        """Half of what waits at the worker with the most: backup tasks (Dean and Ghemawat, MapReduce, 2004)."""
        waiting = max((self._waiting_at(hand) for hand in self._hands), key=len)
        return [card for card in reversed(waiting) if worker not in card.holders][: (len(waiting) + 1) // 2]

    def _waiting_at(self, hand: _Hand) -> list[_Card]:
        """What the worker has not begun, as far as the order of dealing tells, and nobody else has."""
        cards = list(hand.held.values())
        begun = bisect_left(list(accumulate(card.samples for card in cards)), self._full) + 1
        return [card for card in cards[begun:] if len(card.holders) == 1]


def _sorted(items: Iterable[Item]) -> list[_Card]:
    cards: list[_Card] = []
    before = b""
    for item in sorted(items, key=lambda item: (item.beginning, item.number)):
        shared = _common(before, item.beginning)
        own = (len(item.beginning) - shared) / _BYTES_PER_TOKEN
        cards.append(_Card(item.number, item.samples, 1 + own + item.output_tokens, shared))
        before = item.beginning
    return cards


def _places(cards: SequenceOf[_Card], costs: SequenceOf[float]) -> Iterator[int]:
    """Where to cut so that about so much lies before each cut: near by, where the next card shares least."""
    before = [0.0, *accumulate(card.cost for card in cards)]
    slack = _SLACK * before[-1] / (len(costs) + 1)
    least = 0
    for cost in costs:
        first = max(least, bisect_left(before, cost - slack) - 1)
        last = min(len(cards), max(first, bisect_left(before, cost + slack)))
        near = range(min(first, last), last + 1)
        least = min(near, key=lambda at: (cards[at].shared if at < len(cards) else 0, abs(before[at] - cost)))
        yield least


def _common(one: bytes, other: bytes) -> int:
    """How many bytes two strings begin with in common."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the bytes before `low` are equal, those before `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
