"""Grammars: which tokens may follow in an answer that has to look like something."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from batchgen.protocol.constraints import Constraint
from batchgen.protocol.faults import Code, RowFault
from batchgen.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # runs without constraints don't load it
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammars", "Guide"]

_KEPT = 512
"""Compiled grammars, each some 130 KiB."""
_PROCESSOR_SECONDS = 3.0
"""For one grammar. Processor time, not the clock's, so that a busy machine refuses nothing that an idle one takes."""
_MEMORY_BYTES = 2 << 30


class Guide:
    """`core.sequence.TokenGuide` over one grammar. It costs nothing until its sequence runs."""

    def __init__(self, start: Callable[[], LLMatcher], mask_bytes: int, end_ids: SequenceOf[int]) -> None:
        """`start` gives a matcher of its own, at the grammar's beginning."""
        self._start = start
        self._begun: LLMatcher | None = None
        self._mask_bytes = mask_bytes
        self._end_ids = end_ids

    @property
    def _matcher(self) -> LLMatcher:
        if self._begun is None:
            self._begun = self._start()
        return self._begun

    def mask(self) -> bytes | None:
        """The tokens that may come next, a bit each. Where the grammar is at its end, or failed: the end tokens."""
        return self._matcher.compute_bitmask()[: self._mask_bytes]

    def push(self, token: int) -> None:
        """Take the next generated token."""
        self._matcher.consume_token(token)

    def forced(self) -> SequenceOf[int]:
        """The tokens that must follow."""
        matcher = self._matcher
        if matcher.is_stopped():
            return self._end_ids if len(self._end_ids) == 1 else ()
        return matcher.compute_ff_tokens()

    @property
    def finished(self) -> bool:
        """Whether the answer is a whole one."""
        return not self._matcher.is_error() and self._matcher.is_accepting()

    @property
    def error(self) -> str | None:
        """Why the grammar could not be followed any further, None where it was."""
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else None


class Grammars:
    """Compiles the constraints of a run's requests, each distinct one once while it is kept."""

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int], vocab_size: int) -> None:
        """`vocab_size`: bits of a mask, rounded up to whole words of 32."""
        self._tokenizer = tokenizer
        self._end_ids = tuple(sorted(end_ids))
        self._vocab_size = vocab_size
        self._backend: LLTokenizer | None = None
        limits = {"seconds": _PROCESSOR_SECONDS, "bytes": _MEMORY_BYTES}
        self._checker = _Checker(limits | {"special": tokenizer.special_names, "vocab_size": vocab_size})
        self._checked = lru_cache(8 * _KEPT)(self._checker.check)
        self._compiled = lru_cache(_KEPT)(self._compile)

    def compile(self, constraint: Constraint) -> Callable[[], Guide] | RowFault:
        """What makes guides for the answers to a request, or why its constraint is none."""
        kind, param = constraint.kind, constraint.param
        if not self._end_ids:
            message = "the model has no end token, so no answer can end where its grammar does"
            return RowFault(Code.UNSUPPORTED_PARAMETER, message, param)
        checked = self._checked(kind, constraint.text, constraint.strict, constraint.whitespace)
        said = checked.get("error")
        if said is None:
            try:
                matcher = self._compiled(checked["grammar"])
            except ValueError as error:
                message = f"answers of this model cannot be constrained: {error}"
                return RowFault(Code.UNSUPPORTED_PARAMETER, message, param)
            said = matcher.get_error() if matcher.is_error() else None
        if said is not None:
            message = f"{param}: the {kind} cannot be compiled: {_first_line(said)}"
            return RowFault(Code.INVALID_JSON_SCHEMA, message, param)
        return lambda: Guide(
            lambda: self._compiled(checked["grammar"]).deep_copy(), -(-self._vocab_size // 32) * 4, self._end_ids
        )

    def close(self) -> None:
        """End the process that checks grammars, if one was needed."""
        self._checker.close()

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher, LLTokenizer

        if self._backend is None:
            described = json.loads(self._tokenizer.to_json())
            # Added tokens that the model has no row for can't come.
            described["added_tokens"] = [t for t in described["added_tokens"] if t["id"] < self._vocab_size]
            self._backend = LLTokenizer(json.dumps(described), n_vocab=self._vocab_size, eos_token=list(self._end_ids))
        return LLMatcher(self._backend, grammar, log_level=0)


class _Checker:
    """The process of `grammar_check`, begun when it is needed and again after a grammar has ended it."""

    def __init__(self, model: Mapping[str, object]) -> None:
        self._model = model
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def check(self, kind: str, text: str, strict: bool, whitespace: str | None) -> dict[str, str]:
        """The grammar in llguidance's notation under `grammar`, or what is wrong with it under `error`."""
        asked = {"kind": kind, "text": text, "strict": strict, "whitespace": whitespace}
        with self._lock:
            if self._process is None:
                self._process = _begin()
                _send(self._process, self._model)
            if line := _send(self._process, asked).readline():
                answer: dict[str, str] = json.loads(line)
                return answer
            code = self._end()
        if code == -signal.SIGPROF:
            return {"error": f"it takes more than {_PROCESSOR_SECONDS:g} s; make it simpler"}
        return {"error": f"it takes more than {_MEMORY_BYTES / 2**30:g} GiB of memory; make it simpler"}

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.communicate()  # closes its input, which ends it
        return process.returncode


def _begin() -> subprocess.Popen[str]:
    # -P keeps the modules beside the script from hiding others of their names. An interrupt is for the job, which
    # ends the process then.
    command = [sys.executable, "-P", str(Path(__file__).with_name("grammar_check.py"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **pipes, text=True, encoding="utf-8", start_new_session=True)


def _send(process: subprocess.Popen[str], message: Mapping[str, object]) -> IO[str]:
    """Send a line; the answer comes on the stream."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(message)}\n")
    process.stdin.flush()
    return process.stdout


def _first_line(said: str) -> str:
    """An error without the library's account of its own state."""
    return said.partition("\n<state>")[0].strip().replace("\n", " ")
