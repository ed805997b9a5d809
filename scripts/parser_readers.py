"""What the two engines derive argparse options from, answered statically: dataclass fields and
their annotations.

`vllm`: ``get_kwargs(ConfigClass)`` of ``vllm/engine/arg_utils.py``. `sglang`:
``add_cli_args_from_dataclass`` of ``sglang/srt/arg_groups/arg_utils.py`` (0.5.14 and later; older
versions call ``add_argument`` by hand).
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import Any

from static_python import Interpreter
from wheel_sources import UNKNOWN, Class, External, Import, Module, Parser

_HUMAN_READABLE = {
    "max_model_len", "max_num_batched_tokens", "max_num_scheduled_tokens", "kv_cache_memory_bytes",
    "safetensors_prefetch_block_size", "max_num_queued_tokens",
}  # fmt: skip
_WRAPPERS = {"Optional", "Union", "Annotated", "SkipValidation", "ClassVar", "A"}
_PLAIN = {"bool", "int", "float", "str", "list", "tuple", "set", "dict", "None"}


@dataclass(frozen=True)
class Hint:
    """One alternative of an annotation: its kind, the literal values or the element's
    annotation."""

    kind: str
    values: tuple[Any, ...] = ()
    element: ast.AST | None = None
    module: Module | None = None


def hints(interpreter: Interpreter, node: ast.AST, module: Module) -> list[Hint]:
    """The alternatives of an annotation, with ``Optional``, ``Annotated`` and unions opened."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return hints(interpreter, ast.parse(node.value, mode="eval").body, module)
        return [Hint("None")]
    if isinstance(node, ast.BinOp):
        return [*hints(interpreter, node.left, module), *hints(interpreter, node.right, module)]
    if isinstance(node, ast.Subscript):
        return _subscripted(interpreter, node, module)
    return _named(interpreter, node, module)


def _subscripted(interpreter: Interpreter, node: ast.Subscript, module: Module) -> list[Hint]:
    name = ast.unparse(node.value).rpartition(".")[2]
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        return [Hint("literal", tuple(_literals(interpreter, inner, module)))]
    if name in _WRAPPERS:
        parts = inner if name in {"Optional", "Union"} else inner[:1]
        found = [h for part in parts for h in hints(interpreter, part, module)]
        return [*found, Hint("None")] if name == "Optional" else found
    if name.lower() in _PLAIN:
        count = (
            len(inner)
            if not any(isinstance(e, ast.Constant) and e.value is ... for e in inner)
            else 0
        )
        return [Hint(name.lower(), (count,), inner[0], module)]
    return [Hint("other")]


def _literals(interpreter: Interpreter, nodes: list[ast.expr], module: Module) -> list[Any]:
    out: list[Any] = []
    for node in nodes:
        value = interpreter.constant(node, module)
        out.extend(value if isinstance(value, list) else [value])
    return out


def _named(interpreter: Interpreter, node: ast.AST, module: Module) -> list[Hint]:
    name = ast.unparse(node)
    if name in _PLAIN:
        return [Hint(name)]
    bound, where = module.bindings.get(name), module
    while isinstance(bound, Import):
        source = interpreter.sources.module(bound.source)
        if source is None or bound.name is None:
            return [Hint("other")]
        where, bound = source, source.bindings.get(bound.name)
    if isinstance(bound, ast.ClassDef):
        return [
            Hint("dataclass" if _is_dataclass(bound) else "dict" if _is_dict(bound) else "other")
        ]
    return hints(interpreter, bound, where) if isinstance(bound, ast.expr) else [Hint("other")]


def _is_dataclass(node: ast.ClassDef) -> bool:
    names = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    return any(name.rpartition(".")[2] in {"config", "dataclass"} for name in names)


def _is_dict(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("dict") for base in node.bases)


def get_kwargs(interpreter: Interpreter, args: list[Any], _kwargs: dict[str, Any]) -> Any:
    """vLLM's ``get_kwargs``: every field of a config class to the keywords of its
    ``add_argument``."""
    out: dict[str, Any] = {}
    for owner in reversed(interpreter.bases(args[0])):
        for node in owner.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                out[node.target.id] = _vllm_field(interpreter, node, owner)
    return copy.copy(out)


def _vllm_field(interpreter: Interpreter, node: ast.AnnAssign, owner: Class) -> dict[str, Any]:
    assert isinstance(node.target, ast.Name)
    found = hints(interpreter, node.annotation, owner.module)
    by_kind = {hint.kind: hint for hint in found}
    out: dict[str, Any] = {"default": field_default(interpreter, node.value, owner.module)}
    if "dataclass" in by_kind:
        out["type"] = External("json")
    elif set(by_kind) == {"bool", "str", "None"}:
        out.update(type=External("str"), nargs="?", const=True)
    elif "bool" in by_kind:
        out["action"] = External("argparse.BooleanOptionalAction")
    elif "literal" in by_kind:
        out.update(_choices(by_kind, "str" in by_kind))
    else:
        out.update(_scalar(interpreter, node.target.id, by_kind))
    if "None" in by_kind and out.get("choices"):
        out["choices"] = [*out["choices"], None]
    return out


def _choices(by_kind: dict[str, Hint], open_ended: bool) -> dict[str, Any]:
    values = sorted(by_kind["literal"].values, key=str)
    kind = {"type": External(type(values[0]).__name__)}
    return kind if open_ended else {**kind, "choices": values}


