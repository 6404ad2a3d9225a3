"""Chooses tokens and reads log-probabilities on the device: settings go there, tokens come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from batchgen_kernels import ops
from batchgen_kernels.triton.device import sampling as kernels

__all__ = ["Sampler"]

_BLOCK = 2048
_WARPS = 8


class Sampler:
    """`ops.Program.sample` and `ops.Program.logprobs` on one device."""

    def __init__(self, device: torch.device, max_rows: int) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self.chosen = torch.zeros(max_rows, dtype=torch.int32, device=device)
        """The tokens that were chosen last."""

    def begin(self, logits: torch.Tensor, rows: ops.SamplingRows) -> Callable[[], npt.NDArray[np.int32]]:
        """logits [>= R, V]"""
        count, vocab = len(rows.seed), logits.shape[1]
        if not count:
            return lambda: np.zeros(0, dtype=np.int32)
        settings = np.stack([rows.temperature, rows.top_p, rows.min_p], axis=1, dtype=np.float32)
        low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
        position = rows.position.astype(np.uint64)
        words = np.stack([position & low, position >> high, rows.seed & low, rows.seed >> high], axis=1)
        fallbacks = np.zeros(count, dtype=np.int32)
        if rows.changes is not None:
            logits = self._changed(logits, rows.changes, count)
            fallbacks = _lowest_allowed(rows.changes)
        kernels.choose[(count,)](
            logits,
            self._moved(settings),
            self._moved(rows.top_k),
            self._moved(words.astype(np.uint32).view(np.int32)),
            self._moved(fallbacks),
            self.chosen,
            vocab,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
        host = torch.empty(count, dtype=torch.int32, pin_memory=self._pinned)
        host.copy_(self.chosen[:count], non_blocking=True)
        if not self._pinned:
            return host.numpy
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

        def chosen() -> npt.NDArray[np.int32]:
            copied.synchronize()
            return host.numpy()

        return chosen

    def logprobs(self, logits: torch.Tensor, rows: ops.LogprobRows) -> ops.Logprobs:
        """logits [rows, V]"""
        size = (len(rows.row), rows.top + 1)
        values = torch.empty(size, dtype=torch.float32, device=self._device)
        ids = torch.empty(size, dtype=torch.int32, device=self._device)
        if len(rows.row):
            kernels.logprobs[(len(rows.row),)](
                logits,
                self._moved(rows.row),
                self._moved(rows.token),
                values,
                ids,
                rows.top,
                logits.shape[1],
                BLOCK=_BLOCK,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )
        floats, ints = values.cpu().numpy(), ids.cpu().numpy()
        return ops.Logprobs(floats[:, 0], ints[:, 0], ints[:, 1:], floats[:, 1:])

    def _changed(self, logits: torch.Tensor, changes: ops.LogitChanges, count: int) -> torch.Tensor:
        """[count, V] float32: the logits with masks, bias and penalties."""
        vocab = logits.shape[1]
        out = torch.empty((count, vocab), dtype=torch.float32, device=self._device)
        kernels.mask_rows[(count, triton.cdiv(vocab, _BLOCK))](
            logits,
            self._moved(changes.mask_of),
            self._moved(changes.masks.view(np.int32)),
            out,
            vocab,
            changes.masks.shape[1],
            BLOCK=_BLOCK,
            enable_fp_fusion=False,
        )
        bias = (changes.bias_start, changes.bias_ids, changes.bias)
        kernels.add_bias[(count,)](out, *map(self._moved, bias), vocab, BLOCK=_BLOCK, enable_fp_fusion=False)
        penalties = np.stack([changes.repetition, changes.frequency, changes.presence], axis=1)
        context = (changes.context_start, changes.context_ids, changes.context_counts)
        kernels.penalise[(count,)](
            out, *map(self._moved, context), self._moved(penalties), vocab, BLOCK=_BLOCK, enable_fp_fusion=False
        )
        return out

    def _moved(self, values: npt.NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        # From other memory the driver may wait for all kernels before it copies.
        return (tensor.pin_memory() if self._pinned else tensor).to(self._device, non_blocking=True)


def _lowest_allowed(changes: ops.LogitChanges) -> npt.NDArray[np.int32]:
    """[R] the lowest id that each row's mask allows."""
    lowest = np.zeros(len(changes.masks) + 1, dtype=np.int32)  # the last one is for rows without a mask
    for index, words in enumerate(changes.masks):
        word = int(np.argmax(words != 0))
        bits = int(words[word])
        lowest[index] = 32 * word + max((bits & -bits).bit_length() - 1, 0)
    return lowest[changes.mask_of]
