"""Lets SGLang import torchvision and torchaudio where they are not installed; nothing of them can
be used.

A `.pth` file imports this module when Python starts.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = ("torchvision", "torchaudio")


def _made(owner: object, name: str) -> type:
    """A class that can be imported, inherited, used as a type, and of which every attribute is such
    a class again."""
    if name.startswith("__"):
        raise AttributeError(name)
    made = _Name(name, (), {})
    setattr(owner, name, made)
    return made


class _Name(type):
    __getattr__ = _made


class _Module(ModuleType):
    __getattr__ = _made


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


sys.meta_path.append(_Finder())