def _scalar(interpreter: Interpreter, name: str, by_kind: dict[str, Hint]) -> dict[str, Any]:
    for kind in ("tuple", "list", "set"):
        if kind in by_kind:
            return _sequence(interpreter, by_kind[kind], kind)
    if "int" in by_kind:
        return {"type": External("human_readable_int" if name in _HUMAN_READABLE else "int")}
    if "float" in by_kind:
        return {"type": External("float")}
    if "dict" in by_kind:
        open_ended = "str" in by_kind or "other" in by_kind
        return {"type": External("json_or_str" if open_ended else "json")}
    return {"type": External("str")}


def _sequence(interpreter: Interpreter, hint: Hint, kind: str) -> dict[str, Any]:
    element = (
        hints(interpreter, hint.element, hint.module)
        if hint.element and hint.module
        else [Hint("str")]
    )
    nargs = hint.values[0] if kind == "tuple" and hint.values and hint.values[0] else "+"
    if element[0].kind == "literal":
        return {"nargs": nargs, **_choices({"literal": element[0]}, False)}
    return {"nargs": nargs, "type": External(element[0].kind if len(element) == 1 else "str")}


def field_default(interpreter: Interpreter, node: ast.AST | None, module: Module) -> Any:
    """A field's default, also inside ``field(...)`` or ``Field(...)``; `UNKNOWN` when it is
    computed."""
    if node is None:
        return UNKNOWN
    if not (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"field", "Field"}
    ):
        return interpreter.constant(node, module)
    keywords = {k.arg: k.value for k in node.keywords}
    plain = keywords.get("default") or (node.args[0] if node.args else None)
    if plain is not None:
        return interpreter.constant(plain, module)
    factory = keywords.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return interpreter.constant(factory.body, module)
    empty: dict[str, Any] = {"list": [], "dict": {}, "set": []}
    return copy.copy(empty.get(ast.unparse(factory) if factory else "", UNKNOWN))


def add_from_dataclass(parser: Parser) -> Any:
    """SGLang's ``add_cli_args_from_dataclass``: the fields of ``ServerArgs``, from 0.5.18 on those of
    the namespaces that it collects."""

    def intrinsic(interpreter: Interpreter, args: list[Any], _kwargs: dict[str, Any]) -> None:
        module = interpreter.sources.module("sglang.srt.server_args")
        assert module is not None
        collected = interpreter.resolve(module, "_INPUT_NAMESPACES")
        classes = collected if isinstance(collected, list) else reversed(interpreter.bases(args[1]))
        # The last of two declarations of a field counts, at the place of the first.
        fields = {
            node.target.id: (node, cls)
            for cls in classes
            for node in cls.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        options = [_sglang_field(interpreter, node, cls) for node, cls in fields.values()]
        parser.calls.extend(option for option in options if option is not None)

    return intrinsic


def _metadata(interpreter: Interpreter, node: ast.AnnAssign, cls: Class) -> dict[str, Any] | None:
    if not (
        isinstance(node.annotation, ast.Subscript) and isinstance(node.annotation.slice, ast.Tuple)
    ):
        return None
    meta = node.annotation.slice.elts[1]
    if not isinstance(meta, ast.Call):
        return {}
    if ast.unparse(meta.func) != "Arg":
        return None
    return {k.arg or "": interpreter.constant(k.value, cls.module) for k in meta.keywords}


def _sglang_field(
    interpreter: Interpreter, node: ast.AnnAssign, cls: Class
) -> tuple[list[str], dict[str, Any]] | None:
    meta = _metadata(interpreter, node, cls)
    if meta is None or meta.get("no_cli"):
        return None
    assert isinstance(node.target, ast.Name)
    name = node.target.id
    flag = meta.get("cli_name") or "--" + name.replace("_", "-")
    kwargs: dict[str, Any] = {
        "dest": name,
        "default": field_default(interpreter, node.value, cls.module),
    }
    if meta.get("action") is not None:
        kwargs.update({"action": meta["action"], **(meta.get("action_kwargs") or {})})
    else:
        kwargs.update(_sglang_type(interpreter, node, cls, meta))
    return [flag, *(meta.get("aliases") or [])], kwargs


def _sglang_type(
    interpreter: Interpreter, node: ast.AnnAssign, cls: Class, meta: dict[str, Any]
) -> dict[str, Any]:
    found = [h for h in hints(interpreter, node.annotation, cls.module) if h.kind != "None"]
    hint = found[0] if len(found) == 1 else Hint("str")
    custom = meta.get("type_parser")
    out: dict[str, Any] = {
        key: meta[key]
        for key in ("choices", "nargs", "const")
        if meta.get(key) not in (None, UNKNOWN)
    }
    if hint.kind == "literal":
        return {
            "type": External(type(hint.values[0]).__name__),
            "choices": list(hint.values),
            **out,
        }
    if hint.kind == "list" and custom is None:
        element = hints(interpreter, hint.element, cls.module) if hint.element else []
        return {
            "nargs": "+",
            "type": External(element[0].kind if len(element) == 1 else "str"),
            **out,
        }
    if hint.kind == "bool":
        return {"action": "store_true"}
    plain = hint.kind if hint.kind in {"int", "float"} else "str"
    return {"type": custom if custom is not None else External(plain), **out}
