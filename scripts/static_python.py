"""A small interpreter for the parser-building code of a released wheel: nothing is imported, nothing installed.

Engines build their command line in ordinary Python that needs a GPU build of torch to import. This reads the sources
inside the wheel and executes just enough of them: names across modules, class attributes, literals, simple loops and
method calls on strings, lists and dicts. Whatever it cannot know (the platform, an environment variable) is
`UNKNOWN`, which propagates; a branch on it is taken.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class External:
    """Something outside the wheel, by its dotted name: ``json.loads``, ``typing.Literal``, ``int``."""

    name: str


@dataclass(eq=False)
class Module:
    """A module of the wheel: top-level names to the node that binds them, or to (module, name) of an import."""

    name: str
    package: str
    bindings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the wheel."""

    module: Module
    node: ast.ClassDef


@dataclass(frozen=True, eq=False)
class Function:
    """A function or method of the wheel; ``owner`` is the class it was looked up on."""

    module: Module
    node: ast.FunctionDef | ast.Lambda
    owner: Class | None = None


class Parser:
    """Stands for the ``argparse`` parser and its groups: records every ``add_argument``."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], dict[str, Any]]] = []


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


Intrinsic = Callable[["Interpreter", list[Any], dict[str, Any]], Any]


class Interpreter:
    """Evaluates nodes of one wheel. ``intrinsics``: functions by bare name that the caller answers itself."""

    def __init__(self, wheel: str, intrinsics: dict[str, Intrinsic]) -> None:
        self._zip = zipfile.ZipFile(wheel)
        self._names = set(self._zip.namelist())
        self._modules: dict[str, Module | None] = {}
        self.intrinsics = intrinsics

    def module(self, name: str) -> Module | None:
        """The module of that dotted name; None when the wheel has none."""
        if name not in self._modules:
            path = name.replace(".", "/")
            file = next((p for p in (f"{path}.py", f"{path}/__init__.py") if p in self._names), None)
            self._modules[name] = None
            if file is not None:
                package = name if file.endswith("__init__.py") else name.rpartition(".")[0]
                module = Module(name, package)
                self._modules[name] = module
                _bind(module, ast.parse(self._zip.read(file).decode()).body)
        return self._modules[name]

    def resolve(self, module: Module, name: str) -> Any:
        """The value of a top-level name, following imports."""
        bound = module.bindings.get(name)
        if bound is None:
            inner = self.module(f"{module.name}.{name}")
            return inner if inner is not None else External(name)
        if isinstance(bound, tuple):
            return self._imported(*bound)
        if isinstance(bound, ast.ClassDef):
            return Class(module, bound)
        if isinstance(bound, ast.FunctionDef):
            return Function(module, bound)
        return self.evaluate(bound, module, {})

    def _imported(self, source: str, name: str | None) -> Any:
        target = self.module(source)
        if name is None:
            return target if target is not None else External(source)
        if target is None:
            return External(f"{source}.{name}")
        return self.resolve(target, name)

    @lru_cache(maxsize=None)  # noqa: B019 -- one interpreter per process
    def bases(self, cls: Class) -> tuple[Class, ...]:
        """The class and its bases that the wheel has, nearest first."""
        found = [cls]
        for base in cls.node.bases:
            value = self.evaluate(base, cls.module, {})
            if isinstance(value, Class):
                found.extend(self.bases(value))
        return tuple(found)

    def attribute(self, cls: Class, name: str) -> Any:
        """A class attribute or method, through the bases."""
        for owner in self.bases(cls):
            for node in owner.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return Function(owner.module, node, cls)
                if isinstance(node, ast.AnnAssign) and _is_name(node.target, name) and node.value is not None:
                    return self.evaluate(node.value, owner.module, {})
                if isinstance(node, ast.Assign) and any(_is_name(t, name) for t in node.targets):
                    return self.evaluate(node.value, owner.module, {})
        return UNKNOWN

    def evaluate(self, node: ast.AST, module: Module, scope: dict[str, Any]) -> Any:
        """The value of an expression; `UNKNOWN` where it depends on what cannot be known."""
        handler = getattr(self, f"_eval_{type(node).__name__}", None)
        return handler(node, module, scope) if handler else UNKNOWN

    def _eval_Constant(self, node: ast.Constant, module: Module, scope: dict[str, Any]) -> Any:
        return node.value

    def _eval_Name(self, node: ast.Name, module: Module, scope: dict[str, Any]) -> Any:
        return scope[node.id] if node.id in scope else self.resolve(module, node.id)

    def _eval_List(self, node: ast.List, module: Module, scope: dict[str, Any]) -> Any:
        return [self.evaluate(e, module, scope) for e in node.elts]

    def _eval_Tuple(self, node: ast.Tuple, module: Module, scope: dict[str, Any]) -> Any:
        return tuple(self.evaluate(e, module, scope) for e in node.elts)

    _eval_Set = _eval_List

    def _eval_Dict(self, node: ast.Dict, module: Module, scope: dict[str, Any]) -> Any:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            item = self.evaluate(value, module, scope)
            if key is None:
                out.update(item if isinstance(item, dict) else {})
            else:
                out[self.evaluate(key, module, scope)] = item
        return out

    def _eval_Attribute(self, node: ast.Attribute, module: Module, scope: dict[str, Any]) -> Any:
        value = self.evaluate(node.value, module, scope)
        if isinstance(value, External):
            return External(f"{value.name}.{node.attr}")
        if isinstance(value, Module):
            return self.resolve(value, node.attr)
        if isinstance(value, Class):
            return self.attribute(value, node.attr)
        return getattr(value, node.attr, UNKNOWN) if isinstance(value, str | list | dict | Parser) else UNKNOWN

    def _eval_Subscript(self, node: ast.Subscript, module: Module, scope: dict[str, Any]) -> Any:
        value, index = (self.evaluate(n, module, scope) for n in (node.value, node.slice))
        if isinstance(value, External) and value.name.endswith("Literal"):
            return [v for i in (index if isinstance(index, tuple) else (index,)) for v in _flat(i)]
        try:
            return value[index]
        except (TypeError, KeyError, IndexError):
            return UNKNOWN

    def _eval_BinOp(self, node: ast.BinOp, module: Module, scope: dict[str, Any]) -> Any:
        left, right = (self.evaluate(n, module, scope) for n in (node.left, node.right))
        if isinstance(node.op, ast.Add) and isinstance(left, list) and right is UNKNOWN:
            return left
        operators: dict[type, Callable[[Any, Any], Any]] = {
            ast.Add: lambda a, b: a + b,
            ast.Mult: lambda a, b: a * b,
            ast.Pow: lambda a, b: a**b,
            ast.LShift: lambda a, b: a << b,
        }
        try:
            return operators[type(node.op)](left, right)
        except (TypeError, KeyError):
            return UNKNOWN

    def _eval_UnaryOp(self, node: ast.UnaryOp, module: Module, scope: dict[str, Any]) -> Any:
        value = self.evaluate(node.operand, module, scope)
        if not isinstance(value, bool | int | float):
            return UNKNOWN
        return -value if isinstance(node.op, ast.USub) else not value

    def _eval_Compare(self, node: ast.Compare, module: Module, scope: dict[str, Any]) -> Any:
        left, right = (self.evaluate(n, module, scope) for n in (node.left, node.comparators[0]))
        if UNKNOWN in (left, right):
            return UNKNOWN
        tests: dict[type, Callable[[Any, Any], Any]] = {
            ast.Is: lambda a, b: a is b,
            ast.IsNot: lambda a, b: a is not b,
            ast.In: lambda a, b: isinstance(b, list | tuple | dict | str) and a in b,
        }
        return tests.get(type(node.ops[0]), lambda a, b: UNKNOWN)(left, right)

    def _eval_JoinedStr(self, node: ast.JoinedStr, module: Module, scope: dict[str, Any]) -> Any:
        parts = [self.evaluate(v.value if isinstance(v, ast.FormattedValue) else v, module, scope) for v in node.values]
        return UNKNOWN if UNKNOWN in parts else "".join(str(p) for p in parts)

    def _eval_Lambda(self, node: ast.Lambda, module: Module, scope: dict[str, Any]) -> Any:
        return Function(module, node)

    def _eval_ListComp(self, node: ast.ListComp, module: Module, scope: dict[str, Any]) -> Any:
        generator = node.generators[0]
        items = self._iterable(self.evaluate(generator.iter, module, scope))
        out = []
        for item in items:
            inner = {**scope}
            self._assign(generator.target, item, module, inner)
            out.append(self.evaluate(node.elt, module, inner))
        return out

    def _iterable(self, value: Any) -> list[Any]:
        if isinstance(value, Class):  # an enumeration
            return self.members(value)
        return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else []

    def members(self, cls: Class) -> list[Any]:
        """The values of an enumeration."""
        assigns = [n for n in cls.node.body if isinstance(n, ast.Assign)]
        return [self.evaluate(n.value, cls.module, {}) for n in assigns]

    def _eval_Call(self, node: ast.Call, module: Module, scope: dict[str, Any]) -> Any:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        args = [self.evaluate(a, module, scope) for a in node.args if not isinstance(a, ast.Starred)]
        for starred in (a for a in node.args if isinstance(a, ast.Starred)):
            args = [*self._iterable(self.evaluate(starred.value, module, scope)), *args]
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, module, scope)
            kwargs.update({keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {})
        if name in self.intrinsics:
            return self.intrinsics[name](self, args, kwargs)
        if name == "add_argument":
            scope["__parser__"].calls.append((args, kwargs))
            return UNKNOWN
        if isinstance(node.func, ast.Attribute) and _is_call(node.func.value, "super"):
            method = self.attribute(self.bases(scope["cls"])[1], name)
            return self.call(Function(method.module, method.node, scope["cls"]), args, kwargs, scope["__parser__"])
        return self._apply(self.evaluate(node.func, module, scope), args, kwargs, scope)

    def _apply(self, function: Any, args: list[Any], kwargs: dict[str, Any], scope: dict[str, Any]) -> Any:
        if isinstance(function, Function):
            return self.call(function, args, kwargs, scope.get("__parser__"))
        if isinstance(function, External):
            simple = {"list": list, "sorted": sorted, "set": list, "tuple": tuple, "frozenset": list, "int": int}
            if function.name in simple and args and args[0] is not UNKNOWN:
                value = self._iterable(args[0]) if function.name != "int" else args[0]
                return simple[function.name](value) if not isinstance(value, External) else 0  # type: ignore[operator]
            if function.name == "sys.modules.get":  # nothing is imported
                return None
            return args[0] if function.name.endswith("get_args") else UNKNOWN
        try:
            return function(*args, **kwargs) if callable(function) else UNKNOWN
        except (TypeError, KeyError, ValueError):
            return UNKNOWN

    def call(self, function: Function, args: list[Any], kwargs: dict[str, Any], parser: Parser | None) -> Any:
        """Execute a function of the wheel; a bare class method gets its class as ``cls``."""
        names = [a.arg for a in function.node.args.args]
        scope: dict[str, Any] = {"__parser__": parser}
        if names and names[0] in {"cls", "self"}:
            scope[names.pop(0)] = function.owner
        scope.update(dict(zip(names, args, strict=False)), **kwargs)
        defaults = function.node.args.defaults
        for name, node in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            scope.setdefault(name, self.evaluate(node, function.module, {}))
        if isinstance(function.node, ast.Lambda):
            return self.evaluate(function.node.body, function.module, scope)
        try:
            self._execute(function.node.body, function.module, scope)
        except _Return as done:
            return done.value
        return None

    def _execute(self, body: list[ast.stmt], module: Module, scope: dict[str, Any]) -> None:
        for node in body:
            handler = getattr(self, f"_exec_{type(node).__name__}", None)
            if handler:
                handler(node, module, scope)

    def _exec_Expr(self, node: ast.Expr, module: Module, scope: dict[str, Any]) -> None:
        self.evaluate(node.value, module, scope)

    def _exec_Return(self, node: ast.Return, module: Module, scope: dict[str, Any]) -> None:
        raise _Return(self.evaluate(node.value, module, scope) if node.value else None)

    def _exec_Assign(self, node: ast.Assign, module: Module, scope: dict[str, Any]) -> None:
        value = self.evaluate(node.value, module, scope)
        for target in node.targets:
            self._assign(target, value, module, scope)

    def _exec_AugAssign(self, node: ast.AugAssign, module: Module, scope: dict[str, Any]) -> None:
        load = ast.parse(ast.unparse(node.target), mode="eval").body
        self._assign(node.target, self._eval_BinOp(ast.BinOp(load, node.op, node.value), module, scope), module, scope)

    def _exec_If(self, node: ast.If, module: Module, scope: dict[str, Any]) -> None:
        test = self.evaluate(node.test, module, scope)
        taken = test is UNKNOWN or bool(test)
        self._execute(node.body if taken else node.orelse, module, scope)

    def _exec_For(self, node: ast.For, module: Module, scope: dict[str, Any]) -> None:
        for item in self._iterable(self.evaluate(node.iter, module, scope)):
            self._assign(node.target, item, module, scope)
            self._execute(node.body, module, scope)

    def _exec_ImportFrom(self, node: ast.ImportFrom, module: Module, scope: dict[str, Any]) -> None:
        for alias in node.names:
            scope[alias.asname or alias.name] = self._imported(_absolute(module, node), alias.name)

    def _exec_Delete(self, node: ast.Delete, module: Module, scope: dict[str, Any]) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                owner = self.evaluate(target.value, module, scope)
                owner.pop(self.evaluate(target.slice, module, scope), None)

    def _assign(self, target: ast.AST, value: Any, module: Module, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, self._iterable(value), strict=False):
                self._assign(part, item, module, scope)
        elif isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value, module, scope)
            if isinstance(owner, dict):
                owner[self.evaluate(target.slice, module, scope)] = value


def _flat(value: Any) -> list[Any]:
    """The values of an element of ``Literal[…]``, which may itself be a literal type."""
    return [v for item in value for v in _flat(item)] if isinstance(value, list) else [value]


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_class(module: Module, name: str) -> bool:
    return isinstance(module.bindings.get(name), ast.ClassDef)


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _is_name(node.func, name)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _bind(module: Module, body: list[ast.stmt]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            module.bindings[node.name] = node
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            # A class that is rebuilt by a call (msgspec.defstruct) stays the class that was written.
            module.bindings.update({n: node.value for n in names if not _is_class(module, n)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            module.bindings[node.target.id] = node.value
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            module.bindings.update({a.asname or a.name: (source, a.name) for a in node.names})
        elif isinstance(node, ast.Import):
            module.bindings.update({a.asname or a.name.split(".")[0]: (a.name, None) for a in node.names})
        elif isinstance(node, ast.If | ast.Try):
            # `if TYPE_CHECKING: import … else: stand-in`: at run time the stand-in counts, so it is bound last.
            _bind(module, node.body)
            _bind(module, node.orelse)
