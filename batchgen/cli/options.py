"""Options made from the fields of the configuration classes: name, type and default are theirs, help text is here.

A command that takes `@options(EngineConfig, ...)` gets one flag for each field of those classes, and builds them from
what was chosen with `Chosen.make`. So a flag is defined once for all commands, and its environment variable is always
`BATCHGEN_` and its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from batchgen.cli.flags import FLAGS, Flag
from batchgen.errors import UsageError

__all__ = ["EPILOG", "Chosen", "file_to_write", "given", "options"]

Config = TypeVar("Config")

EPILOG = (
    "Each option can also come from the environment (BATCHGEN_MAX_NUM_SEQS=64) or from --config FILE "
    "(max-num-seqs: 64). The command line wins, then the environment, then the file."
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The values of all options of one call."""

    values: Mapping[str, Any]

    def make(self, config: type[Config], **given: Any) -> Config:
        """An instance of `config`: fields that are flags as chosen, the others as given here."""
        return config(**{name: self.values[name] for name in FLAGS[config] if name not in given}, **given)


def options(*configs: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose first parameter is `chosen: Chosen` with the flags of `configs` and with `--config`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        made = [parameter for config in configs for parameter in _parameters(config)]

        @wraps(command)
        def call(config: Path | None, **values: Any) -> None:  # noqa: ARG001 - its callback has read the file
            own_values = {parameter.name: values.pop(parameter.name) for parameter in own}
            command(Chosen(values), **own_values)

        keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *made, _CONFIG_FILE)]
        call.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in keyword_only}
        return call

    return decorate


def given(context: typer.Context, name: str) -> bool:
    """Whether an option has its value from the user, by whatever way."""
    source = context.get_parameter_source(name)
    return (source is not None and source.name not in {"DEFAULT", "DEFAULT_MAP"}) or name in (context.default_map or {})


def file_to_write(name: str, text: str) -> Any:
    """An option for a file that a command writes at its end; refused at once where its folder is missing."""
    return typer.Option(
        help=text, envvar=f"BATCHGEN_{name.upper()}", show_envvar=False, show_default=False, callback=_in_a_folder
    )


def _in_a_folder(path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


def _parameters(config: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(config)
    for field in fields(config):
        if flag := FLAGS[config].get(field.name):
            yield _parameter(field, hints[field.name], flag)


def _parameter(field: Field[Any], hint: Any, flag: Flag) -> inspect.Parameter:
    option = typer.Option(
        *flag.names,
        help=flag.help,
        envvar=f"BATCHGEN_{field.name.upper()}",
        show_envvar=False,
        min=flag.minimum,
        max=flag.maximum,
        parser=flag.parser,
        metavar=flag.metavar,
        autocompletion=flag.complete,
        show_default=field.default is not None,
    )
    if field.default is MISSING:
        hint, default = hint | None, None
    else:
        default = field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option]
    )


def _read_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of this call."""
    if path is not None:
        known = {parameter.name for parameter in context.command.params if parameter.name}
        context.default_map = _file_values(path, known - {"config"})
    return path


def _file_values(path: Path, known: set[str]) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path}: cannot be read as YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: must hold `option: value` lines, found a {type(content).__name__}")
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    if unknown := sorted(values.keys() - known):
        raise UsageError(
            f"--config {path}: no such option: {', '.join(unknown)}; the options of this command are "
            f"{', '.join(sorted(known))}"
        )
    return values


_CONFIG_FILE = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with values for these options.",
            envvar="BATCHGEN_CONFIG",
            show_envvar=False,
            show_default=False,
            is_eager=True,
            callback=_read_config_file,
        ),
    ],
)
