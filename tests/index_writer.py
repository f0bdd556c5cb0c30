"""The writer that is killed: it builds, extends or compacts an index, and notes how far it is.

Imports little, since it starts anew after each kill.
"""

from __future__ import annotations

import os
import random
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from decoupled.index import index as module
from decoupled.index import ingest, manifest
from decoupled.index.index import Index
from decoupled.index.manifest import is_index
from decoupled.index.store.lance import LanceStore
from decoupled.model.tokens import Passage

CODEC = "project:8+int8"
WORDS = [f"{a}{b}" for a in ("river", "castle", "town", "n", "w") for b in ("", "s", "ed", "er")]


def passages(first: int, last: int, edition: int = 0) -> list[Passage]:
    """Short passages, every ninth long enough for several windows."""
    made = []
    for number in range(first, last):
        draw = random.Random(1000 * edition + number)
        size = draw.randint(80, 160) if number % 9 == 0 else draw.randint(3, 30)
        text = " ".join(draw.choices(WORDS, k=size))
        title = f"part {number % 4}" if number % 4 else ""
        made.append(Passage(id=f"p{number}", text=text, title=title, meta={"n": number}))
    return made


WHOLE = passages(0, 120)
MORE = [*passages(100, 120, edition=1), *passages(120, 180)]
GONE = [p.id for number, p in enumerate(WHOLE) if number % 4]


def write(work: str, path: str, model: str, diary: str, die: str) -> None:
    """Do one piece of work, noting in the diary how many passages of the stream are acknowledged."""
    torch.set_num_threads(1)
    ingest.PART, ingest.SAMPLE, ingest.UPKEEP = 12, 48, 36
    if die:
        arm(die)
    at = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open_or_create(Path(path), model) as index:
        if work == "compact":
            index.compact(older_than=timedelta(0))
        else:
            index.add(
                WHOLE if work == "build" else MORE,
                progress=lambda done: (
                    os.write(at, b"%d\n" % (done.added + done.unchanged)) and None
                ),
            )


def open_or_create(path: Path, model: str) -> Index:
    return (
        Index.open(path, write=True) if is_index(path) else Index.create(path, model, codec=CODEC)
    )


def arm(die: str) -> None:
    """Make this process kill itself before or after it calls a function: `before:save_codec`."""
    when, _, name = die.partition(":")
    owner: Any = next((m for m in (module, manifest) if name in vars(m)), LanceStore)
    real = getattr(owner, name)

    def fatal(*args: Any, **options: Any) -> Any:
        if when == "after":
            real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, fatal)
