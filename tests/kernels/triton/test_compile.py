"""Every kernel compiles for a GPU, ahead of time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_kernels_compile_for_sm_90(tmp_path: Path) -> None:
    """Down to machine code. In a process of its own: here the kernels are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "kernels")}
    command = [sys.executable, "kernels/bench/triton_report.py", "--sm", "90", "--head-dim", "128", "--one-each"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    kernels = {"take_rows", "norm", "gated", "rotate_store", "attend", "merge"}
    kernels |= {"rotate_store_int8", "rotate", "quantize", "linear_int8"}
    sampling = {"choose", "mask_rows", "add_bias", "penalise", "logprobs"}
    assert {line[0] for line in lines} == kernels | sampling
    assert all(0 < int(registers) <= 255 and int(shared) < 160 << 10 for _, _, registers, _, shared, *_ in lines)
