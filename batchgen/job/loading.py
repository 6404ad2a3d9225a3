"""A model, ready to run."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.bound import Work, bound_s
from batchgen.core.kv_manager import KVManager
from batchgen.core.prefix_index import PrefixIndex
from batchgen.core.sampling import SamplingParams
from batchgen.core.scheduler import Scheduler
from batchgen.core.sequence import Sequence
from batchgen.core.step import Capacity, ModelRunner
from batchgen.engine import Engine
from batchgen.errors import OutOfResourcesError, UsageError
from batchgen.job.calibration import known_rates
from batchgen.job.finding import find_checkpoint
from batchgen.model.device import gpu_name
from batchgen.model.machine import cpu_name, total_memory, usable_cores
from batchgen.model.runner import Runner, load_runner
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import ChatPrompt, Endpoint, GenRequest, Prompt
from batchgen.text.embedding import EmbeddingSpec
from batchgen.text.prompt import Prompter
from batchgen.text.template import load_template
from batchgen.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["LoadedEngine", "load_engine", "open_engine"]

_WINDOW = 16_384


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine with its model. `close` gives its memory back."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    prompter: Prompter
    runner: Runner
    config: EngineConfig

    @property
    def vocab_size(self) -> int:
        """Token ids are [0, vocab_size)."""
        return self.runner.vocab_size

    def encode_prompt(self, prompt: Prompt) -> SequenceOf[int]:
        """Token ids of one prompt. Raises `UsageError` where it can't be encoded."""
        endpoint = Endpoint.CHAT if isinstance(prompt, ChatPrompt) else Endpoint.COMPLETIONS
        encoded = self.prompter.encode(
            GenRequest(custom_id="", line=1, endpoint=endpoint, model=None, prompts=(prompt,))
        )
        if isinstance(encoded, RowFault):
            raise UsageError(encoded.message)
        return encoded[0]

    def cache(self) -> KVManager:
        """The books of an empty cache."""
        return self._cache(self.runner.capacity)

    def engine(self, runner: ModelRunner | None = None, cache: KVManager | None = None) -> Engine:
        """An engine with nothing queued, over the runner or what is given to stand for it.

        `cache`: that of an engine whose run came to its end, so that what it holds is found again; None: an empty one.
        """
        return Engine(Scheduler(self.runner.capacity, cache or self.cache()), runner or self.runner)

    def _cache(self, capacity: Capacity) -> KVManager:
        index = PrefixIndex() if self.config.enable_prefix_caching else None
        return KVManager(capacity.num_blocks, capacity.block_size, index)

    def generate(
        self,
        prompts: Iterable[SequenceOf[int]],
        params: Iterable[SamplingParams],
        *,
        max_num_seqs: int | None = None,
    ) -> Iterator[Sequence]:
        """Run prompts of token ids; yield each sequence when it is finished, numbered in the order given.

        With `max_num_seqs` as an engine would that was loaded with this limit: fewer sequences in a step, and blocks
        for no more of them. Raises `OutOfResourcesError` for a sequence that the whole cache can't hold.
        """
        sequences = (Sequence(i, p, s) for i, (p, s) in enumerate(zip(prompts, params, strict=True)))
        capacity = self.capacity(max_num_seqs)
        engine = Engine(Scheduler(capacity, self._cache(capacity)), self.runner)
        for outcomes in engine.run(iter(lambda: list(islice(sequences, _WINDOW)), [])):
            for outcome in outcomes:
                if not isinstance(outcome, Sequence):
                    raise OutOfResourcesError(
                        f"sequence {outcome.sequence.seq_id} needs {outcome.blocks_needed} blocks of the KV cache, "
                        f"which has {outcome.blocks_available}; raise --kv-cache-memory or shorten it"
                    )
                yield outcome

    def capacity(self, max_num_seqs: int | None) -> Capacity:
        """What the runner has room for, and what an engine would have that was loaded with this limit."""
        capacity = self.runner.capacity
        if max_num_seqs is None or max_num_seqs >= capacity.max_num_seqs:
            return capacity
        blocks = max_num_seqs * -(-self.runner.max_model_len // capacity.block_size)
        return replace(capacity, max_num_seqs=max_num_seqs, num_blocks=min(capacity.num_blocks, blocks))

    def bound_s(self, work: Work, home: Path) -> float | None:
        """The least time that the work takes on this machine, by the rates kept in `home`; None without any."""
        runner = self.runner
        rates = known_rates(home, self.config, runner.kernels_name, runner.precision, runner.threads)
        return None if rates is None else bound_s(work, runner.cost, rates)

    def describe(self) -> dict[str, Any]:
        """What runs, for reports."""
        capacity = self.runner.capacity
        return {
            "model": self.checkpoint.name,
            "kernels": self.runner.kernels_name,
            "precision": self.runner.precision,
            "kv_cache_dtype": self.runner.kv_precision,
            "kv_cache_bytes": self.runner.kv_bytes,
            "num_blocks": capacity.num_blocks,
            "block_size": capacity.block_size,
            "max_num_seqs": capacity.max_num_seqs,
            "max_num_batched_tokens": capacity.max_num_batched_tokens,
            "max_model_len": self.runner.max_model_len,
        }

    def machine(self) -> dict[str, Any]:
        """Where it runs, for reports and for figures that are kept."""
        return {
            "cpu": cpu_name(),
            "cores": usable_cores(),
            "threads": self.runner.threads,
            "memory_gib": round(total_memory() / 2**30),
            "gpu": gpu_name(self.config),
            "system": platform.platform(),
            "python": platform.python_version(),
        }

    def facts(self) -> dict[str, Any]:
        """What answers depend on and is known only now."""
        return {
            "precision": self.runner.precision,
            "kv_cache": self.runner.kv_precision,
            "kernels": self.runner.kernels_name,
            "max_model_len": self.runner.max_model_len,
        }

    def close(self) -> None:
        """Give back weights, keys and values."""
        self.runner.close()


def load_engine(checkpoint: Checkpoint, config: EngineConfig) -> LoadedEngine:
    """Load a checkpoint's tokenizer and weights."""
    tokenizer, runner = load_tokenizer(checkpoint), load_runner(checkpoint, config)
    embedding = EmbeddingSpec(runner.hidden_size, checkpoint.pooling)
    prompter = Prompter(tokenizer, load_template(checkpoint), runner.vocab_size, runner.max_model_len, embedding)
    return LoadedEngine(checkpoint, tokenizer, prompter, runner, config)


def open_engine(model: ModelConfig, config: EngineConfig, home: Path) -> LoadedEngine:
    """Find and load a model."""
    return load_engine(find_checkpoint(model, home), config)
