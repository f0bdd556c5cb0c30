"""Folders of kinds: a kind is known because its file is there, and is named nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules


def load_kinds(package: str, path: Iterable[str]) -> None:
    """Import every file of a folder, so that what they define and register is known."""
    for module in iter_modules(path, f"{package}."):
        import_module(module.name)
