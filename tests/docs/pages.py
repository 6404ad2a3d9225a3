"""The pages of the documents, taken apart."""

from __future__ import annotations

import doctest
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["DOCS", "ROOT", "Page", "read_pages"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n?)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`", re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """One page of Markdown."""

    path: Path
    text: str

    @cached_property
    def prose(self) -> str:
        """The text without its blocks of code."""
        return _INDENTED.sub("", _FENCED.sub("", self.text))

    @property
    def links(self) -> list[str]:
        """Targets of links, as they are written."""
        return _LINK.findall(_INLINE.sub("", self.prose))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """What `#...` can name: the headings, lower case, words joined by hyphens, without punctuation."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)

    def snippets(self, language: str) -> list[str]:
        """Fenced blocks in that language; of a session of Python what was typed."""
        blocks = [code for name, code in _FENCED.findall(self.text) if name == language]
        return [_typed(code) if code.startswith(">>> ") else code for code in blocks]

    @cached_property
    def spans(self) -> list[str]:
        """What stands between backticks, each on one line."""
        return [" ".join(span.split()) for span in _INLINE.findall(self.prose)]

    def commands(self) -> Iterator[list[str]]:
        """Words after `batchgen` of every command line, in blocks of code and between backticks."""
        fenced = [code for name, code in _FENCED.findall(self.text) if name not in {"python", "pycon"}]
        indented = [textwrap.dedent(code) for code in _INDENTED.findall(_FENCED.sub("", self.text))]
        lines = [line for code in (*fenced, *indented) for line in code.replace("\\\n", " ").splitlines()]
        for line in (*lines, *(span for span in self.spans if span.startswith("batchgen "))):
            for part in re.split(r"\s\d?[<>]+|\s\|\s|&&|;", line):
                if found := re.search(r"(?:^|[\s/\"])batchgen (.+)", part):
                    yield shlex.split(found[1].rstrip('"'), comments=True)


def _typed(session: str) -> str:
    return "".join(example.source for example in doctest.DocTestParser().get_examples(session))


def read_pages() -> dict[Path, Page]:
    """All pages by their path."""
    paths = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")))
    return {path: Page(path, path.read_text(encoding="utf-8")) for path in paths}
