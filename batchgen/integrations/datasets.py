"""Answers as a column of a Hugging Face dataset."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from filelock import FileLock

from batchgen.api.engine import Engine
from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.integrations.answers import Question
from batchgen.io.durable import durable_file
from batchgen.io.saved_dataset import dataset_table

if TYPE_CHECKING:
    import datasets

__all__ = ["generate"]

AnyDataset = TypeVar("AnyDataset", "datasets.Dataset", "datasets.IterableDataset")

_ROWS = 1000
"""Answers that are written at once, as datasets does."""


def generate(
    dataset: AnyDataset,
    *,
    model: str | None = None,
    engine: Engine | None = None,
    prompt_template: str | None = None,
    prompt_column: str | None = None,
    messages_column: str = "messages",
    system_prompt: str | None = None,
    id_column: str | None = None,
    output_column: str = "response",
    sampling: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    **settings: Any,
) -> AnyDataset:
    """The dataset with a column of answers, and one of errors: `output_column` and `{output_column}_error`.

    All other columns stay as they are, and no row is left out: one that failed has null for its answer and its error
    as {code, message, param}. The model sees the whole set, so that equal beginnings of prompts are computed once.

    A `Dataset` is answered now. The answers are in a file of datasets' cache, named by the dataset's fingerprint, the
    model's files, the settings and the prompt: the same call again computes nothing and loads no model, unless
    `datasets.disable_caching()` was called. An `IterableDataset` is answered as it is iterated, as far ahead as the
    engine's window (16,384 rows), anew each time.

    model: a folder, a GGUF file, a hub id (with @revision) or an alias; with `settings`, which are those of `Engine`.
    engine: one that is there already, in their place; it stays open.
    prompt_template, prompt_column, messages_column, system_prompt, id_column: as for `run-batch`.
    sampling: parameters of an OpenAI body for all rows, such as max_tokens.

    Raises `UsageError` for columns or settings that can't be used, and where the model can't be found.
    """
    import datasets

    if num_proc not in (None, 1):
        raise UsageError(
            "num_proc: one process sees all rows, so that what prompts share is computed once, and its threads use all "
            "cores; more of them would each load the model. Leave it out; threads= limits the cores"
        )
    if engine is not None and (model is not None or settings):
        raise UsageError("engine has its model and settings already; give either engine or model and settings")
    source = InputConfig(
        input_file="dataset",
        prompt_template=prompt_template,
        prompt_column=prompt_column,
        messages_column=messages_column,
        system_prompt=system_prompt,
        id_column=id_column,
    )
    question = Question(
        engine or Engine(model, **settings), engine is not None, source, dict(sampling or {}), output_column
    )
    if isinstance(dataset, datasets.IterableDataset):
        return _streamed(dataset, question)
    if isinstance(dataset, datasets.Dataset):
        return _answered(dataset, question)
    raise UsageError(f"generate takes a Dataset or an IterableDataset, not a {type(dataset).__name__}: choose a split")


def _answered(dataset: datasets.Dataset, question: Question) -> datasets.Dataset:
    import datasets

    question.check(dataset.column_names)
    fingerprint = question.fingerprint(dataset._fingerprint)
    path = _cache_file(dataset, fingerprint)
    # Who asks the same at the same time waits and finds the answers.
    with FileLock(f"{path}.lock"):
        if not path.is_file():
            _write_answers(dataset, question, path)
    return _joined(dataset, datasets.Dataset.from_file(str(path)), fingerprint)


def _cache_file(dataset: datasets.Dataset, fingerprint: str) -> Path:
    """Where datasets would keep it: beside the dataset's files. For one in memory, which it would not keep, and where
    those files are read-only, in a folder of its cache."""
    import datasets
    from datasets.fingerprint import generate_random_fingerprint, get_temporary_cache_files_directory

    if not datasets.is_caching_enabled():
        return Path(get_temporary_cache_files_directory()) / f"cache-{generate_random_fingerprint()}.arrow"
    name = f"cache-{fingerprint}.arrow"
    if (files := dataset.cache_files) and os.access(own := Path(files[0]["filename"]).parent, os.W_OK):
        return own / name
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "batchgen"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _write_answers(dataset: datasets.Dataset, question: Question, path: Path) -> None:
    from datasets.utils import tqdm

    requests = question.requests(dataset_table(dataset).batches(), dataset.column_names)
    told = tqdm(question.answers(requests), total=dataset.num_rows, desc="Generating", unit=" examples")
    rows = iter(told)
    with durable_file(path) as file, pa.ipc.new_stream(file, question.schema) as stream:
        while (batch := question.batch(islice(rows, _ROWS))).num_rows:
            stream.write_batch(batch)


def _joined(dataset: datasets.Dataset, answers: datasets.Dataset, fingerprint: str) -> datasets.Dataset:
    """Both side by side, memory-mapped as they are."""
    import datasets
    from datasets.table import concat_tables

    # A selection of rows is an index over them, which the answers don't have.
    plain = dataset.flatten_indices() if dataset._indices is not None else dataset
    info = plain.info.copy()
    info.features = datasets.Features({**plain.features, **answers.features})
    table = concat_tables([plain.data, answers.data], axis=1)
    joined = datasets.Dataset(table, info=info, split=dataset.split, fingerprint=fingerprint)
    return joined.with_format(dataset.format["type"], **dataset.format["format_kwargs"])


def _streamed(dataset: datasets.IterableDataset, question: Question) -> datasets.IterableDataset:
    import datasets

    features = None
    if dataset.features is not None:
        question.check(dataset.column_names)
        answers = datasets.Features.from_arrow_schema(question.schema)
        features = datasets.Features({**dataset.features, **answers})
    return datasets.IterableDataset.from_generator(
        _rows_with_answers, features, {"dataset": dataset, "question": question}, dataset.split or datasets.Split.TRAIN
    )


def _rows_with_answers(dataset: datasets.IterableDataset, question: Question) -> Iterator[dict[str, Any]]:
    """The dataset's rows, each with its answer; those that wait for theirs are kept."""
    kept: deque[Mapping[str, Any]] = deque()

    def examples() -> Iterator[Mapping[str, Any]]:
        # As stored: pictures and sounds stay bytes and paths.
        plain = dataset if dataset.features is None else dataset.with_format(None).decode(False)
        for number, example in enumerate(plain):
            if number == 0:
                question.check(example)
            kept.append(example)
            yield example

    output, error = question.schema.names
    for answer in question.answers(question.requests_of_examples(examples())):
        yield {**kept.popleft(), output: answer.text, error: answer.error}
