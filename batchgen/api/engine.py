"""`batchgen.Engine`: a model in this process, for Python programs."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sized
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from batchgen.api.home import home as default_home
from batchgen.api.result import Result, ResultError
from batchgen.api.settings import checked
from batchgen.config import (
    Device,
    Dtype,
    EngineConfig,
    InputConfig,
    JobConfig,
    Kernels,
    KVCacheDtype,
    LoadFormat,
    ModelConfig,
    OutputConfig,
    Quantization,
)
from batchgen.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from batchgen.api.session import Session
    from batchgen.protocol.request import RawRow
    from batchgen.protocol.result import ResultRow

__all__ = ["Engine"]

Message = Mapping[str, Any]
Input = str | SequenceOf[Message] | Mapping[str, Any]
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
Order = Literal["input", "completion"]
ResponseAs = Literal["json", "string"]


@dataclass(frozen=True, slots=True)
class _Settings:
    """All that an engine is made of, and all that a pickle has of it."""

    model: ModelConfig
    engine: EngineConfig
    source: InputConfig
    home: Path | None


class Engine:
    """A language model in this process, for batches of requests.

    >>> from batchgen import Engine
    >>> engine = Engine("smollm2-135m-instruct", max_model_len=512)
    >>> results = engine.generate(["The sea is", "The sky is"], {"max_tokens": 8, "temperature": 0})
    >>> [result.finish_reason for result in results]
    ['length', 'length']
    >>> engine.close()

    Nothing is loaded before the first use, and the model then stays until `close`, or the end of a `with` block. What a
    run leaves in the prefix cache serves the next one; answers do not depend on it.

    An engine pickles as its settings: whoever gets one, such as a worker of Ray or Spark, loads a model of its own. So
    does a forked process. One run is under way at a time: see `generate`.

    Messages of errors name settings as the command line does: `--max-model-len` is `max_model_len` here.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        chat_template: str | None = None,
        generation_config: str = "auto",
        load_format: LoadFormat = "auto",
        device: Device = "auto",
        dtype: Dtype = "auto",
        quantization: Quantization = "none",
        max_model_len: int | None = None,
        max_num_seqs: int = 128,
        max_num_batched_tokens: int = 1024,
        block_size: int = 16,
        kv_cache_dtype: KVCacheDtype = "auto",
        kv_cache_memory: int | None = None,
        gpu_memory_utilization: float = 0.9,
        tensor_parallel_size: int = 1,
        enable_prefix_caching: bool = True,
        seed: int = 0,
        threads: int | None = None,
        kernels: Kernels = "auto",
        lenient: bool = False,
        ignore_request_model: bool = False,
        window: int = 16384,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        """Settings have the names, meanings and defaults of `run-batch`; here are those that most programs need.

        Args:
            model: A folder, a GGUF file, a hub id (with `@revision`) or an alias; None: the embedded model.
            dtype: Of activations and unquantised weights. `auto`: float32 on the CPU, on a GPU the checkpoint's.
            quantization: `int8` quantises linear weights.
            max_model_len: Tokens of prompt and output together; None: the model's context length.
            max_num_seqs: Sequences in one step, at most.
            max_num_batched_tokens: Tokens in one step, at most.
            kv_cache_memory: Bytes for keys and values; None: a share of what is free.
            seed: Requests without one derive theirs from it and their custom_id.
            threads: Of the CPU; None: the cores that this process may use.
            lenient: Leave out unknown parameters of a request instead of refusing it.
            ignore_request_model: Answer requests whatever model they name.
            window: Requests held in memory at once, and so the span within which they are ordered.
            home: Folder of models; None: `BATCHGEN_HOME`, else `batchgen` in the XDG data folder.

        Raises:
            UsageError: A setting has a value that is none.
        """
        self._settings = _Settings(
            checked(
                ModelConfig(
                    model=model,
                    tokenizer=tokenizer,
                    revision=revision,
                    chat_template=chat_template,
                    generation_config=generation_config,
                    load_format=load_format,
                )
            ),
            checked(
                EngineConfig(
                    device=device,
                    dtype=dtype,
                    quantization=quantization,
                    max_model_len=max_model_len,
                    max_num_seqs=max_num_seqs,
                    max_num_batched_tokens=max_num_batched_tokens,
                    block_size=block_size,
                    kv_cache_dtype=kv_cache_dtype,
                    kv_cache_memory=kv_cache_memory,
                    gpu_memory_utilization=gpu_memory_utilization,
                    tensor_parallel_size=tensor_parallel_size,
                    enable_prefix_caching=enable_prefix_caching,
                    seed=seed,
                    threads=threads,
                    kernels=kernels,
                )
            ),
            checked(
                InputConfig(
                    input_file="table", lenient=lenient, ignore_request_model=ignore_request_model, window=window
                )
            ),
            None if home is None else Path(home),
        )
        self._lock = Lock()
        self._session: Session | None = None

    def generate(
        self,
        inputs: Iterable[Input],
        sampling: Mapping[str, Any] | None = None,
        *,
        order: Order = "input",
        endpoint: Endpoint | None = None,
        progress: bool = False,
    ) -> Generator[Result, None, None]:
        """Answer all inputs, one `Result` for each.

        >>> from batchgen import Engine
        >>> engine = Engine("smollm2-135m-instruct", max_model_len=512)
        >>> chat = [{"role": "user", "content": "Name a colour."}]
        >>> requests = [chat, {"messages": chat, "max_tokens": 2}, {"prompt": 3}]
        >>> for result in engine.generate(requests, {"max_tokens": 4}):
        ...     print(result.index, result.completion_tokens, result.error and result.error.code)
        0 4 None
        1 2 None
        2 None invalid_type

        Args:
            inputs: Each is a text; a list of messages; a mapping that is the body of an OpenAI request (with
                `messages`, `prompt` or `input`, and parameters of its own); or a whole line of a batch file
                (`custom_id`, `url`, `body`). Any iterable: it is read as results are taken, some steps ahead of what
                is computed and never over twice `window` ahead of the oldest input without a result.
            sampling: Parameters of an OpenAI body for all inputs, such as `max_tokens`, `temperature` or
                `response_format`; where a body has a parameter, its own counts.
            order: Of the results: as the inputs came, or as they are finished (`Result.index` tells them apart).
            endpoint: Where inputs go that don't say it themselves. None: texts to `/v1/completions`, messages to
                `/v1/chat/completions`, bodies with `input` to `/v1/embeddings`.
            progress: Show a progress bar, on standard error or in the notebook.

        Returns:
            A generator. It computes when it is asked for a result, and is at most a step ahead otherwise. Closing it,
            or leaving a loop over it, ends the run. One run is under way at a time: another one that is begun in the
            same thread ends the one before, whose generator then raises `EngineBusyError`; one that is begun in
            another thread gets that error itself.

        An input that can't be answered gives a `Result` with an error. Answers and their custom_ids are those of
        `run-batch` on a file with these requests.

        Raises:
            UsageError: At once for arguments that can't be meant; from the generator for a model that can't be loaded.
            EngineBusyError: Another run is not over.
            OutOfResourcesError: The memory is full.
        """
        from batchgen.api.requests import rows_of

        if isinstance(inputs, str | bytes | Mapping):
            raise UsageError(f"inputs must be several; this is one {type(inputs).__name__}: put it into a list")
        rows = rows_of(inputs, self._settings.source, _one_of("endpoint", endpoint, Endpoint))
        total = len(inputs) if isinstance(inputs, Sized) else None
        results = self._run(rows, sampling, _one_of("order", order, Order), total, progress=progress)
        return _results(results)

    def run_table(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        prompt_column: str | None = None,
        messages_column: str = "messages",
        prompt_template: str | None = None,
        system_prompt: str | None = None,
        id_column: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        response_as: ResponseAs = "string",
        progress: bool = False,
    ) -> pa.Table:
        """Answer the rows of an Arrow table.

        >>> import pyarrow as pa
        >>> from batchgen import Engine
        >>> engine = Engine("smollm2-135m-instruct", max_model_len=512)
        >>> table = pa.table({"city": ["Paris", "Rome"]})
        >>> made = engine.run_table(table, prompt_template="{{ city }} is", sampling={"max_tokens": 4})
        >>> made.select(["city", "finish_reason", "completion_tokens"]).to_pylist()[0]
        {'city': 'Paris', 'finish_reason': 'length', 'completion_tokens': 4}

        Args:
            table: A row for each request. Without rows no model is loaded: that gives the columns.
            prompt_column: The column with prompts, for `/v1/completions`.
            messages_column: The column with lists of messages, where there is neither a prompt nor a `body` column.
            prompt_template: A Jinja template over the columns of a row, which makes the prompt.
            system_prompt: With it prompts become chats; put before messages that have none.
            id_column: The column with custom_ids, no two of them equal; None: `custom_id`, or `row-N` where there is
                none. A sampled answer depends on it, so give one where a table is one of many.
            sampling: Parameters of an OpenAI body for all rows, such as `max_tokens`; a `body` column's own count.
            response_as: Type of the column `response`: text, or Arrow's extension type for JSON.
            progress: Show a progress bar, on standard error or in the notebook.

        Returns:
            A table with the same rows in the same order: the columns of a result as `run-batch` writes them
            (custom_id: string, line: int64, status_code: int32, text: string, finish_reason: string, prompt_tokens,
            completion_tokens, cached_tokens: int32, error: struct or null, response), then those of `table`. A column
            of it that is called like one of a result is `input_…` there; its `custom_id` is the result's.

        Raises:
            UsageError: The columns can't hold a request, the template is none, or the model can't be loaded.
            EngineBusyError: Another run is not over.
            OutOfResourcesError: The memory is full.
        """
        import pyarrow as pa

        from batchgen.api.tables import rows_of_table, table_with_results

        source = replace(
            self._settings.source,
            prompt_column=prompt_column,
            messages_column=messages_column,
            prompt_template=prompt_template,
            system_prompt=system_prompt,
            id_column=id_column,
        )
        whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        rows = rows_of_table(whole, source)
        form = _one_of("response_as", response_as, ResponseAs)
        if not whole.num_rows:
            return table_with_results(whole, (), form, id_column)
        with closing(self._run(rows, sampling, "input", whole.num_rows, progress=progress)) as results:
            return table_with_results(whole, results, form, id_column)

    def fingerprint(self) -> str:
        """32 hex digits that change with all that answers depend on beside the inputs: the model's files, what they say
        of sampling, the precision asked for, the seed. Finds the model, loads nothing.

        Raises `UsageError` where the model can't be found.
        """
        import xxhash

        from batchgen.io.digest import plain_bytes
        from batchgen.job.finding import find_checkpoint
        from batchgen.job.fingerprint import settings_of

        made, output = self._settings, OutputConfig(output_file="-")
        job = JobConfig(model=made.model, engine=made.engine, input=made.source, output=output)
        checkpoint = find_checkpoint(made.model, made.home or default_home())
        return xxhash.xxh3_128_hexdigest(plain_bytes(settings_of(job, checkpoint)))

    def load(self) -> None:
        """Load the model now if it is not, instead of at the first use. Raises what `generate` does."""
        self._loaded()

    def close(self) -> None:
        """Give the model's memory back; a run that is not over ends. The next use loads the model again."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> _Settings:
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        self._settings, self._lock, self._session = settings, Lock(), None

    def __repr__(self) -> str:
        state = "not loaded" if self._session is None else "loaded"
        return f"<batchgen.Engine {self._settings.model.model or 'embedded model'}, {state}>"

    def _run(
        self,
        rows: Iterator[RawRow],
        sampling: Mapping[str, Any] | None,
        order: Order,
        total: int | None,
        *,
        progress: bool,
    ) -> Generator[ResultRow, None, None]:
        from batchgen.io.columns import with_defaults

        if sampling:
            rows = with_defaults(rows, sampling)
        if not progress:
            yield from self._loaded().run(rows, order, total, None)
            return
        from batchgen.ui.bar import BarReporter

        with closing(BarReporter()) as bar:
            bar.stage("loading model")
            session = self._loaded()
            bar.stage("generating")
            yield from session.run(rows, order, total, bar)

    def _loaded(self) -> Session:
        from batchgen.api.session import Session

        with self._lock:
            # The threads of a process are not in its forks.
            if self._session is None or self._session.pid != os.getpid():
                made = self._settings
                self._session = Session(made.model, made.engine, made.source, made.home or default_home())
            session = self._session
        try:
            session.load()
        except Exception:
            self.close()
            raise
        return session


def _one_of(name: str, value: Any, choices: Any) -> Any:
    if value is not None and value not in get_args(choices):
        raise UsageError(f"{name} must be one of {', '.join(get_args(choices))}; found {value!r}")
    return value


def _results(rows: Generator[ResultRow, None, None]) -> Generator[Result, None, None]:
    with closing(rows):
        for row in rows:
            yield _result(row)


def _result(row: ResultRow) -> Result:
    fault = row.error
    return Result(
        index=row.line - 1,
        custom_id=row.custom_id or f"row-{row.line}",
        text=row.text,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cached_tokens=row.cached_tokens,
        error=None if fault is None else ResultError(code=str(fault.code), message=fault.message, param=fault.param),
        response=None if row.response is None else dict(row.response),
    )
