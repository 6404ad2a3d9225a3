"""The arrays of a step in fixed places of the device's memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Inputs"]


class Inputs:
    """Named int32 arrays, each with room for its largest size. What a recorded graph reads never moves.

    Copies go through pinned memory and don't wait; the next `fill` waits until they are done.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._device = {name: torch.zeros(shape, dtype=torch.int32, device=device) for name, shape in shapes.items()}
        self._host = {name: torch.zeros(shape, dtype=torch.int32, pin_memory=pinned) for name, shape in shapes.items()}
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole array on the device."""
        return self._device[name]

    def fill(self, arrays: Mapping[str, tuple[npt.NDArray[np.int32], int, int]]) -> None:
        """Write arrays: name -> (values, length, padding of the rows from len(values) up to length)."""
        if self._copied is not None:
            self._copied.synchronize()
        for name, (values, length, padding) in arrays.items():
            host = self._host[name]
            view = host.numpy()
            columns = tuple(slice(0, size) for size in values.shape[1:])
            view[(slice(0, len(values)), *columns)] = values
            view[len(values) : length] = padding
            self._device[name][:length].copy_(host[:length], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
