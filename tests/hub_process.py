"""A Python process whose hub is a fake one: libraries read the hub's address when they are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fake_hub import TOKEN, FakeHub

__all__ = ["HubProcess", "hub_environment", "hub_process"]

_LOOP = """
import json, os, sys
for line in sys.stdin:
    names = {}
    try:
        exec(json.loads(line), names)
        answer = {"result": names.get("result")}
    except Exception as error:
        answer = {"kind": type(error).__name__, "error": str(error)}
    print(json.dumps(answer, default=str), flush=True)
"""


def hub_environment(url: str, folder: Path) -> dict[str, str]:
    """The environment of a process that knows the hub at `url` and caches under `folder`."""
    own = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder), "HF_TOKEN": TOKEN}
    # The fake hub speaks the older protocol for large files.
    return {**os.environ, **own, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@dataclass
class HubProcess:
    """A process that runs code, a piece at a time."""

    hub: FakeHub
    process: subprocess.Popen[str]

    def run(self, code: str, **names: Any) -> Any:
        """What the code leaves in `result`; `names` are values for it. Raises `RuntimeError` as the code does."""
        values = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(values + code) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"{answer['kind']}: {answer['error']}")
        return answer["result"]


@contextmanager
def hub_process(hub: FakeHub, folder: Path) -> Iterator[HubProcess]:
    """A process for `hub`, ended with the context."""
    command = [sys.executable, "-c", _LOOP]
    environment = hub_environment(hub.url, folder)
    root = str(Path(__file__).resolve().parent.parent)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
    ) as process:
        yield HubProcess(hub, process)
        assert process.stdin is not None
        process.stdin.close()
