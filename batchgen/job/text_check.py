"""What a model's tokenizer, template, context length and grammars have against requests, before weights are read."""

from __future__ import annotations

from dataclasses import dataclass

from batchgen.checkpoint.types import Checkpoint
from batchgen.model.spec import read_spec
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import GenRequest
from batchgen.text.embedding import EmbeddingSpec
from batchgen.text.grammar import Grammars
from batchgen.text.prompt import Prompter
from batchgen.text.template import load_template
from batchgen.text.tokenizer import end_token_ids, load_tokenizer
from batchgen.text.tools import Tools

__all__ = ["TextCheck", "text_check"]


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Judges requests that are well formed."""

    prompter: Prompter
    grammars: Grammars | None
    """None where there is no tokenizer, without which no text is read."""
    tools: Tools | None

    def fault(self, request: GenRequest) -> RowFault | None:
        """Why a request would be refused; None where it can run."""
        encoded = self.prompter.encode(request)
        if isinstance(encoded, RowFault):
            return encoded
        if self.grammars is None or self.tools is None:
            return None
        constraint = self.tools.prepared(request).constraint
        guide = None if constraint is None else self.grammars.compile(constraint)
        return guide if isinstance(guide, RowFault) else None

    def close(self) -> None:
        """End what it has running."""
        if self.grammars is not None:
            self.grammars.close()


def text_check(checkpoint: Checkpoint, max_model_len: int | None) -> TextCheck:
    """The check for a model. Raises `UnsupportedModelError` for one that we don't run."""
    spec, tokenizer = read_spec(checkpoint.config), load_tokenizer(checkpoint)
    context = min(spec.context_length, max_model_len or spec.context_length)
    template = load_template(checkpoint)
    embedding = EmbeddingSpec(spec.hidden, checkpoint.pooling)
    prompter = Prompter(tokenizer, template, spec.vocab_size, context, embedding)
    if tokenizer is None:
        return TextCheck(prompter, None, None)
    grammars = Grammars(tokenizer, end_token_ids(checkpoint, tokenizer), spec.vocab_size)
    return TextCheck(prompter, grammars, Tools.of_model(template, tokenizer))
