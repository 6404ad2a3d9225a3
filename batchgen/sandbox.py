"""Jinja for templates from anywhere: no way out to Python, and bounds on what one rendering may do.

Jinja's own sandbox keeps a template from attributes and functions that it has no business with. Here each rendering
also has a budget: every turn of a loop costs a step, every call ten, every text or list that is made one for 64
characters or items, and nothing may grow beyond a limit. The bounds are counts, not times, so that the same row fails
or not on every machine. They are far beyond what templates for chats need: a step takes up to a microsecond.

What a few C functions can be driven to, such as comparing lists that hold each other many times, is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_SIZE", "MAX_STEPS", "BoundedEnvironment"]

MAX_STEPS = 2_000_000
MAX_SIZE = 64 << 20
"""Characters of a text, items of a list."""
_STEPS_OF_A_CALL = 10
_SIZE_OF_A_STEP = 64
_MAX_WIDTH = 100_000
_MAX_BITS = 4096
_WIDE_FORMAT = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*|\{[^{}]*:[^}]*\{")
"""In a format string: a width that is large, or only known when it runs."""


class _BoundedContext(Context):
    """The names of one rendering, and what it has used of its budget."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.used = [0]
        """Steps; a list, for contexts of the same rendering to share."""

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002 - the name is jinja2's
        """A context for a block of the same rendering."""
        context = super().derived(locals)
        assert isinstance(context, _BoundedContext)
        context.used = self.used
        return context

    def spend(self, steps: int, size: int = 0) -> None:
        """Count steps, and the making of something of that size. Raises `SecurityError` beyond the bounds."""
        _check_size(size)
        self.used[0] += steps + size // _SIZE_OF_A_STEP
        if self.used[0] > MAX_STEPS:
            raise SecurityError(f"the template does too much: over {MAX_STEPS} steps")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """An environment whose templates can neither get out nor run on and on."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    context_class = _BoundedContext

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        del self.globals["lipsum"]
        for name in ("center", "indent", "batch", "slice", "format"):
            self.filters[name] = _checked(name, self.filters[name])
        self.filters |= {"replace": _replace, "join": _join(self.filters["join"])}

    def call(self, context: _BoundedContext, callee: Any, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        """Every call in a template."""
        context.spend(_STEPS_OF_A_CALL)
        if isinstance(owner := getattr(callee, "__self__", None), str):
            _check(callee.__name__, owner, arguments)
        return super().call(context, callee, *arguments, **named)

    def wrap_str_format(self, value: Any) -> Any:
        """Called for every attribute that a template asks for: `str.format` gets a safe stand-in."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check("format", value.__self__, ())
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make something large of something small."""
        assert isinstance(context, _BoundedContext)
        context.spend(1, _size_after(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def turns(self, context: _BoundedContext, items: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes over, each turn counted."""
        for item in items:
            context.spend(1)
            yield item

    def joined(self, context: _BoundedContext, *parts: Any) -> str:
        """What `a ~ b` is."""
        texts = [str(part) for part in parts]
        context.spend(1, sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The text of a rendering, or of a macro."""
        kept, size = [], 0
        for part in parts:
            kept.append(part)
            size += len(part)
            _check_size(size)
        return "".join(kept)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Metering().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        return tree


class _Metering(NodeTransformer):
    """Puts `turns` around what loops go over, and `joined` in place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - the name is jinja2's
        node = self.generic_visit(node)  # type: ignore[assignment]
        node.iter = _ask("turns", node.iter)  # type: ignore[arg-type]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the name is jinja2's
        node = self.generic_visit(node)  # type: ignore[assignment]
        return _ask("joined", *node.nodes)


def _ask(method: str, *arguments: nodes.Expr) -> nodes.Call:
    line = arguments[0].lineno
    call = nodes.Call(nodes.EnvironmentAttribute(method), [nodes.ContextReference(), *arguments], [], None, None)
    return call.set_lineno(line, override=True)  # type: ignore[return-value]


def _size_after(operator: str, left: Any, right: Any) -> int:
    """Size of the result of an operator; 0 where it is a number. Raises `SecurityError` where that is out of bounds."""
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > _MAX_BITS:
            raise SecurityError(f"the template computes a number of over {_MAX_BITS} bits")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | bytes | list | tuple) and isinstance(times, int):
                return len(many) * max(times, 0)
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        return len(left) + len(right)
    elif operator == "%" and isinstance(left, str):
        _check("format", left, ())
    return 0


def _check(name: str, text: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what a method or filter of a text would make far larger. Raises `SecurityError`."""
    if name in {"format", "format_map"} and _WIDE_FORMAT.search(text):
        raise SecurityError("the template formats with a width that is too large, or not written down")
    if name == "replace" and len(arguments) > 1:
        _check_size(len(text) + text.count(str(arguments[0])) * len(str(arguments[1])))
    elif name == "join" and arguments and isinstance(arguments[0], list | tuple):
        _check_size(sum(len(item) + len(text) for item in arguments[0] if isinstance(item, str)))
    elif any(isinstance(argument, int) and argument > _MAX_WIDTH for argument in arguments):
        raise SecurityError(f"the template asks {name} for more than {_MAX_WIDTH}")


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"the template makes a text over {MAX_SIZE >> 20} MiB")


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        text = arguments[0] if isinstance(arguments[0], str) else ""
        _check(name, text, (*arguments[1:], *named.values()))
        return function(*arguments, **named)

    return call


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    """Jinja's filter, without its care for HTML."""
    text, old, new = str(text), str(old), str(new)
    _check("replace", text, (old, new))
    return str(text.replace(old, new, count))


def _join(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(context: Any, items: Iterable[Any], separator: str = "", attribute: Any = None) -> Any:
        items = list(items)
        _check("join", separator, (items,))
        return function(context, items, separator, attribute)

    return call
