"""The faults of an input, found without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from batchgen.config import InputConfig, ModelConfig
from batchgen.io.ledger import Ledger
from batchgen.io.readers import open_rows
from batchgen.job.finding import find_checkpoint, model_of_run, names_of_run
from batchgen.job.intake import AnyModel, FirstNamedModel, Intake, ModelRule, ServedModels
from batchgen.protocol.anthropic_request import as_sent
from batchgen.protocol.faults import RowFault
from batchgen.protocol.parse import Parser, custom_id_of

if TYPE_CHECKING:
    from batchgen.job.text_check import TextCheck

__all__ = ["LineFault", "Validation"]


@dataclass(frozen=True, slots=True)
class LineFault:
    """What is wrong with a line; as a warning, what of it is left out under `lenient`."""

    line: int
    custom_id: str | None
    fault: RowFault
    warning: bool = False


@dataclass(slots=True)
class Validation:
    """One pass over an input. The counts are those of the lines that were read so far."""

    config: InputConfig
    models: ModelRule
    check: TextCheck | None = None
    lines: int = 0
    invalid_lines: int = 0
    warnings: int = 0
    by_code: Counter[str] = field(default_factory=Counter)
    """Faults, of which a line may have several."""

    @classmethod
    def of(cls, config: InputConfig, model: ModelConfig, max_model_len: int | None, home: Path) -> Validation:
        """With the checks of text where a model or a tokenizer is named, else of the lines' form alone.

        Raises `UsageError` where the model cannot be found or is not one that we run.
        """
        if model.model is None and model.tokenizer is None:
            return cls(config, AnyModel() if config.ignore_request_model else FirstNamedModel())
        model = replace(model, model=model_of_run(model, config), load_format="dummy")
        # The description of a model comes with torch.
        from batchgen.job.text_check import text_check

        checkpoint = find_checkpoint(model, home)
        served = ServedModels(names_of_run(checkpoint, model), checkpoint.name)
        models = AnyModel() if config.ignore_request_model else served
        return cls(config, models, text_check(checkpoint, max_model_len))

    def faults(self) -> Iterator[LineFault]:
        """Every fault of every line, in order. Memory does not grow with the file.

        Raises `UsageError` where the input itself can't be read.
        """
        with Ledger() as ledger, nullcontext() if self.check is None else closing(self.check):
            intake = Intake(Parser(self.config.lenient), self.models)
            for row in open_rows(self.config):
                custom_id = custom_id_of(row)
                first = None if custom_id is None else ledger.first_line(custom_id, row.line)
                parsed = intake.take(row, first)
                faults = parsed.faults
                if parsed.request is not None and self.check is not None:
                    found = self.check.fault(parsed.request)
                    faults = () if found is None else (as_sent(row.data, found),)
                self.lines += 1
                if not faults and not parsed.warnings:
                    continue
                self.invalid_lines += bool(faults)
                self.warnings += len(parsed.warnings)
                self.by_code.update(fault.code for fault in faults)
                yield from (LineFault(row.line, custom_id, fault) for fault in faults)
                yield from (LineFault(row.line, custom_id, fault, warning=True) for fault in parsed.warnings)
