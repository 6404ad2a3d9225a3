"""docs/options.md, made from the commands themselves: `make docs`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from batchgen.cli.main import app

__all__ = ["PAGE", "commands", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"

_HEAD = """\
# Options
Made from the code by `make docs`. Of one option the value on the command line wins, then that of the environment, then
that of the file which `--config` (or `BATCHGEN_CONFIG`) names, a YAML file with a line for each option:

    max-num-seqs: 64
    strict: true

An option without a default is off, or does what its text says. `batchgen COMMAND --help` shows the same.

## Completion
`batchgen --install-completion` makes bash, zsh or fish complete commands, options, their values, the aliases of
models, files, and for `status` and the like the outputs that are there. It takes effect in the next shell.
`batchgen --show-completion` prints the script instead.

"""

Command = Any
"""A command of the parser, whose classes typer does not publish."""


def commands() -> dict[str, Command]:
    """The commands by their full names, such as `bench throughput`, each a new object."""

    def below(name: str, command: Command) -> Iterator[tuple[str, Command]]:
        if inner := getattr(command, "commands", None):
            for word, child in inner.items():
                yield from below(f"{name} {word}".strip(), child)
        else:
            yield name, command

    return dict(below("", typer.main.get_command(app)))


def page() -> str:
    """The text of the page."""
    return _HEAD + "\n".join("\n".join(_section(name, command)) for name, command in commands().items())


def _section(name: str, command: Command) -> Iterator[str]:
    context = command.context_class(command, info_name=f"batchgen {name}")
    yield f"## batchgen {name}"
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        yield textwrap.fill(" ".join(paragraph.split()), 120)
        yield ""
    yield f"    {' '.join(command.get_usage(context).removeprefix('Usage: ').split())}"
    yield ""
    shown = [parameter for parameter in command.params if parameter.get_help_record(context) is not None]
    if not shown:
        return
    has_file = any(parameter.name == "config" for parameter in shown)
    yield "| option | value | default | environment | key | |"
    yield "|---|---|---|---|---|---|"
    for parameter in shown:
        yield f"| {' | '.join(_cells(parameter, context, has_file))} |"
    yield ""


def _cells(parameter: Any, context: Any, has_file: bool) -> Iterator[str]:
    """Names, value, default, environment variable, key in the file, help."""
    named, text = parameter.get_help_record(context)
    is_option = parameter.param_type_name == "option"
    names = [*sorted(parameter.opts, key=len), *parameter.secondary_opts] if is_option else [named.split()[0]]
    value = re.sub(r"(^|[ ,/]+)-[\w-]+", "", named).strip() if is_option else named.partition(" ")[2]
    limits = re.search(r"[\d.<=]*x[\d.<>=]*(?=\]$)", text)
    kind = value.strip("<>").removesuffix(" range")
    yield ", ".join(f"`{name}`" for name in names)
    yield _code(re.sub(r"([<>]=)", r" \1 ", limits[0]).replace("x", kind) if limits else kind)
    yield _code("" if parameter.default is None else str(parameter.default).lower())
    yield _code(parameter.envvar or "")
    yield _code(parameter.name.replace("_", "-") if is_option and has_file and parameter.name != "config" else "")
    yield re.sub(r"\s*\[(default: |required|[\d.<=]*x[<>=])[^\]]*\]$", "", text).replace("|", r"\|")


def _code(text: str) -> str:
    escaped = text.replace("|", r"\|")
    return f"`{escaped}`" if escaped else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
