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

__all__ = ["TextCheck", "text_check"]


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Judges requests that are well formed."""

    prompter: Prompter
    grammars: Grammars | None
    """None where there is no tokenizer, without which no text is read."""

    def fault(self, request: GenRequest) -> RowFault | None:
        """Why a request would be refused; None where it can run."""
        encoded = self.prompter.encode(request)
        if isinstance(encoded, RowFault):
            return encoded
        if request.constraint is None or self.grammars is None:
            return None
        guide = self.grammars.compile(request.constraint)
        return guide if isinstance(guide, RowFault) else None

    def close(self) -> None:
        """End what it has running."""
        if self.grammars is not None:
            self.grammars.close()


def text_check(checkpoint: Checkpoint, max_model_len: int | None) -> TextCheck:
    """The check for a model. Raises `UnsupportedModelError` for one that we don't run."""
    spec, tokenizer = read_spec(checkpoint.config), load_tokenizer(checkpoint)
    context = min(spec.context_length, max_model_len or spec.context_length)
    embedding = EmbeddingSpec(spec.hidden, checkpoint.pooling)
    prompter = Prompter(tokenizer, load_template(checkpoint), spec.vocab_size, context, embedding)
    ends = end_token_ids(checkpoint, tokenizer)
    return TextCheck(prompter, None if tokenizer is None else Grammars(tokenizer, ends, spec.vocab_size))
