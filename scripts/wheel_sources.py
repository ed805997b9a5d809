"""The Python sources inside a released wheel, by module and name; nothing is imported, nothing
installed."""

from __future__ import annotations

import ast
import zipfile
from dataclasses import dataclass, field
from typing import Any


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
"""What cannot be known without running the engine: the platform, an environment variable."""


@dataclass(frozen=True)
class External:
    """Something outside the wheel, by its dotted name: ``json.loads``, ``typing.Literal``,
    ``int``."""

    name: str


@dataclass(frozen=True)
class Import:
    """A name that another module binds; ``name`` None: the module itself."""

    source: str
    name: str | None


@dataclass(eq=False)
class Module:
    """A module of the wheel: its top-level names to the node, or the `Import`, that binds them."""

    name: str
    package: str
    bindings: dict[str, ast.AST | Import] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the wheel."""

    module: Module
    node: ast.ClassDef


@dataclass(frozen=True, eq=False)
class Function:
    """A function or method of the wheel; ``owner`` is the class on which it was looked up."""

    module: Module
    node: ast.FunctionDef | ast.Lambda
    owner: Class | None = None


@dataclass
class Parser:
    """Stands for the ``argparse`` parser and its groups: records every ``add_argument``."""

    calls: list[tuple[list[str], dict[str, Any]]] = field(default_factory=list)


@dataclass
class Frame:
    """Where code runs: its module, its local names, the parser that it fills."""

    module: Module
    parser: Parser
    local: dict[str, Any] = field(default_factory=dict)


class Sources:
    """The modules of one wheel."""

    def __init__(self, wheel: str) -> None:
        self._zip = zipfile.ZipFile(wheel)
        self._names = set(self._zip.namelist())
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of that dotted name; None when the wheel has none."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Module | None:
        path = name.replace(".", "/")
        file = next((p for p in (f"{path}.py", f"{path}/__init__.py") if p in self._names), None)
        if file is None:
            return None
        module = Module(name, name if file.endswith("__init__.py") else name.rpartition(".")[0])
        _bind(module, ast.parse(self._zip.read(file).decode()).body)
        return module


def absolute(module: Module, node: ast.ImportFrom) -> str:
    """The dotted name that an import statement of a module refers to."""
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def is_name(node: ast.AST, name: str) -> bool:
    """Whether a node is that bare name."""
    return isinstance(node, ast.Name) and node.id == name


def _bind(module: Module, body: list[ast.stmt]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            module.bindings[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            _bind_assignment(module, node)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, node)
            module.bindings.update({a.asname or a.name: Import(source, a.name) for a in node.names})
        elif isinstance(node, ast.Import):
            module.bindings.update(
                {a.asname or a.name.split(".")[0]: Import(a.name, None) for a in node.names}
            )
        elif isinstance(node, ast.If | ast.Try):
            # `if TYPE_CHECKING: import … else: stand-in`: at run time the stand-in counts, so it is
            # bound last.
            _bind(module, node.body)
            _bind(module, node.orelse)


def _bind_assignment(module: Module, node: ast.Assign | ast.AnnAssign) -> None:
    if node.value is None:
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        # A class that is rebuilt by a call (msgspec.defstruct) stays the class that was written.
        if isinstance(target, ast.Name) and not isinstance(
            module.bindings.get(target.id), ast.ClassDef
        ):
            module.bindings[target.id] = node.value
