"""How memory and cores are shared out."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from batchgen.config import EngineConfig
from batchgen.errors import OutOfResourcesError
from batchgen.model import machine
from batchgen.model.precision import Precisions
from batchgen.model.sizing import size_cache
from batchgen.model.spec import read_spec

SPEC = read_spec(
    {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
    }
)
BLOCK = SPEC.kv_bytes_per_token("float32") * 16


def test_no_more_blocks_than_all_sequences_need() -> None:
    size = size_cache(SPEC, EngineConfig(max_num_seqs=3), Precisions(), 100 << 30)
    assert (size.max_model_len, size.shape.num_blocks, size.shape.max_blocks_per_seq) == (1024, 3 * 64, 64)
    short = size_cache(SPEC, EngineConfig(max_num_seqs=3, max_model_len=100), Precisions(), 100 << 30)
    assert (short.max_model_len, short.shape.num_blocks) == (100, 3 * 7)
    assert size_cache(SPEC, EngineConfig(max_model_len=5000), Precisions(), 100 << 30).max_model_len == 1024


def test_a_share_of_free_memory_beside_the_weights() -> None:
    smaller, larger = (
        size_cache(SPEC, EngineConfig(), Precisions(), free << 20).shape.num_blocks for free in (64, 128)
    )
    assert larger - smaller == pytest.approx(0.6 * (64 << 20) / BLOCK, abs=1)
    assert size_cache(SPEC, EngineConfig(), Precisions("int8"), 64 << 20).shape.num_blocks > smaller


def test_a_small_cache_shortens_sequences_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        size = size_cache(SPEC, EngineConfig(kv_cache_memory=10 * BLOCK + 5), Precisions(), 0)
    assert (size.shape.num_blocks, size.max_model_len) == (10, 160)
    assert "limited to 160 of 1024 tokens" in caplog.text
    assert "--kv-cache-memory" in caplog.text


@pytest.mark.parametrize("given", [None, BLOCK - 1])
def test_too_little_memory_names_the_option(given: int | None) -> None:
    with pytest.raises(OutOfResourcesError, match="--kv-cache-memory"):
        size_cache(SPEC, EngineConfig(kv_cache_memory=given), Precisions(), 1 << 20)


def test_a_step_has_room_for_each_of_its_sequences() -> None:
    shape = size_cache(SPEC, EngineConfig(max_num_seqs=64, max_num_batched_tokens=20), Precisions(), 1 << 30).shape
    assert (shape.max_seqs, shape.max_tokens) == (20, 20)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process in control group /a/b, of version 2 and of version 1's memory and cpu; no limits yet."""
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n4:memory:/a/b\n1:cpu,cpuacct:/a/b\n3:pids:/a/b\n")
    for root in ("", "memory", "cpu,cpuacct"):
        (tmp_path / root / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_MEMBERSHIP", membership)
    return tmp_path


def test_without_limits_the_machine_is_the_limit(groups: Path) -> None:
    (groups / "a" / "memory.max").write_text("max\n")
    (groups / "a" / "cpu.max").write_text("max 100000\n")
    (groups / "cpu,cpuacct" / "a" / "cpu.cfs_quota_us").write_text("-1\n")
    assert machine.usable_cores() == len(os.sched_getaffinity(0))
    assert 0 < machine.free_memory() <= psutil.virtual_memory().total


def test_the_tightest_group_counts(groups: Path) -> None:
    (groups / "a" / "memory.max").write_text("9000\n")
    (groups / "a" / "memory.current").write_text("5000\n")
    (groups / "a" / "memory.stat").write_text("anon 4000\ninactive_file 700\n")
    (groups / "a" / "b" / "memory.max").write_text("8000\n")
    (groups / "a" / "b" / "memory.current").write_text("1000\n")
    (groups / "a" / "b" / "cpu.max").write_text("50000 100000\n")
    assert machine.free_memory() == 9000 - 5000 + 700
    assert machine.usable_cores() == 1


def test_groups_of_version_1(groups: Path) -> None:
    memory, cpu = groups / "memory" / "a", groups / "cpu,cpuacct"
    (memory / "memory.limit_in_bytes").write_text("9000\n")
    (memory / "memory.usage_in_bytes").write_text("9500\n")
    (cpu / "cpu.cfs_quota_us").write_text("100000\n")
    (cpu / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.free_memory() == 0
    assert machine.usable_cores() == 1
