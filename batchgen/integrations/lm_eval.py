"""A model for EleutherAI's evaluation harness (`lm_eval`), which scores and generates with `batchgen.Engine`.

    python -m batchgen.integrations.lm_eval run --model batchgen --model_args pretrained=NAME --tasks hellaswag

is the harness's command line with the model `batchgen` in it. Harnesses that know the entry points `lm_eval.models`
find it by themselves: `lm_eval run --model batchgen ...`. In Python: `lm_eval.simple_evaluate(BatchgenLM("NAME"))`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from batchgen.api.engine import Engine
from batchgen.api.home import home
from batchgen.api.result import Result
from batchgen.config import ModelConfig
from batchgen.errors import UsageError
from batchgen.job.finding import find_checkpoint
from batchgen.model.spec import read_spec
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import ChatPrompt
from batchgen.text.prompt import render_chat
from batchgen.text.template import load_template
from batchgen.text.tokenizer import load_tokenizer

__all__ = ["BatchgenLM", "main", "register"]

Scored = tuple[float, bool]
"""The log-probability of a continuation (natural logarithm), and whether each of its tokens is the most probable."""

_STOPS = 16
"""Stop strings that a request takes; the text is cut at the others afterwards."""


class BatchgenLM(TemplateLM):  # type: ignore[misc] # the harness has no types
    """The harness's model `batchgen`.

    Tokens, windows and cuts are those of the harness's `hf` model, so that results agree with it. All requests of a
    task go to the engine at once: it computes what they share once, and makes the batches itself.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        enable_thinking: bool | None = None,
        think_end_token: str | None = None,
        device: str = "auto",
        batch_size: int | str | None = None,  # noqa: ARG002 - the harness gives both; the engine makes its batches itself
        max_batch_size: int | None = None,  # noqa: ARG002
        **engine: Any,
    ) -> None:
        """Arguments are those of the model `hf`; all others are `Engine`'s, such as `quantization` or `max_num_seqs`.

        `pretrained`: a folder, a GGUF file, a hub id or an alias. `max_length`: tokens that the model sees, at most;
        default: one less than its context, since the last token of a continuation takes a place too. `device`: `cpu`,
        else a GPU where one can be used, which is what the harness means by `cuda`. Raises `UsageError` for a model
        without a tokenizer.
        """
        super().__init__()
        names = ("chat_template", "generation_config", "load_format")
        given = {name: engine[name] for name in names if name in engine}
        checkpoint = find_checkpoint(
            ModelConfig(model=pretrained, tokenizer=tokenizer, revision=revision, **given),
            Path(engine["home"]) if "home" in engine else home(),
        )
        loaded = load_tokenizer(checkpoint)
        if loaded is None:
            raise UsageError(f"{checkpoint.name} has no tokenizer; name one with tokenizer=")
        self._tokens = loaded
        self._template = load_template(checkpoint)
        self._name = f"{checkpoint.name.replace('/', '__')}-{checkpoint.fingerprint}"
        context = read_spec(checkpoint.config).context_length
        self.max_length = min(max_length or context, context - 1)
        """Tokens that the model sees, at most."""
        self.max_gen_toks = max_gen_toks
        """Tokens to generate where a task doesn't say."""
        self._add_bos, self._prefix = add_bos_token is not False, prefix_token_id
        self._special = checkpoint.tokenizer_config
        self._variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        self._think_end = think_end_token
        self._engine = Engine(
            pretrained,
            tokenizer=tokenizer,
            revision=revision,
            device="cpu" if device == "cpu" else "auto",
            max_model_len=self.max_length + 1,
            **engine,
        )

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text. Raises `UsageError` where the tokenizer names none."""
        if (token := self._special_id("eos_token")) is None:
            raise UsageError("the tokenizer names no eos_token; say with prefix_token_id= what stands before a text")
        return token

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        if self._prefix is not None:
            return self._prefix
        bos = self._special_id("bos_token")
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """What the harness's cache of requests depends on."""
        return self._name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_others: Any) -> list[int]:
        """Token ids of a text, with what the tokenizer puts around it unless that is ruled out."""
        special = self._add_bos if add_special_tokens is None else add_special_tokens
        return self._tokens.encode(string) if special else self._tokens.encode_rendered(string)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source, None where none is to be applied."""
        return None if self._template is None or chat_template is False else self._template.source

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a chat, up to the beginning of an answer or, without that, to the end of the last message.

        Where the template refuses the system's message it is left out, as by the model `hf`. Raises `UsageError` for a
        model without a template, and for messages that it refuses all the same.
        """
        try:
            return self._rendered(chat_history, add_generation_prompt)
        except UsageError:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            return self._rendered(others, add_generation_prompt)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in windows as long as the model sees."""
        texts = [request.args[0] for request in requests]
        windows = [self._windows(text) for text in texts]
        scored = iter(self._loglikelihood_tokens(list(chain.from_iterable(windows)), disable_tqdm=disable_tqdm))
        sums = [sum(next(scored)[0] for _ in own) for own in windows]
        for text, total in zip(texts, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model adds to each context, up to the first of its stop strings."""
        settings = [normalize_gen_kwargs(request.args[1], self.max_gen_toks) for request in requests]
        stops = [handle_stop_sequences(values.pop("until"), self._eot) for values in settings]
        bodies = map(self._generation, (request.args[0] for request in requests), settings, stops)
        results = self._results(bodies, len(requests), "generate_until", disable_tqdm)
        texts: list[str] = []
        for request, until, result in zip(requests, stops, results, strict=True):
            texts.append(postprocess_generated_text(result.text or "", until, self._think_end))
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _loglikelihood_tokens(
        self, requests: SequenceOf[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_others: Any
    ) -> list[Scored]:
        """Of each (key for the cache, token ids of a context, those of its continuation)."""
        bodies = (self._scoring(context, continuation) for _, context, continuation in requests)
        results = self._results(bodies, len(requests), "loglikelihood", disable_tqdm)
        answers: list[Scored] = []
        for (key, _, continuation), result in zip(requests, results, strict=True):
            answers.append(_scored(result, len(continuation)))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[-1])
        return answers

    def _windows(self, text: str) -> list[tuple[None, list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text), prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
        )
        return [(None, *make_disjoint_window(window)) for window in windows]

    def _scoring(self, context: list[int], continuation: list[int]) -> dict[str, Any]:
        """The body of a request that scores a continuation; a context that is too long loses its beginning."""
        if not 0 < len(continuation) <= self.max_length:
            raise UsageError(f"a continuation has {len(continuation)} tokens; the model sees 1 to {self.max_length}")
        tokens = [*context, *continuation][-(self.max_length + 1) :]
        start = len(tokens) - len(continuation)
        return {
            "prompt": tokens,
            "echo": True,
            "max_tokens": 0,
            "prompt_logprobs": 0,
            "prompt_logprobs_start": start,
        }

    def _generation(self, context: str, values: dict[str, Any], until: list[str]) -> dict[str, Any]:
        """The body of a request that generates; a context that leaves too little room loses its beginning."""
        sampled, limit = values.pop("do_sample"), values.pop("max_gen_toks")
        if limit >= self.max_length:
            raise UsageError(f"max_gen_toks {limit} leaves no room for a context: the model sees {self.max_length}")
        # Task stops may stand in what a model thinks before it answers; and special tokens are in no text.
        stops = [] if self._think_end else [stop for stop in until if stop not in {"", self._eot}]
        return {
            "temperature": 1.0 if sampled else 0.0,
            **values,
            "prompt": self.tok_encode(context)[-(self.max_length - limit) :],
            "max_tokens": limit,
            "stop": stops[:_STOPS],
        }

    def _results(self, bodies: Iterable[dict[str, Any]], total: int, name: str, quiet: bool) -> Iterator[Result]:
        """The answers in order. Raises `UsageError` for a request that the engine refuses."""
        for result in tqdm(self._engine.generate(bodies), total=total, desc=name, disable=quiet):
            if result.error is not None:
                raise UsageError(f"{name}, request {result.index}: {result.error.code}: {result.error.message}")
            yield result

    def _rendered(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        if self._template is None:
            raise UsageError(f"{self._name} has no chat template; give one with chat_template=")
        prompt = ChatPrompt(
            tuple(messages),
            variables=self._variables,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        try:
            text = render_chat(prompt, self._template)
        except Exception as error:  # a template is foreign code and may raise anything
            raise UsageError(f"the chat template refused the messages: {error}") from error
        if isinstance(text, RowFault):
            raise UsageError(text.message)
        return text

    @cached_property
    def _eot(self) -> str:
        return self._tokens.decode([self.eot_token_id], skip_special_tokens=False)

    def _special_id(self, name: str) -> int | None:
        text = self._special.get(name)
        return self._tokens.token_id(text) if isinstance(text, str) else None


def _scored(result: Result, count: int) -> Scored:
    """What the last `count` tokens of a scored prompt come to."""
    assert result.response is not None
    shown = result.response["choices"][0]["prompt_logprobs"][-count:]
    tokens = [token for entry in shown for token in entry.values()]
    return math.fsum(token["logprob"] for token in tokens), all(token["rank"] == 1 for token in tokens)


def register() -> None:
    """Make the model known to the harness as `batchgen`, where it does not know it by its entry point."""
    if "batchgen" not in model_registry:
        model_registry.register("batchgen", target=BatchgenLM)


def main() -> None:
    """The harness's command line."""
    register()
    cli_evaluate()


if __name__ == "__main__":
    main()
