"""On what the model is computed, and in what type."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from types import MappingProxyType

import torch

from batchgen.checkpoint.types import Checkpoint
from batchgen.config import EngineConfig
from batchgen.errors import UsageError

__all__ = ["choose_device", "choose_dtype", "gpu_name", "own_dtype", "stored_dtype"]

_logger = logging.getLogger(__name__)

_TYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "float32": torch.float32,
        "float": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "half": torch.float16,
    }
)


def choose_device(config: EngineConfig) -> torch.device:
    """The device of the settings. `auto` is the first GPU where everything that it needs is there, else the CPU.

    Raises `UsageError`, saying what is missing, for `cuda` without it, and for kernels that the device can't run.
    """
    cpu_only = config.kernels in {"native", "torch"}
    if config.device == "cuda":
        if cpu_only:
            raise UsageError(f"--kernels {config.kernels} computes on the CPU; with --device cuda use auto or triton")
        if missing := _missing():
            raise UsageError(f"--device cuda: {missing}")
        return _gpu(config)
    if config.device == "cpu" or cpu_only or not torch.cuda.is_available():
        return torch.device("cpu")
    if missing := _missing():
        _logger.warning("the GPU is not used: %s", missing)
        return torch.device("cpu")
    return _gpu(config)


def gpu_name(config: EngineConfig) -> str | None:
    """The maker's name of the GPU that computes; None where the CPU does."""
    device = choose_device(config)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _gpu(config: EngineConfig) -> torch.device:
    count = torch.cuda.device_count()
    if config.tensor_parallel_size > count:
        raise UsageError(f"--tensor-parallel-size {config.tensor_parallel_size}: this machine has {count} GPU(s)")
    return torch.device("cuda", 0)


def _missing() -> str | None:
    """What a GPU needs and this installation or machine has not."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for the CPU alone; install one for CUDA or ROCm"
    if not torch.cuda.is_available():
        return "torch finds no GPU; is there one, and its driver?"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; install batchgen[gpu]"
    return None


def choose_dtype(checkpoint: Checkpoint, config: EngineConfig, device: torch.device) -> torch.dtype:
    """The type of activations, keys and values, and of weights that are not quantised.

    `auto` is float32 on the CPU, and on a GPU the type that the checkpoint is stored in, bfloat16 where it has none.
    Raises `UsageError` for another type than float32 on the CPU's own kernels.
    """
    if config.dtype != "auto":
        dtype = _TYPES[config.dtype]
        if device.type == "cpu" and config.kernels != "triton" and dtype is not torch.float32:
            raise UsageError(
                f"--dtype {config.dtype}: the CPU computes in float32, also with weights that are stored in 16 bits; "
                "use auto or float32"
            )
        return dtype
    return own_dtype(device, stored_dtype(checkpoint) or torch.bfloat16)


def own_dtype(device: torch.device, stored: torch.dtype = torch.bfloat16) -> torch.dtype:
    """The type that a device computes in, unless it is told otherwise, where a checkpoint is stored in that one."""
    if device.type == "cpu":
        return torch.float32
    old = stored is torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if old else stored


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """The type that the configuration names, on either of its levels."""
    levels = (checkpoint.config, checkpoint.config.get("text_config", {}))
    named = [str(level.get(key)) for level in levels for key in ("dtype", "torch_dtype")]
    return next((_TYPES[name] for name in named if name in _TYPES), None)
