"""Chooses tokens on the device: a row's settings go there, its token comes back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from batchgen_kernels import ops
from batchgen_kernels.triton.device.sampling import choose

__all__ = ["Sampler"]

_BLOCK = 2048


class Sampler:
    """`ops.Program.sample` on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sample(self, logits: torch.Tensor, rows: ops.SamplingRows) -> npt.NDArray[np.int32]:
        """logits [>= R, V]"""
        count = len(rows.seed)
        settings = np.stack([rows.temperature, rows.top_p, rows.min_p], axis=1, dtype=np.float32)
        low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
        position = rows.position.astype(np.uint64)
        words = np.stack([position & low, position >> high, rows.seed & low, rows.seed >> high], axis=1)
        chosen = torch.empty(count, dtype=torch.int32, device=self._device)
        if count:
            choose[(count,)](
                logits,
                self._moved(settings),
                self._moved(rows.top_k),
                self._moved(words.astype(np.uint32).view(np.int32)),
                chosen,
                logits.shape[1],
                BLOCK=_BLOCK,
                num_warps=8,
            )
        return chosen.cpu().numpy()

    def _moved(self, values: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, non_blocking=True)
