"""What a GPU reaches, in a few minutes: `make test-gpu`, after the kernels' tests.

    python kernels/bench/gpu.py [--chat REQUESTS.jsonl] [--rehearse]

Prints the rates of a large matrix product and of a copy, the bandwidth of decode attention, whether a request's tokens
depend on its company, and tokens a second of three workloads: W1 (64 requests, 256 tokens in, 128 out), chats from a
file, and a dummy model of Llama 3 8B's shape with the share of the product's rate that its linears reach and the time
of each op. Models are dummies of SmolLM2's and Llama's shapes: nothing is downloaded. A part that fails is told, and
the others are measured all the same.

`--rehearse` does all of it in small on the CPU, under Triton's interpreter (TRITON_INTERPRET=1): for the code, not for
figures.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from batchgen.bench.datasets import BenchRequest, DatasetConfig, load_dataset
from batchgen.bench.throughput import Throughput, measure
from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.sampling import SamplingParams
from batchgen.job import LoadedEngine, open_engine
from batchgen.protocol.request import ChatPrompt, Prompt
from batchgen.ui.reporters import QuietReporter
from batchgen_kernels.ops import Batch
from batchgen_kernels.triton import launch
from batchgen_kernels.triton.plan import AttentionLimits, plan_attention
from batchgen_kernels.triton.storage import KVCache

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
}
SMOLLM2_135M: dict[str, Any] = LLAMA_8B | {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}
TINY: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@dataclass(frozen=True)
class Scale:
    """How much is measured, and where."""

    device: torch.device
    engine: EngineConfig
    shrink: dict[str, Any]
    """What the models have less of."""
    product: int
    copied: int
    contexts: tuple[tuple[int, int], ...]
    """(sequences, positions) of decode attention."""
    requests: tuple[int, int]
    """Of the small and of the large model, with `lengths` tokens in and out."""
    lengths: tuple[int, int]


FULL = Scale(
    device=torch.device("cuda", 0),
    engine=EngineConfig(device="cuda", max_num_seqs=256, max_num_batched_tokens=8192),
    shrink={},
    product=8192,
    copied=1 << 30,
    contexts=((256, 1024), (64, 4096), (2, 32_768)),
    requests=(64, 1000),
    lengths=(256, 128),
)
REHEARSAL = Scale(
    device=torch.device("cpu"),
    engine=EngineConfig(
        device="cpu", kernels="triton", max_num_seqs=4, max_num_batched_tokens=32, kv_cache_memory=1 << 20
    ),
    shrink=TINY,
    product=64,
    copied=1 << 10,
    contexts=((3, 40),),
    requests=(2, 3),
    lengths=(8, 3),
)


def seconds(work: Callable[[], object], device: torch.device, times: int = 20) -> float:
    """Of one call, after a first one."""
    work()
    if device.type == "cpu":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / times


def product_rate(scale: Scale) -> float:
    """Operations a second of a large bfloat16 product."""
    size = scale.product
    a, b = (torch.randn(size, size, device=scale.device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, scale.device)


def copy_rate(scale: Scale) -> float:
    """Bytes a second, read and written, of a large copy."""
    a, b = (torch.empty(scale.copied, device=scale.device, dtype=torch.uint8) for _ in range(2))
    return 2 * a.numel() / seconds(lambda: b.copy_(a), scale.device)


def decode_attention(sequences: int, context: int, device: torch.device) -> float:
    """Bytes of keys and values a second that decode attention reads: 32 heads over 8 of 128, bfloat16."""
    heads, kv_heads, head_dim, block = 32, 8, 128, 16
    blocks = -(-context // block)
    lengths = np.full(sequences, context, dtype=np.int32)
    batch = Batch(
        tokens=lengths,
        positions=lengths - np.int32(1),
        slots=lengths,
        query_start=np.arange(sequences + 1, dtype=np.int32),
        context_lens=lengths,
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        rows=lengths[:0],
    )
    slots = sequences * blocks * block
    cache = KVCache(*(torch.randn(slots, kv_heads, head_dim, device=device).bfloat16() for _ in range(2)))
    qkv = torch.randn(sequences, (heads + 2 * kv_heads) * head_dim, device=device).bfloat16()
    out = torch.empty(sequences, heads * head_dim, device=device, dtype=torch.bfloat16)
    partials = (torch.empty(4096, heads * head_dim, device=device), torch.empty(4096, heads, 2, device=device))
    processors = 4
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    tile = launch.attention_tile(cache, qkv.dtype).rows // (heads // kv_heads)
    limits = AttentionLimits(launch.SPLIT, tile, block, None, 10_000, 4096, -(-2 * processors // kv_heads))
    plan = plan_attention(batch, limits)
    moved = [
        torch.from_numpy(array).to(device)
        for array in (batch.positions, batch.block_tables, plan.items, plan.partial_base, plan.merges)
    ]
    arrays = launch.AttentionArrays(*moved)
    scale = 1 / math.sqrt(head_dim)
    once = seconds(lambda: launch.attention(qkv, cache, out, partials, arrays, scale, None, block), device)
    return sequences * context * 2 * kv_heads * head_dim * 2 / once


def decode_rates(scale: Scale) -> None:
    for sequences, context in scale.contexts:
        rate = decode_attention(sequences, context, scale.device) / 1e9
        print(f"decode attention, {sequences} sequences at {context}: {rate:.0f} GB/s", flush=True)


@contextmanager
def dummy(scale: Scale, config: dict[str, Any], **settings: Any) -> Iterator[LoadedEngine]:
    """A model of that shape with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config | scale.shrink), encoding="utf-8")
        model = ModelConfig(model=folder, load_format="dummy")
        began = time.perf_counter()
        engine = open_engine(model, replace(scale.engine, **settings), Path(folder))
    print(f"loaded in {time.perf_counter() - began:.0f} s: {engine.describe()}", flush=True)
    try:
        yield engine
    finally:
        engine.close()
        if scale.device.type == "cuda":
            torch.cuda.empty_cache()


