"""Parameters of the format, and of engines that extend it, that are understood but not applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["changes_nothing", "is_known"]

_HARMLESS = frozenset(
    {
        "cache_salt",
        "guided_decoding_backend",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)
"""Parameters that never change an answer."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "return_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters that are not supported, and those of their values that mean the same as not sending them."""


def is_known(name: str) -> bool:
    """Whether a parameter has a meaning, so that leaving it out may change the answer."""
    return name in _NEUTRAL


def changes_nothing(name: str, value: Any, body: Mapping[str, Any]) -> bool:
    """Whether the body means the same without this parameter."""
    if value is None or name in _HARMLESS:
        return True
    if name == "add_special_tokens":
        # What each endpoint does by itself: a chat template writes its special tokens, plain text gets the tokenizer's.
        return value is ("messages" not in body)
    if name == "best_of" and _same(value, body.get("n")):
        return True
    return any(_same(value, neutral) for neutral in _NEUTRAL.get(name, ()))


def _same(value: Any, other: Any) -> bool:
    # 0 == False and 1 == True in Python, not in JSON.
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
