"""Requests to token ids."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.request import ChatPrompt, GenRequest, Prompt, TextPrompt, TokenPrompt
from batchgen.text.messages import fit_messages
from batchgen.text.template import ChatTemplate
from batchgen.text.tokenizer import Tokenizer

__all__ = ["Prompter"]

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

    def encode(self, request: GenRequest) -> list[SequenceOf[int]] | RowFault:
        """Token ids of each prompt of a request, in order, or what is wrong with the first faulty one."""
        if self.tokenizer is None and request.sampling.stop:
            return RowFault(Code.INVALID_VALUE, f"stop strings cannot be found: {_NO_TOKENIZER}", "body.stop")
        encoded: list[SequenceOf[int]] = []
        for index, prompt in enumerate(request.prompts):
            path = "body.messages" if isinstance(prompt, ChatPrompt) else "body.prompt"
            if len(request.prompts) > 1:
                path = f"{path}[{index}]"
            ids = self._encode(prompt, path)
            if isinstance(ids, RowFault):
                return ids
            if fault := self._fault_of(ids, path):
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
                return self.tokenizer.encode(prompt.text)
            rendered = self._render(prompt, path)
            return rendered if isinstance(rendered, RowFault) else self.tokenizer.encode_rendered(rendered)
        except UnicodeEncodeError as error:
            return RowFault(Code.INVALID_VALUE, f"the text is not valid Unicode: {error.reason}", path)

    def _render(self, prompt: ChatPrompt, path: str) -> str | RowFault:
        if self.template is None:
            advice = "give one with --chat-template, or send plain prompts to /v1/completions"
            return RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, f"the model has no chat template; {advice}", path)
        try:
            messages = fit_messages(prompt.messages, self.template)
            return messages if isinstance(messages, RowFault) else self.template.render(messages)
        except Exception as error:  # noqa: BLE001 - a template is foreign code: whatever it raises is this row's fault
            said = str(error) or type(error).__name__
            return RowFault(Code.INVALID_CHAT_TEMPLATE_INPUT, f"the chat template refused the messages: {said}", path)

    def _fault_of(self, ids: SequenceOf[int], path: str) -> RowFault | None:
        if not ids:
            return RowFault(Code.INVALID_VALUE, "the prompt has no tokens; send at least one", path)
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            outside = next(token for token in ids if not 0 <= token < self.vocab_size)
            message = f"token id {outside} is outside the model's vocabulary, [0, {self.vocab_size})"
            return RowFault(Code.INVALID_VALUE, message, path)
        if len(ids) >= self.max_model_len:
            message = (
                f"the prompt has {len(ids)} tokens and the context {self.max_model_len}, which leaves no room for one "
                "token of output; shorten the prompt, or raise --max-model-len if the model allows it"
            )
            return RowFault(Code.CONTEXT_LENGTH_EXCEEDED, message, path)
        return None
