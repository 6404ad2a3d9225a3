"""`batchgen.Engine`: a model in this process, for Python programs."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sized
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from batchgen.api.home import home as default_home
from batchgen.api.result import Result, ResultError
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

    from batchgen.api.session import Order, Session
    from batchgen.protocol.result import ResultRow

__all__ = ["Engine"]

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


class Engine:
    """A language model that runs in this process.

    Nothing is loaded before the first use. It pickles as its settings, so that a worker process that gets one loads
    its own.
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
        """The settings are those of `run-batch`, under the same names."""
        self._model = ModelConfig(
            model=model,
            tokenizer=tokenizer,
            revision=revision,
            chat_template=chat_template,
            generation_config=generation_config,
            load_format=load_format,
        )
        self._engine = EngineConfig(
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
        self._source = InputConfig(
            input_file="table", lenient=lenient, ignore_request_model=ignore_request_model, window=window
        )
        self._home = None if home is None else Path(home)
        self._lock = Lock()
        self._session: Session | None = None

    def generate(
        self,
        inputs: Iterable[Any],
        sampling: Mapping[str, Any] | None = None,
        *,
        order: Order = "input",
        endpoint: Endpoint | None = None,
    ) -> Generator[Result, None, None]:
        """Answer all inputs, one result for each."""
        from batchgen.api.requests import rows_of, with_defaults
        from batchgen.protocol.request import Endpoint as Urls

        if isinstance(inputs, str | bytes | Mapping):
            raise UsageError(f"inputs must be several; this is one {type(inputs).__name__}: put it into a list")
        url = None if endpoint is None else Urls(endpoint)
        rows = with_defaults(rows_of(inputs, self._source, url), sampling or {})
        total = len(inputs) if isinstance(inputs, Sized) else None
        return self._results(rows, order, total)

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
        response_as: Literal["json", "string"] = "string",
    ) -> pa.Table:
        """Answer the rows of a table: its rows in the same order, with the columns of an output of `run-batch`."""
        import pyarrow as pa

        from batchgen.api.requests import with_defaults
        from batchgen.api.tables import rows_of_table, table_with_results

        source = replace(
            self._source,
            prompt_column=prompt_column,
            messages_column=messages_column,
            prompt_template=prompt_template,
            system_prompt=system_prompt,
            id_column=id_column,
        )
        whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        rows = with_defaults(rows_of_table(whole, source), sampling or {})
        with closing(self._loaded().run(rows, "input", whole.num_rows, _silent)) as results:
            return table_with_results(whole, results, response_as)

    def fingerprint(self) -> str:
        """32 hex digits that change with all that answers depend on beside the inputs: the model's files, what they say
        of sampling, the precision asked for, the seed. Finds the model, loads nothing.

        Raises `UsageError` where the model can't be found.
        """
        import xxhash

        from batchgen.io.digest import plain_bytes
        from batchgen.job.finding import find_checkpoint
        from batchgen.job.fingerprint import settings_of

        output = OutputConfig(output_file="-")
        job = JobConfig(model=self._model, engine=self._engine, input=self._source, output=output)
        checkpoint = find_checkpoint(self._model, self._home or default_home())
        return xxhash.xxh3_128_hexdigest(plain_bytes(settings_of(job, checkpoint)))

    def load(self) -> None:
        """Load the model now, if it is not."""
        self._loaded()

    def close(self) -> None:
        """Give the model's memory back. The next use loads it again."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_lock", "_session"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock(), _session=None)

    def _results(self, rows: Any, order: Order, total: int | None) -> Generator[Result, None, None]:
        for row in self._loaded().run(rows, order, total, _silent):
            yield _result(row)

    def _loaded(self) -> Session:
        from batchgen.api.session import Session

        with self._lock:
            # The threads of a process are not in its forks.
            if self._session is None or self._session.pid != os.getpid():
                self._session = Session(self._model, self._engine, self._source, self._home or default_home())
            session = self._session
        try:
            session.load()
        except Exception:
            self.close()
            raise
        return session


def _silent(_progress: Any) -> None:
    pass


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
