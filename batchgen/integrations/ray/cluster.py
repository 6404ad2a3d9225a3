"""The Ray cluster, and what each worker gets of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchgen.config import EngineConfig
from batchgen.errors import UsageError

__all__ = ["Share", "connect", "nodes", "share_of", "with_ray"]

_logger = logging.getLogger(__name__)

_KV_SHARE = 0.5
"""Of a worker's part of the memory, where several share that of a node."""


@dataclass(frozen=True, slots=True)
class Share:
    """What of a cluster is one worker's."""

    workers: int
    """How many there are."""
    cpus: int
    gpus: int
    settings: Mapping[str, Any]
    """Of the engine, which else would take the whole node to be its own."""


def with_ray() -> Any:
    """The package. Raises `UsageError` where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"Ray is not installed ({error}); install it with: pip install 'batchgen[ray]'") from error
    return ray


def connect(address: str | None) -> bool:
    """Connect to the cluster at `address`; None: to the one that Ray finds, else start one on this machine. False where
    this process was connected before.

    Raises `UsageError` where none answers.
    """
    ray = with_ray()
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="batchgen")
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise UsageError(f"--ray-address {address}: no Ray cluster answers there: {error}") from error
    return True


def nodes() -> list[Mapping[str, float]]:
    """Resources of every node that can run something."""
    alive = [node["Resources"] for node in with_ray().nodes() if node["Alive"]]
    return [resources for resources in alive if resources.get("CPU", 0) >= 1]


def share_of(resources: Sequence[Mapping[str, float]], engine: EngineConfig, workers: int | None) -> Share:
    """What a worker gets where `workers` of them run on nodes with such resources; None: one for each GPU, or each node
    where none is used.

    Raises `UsageError` where there is nothing to run on.
    """
    if not resources:
        raise UsageError("the Ray cluster has no node with a CPU to compute with")
    gpus = 0 if engine.device == "cpu" else int(sum(node.get("GPU", 0) for node in resources))
    each_gpus = engine.tensor_parallel_size if gpus else 0
    number = workers or (max(1, gpus // each_gpus) if gpus else len(resources))
    neighbours = -(-number // len(resources))
    cpus = engine.threads or (1 if gpus else max(1, int(min(node["CPU"] for node in resources)) // neighbours))
    total = int(sum(node["CPU"] for node in resources))
    if number * cpus > total:
        _logger.warning(
            "%d workers with %d CPUs each need more than the %d CPUs of the Ray cluster; those that find no place wait "
            "for nodes to join",
            number,
            cpus,
            total,
        )
    settings: dict[str, Any] = {} if gpus else {"threads": cpus}
    if not gpus and neighbours > 1 and engine.kv_cache_memory is None:
        memory = min(node.get("memory", 0) for node in resources)
        settings["kv_cache_memory"] = int(_KV_SHARE * memory) // neighbours
    return Share(number, cpus, each_gpus, settings)
