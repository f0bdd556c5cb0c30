"""The command line in this process, with what it says and how it ends; for tests of many commands."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from decoupled.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def failure(self) -> str:
        """The one line of an expected failure."""
        assert self.code == 1 and self.out == "", self.out
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return self.err


class Commands:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object, stdin: str | None = None) -> Done:
        if stdin is not None:
            piped = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
            self._monkeypatch.setattr(sys, "stdin", piped)
        self._monkeypatch.setattr(sys, "argv", ["decoupled", *map(str, words)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        return Done(ended.value.code or 0, out, err)


def jsonl(path: Path, rows: Iterable[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
