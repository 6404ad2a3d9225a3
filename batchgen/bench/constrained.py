"""What constraints cost: 64 answers with a JSON schema each, against the same 64 without.

python -m batchgen.bench.constrained [--output-len N]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import orjson

from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.sampling import SamplingParams
from batchgen.core.sequence import Sequence
from batchgen.job import LoadedEngine, open_engine
from batchgen.protocol.constraints import Constraint
from batchgen.protocol.faults import RowFault
from batchgen.protocol.request import ChatPrompt
from batchgen.text.grammar import Grammars, Guide
from batchgen.text.tokenizer import end_token_ids

__all__ = ["main", "schema"]

_REQUESTS = 64
_FIELDS: SequenceOf[dict[str, Any]] = (
    {"type": "string"},
    {"type": "integer"},
    {"enum": ["one", "two", None]},
    {"type": "array", "items": {"type": "number"}},
)


def schema(number: int) -> dict[str, Any]:
    """A schema with eight fields, another for each number."""
    choose = random.Random(number)
    fields = {f"field_{number}_{field}": choose.choice(_FIELDS) for field in range(8)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def main() -> None:
    """Run both twice, in turns, and print tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--home", type=Path, required=True, help="where models are kept")
    parser.add_argument("--output-len", type=int, default=64)
    asked = parser.parse_args()
    loaded = open_engine(ModelConfig(model=asked.model), EngineConfig(max_num_seqs=_REQUESTS), asked.home)
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    grammars = Grammars(tokenizer, end_token_ids(loaded.checkpoint, tokenizer), loaded.vocab_size)
    began = time.perf_counter()
    guides = [_compiled(grammars, number) for number in range(_REQUESTS)]
    print(f"compiled {_REQUESTS} schemas in {time.perf_counter() - began:.2f} s, the start of the compiler included")
    for _ in range(2):
        free = _tokens_per_second(loaded, asked.output_len, [None] * _REQUESTS)
        constrained = _tokens_per_second(loaded, asked.output_len, guides)
        print(f"free {free:.1f} tok/s, constrained {constrained:.1f} tok/s, cost {1 - constrained / free:+.1%}")
    grammars.close()
    loaded.close()


def _compiled(grammars: Grammars, number: int) -> Callable[[], Guide]:
    made = grammars.compile(Constraint("json", orjson.dumps(schema(number)).decode(), "body.response_format"))
    assert not isinstance(made, RowFault), made
    return made


def _tokens_per_second(loaded: LoadedEngine, length: int, guides: SequenceOf[Callable[[], Guide] | None]) -> float:
    params = SamplingParams(max_tokens=length, temperature=0.7, seed=1)
    sequences = []
    for number, guide in enumerate(guides):
        text = f"Fill in record number {number} about a ship, its port and its people."
        prompt = loaded.encode_prompt(ChatPrompt(({"role": "user", "content": text},)))
        sequences.append(Sequence(number, prompt, params, guide=None if guide is None else guide()))
    began = time.perf_counter()
    for _ in loaded.engine().run(iter([sequences])):
        pass
    return sum(len(sequence.output) for sequence in sequences) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
