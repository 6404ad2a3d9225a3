"""Each row of the input on its way: to sequences, and back to one result row."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import dataclass, field

from batchgen.core.scheduler import Refusal
from batchgen.core.sequence import Sequence
from batchgen.job.answers import choice_logprobs, embeddings, mean_logprob, prompt_scores, shown_choices
from batchgen.job.arrivals import Arrival
from batchgen.job.intake import AnyModel, Intake, ServedModels
from batchgen.job.passing import Emit
from batchgen.job.reading import ReadAhead, ReadRow
from batchgen.job.twins import Twins, digest_of
from batchgen.protocol.anthropic_request import as_sent
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import Parser, custom_id_of
from batchgen.protocol.request import GenRequest
from batchgen.protocol.response import Responder
from batchgen.protocol.result import Choice, Completion
from batchgen.text.detok import StopWatcher, decode_output, watcher
from batchgen.text.grammar import Grammars, Guide
from batchgen.text.prompt import Prompter
from batchgen.text.sampling import ResolvedSampling, SamplingDefaults
from batchgen.text.schema_check import SchemaChecks
from batchgen.text.tokenizer import Tokenizer
from batchgen.text.tools import Tools, tools_of

__all__ = ["Frontend", "Tracker"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Frontend:
    """What turns rows into token ids and token ids into rows, for one model."""

    parser: Parser
    tokenizer: Tokenizer
    prompter: Prompter
    sampling: SamplingDefaults
    grammars: Grammars
    schemas: SchemaChecks
    tools: Tools
    responder: Responder
    model: str
    """Name shown in responses."""
    served: frozenset[str] | None
    """Model names that a line may ask for; None: any."""


_Prepared = tuple[GenRequest, list[SequenceOf[int]], Callable[[], Guide] | None]
"""A request, its prompts' token ids, and what guides its answers."""


@dataclass(slots=True)
class _Pending:
    """A request that has sequences under way."""

    number: int
    digest: str
    request: GenRequest
    resolved: ResolvedSampling
    prompt_lengths: list[int]
    left: int
    choices: dict[int, Choice] = field(default_factory=dict)
    """One for each sample."""
    means: dict[int, float] = field(default_factory=dict)
    """Mean log-probability of each sample."""
    firsts: dict[int, Sequence] = field(default_factory=dict)
    """The first sample of each prompt."""
    fault: RowFault | None = None
    warnings: tuple[str, ...] = ()


