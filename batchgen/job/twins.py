"""Greedy requests that are the same in all but their names are computed once."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from batchgen.core.sampling import SamplingParams
from batchgen.protocol.request import GenRequest

__all__ = ["Twins", "digest_of"]


class Twins:
    """Finds the sequence under way that is bound to give the same output as one that is about to begin.

    Requests count as the same when every field but custom_id, line, model, seed and passed-through columns is equal,
    whatever fields there will be: so a follower differs from its leader in nothing that the output depends on.
    """

    def __init__(self) -> None:
        self._leaders: dict[tuple[bytes, int, SamplingParams], int] = {}
        self._keys: dict[int, tuple[bytes, int, SamplingParams]] = {}

    def lead(self, digest: bytes, prompt: int, params: SamplingParams, seq_id: int) -> int:
        """The sequence that answers sample requests of prompt number `prompt`: an earlier one under way, else `seq_id`,
        which leads from now on. Sampled ones differ by their seeds and have no twins."""
        if not params.greedy:
            return seq_id
        key = (digest, prompt, replace(params, seed=0))
        leader = self._leaders.setdefault(key, seq_id)
        if leader == seq_id:
            self._keys[seq_id] = key
        return leader

    def ended(self, seq_id: int) -> None:
        """A sequence is over; those that begin now compute again."""
        key = self._keys.pop(seq_id, None)
        if key is not None:
            del self._leaders[key]


def digest_of(request: GenRequest) -> bytes:
    """Stands for all of a request that its greedy output can depend on."""
    sampling = replace(request.sampling, seed=None)
    plain = replace(request, custom_id="", line=0, model=None, extra={}, sampling=sampling)
    return blake2b(repr(plain).encode("utf-8", "surrogatepass"), digest_size=16).digest()
