"""Completion in real shells, typed on a terminal. Which shells: `--shells` (`make test-completion` has them all)."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from batchgen.cli.completion import complete_output

PROGRAM = f"""#!{sys.executable}
import sys
sys.path[:0] = {sys.path!r}
from batchgen.cli.main import main
try:
    main()
finally:
    heavy = {{"torch", "transformers", "datasets"}} & sys.modules.keys()
    print("HEAVY", *heavy, file=open("heavy", "a")) if heavy else None
"""
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(batchgen --show-completion)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u; eval "$(batchgen --show-completion)"'),
    "fish": (["fish", "--no-config", "-i"], "batchgen --show-completion | source"),
}
"""How a shell starts without the user's files, and what makes it complete."""


class Terminal:
    """A shell on a terminal."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._parent, child = pty.openpty()
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        env = {"PATH": path, "HOME": str(folder), "TERM": "xterm", "LANG": "C.UTF-8", "COLUMNS": "200"}
        controlled = ["setsid", "--ctty", *command]
        self._shell = subprocess.Popen(controlled, stdin=child, stdout=child, stderr=child, env=env, cwd=folder)
        os.close(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._parent)
        self._shell.kill()
        self._shell.wait()

    def type(self, keys: str, awaited: str) -> None:
        """Type, and wait until that is on the screen. Raises `AssertionError` after a minute without it."""
        os.write(self._parent, keys.encode())
        shown, deadline = "", time.monotonic() + 60
        while awaited not in shown:
            readable, _, _ = select.select([self._parent], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{keys!r} gave {shown!r}, without {awaited!r}"
            shown += re.sub(
                r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>(].?)", "", os.read(self._parent, 65536).decode()
            )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has the program, requests, and outputs in all their forms."""
    program = tmp_path / "bin" / "batchgen"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (tmp_path / "some-requests.jsonl").touch()
    for output in ("answers", ".single.jsonl.batchgen", "shared.shard-00000-of-00002", "shared.shard-00001-of-00002"):
        (tmp_path / "out" / output / ".batchgen").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def terminal(folder: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    command, begin = STARTS[request.param]
    with Terminal(command, folder) as opened:
        opened.type(f"{begin}; echo rea''dy\r", "ready")
        yield opened


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a terminal in every shell that was asked for."""
    if "terminal" in metafunc.fixturenames:
        metafunc.parametrize("terminal", metafunc.config.getoption("--shells").split(","), indirect=True)


def test_a_tab_completes_what_was_begun(terminal: Terminal, folder: Path) -> None:
    clear = "\x15"  # control-U: an empty line
    terminal.type("batchgen vali\t", "date ")
    terminal.type(f"{clear}batchgen run-batch --max-num-b\t", "atched-tokens")
    terminal.type(f"{clear}batchgen run-batch --model smo\t", "llm2-135m-instruct")
    terminal.type(f"{clear}batchgen run-batch --dtype bf\t", "loat16")
    terminal.type(f"{clear}batchgen run-batch some\t", "-requests.jsonl")
    terminal.type(f"{clear}batchgen status out/sh\t", "ared ")
    assert not (folder / "heavy").exists(), (folder / "heavy").read_text()


def test_outputs_are_what_the_user_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert complete_output("out/") == ["out/answers", "out/shared", "out/single.jsonl"]
    assert complete_output("./out/s") == ["./out/shared", "./out/single.jsonl"]
    assert complete_output("nowhere/x") == []
    monkeypatch.chdir(folder / "out")
    assert complete_output("") == ["answers", "shared", "single.jsonl"]


def test_installing_teaches_the_shell_of_the_user(folder: Path) -> None:
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    command = ["bash", "-c", "batchgen --install-completion; true"]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True)
    assert "bash completion installed" in done.stdout
    assert ".bash_completions/batchgen.sh" in (folder / ".bashrc").read_text()
