"""Token ids to text while they are generated, and the search for stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from collections.abc import Set

from batchgen.core.sampling import SamplingParams
from batchgen.protocol.request import SamplingRequest
from batchgen.text.tokenizer import Tokenizer

__all__ = ["StopWatcher", "TextStream", "decode_output", "watcher"]

_INCOMPLETE = "\ufffd"
_LONGEST_CHARACTER = 4
"""Tokens that a character of UTF-8 takes at most."""


class TextStream:
    """Decodes one sequence piece by piece: all pieces together are `Tokenizer.decode` of all its tokens.

    Most decoders can't be asked for the text of one token: the first of a text loses its space, and a character may
    take several. So the last piece's tokens are decoded again before the new ones, and what comes out beyond that
    piece is new. Text is held back while it may still change: a last character of which bytes are missing.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped: Set[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._before: list[int] = []
        """Tokens of the last piece."""
        self._held: list[int] = []
        """Tokens after them, whose text was not given out to its end."""
        self._given = 0
        """Characters of the text of both that were given out."""

    def push(self, token: int) -> str:
        """Take the next token; return the text that is certain now. Constant time over a sequence, on average."""
        # Tokens without text stay out of the window, or a text's first space would be lost in its middle.
        if token in self._skipped or not self._tokenizer.knows(token):
            return ""
        self._held.append(token)
        return self._take() if self._may_end_here(token) else ""

    def finish(self) -> str:
        """The text still held back, with replacement characters where the output ends inside a character."""
        return self._take(final=True)

    def _may_end_here(self, token: int) -> bool:
        # A run of byte tokens is decoded as a whole: one byte more can turn all of it into replacement characters.
        if token in self._tokenizer.byte_ids:
            return False
        # Decoding is tried again at each token while a character may yet be completed, then only where the token ends
        # with a whole character by itself: a long run of stray bytes costs linear time.
        return len(self._held) <= _LONGEST_CHARACTER or not self._decode([token]).endswith(_INCOMPLETE)

    def _take(self, *, final: bool = False) -> str:
        text = self._decode(self._before + self._held)
        certain = text if final else text.rstrip(_INCOMPLETE)
        piece = certain[self._given :]
        self._given += len(piece)
        if len(certain) == len(text):
            self._before, self._held = self._held, []
            self._given = len(self._decode(self._before))
        return piece

    def _decode(self, ids: SequenceOf[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class StopWatcher:
    """Looks for stop strings in the text of one sequence while it grows: the `StopProbe` of a sequence that has any.

    The match that is completed first wins; of two that are completed by the same character, the one that starts first.
    Each character is searched once, with as many before it as a stop string can reach back.
    """

    def __init__(
        self,
        stream: TextStream,
        stops: SequenceOf[str],
        silent: Set[int],
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Watch for `stops`, none of them empty. Tokens of `silent`, which end the sequence, add no text.

        A match that the first `min_tokens` tokens complete does not count.
        """
        self.matched: str | None = None
        """The stop string that ended the text."""
        self._stream = stream
        self._stops = tuple(stops)
        self._reach = max(map(len, stops)) - 1
        self._silent = silent
        self._include_stop = include_stop
        self._blind = min_tokens
        """Tokens still to come that complete no match."""
        self._pieces: list[str] = []
        self._tail = ""
        """The last characters of the text, as far back as a stop string that is not complete yet can start."""
        self._excess = 0
        """Characters at the end of the text that the match cuts off."""

    def push(self, token: int) -> bool:
        """Take the next generated token; return whether the text now contains a stop string."""
        if token not in self._silent:
            self._extend(self._stream.push(token))
        self._blind -= 1
        return self.matched is not None

    def finish(self) -> str:
        """The final text, cut before the stop string, or after it where it is to be included.

        The text that was held back may complete a stop string too: then `matched` is set now.
        """
        self._extend(self._stream.finish())
        text = "".join(self._pieces)
        return text[: len(text) - self._excess]

    def _extend(self, piece: str) -> None:
        if self.matched is not None or not piece:
            return
        self._pieces.append(piece)
        window = self._tail + piece
        stops = () if self._blind > 0 else self._stops
        # A match ends in the new piece: what ended before was judged then.
        starts = ((window.find(stop, max(0, len(self._tail) + 1 - len(stop))), stop) for stop in stops)
        found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if found:
            end, start, self.matched = min(found)
            self._excess = len(window) - (end if self._include_stop else start)
        else:
            self._tail = window[max(0, len(window) - self._reach) :]


def watcher(tokenizer: Tokenizer, sent: SamplingRequest, params: SamplingParams) -> StopWatcher | None:
    """The probe for a sequence, None where the request has no stop strings: then nothing is decoded while it runs."""
    if not sent.stop:
        return None
    stream = TextStream(tokenizer, skip_special_tokens=sent.skip_special_tokens)
    return StopWatcher(
        stream,
        sent.stop,
        params.stop_token_ids,
        include_stop=sent.include_stop_str_in_output,
        min_tokens=params.min_tokens,
    )


def decode_output(
    tokenizer: Tokenizer, output: SequenceOf[int], params: SamplingParams, *, skip_special_tokens: bool = True
) -> str:
    """The text of a finished sequence without stop strings, decoded at once. The token that ended it adds none."""
    ended = output[-1:] and output[-1] in params.stop_token_ids
    return tokenizer.decode(output[:-1] if ended else output, skip_special_tokens=skip_special_tokens)
