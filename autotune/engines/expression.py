"""The small expression language of the YAML files: Python expressions without calls to anything.

An expression sees the knobs by name and the namespaces it is given (``model``, ``hardware``,
``workload``, ``args``, ``env``, ``config``, ``gpus``, ``engine``). Names, attributes, literals,
comparisons, boolean and integer arithmetic, ``x if c else y``, ``in`` and the functions ``min``,
``max``, ``int``, ``str``, ``len`` and ``lower`` are allowed, lists only behind ``in``; everything
else is refused when the file is read. Texts are not multiplied or formatted, and what a value may
grow to is bounded, so that a space file can be taken from a stranger.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Annotated, Any

from pydantic import AfterValidator

from autotune.base import BadInput, JsonObject

_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Tuple, ast.List,
    ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not, ast.USub,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.Compare, ast.cmpop, ast.IfExp, ast.Call,
)  # fmt: skip
_FUNCTIONS = {"min": min, "max": max, "int": int, "str": str, "len": len, "lower": str.lower}
_HOLE = re.compile(r"\{([^{}]+)\}")
Scope = JsonObject
"""The names that an expression sees, with their values."""
_LONGEST, _MOST_BITS = 100_000, 4096
"""Characters of a text, and bits of a whole number."""


class Unbounded(BadInput, ValueError):
    """Error: an expression's result is larger than a knob's value can be."""


def _add(one: Any, other: Any) -> Any:
    if isinstance(one, _SEQUENCES) and len(one) + len(other) > _LONGEST:
        raise Unbounded(f"a text of more than {_LONGEST} characters")
    return one + other


def _multiply(one: Any, other: Any) -> Any:
    if isinstance(one, _SEQUENCES) or isinstance(other, _SEQUENCES):
        raise Unbounded("only numbers can be multiplied")
    if (
        isinstance(one, int)
        and isinstance(other, int)
        and one.bit_length() + other.bit_length() > _MOST_BITS
    ):
        raise Unbounded(f"a number of more than {_MOST_BITS} bits")
    return one * other


def _remainder(one: Any, other: Any) -> Any:
    if isinstance(one, _SEQUENCES):
        raise Unbounded("only numbers have a remainder; no text is formatted")
    return one % other


_SEQUENCES = (str, bytes, list, tuple)
# Their names are none that an expression can have.
_BOUNDED = {ast.Add: "+", ast.Mult: "*", ast.Mod: "%"}
# No expression can bind a name.
_GLOBALS = {"__builtins__": {}, **_FUNCTIONS, "+": _add, "*": _multiply, "%": _remainder}


class _Bound(ast.NodeTransformer):
    """Replace the operators with potentially large results by functions."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if type(node.op) not in _BOUNDED:
            return node
        function = ast.Name(_BOUNDED[type(node.op)], ast.Load())
        return ast.copy_location(ast.Call(function, [node.left, node.right], []), node)


class Namespace:
    """Attribute access over a mapping; a missing name is ``None``, also when nested."""

    def __init__(self, values: JsonObject) -> None:
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
    """Raise ``ValueError`` where Python refuses or warns: the value of ``knob is 8`` depends on the
    interpreter."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"not an expression: {text[:200]!r} ({getattr(error, 'msg', 'nested too deeply')})"
        ) from error


@lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[CodeType, frozenset[str]]:
    with _refused(text):
        tree = ast.parse(text.strip(), mode="eval")
    names = set()
    members = {
        id(values)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for operator, values in zip(node.ops, node.comparators, strict=True)
        if isinstance(operator, ast.In | ast.NotIn)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and id(node) not in members:
            raise ValueError(f"a list is only allowed after `in` in an expression: {text!r}")
        if not isinstance(node, _NODES):
            raise ValueError(f"{type(node).__name__} is not allowed in an expression: {text!r}")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise ValueError(f"names with a leading underscore are not allowed: {text!r}")
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        ):
            raise ValueError(
                f"only {', '.join(_FUNCTIONS)} may be called in an expression: {text!r}"
            )
        if isinstance(node, ast.Name):
            names.add(node.id)
    with _refused(text):
        bounded = ast.fix_missing_locations(_Bound().visit(tree))
        return compile(bounded, f"<{text}>", "eval"), frozenset(names - set(_FUNCTIONS))


def check(text: str) -> str:
    """Return the expression; raises ``ValueError`` for an invalid one."""
    _compiled(text)
    return text


@lru_cache(maxsize=4096)
def names(*texts: str) -> frozenset[str]:
    """Return the names in some expressions."""
    return frozenset[str]().union(*(_compiled(text)[1] for text in texts))


def evaluate(text: str, scope: Scope) -> Any:
    """Evaluate an expression; raises `Unbounded`, and ``NameError`` or ``TypeError`` as Python
    does."""
    try:
        return eval(_compiled(text)[0], _GLOBALS, scope)
    except Unbounded as error:
        raise Unbounded(f"expression {text!r}: {error}") from None


def check_template(text: str) -> str:
    """Return a template, text with ``{expression}`` holes; raises ``ValueError`` for an invalid
    hole."""
    for hole in _HOLE.findall(text):
        check(hole)
    return text


def template_names(*texts: str) -> frozenset[str]:
    """Return the names in some templates."""
    return names(*(hole for text in texts for hole in _HOLE.findall(text)))


def fill(template: str, scope: Scope) -> str:
    """Fill in the holes of a template; raises as `evaluate` does."""
    length = 0

    def filled(match: re.Match[str]) -> str:
        nonlocal length
        text = str(evaluate(match[1], scope))
        length += len(text)
        if length > _LONGEST:
            raise Unbounded(
                f"template {template[:200]!r}: a text of more than {_LONGEST} characters"
            )
        return text

    return _HOLE.sub(filled, template)


def fill_value(template: Any, scope: Scope) -> Any:
    """Fill in a template, or the templates of a document, as `fill` does; a single hole keeps its
    value's type."""
    if isinstance(template, dict):
        return {name: fill_value(value, scope) for name, value in template.items()}
    if not isinstance(template, str):
        return template
    whole = _HOLE.fullmatch(template)
    return evaluate(whole.group(1), scope) if whole else fill(template, scope)


Expression = Annotated[str, AfterValidator(check)]
Template = Annotated[str, AfterValidator(check_template)]
