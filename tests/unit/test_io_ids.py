"""Ids that occur twice."""

from __future__ import annotations

import sqlite3

import pytest

from batchgen.errors import OutOfResourcesError
from batchgen.io.ledger import Ledger


def test_the_first_line_of_an_id_is_remembered() -> None:
    with Ledger() as seen:
        assert [seen.first_line(name, line) for line, name in enumerate(["a", "b", "", "a\0", "B"], 1)] == [None] * 5
        assert [seen.first_line(name, 9) for name in ["b", "a", "a\0", "", "c"]] == [2, 1, 4, 3, None]
        assert seen.first_line("c", 10) == 9


def test_a_hundred_thousand_ids() -> None:
    with Ledger() as seen:
        assert all(seen.first_line(f"id-{number}", number) is None for number in range(100_000))
        assert all(seen.first_line(f"id-{number}", 0) == number for number in range(0, 100_000, 997))


def test_full_storage_ends_the_job_as_a_lack_of_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def small(*arguments: object, **settings: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **settings)  # type: ignore[call-overload]
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with Ledger() as seen, pytest.raises(OutOfResourcesError, match="full"):
        all(seen.first_line(f"id-{number}", number) is None for number in range(10_000))
