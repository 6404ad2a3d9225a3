"""Completions and faults to result rows."""

from __future__ import annotations

import hashlib
import sys
from array import array
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from batchgen.protocol.request import Endpoint, GenRequest
from batchgen.protocol.result import Choice, Completion, Embeddings, PromptScores, ResultRow

__all__ = ["Responder", "row_id"]


@dataclass(frozen=True, slots=True)
class Responder:
    """Makes the rows of one run. Ids derive from the run and the row, so a repeated run of the same id repeats them."""

    run_id: str
    created: int
    """Seconds since the epoch, for the bodies."""

    def completed(self, completion: Completion) -> ResultRow:
        """The row of an answered request."""
        request, first = completion.request, completion.choices[0]
        return ResultRow(
            custom_id=request.custom_id,
            line=request.line,
            status_code=200,
            text=None if first.text is None else _prompt_of(completion, first).text + first.text,
            finish_reason=first.finish_reason,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=completion.completion_tokens,
            cached_tokens=completion.cached_tokens,
            response=self._body(completion),
            extra=request.extra,
        )

    def embedded(self, embeddings: Embeddings) -> ResultRow:
        """The row of a request for embeddings."""
        request, tokens = embeddings.request, embeddings.prompt_tokens
        assert request.embedding is not None
        written = map(_base64 if request.embedding.base64 else list, embeddings.vectors)
        return ResultRow(
            custom_id=request.custom_id,
            line=request.line,
            status_code=200,
            prompt_tokens=tokens,
            completion_tokens=0,
            cached_tokens=embeddings.cached_tokens,
            response={
                "object": "list",
                "data": [{"object": "embedding", "index": i, "embedding": values} for i, values in enumerate(written)],
                "model": embeddings.model,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            },
            extra=request.extra,
        )

    def refused(
        self, line: int, custom_id: str | None, fault: RowFault, extra: Mapping[str, Any] | None = None
    ) -> ResultRow:
        """The row of a request that has no answer."""
        error = {"message": fault.message, "type": _error_type(fault.code), "param": fault.param, "code": fault.code}
        return ResultRow(
            custom_id=custom_id,
            line=line,
            status_code=fault.code.status,
            error=fault,
            response=None if fault.code is Code.INVALID_JSON_LINE else {"error": error},
            extra=extra or {},
        )

    def _body(self, completion: Completion) -> dict[str, Any]:
        request = completion.request
        chat = request.endpoint is Endpoint.CHAT
        prefix = "chatcmpl" if chat else "cmpl"
        body: dict[str, Any] = {
            "id": f"{prefix}-{row_id(self.run_id, request.line, request.custom_id)}",
            "object": "chat.completion" if chat else "text_completion",
            "created": self.created,
            "model": completion.model,
            "choices": [
                self._chat_choice(request, c) if chat else _text_choice(c, _prompt_of(completion, c))
                for c in completion.choices
            ],
            "usage": {
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.completion_tokens,
                "total_tokens": completion.prompt_tokens + completion.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
            },
        }
        if chat and completion.prompts and completion.prompts[0].tokens is not None:
            body["prompt_logprobs"] = prompt_logprobs(completion.prompts[0].tokens)
        notes = {"effective": dict(completion.effective), "warnings": list(completion.warnings)}
        if any(notes.values()):
            body["batchgen"] = {name: note for name, note in notes.items() if note}
        return body

    def _chat_choice(self, request: GenRequest, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.tool_calls:
            row = row_id(self.run_id, request.line, request.custom_id)
            message["tool_calls"] = [
                {
                    "id": f"call_{row}_{choice.index}_{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(choice.tool_calls)
            ]
        logprobs = None if choice.logprobs is None else chat_logprobs(choice.logprobs)
        return {"index": choice.index, "message": message, "logprobs": logprobs, **_ending(choice)}


def row_id(run_id: str, line: int, custom_id: str | None) -> str:
    """24 hex digits that name a row of a run."""
    return hashlib.blake2b(f"{run_id}\0{line}\0{custom_id}".encode("utf-8", "replace"), digest_size=12).hexdigest()


def _base64(values: array[float]) -> str:
    """Little-endian float32 values."""
    ordered = array("f", values)
    if sys.byteorder == "big":
        ordered.byteswap()
    return b64encode(ordered.tobytes()).decode()


def _prompt_of(completion: Completion, choice: Choice) -> PromptScores:
    return completion.prompts[choice.index // completion.request.n] if completion.prompts else PromptScores()


def _text_choice(choice: Choice, prompt: PromptScores) -> dict[str, Any]:
    text = prompt.text + (choice.text or "")
    logprobs = None if choice.logprobs is None else completion_logprobs((*prompt.echoed, *choice.logprobs), text)
    shaped = {"index": choice.index, "text": text, "logprobs": logprobs, **_ending(choice)}
    if prompt.tokens is not None:
        shaped["prompt_logprobs"] = prompt_logprobs(prompt.tokens)
    return shaped


def _ending(choice: Choice) -> dict[str, Any]:
    # vLLM's stop_reason stands beside OpenAI's finish_reason.
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}


def _error_type(code: Code) -> str:
    return "server_error" if code is Code.INTERNAL_ERROR else "invalid_request_error"
