"""Requests to token ids."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, Prompt, TextPrompt, TokenPrompt
from batchgen.text.embedding import EmbeddingSpec
from batchgen.text.messages import fit_messages
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Tokenizer

__all__ = ["Prompter", "render_chat"]

_END = "BATCHGENCONTINUESHERE"
"""Marks where a message ends until its template is rendered."""
_FIELDS: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "body.messages",
    Endpoint.COMPLETIONS: "body.prompt",
    Endpoint.EMBEDDINGS: "body.input",
}
_PIECE = 1 << 16
"""Characters of a very long text that are encoded at a time."""
_NO_TOKENIZER = "the model has no tokenizer; name one with --tokenizer"


@dataclass(frozen=True, slots=True)
class Prompter:
    """Turns the prompts of requests into token ids, for one model."""

    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    vocab_size: int
    """Token ids are [0, vocab_size): the rows of the model's embedding."""
    max_model_len: int
    """Tokens of prompt and output together, at most."""
    embedding: EmbeddingSpec

    def encode(self, request: GenRequest) -> list[SequenceOf[int]] | RowFault:
        """Token ids of each prompt of a request, in order, or what is wrong with the first faulty one."""
        if self.tokenizer is None and request.sampling.stop:
            return RowFault(Code.INVALID_VALUE, f"stop strings cannot be found: {_NO_TOKENIZER}", "body.stop")
        if request.embedding is not None and (unfit := self.embedding.fault_of(request.embedding)):
            return unfit
        for token, _ in request.sampling.logit_bias:
            if token >= self.vocab_size:
                message = f"token id {token} is outside the model's vocabulary, [0, {self.vocab_size})"
                return RowFault(Code.INVALID_VALUE, message, "body.logit_bias")
        encoded: list[SequenceOf[int]] = []
        for index, prompt in enumerate(request.prompts):
            path = _FIELDS[request.endpoint]
            if len(request.prompts) > 1:
                path = f"{path}[{index}]"
            ids = self._encode(prompt, path)
            if isinstance(ids, RowFault):
                return ids
            if fault := self._fault_of(ids, path, least=0 if request.sampling.max_tokens == 0 else 1):
                return fault
            encoded.append(ids)
        return encoded

    def _encode(self, prompt: Prompt, path: str) -> SequenceOf[int] | RowFault:
        if isinstance(prompt, TokenPrompt):
            return prompt.ids
        if self.tokenizer is None:
            return RowFault(Code.INVALID_VALUE, f"text cannot be read: {_NO_TOKENIZER}, or send token ids", path)
        try:
            if isinstance(prompt, TextPrompt):
                return self._hopeless(prompt.text, path) or self.tokenizer.encode(prompt.text)
            rendered = self._render(prompt, path)
            if isinstance(rendered, RowFault):
                return rendered
            return self._hopeless(rendered, path) or self.tokenizer.encode_rendered(rendered)
        except UnicodeEncodeError as error:
            return RowFault(Code.INVALID_VALUE, f"the text is not valid Unicode: {error.reason}", path)

    def _render(self, prompt: ChatPrompt, path: str) -> str | RowFault:
        if self.template is None:
            advice = "give one with --chat-template, or send plain prompts to /v1/completions"
            return RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, f"the model has no chat template; {advice}", path)
        if (unused := _unused(prompt, self.template)) is not None:
            return unused
        try:
            return render_chat(prompt, self.template)
        except Exception as error:  # noqa: BLE001 - a template is foreign code: whatever it raises is this row's fault
            said = str(error) or type(error).__name__
            return RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, f"the chat template refused the messages: {said}", path)

    def _hopeless(self, text: str, path: str) -> RowFault | None:
        """A fault for a text whose beginning alone is far over the context. A tokenizer takes over a hundred times the
        memory of its text, so a text of many megabytes is never given to it whole."""
        if self.tokenizer is None or len(text) <= max(_PIECE, 16 * self.max_model_len):
            return None
        tokens = 0
        for start in range(0, len(text), _PIECE):
            # Where a piece is cut a few tokens may be others; hence twice the context.
            tokens += len(self.tokenizer.encode_rendered(text[start : start + _PIECE]))
            if tokens > 2 * self.max_model_len:
                message = f"the prompt has more than {tokens} tokens and the context {self.max_model_len}; shorten it"
                return RowFault(Code.CONTEXT_LENGTH_EXCEEDED, message, path)
        return None

    def _fault_of(self, ids: SequenceOf[int], path: str, *, least: int) -> RowFault | None:
        """What is wrong with a prompt that at least so many tokens have to follow."""
        if not ids:
            return RowFault(Code.INVALID_VALUE, "the prompt has no tokens; send at least one", path)
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            outside = next(token for token in ids if not 0 <= token < self.vocab_size)
            message = f"token id {outside} is outside the model's vocabulary, [0, {self.vocab_size})"
            return RowFault(Code.INVALID_VALUE, message, path)
        if len(ids) + least > self.max_model_len:
            room = "which leaves no room for one token of output" if least else "which has no room for it"
            message = (
                f"the prompt has {len(ids)} tokens and the context {self.max_model_len}, {room}; shorten the prompt, "
                "or raise --max-model-len if the model allows it"
            )
            return RowFault(Code.CONTEXT_LENGTH_EXCEEDED, message, path)
        return None


def _unused(prompt: ChatPrompt, template: ChatTemplate) -> RowFault | None:
    """A fault where the template would leave out what the model is to read."""
    tools = prompt.tools is not None and prompt.tools.mode != "none"
    for name, given in (("tools", tools), ("documents", bool(prompt.documents))):
        if given and not template.names(name):
            message = f"the model's chat template has no place for {name}; give one that has with --chat-template"
            return RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, message, f"body.{name}")
    return None


def render_chat(prompt: ChatPrompt, template: ChatTemplate) -> str | RowFault:
    """The text of a chat, or what is wrong with its messages.

    Raises what the template raises, and `ValueError` where it drops the end of a message that is to be continued.
    """
    messages = fit_messages(prompt.messages, template)
    if isinstance(messages, RowFault):
        return messages
    if prompt.continue_final_message:
        _mark_end(messages[-1])
    rendered = template.render(
        messages,
        tools=prompt.tools.definitions if prompt.tools is not None else None,
        documents=prompt.documents or None,
        add_generation_prompt=prompt.add_generation_prompt,
        variables=prompt.variables,
    )
    if not prompt.continue_final_message:
        return rendered
    before, found, after = rendered.rpartition(_END)
    if not found:
        raise ValueError("it leaves out the end of the last message, which continue_final_message is to continue")
    # A template that trims messages has trimmed the space after the mark, and would have trimmed those before it.
    return before if after.startswith(" ") else before.rstrip()


def _mark_end(message: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = f"{content}{_END} "
    elif content:
        content[-1]["text"] += f"{_END} "
    else:
        raise ValueError("the last message has no text that continue_final_message could continue")
