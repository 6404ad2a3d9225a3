"""Links resolve, commands parse, snippets are Python, and nothing is left out."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from batchgen import errors
from batchgen.cli.main import app
from batchgen.protocol.faults import Code
from tests.docs.options_page import PAGE, commands, page
from tests.docs.pages import DOCS, ROOT, Page, read_pages

PAGES = read_pages()

SPANS = [span for source in PAGES.values() for span in source.spans]

OF_OTHERS = frozenset({"--help"})
"""Options that the parser adds by itself."""


def flags_of(parameter: Any) -> list[str]:
    """All names of an option, also those that switch it off."""
    return [*parameter.opts, *parameter.secondary_opts]


def broken_links(source: Page) -> Iterator[str]:
    for link in source.links:
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (source.path.parent / name).resolve() if name else source.path
        if not target.exists():
            yield f"{source.path.name}: {link}: there is no such file"
        elif anchor and anchor not in (source if target == source.path else PAGES[target]).anchors:
            yield f"{source.path.name}: {link}: no such heading"


def test_links_resolve() -> None:
    assert [fault for source in PAGES.values() for fault in broken_links(source)] == []
    assert sum(len(source.links) for source in PAGES.values()) > 40
    made_up = Page(DOCS / "README.md", "[a](options.md) [b](gone.md) [c](options.md#no-such) [d](#e)\n# E\n")
    assert [fault.split(": ")[1] for fault in broken_links(made_up)] == ["gone.md", "options.md#no-such"]


def test_every_page_is_reached_from_the_index() -> None:
    found, waiting = set(), [DOCS / "README.md"]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            targets = ((path.parent / link.partition("#")[0]).resolve() for link in PAGES[path].links if link[0] != "#")
            waiting += [target for target in targets if target in PAGES]
    assert set(PAGES) - found == set()


def refusal(words: list[str]) -> str | None:
    """Why the parser refuses a command line; None if it takes it. Nothing is run, no file is read."""
    known = commands()
    name = next((name for name in known if words[: len(name.split())] == name.split()), None)
    command = typer.main.get_command(app) if name is None else known[name]
    if name is None and not words[0].startswith("-"):
        return f"no such command: {words[0]}"
    for parameter in command.params:
        parameter.callback = None
    arguments = words[len((name or "").split()) :]
    if not arguments:
        return None
    try:
        command.make_context(name or "batchgen", [*arguments])
    except Exception as error:  # noqa: BLE001 - the parser's own classes are not published
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return None


def refused_commands(source: Page) -> Iterator[str]:
    for words in source.commands():
        plain = [word.strip("[]") for word in words]
        if plain[0].isupper() or plain[0] == "…":
            continue
        if (why := refusal(plain)) is not None:
            yield f"{source.path.name}: batchgen {' '.join(words)}: {why}"


def test_commands_parse() -> None:
    current = [source for path, source in PAGES.items() if path not in {PAGE, ROOT / "CHANGELOG.md"}]
    assert [fault for source in current for fault in refused_commands(source)] == []
    assert sum(len(list(source.commands())) for source in current) > 40
    assert refusal(["run-batch", "x.jsonl", "-o", "y", "--max-num-seqs", "8"]) is None
    assert refusal(["run-batch", "x.jsonl", "--no-such-option"]) is not None
    assert refusal(["run-batch", "x.jsonl", "--dtype", "float7"]) is not None
    assert refusal(["run-all"]) is not None
    blocks = "    FOO=1 batchgen run-batch a.jsonl \\\n      -o b   # why\n\nand `batchgen\nstatus b [--json]`\n"
    found = list(Page(DOCS / "made-up.md", blocks).commands())
    assert found == [["run-batch", "a.jsonl", "-o", "b"], ["status", "b", "[--json]"]]


def test_options_and_targets_that_are_named_are_there() -> None:
    root = typer.main.get_command(app)
    known = {name for command in (root, *commands().values()) for p in command.params for name in flags_of(p)}
    named = {span.split()[0].partition("=")[0] for span in SPANS if re.match(r"--[a-z]", span)}
    assert named - known - OF_OTHERS == set()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    assert {span.split()[1] for span in SPANS if re.match(r"make [a-z]", span)} - targets == set()


@pytest.mark.parametrize("source", [p for p in PAGES.values() if p.snippets("python")], ids=lambda p: p.path.name)
def test_snippets_are_python_and_import_what_is_there(source: Page) -> None:
    for code in source.snippets("python"):
        for node in ast.walk(ast.parse(code, source.path.name)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "batchgen":
                module = importlib.import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_options_are_those_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/options.md is stale: run `make docs`"


def exit_codes() -> set[int]:
    """Those of the errors that end a job, and those without an error."""
    classes = [getattr(errors, name) for name in errors.__all__]
    return {error.exit_code for error in classes} | {0, 3, 130, 143, 141}


def test_troubleshooting_has_every_code() -> None:
    source = PAGES[DOCS / "troubleshooting.md"]
    titles = {word for anchor in source.anchors for word in anchor.split("-")}
    assert {str(code) for code in exit_codes()} <= titles
    rows = {line.split("`")[1] for line in source.text.splitlines() if line.startswith("| `")}
    assert {code.value for code in Code} <= rows
    statuses = {code.value: f"| {code.status} |" for code in Code}
    lines = {line.split("`")[1]: line for line in source.text.splitlines() if line.startswith("| `")}
    assert [name for name, status in statuses.items() if status not in lines[name]] == []


def test_the_readme_is_read_in_ten_minutes() -> None:
    """At 200 words a minute, code and tables included."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 2000
