"""Names of requests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from batchgen.io.digest import request_digest
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import RawRow

DATA: dict[str, Any] = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x", "n": 2}}


def digest(data: Any = DATA, columns: tuple[str, ...] = ("a", "b"), *context: object, **extra: Any) -> str:
    return request_digest(RawRow(1, data, None, extra), columns, *context)


def test_what_makes_a_difference() -> None:
    label = pa.array([{"x": 1}])
    names = [
        digest(),
        digest(DATA | {"body": {"prompt": "x", "n": 3}}),
        digest(DATA, ("a",), a='"1"'),
        digest(DATA, ("a",), a='"2"'),
        digest(DATA, ("a",), a=label),
        digest(DATA, ("a", "b"), 3),
        request_digest(RawRow(1, DATA, RowFault(Code.INVALID_VALUE, "odd")), ("a", "b")),
        digest(None),
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) == 32 for name in names)


def test_what_makes_none() -> None:
    assert digest(dict(reversed(DATA.items()))) == digest()
    assert digest(DATA, ("a",), c='"no column of the output"') == digest()
    assert request_digest(RawRow(9, DATA), ("a", "b")) == digest()
    assert digest(DATA, ("a",), a=pa.array([0, 5]).slice(1)) == digest(DATA, ("a",), a=pa.array([5]))


@pytest.mark.parametrize(
    "data",
    [
        {"text": "\ud800", "b": 1},
        {"number": 2**70},
        {"bytes": b"\xff", 3: None},
        {"time": pa.scalar(5, pa.timestamp("us")).as_py()},
    ],
)
def test_whatever_a_table_holds_has_a_name(data: Any) -> None:
    assert digest(data) == digest(dict(reversed(data.items())))
    moment = pa.array([1], pa.timestamp("ns"))
    assert digest(DATA, ("a",), a=moment) != digest(DATA, ("a",), a=pa.array([2], pa.timestamp("ns")))


def test_another_process_gives_the_same_name() -> None:
    """Sets come in another order in each process, and rows are made with them."""
    code = (
        "from batchgen.config import InputConfig; from batchgen.io.columns import RowShaper\n"
        "from batchgen.io.digest import request_digest\n"
        f"row = RowShaper(InputConfig(input_file='x')).shape(1, {DATA!r}, {{}})\n"
        "print(request_digest(row, ()))"
    )
    found = set()
    for seed in "0123":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        found.add(done.stdout)
    assert len(found) == 1
