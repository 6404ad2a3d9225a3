"""What a GPU reaches, in a few minutes: `make test-gpu`, after the kernels' tests.

    python kernels/bench/gpu.py [--chat REQUESTS.jsonl]

Prints the rates of a large matrix product and of a copy, the bandwidth of decode attention, whether a request's tokens
depend on its company, and tokens a second of three workloads: W1 (64 requests, 256 tokens in, 128 out), chats from a
file, and a dummy model of Llama 3 8B's shape with the share of the product's rate that its linears reach and the time
of each op.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from batchgen.bench.datasets import BenchRequest, DatasetConfig, load_dataset
from batchgen.bench.throughput import Throughput, measure
from batchgen.cli.environment import home
from batchgen.config import EngineConfig, ModelConfig
from batchgen.core.sampling import SamplingParams
from batchgen.job import LoadedEngine, open_engine
from batchgen.ui.reporters import QuietReporter
from batchgen_kernels.ops import Batch
from batchgen_kernels.triton import launch
from batchgen_kernels.triton.plan import AttentionLimits, plan_attention
from batchgen_kernels.triton.storage import KVCache

DEVICE = torch.device("cuda", 0)
ENGINE = EngineConfig(device="cuda", max_num_seqs=256, max_num_batched_tokens=8192)
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
LAYER_WEIGHTS = 32 * (4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14_336)
HEAD_WEIGHTS = 128_256 * 4096


def seconds(work: Callable[[], object], times: int = 20) -> float:
    """Of one call, after a first one."""
    work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / times


def product_rate() -> float:
    """Operations a second of a large bfloat16 product."""
    size = 8192
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b)


def copy_rate() -> float:
    """Bytes a second, read and written, of a large copy."""
    a, b = (torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8) for _ in range(2))
    return 2 * a.numel() / seconds(lambda: b.copy_(a))


def decode_attention(sequences: int, context: int) -> float:
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
    cache = KVCache(*(torch.randn(slots, kv_heads, head_dim, device=DEVICE).bfloat16() for _ in range(2)))
    qkv = torch.randn(sequences, (heads + 2 * kv_heads) * head_dim, device=DEVICE).bfloat16()
    out = torch.empty(sequences, heads * head_dim, device=DEVICE, dtype=torch.bfloat16)
    partials = (torch.empty(4096, heads * head_dim, device=DEVICE), torch.empty(4096, heads, 2, device=DEVICE))
    processors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    tile = launch.attention_tile(cache, qkv.dtype).rows // (heads // kv_heads)
    limits = AttentionLimits(launch.SPLIT, tile, block, None, 10_000, 4096, -(-2 * processors // kv_heads))
    plan = plan_attention(batch, limits)
    moved = [
        torch.from_numpy(array).to(DEVICE)
        for array in (batch.positions, batch.block_tables, plan.items, plan.partial_base, plan.merges)
    ]
    arrays = launch.AttentionArrays(*moved)
    scale = 1 / math.sqrt(head_dim)
    once = seconds(lambda: launch.attention(qkv, cache, out, partials, arrays, scale, None, block))
    return sequences * context * 2 * kv_heads * head_dim * 2 / once


def invariance(engine: LoadedEngine, name: str) -> None:
    """Whether prompts have the same tokens alone and together."""
    prompts = [list(range(100 + i, 400 + 7 * i)) for i in range(8)]
    params = [SamplingParams(max_tokens=32, temperature=0.0)] * len(prompts)
    together = {s.seq_id: s.output for s in engine.generate(prompts, params)}
    alone = [next(iter(engine.generate([prompt], params[:1]))).output for prompt in prompts]
    equal = sum(together[i] == output for i, output in enumerate(alone))
    print(f"the same tokens alone and together, {name}: {equal} of {len(prompts)}", flush=True)


def workload(engine: LoadedEngine, name: str, requests: list[BenchRequest]) -> Throughput:
    began = time.perf_counter()
    result = measure(engine, requests, QuietReporter())
    print(f"{name}: {result.lines()[0]}; {result.elapsed_s:.1f} s, {time.perf_counter() - began:.1f} s with warm-up")
    return result


def random_requests(engine: LoadedEngine, count: int) -> list[BenchRequest]:
    dataset = DatasetConfig(num_prompts=count, input_len=256, output_len=128)
    return load_dataset(dataset, vocab_size=engine.vocab_size, encode=None, seed=0)


def small_model(chat: Path | None) -> None:
    """W1, chats and batch invariance on the embedded model."""
    for quantization in ("none", "int8"):
        engine = open_engine(ModelConfig(), replace(ENGINE, quantization=quantization), home())
        name = f"{engine.runner.kernels_name}, linears {engine.runner.precision}"
        invariance(engine, name)
        workload(engine, f"W1, {name}", random_requests(engine, 64))
        if chat is not None:
            dataset = DatasetConfig(dataset_name="custom", dataset_path=chat)
            prompts = load_dataset(dataset, vocab_size=engine.vocab_size, encode=engine.encode_prompt, seed=0)
            workload(engine, f"chats, {name}", prompts)
        engine.close()


def large_model(peak: float) -> None:
    """1,000 requests on a dummy of 8B parameters, then the profile of a part of them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")
        began = time.perf_counter()
        engine = open_engine(ModelConfig(model=folder, load_format="dummy"), ENGINE, home())
        print(f"8B: loaded in {time.perf_counter() - began:.0f} s; {engine.describe()}", flush=True)
    requests = random_requests(engine, 1000)
    result = workload(engine, "8B bfloat16", requests)
    computed = result.prompt_tokens - result.cached_tokens + result.output_tokens
    operations = 2 * LAYER_WEIGHTS * computed + 2 * HEAD_WEIGHTS * result.output_tokens
    print(f"8B: linears at {operations / result.elapsed_s / peak:.0%} of the product's rate", flush=True)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        measure(engine, [replace(request, output_len=8) for request in requests[:256]], QuietReporter())
    print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=20))
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chat", type=Path, help="requests in batch form")
    arguments = parser.parse_args()
    peak = product_rate()
    print(f"{torch.cuda.get_device_name(DEVICE)}, torch {torch.__version__}")
    print(f"bfloat16 product {peak / 1e12:.0f} TFLOP/s, copy {copy_rate() / 1e9:.0f} GB/s")
    for sequences, context in ((256, 1024), (64, 4096), (2, 32_768)):
        rate = decode_attention(sequences, context) / 1e9
        print(f"decode attention, {sequences} sequences at {context}: {rate:.0f} GB/s", flush=True)
    small_model(arguments.chat)
    large_model(peak)


if __name__ == "__main__":
    main()
