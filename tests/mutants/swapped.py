"""Imports one module of the sources with a change in it."""

from __future__ import annotations

import importlib.abc
import importlib.util
from pathlib import Path
from types import CodeType
from typing import Any

from change import changed

ROOT = Path(__file__).resolve().parents[2]


class Swapped(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from the changed tree."""

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = ROOT / path, number
        name = ".".join(self.path.relative_to(ROOT / "src").with_suffix("").parts)
        self.name = name.removesuffix(".__init__")
        self._code: CodeType | None = None

    def code(self) -> CodeType:
        """The changed module, compiled."""
        if self._code is None:
            source = self.path.read_text(encoding="utf-8")
            self._code = compile(changed(source, self.number), str(self.path), "exec")
        return self._code

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        folder = [str(self.path.parent)] if self.path.stem == "__init__" else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=folder
        )

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self.code(), module.__dict__)
