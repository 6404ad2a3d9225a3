"""Tables in, tables with results out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

import pyarrow as pa

from batchgen.config import InputConfig
from batchgen.io.columns import RowShaper, check_columns
from batchgen.io.schema import result_schema, rows_to_batch
from batchgen.io.table import pieces
from batchgen.io.table_rows import rows_of_batches
from batchgen.protocol.request import RawRow
from batchgen.protocol.result import ResultRow

__all__ = ["rows_of_table", "table_with_results"]

_PIECE = 256
"""Results that are made into Arrow at once."""


def rows_of_table(table: pa.Table, source: InputConfig) -> Iterator[RawRow]:
    """The rows as requests, which the settings of `source` find in the columns.

    Raises `UsageError` where these columns can't hold one, or for a template that is none.
    """
    check_columns(source, table.column_names)
    batches = (piece for batch in table.to_batches() for piece in pieces(batch))
    return rows_of_batches(batches, table.column_names, source, RowShaper(source))


def table_with_results(
    table: pa.Table, results: Iterable[ResultRow], response_as: Literal["json", "string"], id_column: str | None
) -> pa.Table:
    """The results, one for each row of the table in its order, and the table's columns beside them. `id_column`: what
    was asked to be their custom_id."""
    own = result_schema(response_as)
    # The result has the column that names its requests.
    named = "custom_id" in table.column_names and id_column in {None, "custom_id"}
    kept = table.drop_columns(["custom_id"]) if named else table
    rows = iter(results)
    batches = [rows_to_batch(piece, own) for piece in iter(lambda: list(islice(rows, _PIECE)), [])]
    columns = [*pa.Table.from_batches(batches, own).columns, *kept.columns]
    return pa.table(columns, schema=result_schema(response_as, kept.schema))