class Tracker:
    """Knows which sequences belong to which row, and sees to it that every row gets exactly one result."""

    def __init__(self, frontend: Frontend, emit: Emit, window: int, step: int) -> None:
        """`window`: samples under way at most, as many are read ahead; with twice as many rows under way nothing is
        begun. `step`: samples that a step can hold."""
        self._frontend = frontend
        models = AnyModel() if frontend.served is None else ServedModels(frontend.served, frontend.model)
        self._intake = Intake(frontend.parser, models)
        self._emit = emit
        self._window = window
        self._step = step
        self._warned: set[str | None] = set()
        self._owners: dict[int, list[tuple[_Pending, int]]] = {}
        """seq_id -> the samples that it answers."""
        self._twins = Twins()
        self._unfinished: dict[int, _Pending] = {}
        self._next_number = 0
        self._next_id = 0

    def windows(self, rows: Iterable[Arrival | None]) -> Generator[list[Sequence], None, None]:
        """Sequences of the rows that are not done, in growing lots. An empty one means: not now. `None` for a row
        means: none is there now, but more may come.

        To be asked before each step: rows are read on, and a thread encodes their prompts. The first lot is enough for
        two steps, so that work begins soon. Every further one is as large as all that is under way, since all of it is
        ordered anew; so the whole window is in view soon as well. Rows under way count from the oldest that is
        unfinished, since results wait for it to be written in order.
        """
        with closing(ReadAhead(rows, self._accept, self._frontend.prompter.encode, self._window)) as ahead:
            while not ahead.over:
                ahead.read(4 * self._step)
                if self._span() >= 2 * self._window:
                    yield []
                    continue
                if not self._owners:
                    ahead.wait(2 * self._step)
                yield self._begin_all(ahead.take(self._due(ahead)))

    def finished(self, sequence: Sequence) -> None:
        """Take a finished sequence; the last one of a request completes its row."""
        self._twins.ended(sequence.seq_id)
        for pending, index in self._owners.pop(sequence.seq_id):
            pending.choices[index] = self._choice(pending, index, sequence)
            pending.means[index] = mean_logprob(sequence)
            prompt, sample = divmod(index, pending.request.samples)
            if sample == 0:
                pending.firsts[prompt] = sequence
            self._done(pending)

    def refused(self, refusal: Refusal) -> None:
        """Take a sequence that can't run; its request fails."""
        self._twins.ended(refusal.sequence.seq_id)
        held = refusal.blocks_available * refusal.block_size
        message = (
            f"the prompt has {len(refusal.sequence.prompt)} tokens and up to {refusal.sequence.params.max_tokens} are "
            f"to follow, but the KV cache holds {held}; lower max_tokens or raise --kv-cache-memory"
        )
        for pending, _ in self._owners.pop(refusal.sequence.seq_id):
            pending.fault = RowFault(Code.CONTEXT_LENGTH_EXCEEDED, message)
            self._done(pending)

    def _due(self, ahead: ReadAhead) -> int:
        """How much of what is ready is to be begun now."""
        under_way = len(self._owners)
        room = self._window - under_way
        lot = min(ahead.ready, room)
        is_last = ahead.complete and ahead.ready <= room
        is_needed = under_way < self._step
        return lot if is_last or is_needed or lot >= max(under_way, 2 * self._step) else 0

    def _begin_all(self, rows: list[ReadRow]) -> list[Sequence]:
        if rows:
            self._next_number = rows[-1].arrival.number + 1
        return [sequence for row in rows if row.request is not None for sequence in self._begin(row)]

    def _begin(self, read: ReadRow) -> list[Sequence]:
        arrival, row = read.arrival, read.arrival.row
        begun = self._prepare(read)
        if isinstance(begun, RowFault):
            fault = as_sent(row.data, begun)
            result = self._frontend.responder.refused(row.line, custom_id_of(row), fault, row.extra)
            self._emit(arrival.number, arrival.digest, result)
            return []
        request, encoded, guide = begun
        lengths = [len(ids) for ids in encoded]
        resolved = self._frontend.sampling.resolve(request, lengths)
        pending = _Pending(arrival.number, arrival.digest, request, resolved, lengths, len(resolved.params))
        self._unfinished[arrival.number] = pending
        sequences, digest = [], digest_of(request)
        prompts = [array("I", ids) for ids in encoded]  # a tenth of a list's memory
        for index, params in enumerate(resolved.params):
            leader = self._twins.lead(digest, index // request.samples, params, self._next_id)
            self._owners.setdefault(leader, []).append((pending, index))
            if leader != self._next_id:
                continue
            probe = watcher(self._frontend.tokenizer, request.sampling, params)
            prompt = prompts[index // request.samples]
            pooling = None if request.embedding is None else self._frontend.prompter.embedding.pooling
            grammar = None if guide is None else guide()
            sequences.append(Sequence(self._next_id, prompt, params, probe, grammar, pooling))
            self._next_id += 1
        return sequences

    def _prepare(self, row: ReadRow) -> _Prepared | RowFault:
        """What a row's sequences are made of, or why it has no answer."""
        request = row.request
        if isinstance(request, RowFault):
            return request
        assert request is not None
        assert row.encoded is not None
        encoded = row.encoded.result()
        if isinstance(encoded, RowFault):
            return encoded
        request = self._frontend.tools.prepared(request)
        guide = None if request.constraint is None else self._frontend.grammars.compile(request.constraint)
        return guide if isinstance(guide, RowFault) else (request, encoded, guide)

    def _accept(self, arrival: Arrival) -> GenRequest | RowFault:
        row = arrival.row
        parsed = self._intake.take(row, arrival.first_line)
        for warning in parsed.warnings:
            if warning.param not in self._warned:
                self._warned.add(warning.param)
                # Not the warning's message: it quotes the value, which may be text of the request.
                _logger.warning("line %d: %s is unknown and left out (said once)", row.line, warning.param)
        return parsed.faults[0] if parsed.request is None else parsed.request

    def _choice(self, pending: _Pending, index: int, sequence: Sequence) -> Choice:
        reason = sequence.finish_reason
        assert reason is not None
        sampling, finish_reason = pending.request.sampling, str(reason)
        stop_reason: str | int | None = None
        if isinstance(sequence.probe, StopWatcher):
            text = sequence.probe.finish()
            stop_reason = sequence.probe.matched
            # Text that was held back to the end may complete a stop string.
            finish_reason = "stop" if stop_reason is not None else finish_reason
        else:
            skip = sampling.skip_special_tokens
            text = decode_output(self._frontend.tokenizer, sequence.output, sequence.params, skip_special_tokens=skip)
        if stop_reason is None and finish_reason == "stop" and sequence.output[-1] in sampling.stop_token_ids:
            stop_reason = sequence.output[-1]
        tools = tools_of(pending.request) if finish_reason == "stop" else None
        content, calls = (text, ()) if tools is None else self._frontend.tools.read(tools, text)
        finish_reason = "tool_calls" if calls else finish_reason
        self._check(pending, sequence, None if calls else content)
        logprobs = choice_logprobs(self._frontend.tokenizer, pending.request, sequence)
        return Choice(index, content, finish_reason, len(sequence.output), stop_reason, calls, logprobs)

    def _check(self, pending: _Pending, sequence: Sequence, content: str | None) -> None:
        """See whether a constrained answer is what was asked for, as far as it goes. Calls have no content."""
        guide, constraint = sequence.guide, pending.request.constraint
        if not isinstance(guide, Guide) or constraint is None:
            return
        if guide.error is not None:
            message = f"{constraint.param}: generation had to be given up: {guide.error}"
            pending.fault = RowFault(Code.INVALID_JSON_SCHEMA, message, constraint.param)
        elif guide.finished and constraint.schema is not None and content is not None:
            mismatch = self._frontend.schemas.mismatch(constraint.schema, content)
            pending.warnings += () if mismatch is None else (mismatch,)

    def _done(self, pending: _Pending) -> None:
        pending.left -= 1
        if pending.left:
            return
        del self._unfinished[pending.number]
        request, responder = pending.request, self._frontend.responder
        if pending.fault is not None:
            row = responder.refused(request.line, request.custom_id, pending.fault, request.extra)
        elif request.embedding is not None:
            row = responder.embedded(embeddings(request, self._frontend.model, pending.firsts))
        else:
            row = responder.completed(
                Completion(
                    request=request,
                    model=self._frontend.model,
                    choices=shown_choices(request, pending.choices, pending.means),
                    prompt_tokens=sum(pending.prompt_lengths),
                    completion_tokens=sum(choice.completion_tokens for choice in pending.choices.values()),
                    cached_tokens=sum(sequence.cached for sequence in pending.firsts.values()),
                    prompts=prompt_scores(self._frontend.tokenizer, request, pending.firsts),
                    effective=pending.resolved.effective,
                    warnings=pending.warnings,
                )
            )
        self._emit(pending.number, pending.digest, row)

    def _span(self) -> int:
        """Rows from the oldest unfinished one to the last one read."""
        return self._next_number - next(iter(self._unfinished), self._next_number)
