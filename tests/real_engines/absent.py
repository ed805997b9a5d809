"""Stands for what no CPU machine has: compiled extensions of a wheel, and packages of kernels that
are only imported.

Nothing of it decides anything: a name that is asked for is there, calling it does nothing. The
engines' arguments, configurations and checks are their own Python files, untouched.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

PACKAGES = {
    "flashinfer": ("flashinfer-python", "0.7.2"),
    "sgl_kernel": ("sglang-kernel", "0.4.10"),
    "torchvision": ("torchvision", "0.29.0"),
    "torchaudio": ("torchaudio", "2.14.0"),
    "deep_gemm": ("sgl-deep-gemm", "0.2.3"),
    "deep_ep": ("sgl-deep-ep", "0.1.2"),
    "flash_mla": ("sgl-flash-mla", "1.0.0"),
    "b12x": ("b12x", "0.1.0"),
    "tilelang": ("tilelang", "0.1.9"),
    "tokenspeed_mla": ("tokenspeed-mla", "2.0.3"),
}
"""Import name to distribution and version: kernels for GPUs, and what cannot be installed beside
CPU torch."""
OTHERS = ("b12x", "cuda", "cutlass", "decord", "flash_attn", "nvshmem", "quack")
"""Further import names, of which nobody asks the version."""
OF_AMD = {"aiter": ("amd-aiter", "0.1.20")}
"""What is there on AMD's GPUs alone."""


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        return _named(cls, name)

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Nothing(metaclass=_Kind):
    """A class, function, constant or decorator that does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Nothing()

    def __iter__(self) -> Any:
        return iter(())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _named(self, name)


def _named(owner: Any, name: str) -> Any:
    """One thing for each name, which differs from those of other names."""
    if name.startswith("__"):
        raise AttributeError(name)
    thing = _Kind(name, (Nothing,), {})
    setattr(owner, name, thing)
    return thing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Mapping[str, str], modules: frozenset[str]) -> None:
        self._packages, self._modules = packages, modules

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in self._packages or fullname in self._modules:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        module.__file__ = f"/nowhere/{spec.name}.py"
        module.__dict__["__version__"] = self._packages.get(spec.name.partition(".")[0], "0")
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def compiled_modules(distribution: str) -> frozenset[str]:
    """The compiled modules of a wheel that was unpacked without them, by its list of files."""
    files: Sequence[Any] = importlib.metadata.files(distribution) or ()
    found = [str(file) for file in files if str(file).endswith(".so")]
    return frozenset(name.split(".")[0].replace("/", ".") for name in found)


def stand_in(distribution: str, amd: bool) -> None:
    """Make the missing modules importable, and their versions known to ``importlib.metadata``."""
    here = PACKAGES | (OF_AMD if amd else {})
    versions = {name: version for name, (_, version) in here.items()} | dict.fromkeys(OTHERS, "0")
    sys.meta_path.insert(0, _Finder(versions, compiled_modules(distribution)))
    told, ask = dict(here.values()), importlib.metadata.version
    importlib.metadata.version = lambda name: told.get(name.replace("_", "-")) or ask(name)