def invariance(engine: LoadedEngine, name: str, length: int) -> None:
    """Whether prompts have the same tokens alone and together."""
    prompts = [[100 + i + p % 150 for p in range(length + 7 * i)] for i in range(8)]
    params = [SamplingParams(max_tokens=length // 8, temperature=0.0)] * len(prompts)
    together = {s.seq_id: s.output for s in engine.generate(prompts, params)}
    alone = [next(iter(engine.generate([prompt], params[:1]))).output for prompt in prompts]
    equal = sum(together[i] == output for i, output in enumerate(alone))
    print(f"the same tokens alone and together, {name}: {equal} of {len(prompts)}", flush=True)


def workload(engine: LoadedEngine, name: str, requests: list[BenchRequest]) -> Throughput:
    """Measured the second time: the first one compiles kernels and records graphs."""
    first, result = (measure(engine, requests, QuietReporter()) for _ in range(2))
    print(f"{name}: {result.lines()[0]}; {result.elapsed_s:.2f} s, the first time {first.elapsed_s:.2f} s", flush=True)
    return result


def random_requests(engine: LoadedEngine, count: int, lengths: tuple[int, int]) -> list[BenchRequest]:
    dataset = DatasetConfig(num_prompts=count, input_len=lengths[0], output_len=lengths[1])
    return load_dataset(dataset, vocab_size=engine.vocab_size, encode=None, seed=0)


def pieces(vocab_size: int, prompt: Prompt) -> list[int]:
    """Four characters a token, as a tokenizer has them on average: equal beginnings stay equal."""
    text = json.dumps(prompt.messages if isinstance(prompt, ChatPrompt) else str(prompt), ensure_ascii=False)
    return [crc32(text[i : i + 4].encode()) % vocab_size for i in range(0, len(text), 4)]


def small_model(scale: Scale, chat: Path | None) -> None:
    """W1, chats and batch invariance on SmolLM2's shape."""
    for settings in ({}, {"quantization": "int8"}, {"quantization": "int8", "kv_cache_dtype": "int8"}):
        # Of the memory a part: what is kept for keys and values is no matter here.
        with dummy(scale, SMOLLM2_135M, kv_cache_memory=scale.engine.kv_cache_memory or 8 << 30, **settings) as engine:
            name = (
                f"{engine.runner.kernels_name}, linears {engine.runner.precision}, cache {engine.runner.kv_precision}"
            )
            invariance(engine, name, scale.lengths[0])
            workload(engine, f"W1, {name}", random_requests(engine, scale.requests[0], scale.lengths))
            if chat is not None:
                dataset = DatasetConfig(dataset_name="custom", dataset_path=chat)
                vocab = engine.vocab_size
                prompts = load_dataset(dataset, vocab_size=vocab, encode=partial(pieces, vocab), seed=0)
                workload(engine, f"chats, {name}", prompts)


def large_model(scale: Scale, peak: float) -> None:
    """1,000 requests on a dummy of 8B parameters, then the profile of a part of them."""
    shape = LLAMA_8B | scale.shrink
    hidden, kv_width = shape["hidden_size"], shape["hidden_size"] // shape["num_attention_heads"]
    kv_width *= shape["num_key_value_heads"]
    layer = hidden * (hidden + 2 * kv_width) + hidden * hidden + 3 * hidden * shape["intermediate_size"]
    with dummy(scale, LLAMA_8B) as engine:
        requests = random_requests(engine, scale.requests[1], scale.lengths)
        result = workload(engine, "8B bfloat16", requests)
        computed = result.prompt_tokens - result.cached_tokens + result.output_tokens
        operations = 2 * shape["num_hidden_layers"] * layer * computed
        operations += 2 * hidden * shape["vocab_size"] * result.output_tokens
        print(f"8B: linears at {operations / result.elapsed_s / peak:.0%} of the product's rate", flush=True)
        on_cuda = scale.device.type == "cuda"
        activity = torch.profiler.ProfilerActivity.CUDA if on_cuda else torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[activity]) as profile:
            measure(engine, [replace(request, output_len=2) for request in requests[:256]], QuietReporter())
        print(profile.key_averages().table(sort_by=f"self_{activity.name.lower()}_time_total", row_limit=20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chat", type=Path, help="requests in batch form")
    parser.add_argument("--rehearse", action="store_true", help="in small, on the CPU")
    arguments = parser.parse_args()
    scale = REHEARSAL if arguments.rehearse else FULL
    name = "rehearsal" if arguments.rehearse else torch.cuda.get_device_name(scale.device)
    peak = product_rate(scale)
    print(f"{name}, torch {torch.__version__}")
    print(f"bfloat16 product {peak / 1e12:.0f} TFLOP/s, copy {copy_rate(scale) / 1e9:.0f} GB/s", flush=True)
    parts = (
        lambda: decode_rates(scale),
        lambda: large_model(scale, peak),
        lambda: small_model(scale, arguments.chat),
    )
    failed = 0
    for part in parts:
        try:
            part()
        except Exception:  # noqa: BLE001 - there may be no second try
            failed += 1
            traceback.print_exc()
    sys.exit(failed)


if __name__ == "__main__":
    main()
