"""The small expression language of the YAML files: Python expressions without calls to anything.

An expression sees the knobs by name and the namespaces it is given (``model``, ``hardware``,
``workload``, ``args``, ``env``, ``config``, ``gpus``, ``engine``). Names, attributes, literals,
comparisons, boolean and integer arithmetic, ``x if c else y``, ``in`` and the functions ``min``,
``max``, ``int``, ``str`` and ``len`` are allowed; everything else is refused when the file is read,
so that a space file can be taken from a stranger.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Annotated, Any

from pydantic import AfterValidator

_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Tuple, ast.List,
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot,
    ast.IfExp, ast.Call,
)  # fmt: skip
_FUNCTIONS = {"min": min, "max": max, "int": int, "str": str, "len": len}
_GLOBALS = {"__builtins__": {}, **_FUNCTIONS}  # no expression can bind a name
_HOLE = re.compile(r"\{([^{}]+)\}")


class Namespace:
    """Attribute access over a mapping; a name that is not there is ``None``, also when nested."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._value(name)
        return type(self)(value) if isinstance(value, Mapping) else value

    def _value(self, name: str) -> Any:
        return self._values.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __bool__(self) -> bool:
        return bool(self._values)


@contextmanager
def _refused(text: str) -> Iterator[None]:
    """Raise ``ValueError`` where Python refuses or warns: the value of ``knob is 8`` depends on the interpreter."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    except SyntaxError as error:
        raise ValueError(f"not an expression: {text!r} ({error.msg})") from error


@lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[CodeType, frozenset[str]]:
    with _refused(text):
        tree = ast.parse(text.strip(), mode="eval")
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ValueError(f"{type(node).__name__} is not allowed in an expression: {text!r}")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise ValueError(f"names with a leading underscore are not allowed: {text!r}")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            raise ValueError(f"only {', '.join(_FUNCTIONS)} may be called in an expression: {text!r}")
        if isinstance(node, ast.Name):
            names.add(node.id)
    with _refused(text):
        return compile(tree, f"<{text}>", "eval"), frozenset(names - set(_FUNCTIONS))


def check(text: str) -> str:
    """Return the expression; raise ``ValueError`` when it is not one."""
    _compiled(text)
    return text


def names(text: str) -> frozenset[str]:
    """The free names of an expression."""
    return _compiled(text)[1]


def evaluate(text: str, scope: Mapping[str, Any]) -> Any:
    """The expression's value in a scope; raises ``NameError`` or ``TypeError`` as Python does."""
    return eval(_compiled(text)[0], _GLOBALS, scope)


def check_template(text: str) -> str:
    """Return a template, text with ``{expression}`` holes; raise ``ValueError`` when a hole is not an expression."""
    for hole in _HOLE.findall(text):
        check(hole)
    return text


def template_names(text: str) -> frozenset[str]:
    """The free names of a template's holes."""
    return frozenset(name for hole in _HOLE.findall(text) for name in names(hole))


def fill(template: str, scope: Mapping[str, Any]) -> str:
    """A template with its holes filled in."""
    return _HOLE.sub(lambda match: str(evaluate(match.group(1), scope)), template)


def fill_value(template: Any, scope: Mapping[str, Any]) -> Any:
    """Like `fill`, but a template that is one single hole keeps its value's type."""
    if not isinstance(template, str):
        return template
    whole = _HOLE.fullmatch(template)
    return evaluate(whole.group(1), scope) if whole else fill(template, scope)


Expression = Annotated[str, AfterValidator(check)]
Template = Annotated[str, AfterValidator(check_template)]
