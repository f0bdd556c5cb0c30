"""The cells of a race, in a file that grows with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoupled.errors import InputError


@dataclass
class Results:
    """Cells by name, in a file that is rewritten whole whenever one is added."""

    path: Path | None
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> Results:
        """What an earlier run left there, or nothing."""
        if path is None or not path.exists():
            return cls(path, {"cells": {}})
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["cells"].items()
        except (ValueError, KeyError, AttributeError, TypeError):
            raise InputError(f"{path} holds no results of `bench`; name another file") from None
        return cls(path, data)

    def describe(self, preset: str, machine: dict[str, Any], *, device: str, threads: int) -> None:
        """What a report needs to know of the file; times of another setting stay in a file of their own."""
        self._check({"device": device, "threads": threads, "processor": machine.get("processor")})
        about = {"kind": "bench", "command": f"decoupled bench --preset {preset}", "preset": preset}
        now = {"device": device, "threads": threads, "machine": machine}
        self.data = {**about, **now, **self.data, **now}

    def _check(self, setting: dict[str, Any]) -> None:
        """Raise where the file says that its cells were raced otherwise."""
        known = {**self.data.get("ceiling", {}), **self.data.get("machine", {}), **self.data}
        for name, value in setting.items():
            if known.get(name, value) != value:
                raise InputError(
                    f"{self.path} holds times of {name}={known[name]!r}, and this race has "
                    f"{name}={value!r}; name another file"
                )

    def has(self, key: str) -> bool:
        """Was the cell raced to its end? One that was skipped or cut off is tried again."""
        cell = self.data["cells"].get(key, {})
        return "p50_ms" in cell and not cell.get("unfinished")

    def put(self, key: str, cell: dict[str, Any]) -> None:
        """Add a cell and save."""
        self.data["cells"][key] = cell
        self.save()

    def save(self) -> None:
        """Write the file in one step."""
        if self.path is None:
            return
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)


def key_of(shape: str, top: int, name: str) -> str:
    """The name of a cell."""
    return f"{shape} | {top} | {name}"
