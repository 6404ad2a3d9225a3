"""What a machine reaches is kept by the kind of kernels and of machine that was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from batchgen.config import EngineConfig
from batchgen.job import calibration as kept
from batchgen.job.calibration import calibrate, known_rates
from batchgen.model import calibration
from batchgen.model.prepare import kernels_of
from batchgen.model.runner import load_runner
from batchgen_kernels.ops import Shape
from tests.golden.models import make_model, save_checkpoint


def test_triton_rates_are_those_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small, under the interpreter: by the names that a runner and a plan ask for."""
    monkeypatch.setattr(calibration, "_SECONDS", 1e-4)
    monkeypatch.setattr(calibration, "_WEIGHTS", 1)
    monkeypatch.setattr(calibration, "_CPU", calibration._Sizes(64, 64, (16,), 32, 16, 2, 1, 64))
    config = EngineConfig(
        device="cpu", kernels="triton", threads=1, max_num_seqs=1, max_num_batched_tokens=4, block_size=4,
        max_model_len=8, kv_cache_memory=1 << 20,
    )  # fmt: skip
    lines = list(calibrate(config, tmp_path))
    assert [line.split(":")[0] for line in lines] == ["float32", "int8"]

    checkpoint = save_checkpoint(make_model("qwen2"), tmp_path / "model")
    runner = load_runner(checkpoint, config)
    assert kernels_of(checkpoint, config) == (runner.kernels_name, runner.precision)
    rates = known_rates(tmp_path, config, runner.kernels_name, runner.precision, runner.threads)
    assert rates is not None
    assert min(rates.linear, rates.attention, rates.bandwidth) > 0
    assert known_rates(tmp_path, config, runner.kernels_name, "int8", runner.threads) not in (None, rates)

    monkeypatch.setattr(kept, "gpu_name", lambda _: "another device")
    assert known_rates(tmp_path, config, runner.kernels_name, runner.precision, runner.threads) is None
    runner.close()


def test_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's program returns before it is done: what is timed has to include the wait."""
    waits = []
    monkeypatch.setattr(calibration, "_SECONDS", 1e-9)
    bench = calibration._bench(EngineConfig(device="cpu", kernels="torch", threads=1))
    program, _ = bench.open(Shape(16, 1, 1, 16, 1))
    waiting = calibration._Bench(bench.sizes, torch.float32, bench.open, lambda: waits.append(len(waits)))
    assert waiting._best(program, calibration._batch(0, 1)) > 0
    assert len(waits) == 2
