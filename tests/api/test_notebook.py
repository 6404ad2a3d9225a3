"""In a real Jupyter kernel: cells, a bar, and the stop button."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from tests.api.conftest import SETTINGS

TIMEOUT_S = 120


class Notebook:
    """Runs cells, one after another."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client

    def run(self, cell: str, *, stop_at: str | None = None) -> tuple[str, str]:
        """What a cell prints and the name of its error, if it has one. `stop_at`: press stop when it prints that."""
        printed: list[str] = []

        def hear(message: Any) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                if stop_at is not None and stop_at in message["content"]["text"]:
                    self._manager.interrupt_kernel()

        reply = self._client.execute_interactive(cell, output_hook=hear, timeout=TIMEOUT_S)["content"]
        return "".join(printed), reply.get("ename", "")


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_can_be_stopped_and_the_next_one_runs(notebook: Notebook, tiny_model: Path) -> None:
    setup = f"from batchgen import Engine\nengine = Engine({str(tiny_model)!r}, **{dict(SETTINGS)!r})"
    assert notebook.run(setup) == ("", "")
    ask = "print([r.text for r in engine.generate(['the sea', 'the hat'], {'max_tokens': 5, 'temperature': 0})])"
    expected, error = notebook.run(ask)
    assert (len(expected) > 10, error) == (True, "")
    endless = (
        "from itertools import count\n"
        "for result in engine.generate((f'the sea {n}' for n in count()), {'max_tokens': 5}):\n"
        "    print('result', result.index) if result.index < 5 else None"
    )
    assert notebook.run(endless, stop_at="result 4")[1] == "KeyboardInterrupt"
    assert notebook.run(ask) == (expected, "")
    shown, error = notebook.run("for _ in engine.generate(['the sea'] * 9, {'max_tokens': 2}, progress=True): pass")
    assert "9/9" in shown
    assert not error
