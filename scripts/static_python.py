"""A small interpreter for the parser-building code of a released wheel.

Engines build their command line in ordinary Python that needs a GPU build of torch to import. This
executes just enough of it from the sources: names across modules, class attributes, literals,
simple loops, and method calls on strings, lists and dicts. What cannot be known is `UNKNOWN`, which
propagates; a branch on it is taken.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from itertools import permutations
from typing import Any

from wheel_sources import (
    UNKNOWN,
    Class,
    External,
    Frame,
    Function,
    Import,
    Module,
    Parser,
    Sources,
    absolute,
    is_name,
)


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


Intrinsic = Callable[["Interpreter", list[Any], dict[str, Any]], Any]
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Mult: lambda a, b: a * b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: isinstance(b, list | tuple | dict | str) and a in b,
}
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "list": list, "sorted": sorted, "set": list, "tuple": tuple, "frozenset": list,
}  # fmt: skip


class Interpreter:
    """Evaluates nodes of one wheel. ``intrinsics``: functions by bare name that the caller answers
    itself."""

    def __init__(self, wheel: str, intrinsics: dict[str, Intrinsic]) -> None:
        self.sources = Sources(wheel)
        self.intrinsics = intrinsics

    def resolve(self, module: Module, name: str) -> Any:
        """The value of a top-level name, following imports."""
        bound = module.bindings.get(name)
        if bound is None:
            inner = self.sources.module(f"{module.name}.{name}")
            return inner if inner is not None else External(name)
        if isinstance(bound, Import):
            return self._imported(bound)
        if isinstance(bound, ast.ClassDef):
            return Class(module, bound)
        if isinstance(bound, ast.FunctionDef):
            return Function(module, bound)
        return self.constant(bound, module)

    def _imported(self, imported: Import) -> Any:
        target = self.sources.module(imported.source)
        if imported.name is None:
            return target if target is not None else External(imported.source)
        if target is None:
            return External(f"{imported.source}.{imported.name}")
        return self.resolve(target, imported.name)

    @cache  # noqa: B019 -- one interpreter per process
    def bases(self, cls: Class) -> tuple[Class, ...]:
        """The class and its bases that the wheel has, nearest first."""
        found = [cls]
        for base in cls.node.bases:
            value = self.constant(base, cls.module)
            if isinstance(value, Class):
                found.extend(self.bases(value))
        return tuple(found)

    def attribute(self, cls: Class, name: str) -> Any:
        """A class attribute or method, through the bases."""
        for owner in self.bases(cls):
            for node in owner.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return Function(owner.module, node, cls)
                if (
                    isinstance(node, ast.AnnAssign)
                    and is_name(node.target, name)
                    and node.value is not None
                ):
                    return self.constant(node.value, owner.module)
                if isinstance(node, ast.Assign) and any(is_name(t, name) for t in node.targets):
                    return self.constant(node.value, owner.module)
        return UNKNOWN

    def constant(self, node: ast.AST, module: Module) -> Any:
        """The value of an expression of a module's top level."""
        return self.evaluate(node, Frame(module, Parser()))

    def evaluate(self, node: ast.AST, frame: Frame) -> Any:
        """The value of an expression; `UNKNOWN` where it depends on what cannot be known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Lambda):
            return Function(frame.module, node)
        handler = getattr(self, f"_eval_{type(node).__name__}", None)
        return handler(node, frame) if handler else UNKNOWN

    def _eval_Name(self, node: ast.Name, frame: Frame) -> Any:
        return (
            frame.local[node.id] if node.id in frame.local else self.resolve(frame.module, node.id)
        )

    def _items(self, nodes: list[ast.expr], frame: Frame) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += self._iterable(self.evaluate(node.value, frame))
            else:
                items.append(self.evaluate(node, frame))
        return items

    def _eval_List(self, node: ast.List | ast.Set, frame: Frame) -> Any:
        return self._items(node.elts, frame)

    _eval_Set = _eval_List

    def _eval_Tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        return tuple(self.evaluate(e, frame) for e in node.elts)

    def _eval_Dict(self, node: ast.Dict, frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            item = self.evaluate(value, frame)
            if key is None:
                out.update(item if isinstance(item, dict) else {})
            else:
                out[self.evaluate(key, frame)] = item
        return out

    def _eval_Attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        value = self.evaluate(node.value, frame)
        if isinstance(value, External):
            return External(f"{value.name}.{node.attr}")
        if isinstance(value, Module):
            return self.resolve(value, node.attr)
        if isinstance(value, Class):
            return self.attribute(value, node.attr)
        return (
            getattr(value, node.attr, UNKNOWN) if isinstance(value, str | list | dict) else UNKNOWN
        )

    def _eval_Subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        value, index = self.evaluate(node.value, frame), self.evaluate(node.slice, frame)
        if isinstance(value, External) and value.name.endswith("Literal"):
            return [
                v for item in (index if isinstance(index, tuple) else (index,)) for v in _flat(item)
            ]
        try:
            return value[index]
        except (TypeError, KeyError, IndexError):
            return UNKNOWN

    def _eval_BinOp(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.right, frame)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and right is UNKNOWN:
            return left
        try:
            return _OPERATORS[type(node.op)](left, right)
        except (TypeError, KeyError):
            return UNKNOWN

    def _eval_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.evaluate(node.operand, frame)
        if not isinstance(value, bool | int | float):
            return UNKNOWN
        return -value if isinstance(node.op, ast.USub) else not value

    def _eval_Compare(self, node: ast.Compare, frame: Frame) -> Any:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.comparators[0], frame)
        operator = _OPERATORS.get(type(node.ops[0]))
        return UNKNOWN if operator is None or UNKNOWN in (left, right) else operator(left, right)

    def _eval_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts = [
            self.evaluate(v.value if isinstance(v, ast.FormattedValue) else v, frame)
            for v in node.values
        ]
        return UNKNOWN if UNKNOWN in parts else "".join(str(p) for p in parts)

    def _eval_ListComp(self, node: ast.ListComp, frame: Frame) -> Any:
        generator = node.generators[0]
        out = []
        for item in self._iterable(self.evaluate(generator.iter, frame)):
            inner = Frame(frame.module, frame.parser, dict(frame.local))
            self._assign(generator.target, item, inner)
            out.append(self.evaluate(node.elt, inner))
        return out

    def _iterable(self, value: Any) -> list[Any]:
        return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else []

    def _eval_Call(self, node: ast.Call, frame: Frame) -> Any:
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        args, kwargs = self._arguments(node, frame)
        if name in self.intrinsics:
            return self.intrinsics[name](self, args, kwargs)
        if name == "add_argument":
            frame.parser.calls.append((args, kwargs))
            return UNKNOWN
        if isinstance(node.func, ast.Attribute) and _is_call(node.func.value, "super"):
            method = self.attribute(self.bases(frame.local["cls"])[1], name)
            return self.call(
                Function(method.module, method.node, frame.local["cls"]), args, kwargs, frame.parser
            )
        return self._apply(self.evaluate(node.func, frame), args, kwargs, frame.parser)

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        args = self._items(node.args, frame)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, frame)
            kwargs.update(
                {keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {}
            )
        return args, kwargs

    def _apply(self, function: Any, args: list[Any], kwargs: dict[str, Any], parser: Parser) -> Any:
        if isinstance(function, Function):
            return self.call(function, args, kwargs, parser)
        if isinstance(function, External):
            return self._apply_external(function.name, args, kwargs)
        try:
            return function(*args, **kwargs) if callable(function) else UNKNOWN
        except (TypeError, KeyError, ValueError):
            return UNKNOWN

    def _apply_external(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "sys.modules.get":  # nothing is imported
            return None
        if name == "int" and args == [External("ssl.CERT_NONE")]:
            return 0
        if name in _CONVERSIONS and args and args[0] is not UNKNOWN:
            return _CONVERSIONS[name](self._iterable(args[0]))
        if name == "itertools.permutations" and args[0] is not UNKNOWN:
            return [list(one) for one in permutations(self._iterable(args[0]), **kwargs)]
        return args[0] if name.endswith("get_args") else UNKNOWN

    def call(
        self, function: Function, args: list[Any], kwargs: dict[str, Any], parser: Parser
    ) -> Any:
        """Execute a function of the wheel; a class method gets its class as ``cls``."""
        names = [a.arg for a in function.node.args.args]
        frame = Frame(function.module, parser)
        if names and names[0] in {"cls", "self"}:
            frame.local[names.pop(0)] = function.owner
        frame.local.update(dict(zip(names, args, strict=False)), **kwargs)
        defaults = function.node.args.defaults
        for name, node in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            frame.local.setdefault(name, self.constant(node, function.module))
        if isinstance(function.node, ast.Lambda):
            return self.evaluate(function.node.body, frame)
        try:
            self._execute(function.node.body, frame)
        except _Return as done:
            return done.value
        return None

    def _execute(self, body: list[ast.stmt], frame: Frame) -> None:
        for node in body:
            handler = getattr(self, f"_exec_{type(node).__name__}", None)
            if handler:
                handler(node, frame)

    def _exec_Expr(self, node: ast.Expr, frame: Frame) -> None:
        self.evaluate(node.value, frame)

    def _exec_Return(self, node: ast.Return, frame: Frame) -> None:
        raise _Return(self.evaluate(node.value, frame) if node.value else None)

    def _exec_Assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self._assign(target, value, frame)

    def _exec_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        left = ast.parse(ast.unparse(node.target), mode="eval").body
        self._assign(
            node.target, self._eval_BinOp(ast.BinOp(left, node.op, node.value), frame), frame
        )

    def _exec_If(self, node: ast.If, frame: Frame) -> None:
        test = self.evaluate(node.test, frame)
        self._execute(node.body if test is UNKNOWN or test else node.orelse, frame)

    def _exec_For(self, node: ast.For, frame: Frame) -> None:
        for item in self._iterable(self.evaluate(node.iter, frame)):
            self._assign(node.target, item, frame)
            self._execute(node.body, frame)

    def _exec_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        source = absolute(frame.module, node)
        for alias in node.names:
            frame.local[alias.asname or alias.name] = self._imported(Import(source, alias.name))

    def _exec_Delete(self, node: ast.Delete, frame: Frame) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.evaluate(target.value, frame).pop(self.evaluate(target.slice, frame), None)

    def _assign(self, target: ast.AST, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.local[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, self._iterable(value), strict=False):
                self._assign(part, item, frame)
        elif isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value, frame)
            if isinstance(owner, dict):
                owner[self.evaluate(target.slice, frame)] = value


def _flat(value: Any) -> list[Any]:
    """The values of an element of ``Literal[…]``, which may itself be a literal type."""
    return [v for item in value for v in _flat(item)] if isinstance(value, list) else [value]


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and is_name(node.func, name)
