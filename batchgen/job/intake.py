"""Each row judged beside the rows before it: ids that occur twice, and models that the run does not serve."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from batchgen.protocol.anthropic_request import as_sent
from batchgen.protocol.faults import Code, RowFault
from batchgen.protocol.parse import Parsed, Parser, custom_id_of, model_of
from batchgen.protocol.request import RawRow

__all__ = ["AnyModel", "FirstNamedModel", "Intake", "ModelRule", "ServedModels"]


class ModelRule(Protocol):
    """Which models the lines of a file may ask for."""

    def fault(self, line: int, model: str) -> str | None:
        """What is wrong with a line that names this model, and what to change; None where nothing is."""
        ...


class AnyModel:
    """Names don't matter: `--ignore-request-model`."""

    def fault(self, line: int, model: str) -> str | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The run has its model."""

    names: Set[str]
    shown: str

    def fault(self, line: int, model: str) -> str | None:  # noqa: ARG002
        return None if model in self.names else _mismatch(model, f"this run serves {self.shown!r}")


class FirstNamedModel:
    """The run takes its model from the lines, so all must name the same."""

    def __init__(self) -> None:
        self._first: tuple[int, str] | None = None

    def fault(self, line: int, model: str) -> str | None:
        first_line, name = self._first = self._first or (line, model)
        return None if model == name else _mismatch(model, f"line {first_line} asks for {name!r}")


class Intake:
    """Judges the rows of one file, in order."""

    def __init__(self, parser: Parser, models: ModelRule) -> None:
        self._parser = parser
        self._models = models

    def take(self, row: RawRow, first_line: int | None) -> Parsed:
        """The next row's request, or all its faults: those of the row itself come first.

        `first_line`: the line before that has the same custom_id.
        """
        parsed = self._parser.parse(row)
        faults = []
        if first_line is not None:
            advice = "give each line its own"
            message = f"custom_id {custom_id_of(row)!r} was used on line {first_line} already; {advice}"
            faults.append(RowFault(Code.DUPLICATE_CUSTOM_ID, message, "custom_id"))
        model = model_of(row)
        mismatch = self._models.fault(row.line, model) if model is not None else None
        if mismatch is not None:
            faults.append(as_sent(row.data, RowFault(Code.MODEL_MISMATCH, mismatch, "body.model")))
        return Parsed(None, (*parsed.faults, *faults), parsed.warnings) if faults else parsed


def _mismatch(model: str, instead: str) -> str:
    return f"the line asks for model {model!r}, {instead}; split the file by model, or run with --ignore-request-model"
