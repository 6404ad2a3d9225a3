"""What a run is going to meet, told before any weights are loaded."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import count, islice
from pathlib import Path
from typing import Any

from batchgen.config import EngineConfig, InputConfig, ModelConfig
from batchgen.core.bound import Work, bound_s, work_of_output
from batchgen.core.prefix_tree import PrefixTree
from batchgen.core.sequence import Sequence
from batchgen.io.readers import open_rows
from batchgen.job.calibration import known_rates
from batchgen.job.finding import find_checkpoint, model_of_run
from batchgen.model.machine import free_memory, usable_cores
from batchgen.model.precision import precisions_of
from batchgen.model.prepare import kernels_of
from batchgen.model.sizing import size_cache
from batchgen.model.spec import read_spec
from batchgen.protocol.faults import RowFault
from batchgen.protocol.parse import Parser
from batchgen.text.embedding import EmbeddingSpec
from batchgen.text.prompt import Prompter
from batchgen.text.sampling import SamplingDefaults
from batchgen.text.template import load_template
from batchgen.text.tokenizer import end_token_ids, load_tokenizer

__all__ = ["LongPrompt", "Outlook", "look_ahead"]

_LONGEST = 5


@dataclass(frozen=True, slots=True, order=True)
class LongPrompt:
    """One of the longest prompts."""

    tokens: int
    line: int
    custom_id: str


@dataclass(slots=True)
class Outlook:
    """The set and the machine."""

    model: str
    kernels: str
    precision: str
    max_num_seqs: int
    cache_bytes: int
    """What a run would set aside for keys and values."""
    rows: int = 0
    invalid_rows: int = 0
    """Rows that will be refused; `batchgen validate` says why."""
    sequences: int = 0
    """Samples of prompts."""
    prompt_tokens: int = 0
    """Of all sequences."""
    work: Work = field(default_factory=Work)
    """With every output at its limit."""
    longest: list[LongPrompt] = field(default_factory=list)
    needed_bytes: int = 0
    """Keys and values of as many of the largest sequences as can run at once, at their limits."""
    prompts_s: float | None = None
    """Seconds for the prompts alone at the machine's rates; None where it was not calibrated."""
    limit_s: float | None = None
    """Seconds with every output at its limit."""

    @property
    def sharing(self) -> float:
        """Share of the prompt tokens that is not computed, since an equal beginning is."""
        return 1 - self.work.distinct_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """The figures under plain names."""
        return {
            "model": self.model,
            "kernels": self.kernels,
            "precision": self.precision,
            "rows": self.rows,
            "invalid_rows": self.invalid_rows,
            "sequences": self.sequences,
            "prompt_tokens": self.prompt_tokens,
            "distinct_tokens": self.work.distinct_tokens,
            "sharing_percent": round(100 * self.sharing, 2),
            "max_output_tokens": self.work.sampled_tokens,
            "longest_prompts": [
                {"tokens": one.tokens, "line": one.line, "custom_id": one.custom_id} for one in self.longest
            ],
            "kv_needed_bytes": self.needed_bytes,
            "kv_cache_bytes": self.cache_bytes,
            "prompts_s": None if self.prompts_s is None else round(self.prompts_s, 1),
            "limit_s": None if self.limit_s is None else round(self.limit_s, 1),
        }


def look_ahead(source: InputConfig, model: ModelConfig, engine: EngineConfig, home: Path) -> Outlook:
    """Read the input once, a window at a time as a run does, and add up what it takes.

    Raises a `BatchgenError` where the input can't be read, or the model is not there or not one that we run.
    """
    model = replace(model, model=model_of_run(model, source))
    checkpoint = find_checkpoint(model, home)
    spec = read_spec(checkpoint.config)
    precisions = precisions_of(checkpoint, engine, spec.head_dim)
    precision = precisions.linears
    size = size_cache(spec, engine, precisions, free_memory())
    tokenizer = load_tokenizer(checkpoint)
    embedding = EmbeddingSpec(spec.hidden, checkpoint.pooling)
    prompter = Prompter(tokenizer, load_template(checkpoint), spec.vocab_size, size.max_model_len, embedding)
    ends = end_token_ids(checkpoint, tokenizer)
    sampling = SamplingDefaults(checkpoint.generation_config, ends, size.max_model_len, engine.seed)
    kernels, dtype = kernels_of(checkpoint, engine)
    label = precision if precision == "int8" else dtype
    block_bytes = engine.block_size * spec.kv_bytes_per_token(precisions.kv_cache)
    outlook = Outlook(checkpoint.name, kernels, label, size.shape.max_seqs, size.kv_bytes)

    sequences = _sequences(source, prompter, sampling, outlook)
    largest: list[int] = []
    shared_blocks = 0
    while window := list(islice(sequences, source.window)):
        tree = PrefixTree(window, engine.block_size)
        outlook.work += Work(distinct_tokens=tree.distinct_tokens, distinct_depth=tree.distinct_depth)
        shared_blocks = max(shared_blocks, *(node.blocks for node in tree.nodes()), 0)
        own = (
            -(-(len(one.prompt) + one.params.max_tokens) // engine.block_size) - tree.node_of[one.seq_id].blocks
            for one in window
        )
        largest = nlargest(size.shape.max_seqs, (*largest, *own))
    outlook.needed_bytes = (shared_blocks + sum(largest)) * block_bytes
    rates = known_rates(home, engine, kernels, label, engine.threads or usable_cores())
    if rates is not None:
        cost, prompts = spec.cost(precision), replace(outlook.work, later_tokens=0, later_depth=0, steps=1)
        outlook.prompts_s = bound_s(replace(prompts, sampled_tokens=outlook.sequences), cost, rates)
        outlook.limit_s = bound_s(outlook.work, cost, rates)
    return outlook


def _sequences(
    source: InputConfig, prompter: Prompter, sampling: SamplingDefaults, outlook: Outlook
) -> Iterator[Sequence]:
    """Each sample of each prompt that can run; what is known of a row goes into `outlook`."""
    parser, number = Parser(source.lenient), count()
    for row in open_rows(source):
        outlook.rows += 1
        request = parser.parse(row).request
        encoded = None if request is None else prompter.encode(request)
        if request is None or encoded is None or isinstance(encoded, RowFault):
            outlook.invalid_rows += 1
            continue
        lengths = [len(ids) for ids in encoded]
        longest = LongPrompt(max(lengths), row.line, request.custom_id)
        outlook.longest = nlargest(_LONGEST, (*outlook.longest, longest))
        for index, params in enumerate(sampling.resolve(request, lengths).params):
            prompt = encoded[index // request.samples]
            outlook.sequences += 1
            outlook.prompt_tokens += len(prompt)
            outlook.work += work_of_output(len(prompt), params.max_tokens)
            yield Sequence(next(number), array("I", prompt), params)
