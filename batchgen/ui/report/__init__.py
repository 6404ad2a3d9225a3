"""The report of an output: one page of HTML that needs nothing beside itself."""

from __future__ import annotations

from batchgen.ui.report.content import Failure, Report, Row, RowFigures
from batchgen.ui.report.page import render

__all__ = ["Failure", "Report", "Row", "RowFigures", "render"]
