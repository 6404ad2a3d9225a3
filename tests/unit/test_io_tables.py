"""Inputs with columns: Arrow files, several files, saved datasets. What datasets has noted of columns stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.config import InputConfig
from batchgen.errors import UsageError
from batchgen.io.readers import count_rows, open_rows
from batchgen.io.schema import passed_through, result_schema, rows_to_batch
from batchgen.io.tables import input_identity
from batchgen.protocol.faults import Code
from batchgen.protocol.parse import Parser
from batchgen.protocol.request import RawRow
from batchgen.protocol.response import Responder

ROWS = 600
TABLE = pa.table({"q": [f"q{n}" for n in range(ROWS)], "n": pa.array(range(ROWS), pa.int16())})


def config(source: object, **settings: Any) -> InputConfig:
    return InputConfig(input_file=str(source), **{"prompt_column": "q", **settings})


def read(source: object, **settings: Any) -> list[RawRow]:
    return list(open_rows(config(source, **settings)))


def write_stream(path: Path, table: pa.Table = TABLE, rows: int = 250, **options: Any) -> None:
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table, max_chunksize=rows)


def write_file(path: Path, table: pa.Table = TABLE) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=250)


def write_compressed(path: Path) -> None:
    write_stream(path, compression="zstd")


@pytest.mark.parametrize("write", [write_stream, write_file, write_compressed])
def test_arrow_files(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "in.arrow"
    write(path)
    rows = read(path)
    assert count_rows(config(path)) == ROWS
    assert [row.line for row in rows] == list(range(1, ROWS + 1))
    assert [row.data["body"]["prompt"] for row in rows if row.data] == TABLE["q"].to_pylist()
    assert pa.concat_arrays([row.extra["n"] for row in rows]).equals(TABLE["n"].combine_chunks())
    assert list(passed_through(config(path))) == [pa.field("n", pa.int16())]


def test_an_arrow_file_at_an_address() -> None:
    for random_access in (False, True):
        with fsspec.open("memory://tables/in.arrow", "wb") as file:
            new = pa.ipc.new_file if random_access else pa.ipc.new_stream
            with new(file, TABLE.schema) as writer:
                writer.write_table(TABLE)
        assert len(read("memory://tables/in.arrow")) == count_rows(config("memory://tables/in.arrow")) == ROWS


@pytest.mark.parametrize("name", ["", "*.parquet", "**/p-[0-9].parquet"])
def test_several_files_are_one_table(tmp_path: Path, name: str) -> None:
    for number in range(3):
        pq.write_table(TABLE.slice(number * 200, 200), tmp_path / f"p-{number}.parquet")
    source = tmp_path / name
    assert count_rows(config(source)) == ROWS
    rows = read(source)
    assert [row.extra["n"][0].as_py() for row in rows] == list(range(ROWS))
    assert rows[-1].line == ROWS


def test_several_files_at_an_address() -> None:
    for number in range(2):
        with fsspec.open(f"memory://several/{number}.parquet", "wb") as file:
            pq.write_table(TABLE.slice(number * 300, 300), file)
    assert len(read("memory://several/*.parquet")) == count_rows(config("memory://several/*.parquet")) == ROWS


def test_files_of_different_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    write_stream(tmp_path / "b.arrow", TABLE.append_column("more", TABLE["n"]))
    with pytest.raises(UsageError, match=r"different columns; .*b\.arrow has q: string, n: int16, more"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"ARROW1\0\0 but no more", b"\xff\xff\xff\xff nothing like it"])
def test_what_is_no_arrow_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.arrow"
    path.write_bytes(content)
    for use in (read, lambda path: count_rows(config(path)), lambda path: passed_through(config(path))):
        with pytest.raises(UsageError, match=r"in\.arrow: cannot be read"):
            use(path)


@pytest.mark.parametrize("name", ["none.arrow", "none-*.parquet", "empty"])
def test_what_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=name.replace("*", r"\*")):
        read(tmp_path / name)


def test_an_arrow_file_that_points_outside_itself_is_refused(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 2**30, 3], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    write_stream(tmp_path / "in.arrow", pa.table({"q": text}))
    with pytest.raises(UsageError, match=r"in\.arrow: cannot be read as Arrow"):
        read(tmp_path / "in.arrow")


def test_text_that_is_not_utf8_is_a_fault_of_its_row(tmp_path: Path) -> None:
    write_stream(tmp_path / "in.arrow", pa.table({"q": pa.array([b"a", b"\xff", b"c"]).view(pa.string())}))
    rows = read(tmp_path / "in.arrow")
    assert [row.fault.code if row.fault else None for row in rows] == [None, Code.INVALID_VALUE, None]


FEATURES = datasets.Features(
    {
        "q": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["bad", "good"]),
        "tags": datasets.List({"name": datasets.Value("string"), "at": datasets.Value("int8")}),
        "text": datasets.ClassLabel(names=["short", "tall"]),
        "grid": datasets.Array2D(shape=(2, 2), dtype="int32"),
        "picture": datasets.Image(),
        "when": datasets.Value("timestamp[us]"),
        "long": datasets.LargeList(datasets.Value("large_string")),
    }
)


def dataset(rows: int = 5) -> datasets.Dataset:
    made = {
        "q": [f"q{n}" for n in range(rows)],
        "label": [n % 2 for n in range(rows)],
        "tags": [[{"name": "x", "at": n}] for n in range(rows)],
        "text": [1] * rows,
        "grid": [np.full((2, 2), n) for n in range(rows)],
        "picture": [{"bytes": b"no picture at all", "path": None}] * rows,
        "when": list(range(rows)),
        "long": [["a"]] * rows,
    }
    # A picture is encoded by its library, which is not needed to read one.
    plain = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    table = datasets.Dataset.from_dict(made, features=datasets.Features(FEATURES | {"picture": plain})).data.table
    return datasets.Dataset(table.replace_schema_metadata(None), datasets.DatasetInfo(features=FEATURES))


def answered(source: object, **settings: Any) -> pa.RecordBatch:
    """All rows with an error, as the output has them."""
    schema = result_schema("json", passed_through(config(source, **settings)))
    parser, responder = Parser(), Responder("run", 0)
    rows = [
        responder.refused(row.line, "x", parser.parse(row).faults[0], row.extra) for row in read(source, **settings)
    ]
    return rows_to_batch(rows, schema)


def test_a_saved_dataset_keeps_its_features(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path / "saved", num_shards=2)
    saved = tmp_path / "saved"
    assert count_rows(config(saved)) == 5
    assert [row.data["body"]["prompt"] for row in read(saved) if row.data] == [f"q{n}" for n in range(5)]
    batch = answered(saved, system_prompt=5)
    write_stream(tmp_path / "out.arrow", pa.Table.from_batches([batch]))
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "out.parquet")
    for written in (
        datasets.Dataset.from_file(str(tmp_path / "out.arrow")),
        datasets.Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache")),
    ):
        renamed = {"input_text" if name == "text" else name: feature for name, feature in FEATURES.items()}
        del renamed["q"]
        assert {name: written.features[name] for name in renamed} == renamed
        assert written.features["response"] == datasets.Json()
        read_back = written.select_columns(list(renamed)).rename_column("input_text", "text").with_format("arrow")
        assert read_back[:].to_pylist() == dataset().remove_columns("q").with_format("arrow")[:].to_pylist()


def test_a_saved_dataset_with_an_order_of_its_own(tmp_path: Path) -> None:
    dataset().select([3, 1]).save_to_disk(tmp_path / "saved")
    assert [row.data["body"]["prompt"] for row in read(tmp_path / "saved") if row.data] == ["q3", "q1"]


def test_a_split_of_several(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": dataset(4), "test": dataset(2)}).save_to_disk(tmp_path / "both")
    datasets.DatasetDict({"test": dataset(2)}).save_to_disk(tmp_path / "one")
    assert len(read(tmp_path / "both", split="train")) == 4
    assert len(read(tmp_path / "one")) == 2
    with pytest.raises(UsageError, match="has several splits; give --split with one of: train, test"):
        read(tmp_path / "both")
    with pytest.raises(UsageError, match="has no split 'dev'; give --split with one of: train, test"):
        read(tmp_path / "both", split="dev")


def test_a_split_of_what_has_none_is_refused(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path / "saved")
    pq.write_table(TABLE, tmp_path / "in.parquet")
    for source, settings in (("saved", {"split": "x"}), ("in.parquet", {"split": "x"}), ("in.jsonl", {"subset": "x"})):
        with pytest.raises(UsageError, match="leave out --split"):
            read(tmp_path / source, **settings)


def test_a_damaged_saved_dataset_is_refused(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read as a saved dataset"):
        read(tmp_path / "saved")


def test_the_identity_changes_with_any_of_the_files(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": dataset(4), "test": dataset(2)}).save_to_disk(tmp_path / "saved")
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE, tmp_path / "b.parquet")
    for source, file in (("saved", "saved/train/state.json"), ("*.parquet", "b.parquet"), ("", "a.parquet")):
        before = input_identity(config(tmp_path / source))
        assert before is not None
        assert before == input_identity(config(tmp_path / source))
        (tmp_path / "saved" / "train" / "cache-0123.arrow").touch()
        assert before == input_identity(config(tmp_path / source))
        (tmp_path / file).touch()
        assert before != input_identity(config(tmp_path / source))
    assert input_identity(config(tmp_path / "saved", split="a")) != input_identity(config(tmp_path / "saved"))
    assert input_identity(config(tmp_path / "saved" / "train")) is not None
